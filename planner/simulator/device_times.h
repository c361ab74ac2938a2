// How devices spend a window of time: computing, communicating without computing, or neither.
//
// Thread rule: values.

#ifndef PENSTOCK_PLANNER_SIMULATOR_DEVICE_TIMES_H_
#define PENSTOCK_PLANNER_SIMULATOR_DEVICE_TIMES_H_

#include <vector>

namespace penstock::planner {

// Seconds of a window that a device spends in each way; they add up to the window.
struct DeviceTimes {
  double compute_s = 0;       // computes, whether it communicates meanwhile or not
  double exposed_comm_s = 0;  // communicates and does not compute
  double idle_s = 0;          // neither
};

// When a device did something; intervals may overlap and come in any order.
class DeviceActivity {
 public:
  // It computed from `begin_s` to `end_s`. All calls count seconds from the same time.
  void AddComputation(double begin_s, double end_s) { computing_.push_back({begin_s, end_s}); }
  // It communicated from `begin_s` to `end_s`.
  void AddCommunication(double begin_s, double end_s) {
    communicating_.push_back({begin_s, end_s});
  }

  // How it spends the window. Of what was added, the part inside the window counts.
  DeviceTimes TimesBetween(double begin_s, double end_s) const;

 private:
  struct Interval {
    double begin_s = 0;
    double end_s = 0;
  };
  // Seconds of the window that the intervals cover.
  static double Covered(std::vector<Interval> intervals, double begin_s, double end_s);

  std::vector<Interval> computing_;
  std::vector<Interval> communicating_;
};

// The mean over devices of the seconds of exposed communication; 0 without devices.
double MeanExposedSeconds(const std::vector<DeviceTimes>& times);
// The mean over devices of the share, from 0 to 1, of a window of `window_s` seconds that is idle;
// 0 without devices or time.
double MeanIdleShare(const std::vector<DeviceTimes>& times, double window_s);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SIMULATOR_DEVICE_TIMES_H_
