#include "planner/simulator/device_times.h"

#include <algorithm>
#include <utility>

namespace penstock::planner {

double DeviceActivity::Covered(std::vector<Interval> intervals, double begin_s, double end_s) {
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.begin_s < b.begin_s; });
  double covered = 0;
  double until = begin_s;
  for (const Interval& interval : intervals) {
    const double begin = std::max(interval.begin_s, until);
    const double end = std::min(interval.end_s, end_s);
    if (end <= begin) continue;
    covered += end - begin;
    until = end;
  }
  return covered;
}

DeviceTimes DeviceActivity::TimesBetween(double begin_s, double end_s) const {
  std::vector<Interval> all = computing_;
  all.insert(all.end(), communicating_.begin(), communicating_.end());
  DeviceTimes times;
  times.compute_s = Covered(computing_, begin_s, end_s);
  times.exposed_comm_s = Covered(std::move(all), begin_s, end_s) - times.compute_s;
  times.idle_s = end_s - begin_s - times.compute_s - times.exposed_comm_s;
  return times;
}

double MeanExposedSeconds(const std::vector<DeviceTimes>& times) {
  double sum = 0;
  for (const DeviceTimes& device : times) sum += device.exposed_comm_s;
  return times.empty() ? 0 : sum / static_cast<double>(times.size());
}

double MeanIdleShare(const std::vector<DeviceTimes>& times, double window_s) {
  double sum = 0;
  for (const DeviceTimes& device : times) sum += device.idle_s;
  return times.empty() || window_s <= 0 ? 0 : sum / static_cast<double>(times.size()) / window_s;
}

}  // namespace penstock::planner
