// How devices spend a window of time: computing, communicating without computing, or neither.
//
// Thread rule: values.

#ifndef PENSTOCK_PLANNER_SIMULATOR_DEVICE_TIMES_H_
#define PENSTOCK_PLANNER_SIMULATOR_DEVICE_TIMES_H_

#include <vector>

namespace penstock::planner {

struct DeviceTimes {
  double compute_s = 0;
  double exposed_comm_s = 0;  // communicates and does not compute
  double idle_s = 0;          // neither
};

// When a device did something; intervals may overlap and come in any order.
class DeviceActivity {
 public:
  void AddComputation(double begin_s, double end_s) { computing_.push_back({begin_s, end_s}); }
  void AddCommunication(double begin_s, double end_s) {
    communicating_.push_back({begin_s, end_s});
  }

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

// Means over devices: seconds of exposed communication, and the share of the window that is idle.
double MeanExposedSeconds(const std::vector<DeviceTimes>& times);
double MeanIdleShare(const std::vector<DeviceTimes>& times, double window_s);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SIMULATOR_DEVICE_TIMES_H_
