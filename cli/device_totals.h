// What the devices of a job have done since it began, over all of its sessions: one trains, others
// validate, sample or look for what was not finite. Each counts from 0.
//
// Thread rule: one thread at a time.

#ifndef PENSTOCK_CLI_DEVICE_TOTALS_H_
#define PENSTOCK_CLI_DEVICE_TOTALS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "actors/engine/device_snapshot.h"
#include "planner/plan/plan.h"

namespace penstock::cli {

class DeviceTotals {
 public:
  // None of the numbers ever falls. Together, the times are those from the start of the first
  // session to the last look at which the device answered.
  struct Device {
    uint32_t device = 0;
    uint32_t stage = 0;  // in the first session, which trains
    int64_t busy_ns = 0;
    // Idle, with a collective under way, with other communication under way, and with none.
    int64_t collective_ns = 0;
    int64_t transfer_ns = 0;
    int64_t nothing_ns = 0;
    int64_t microbatches = 0;
  };

  // What the devices of a session were seen to have done at `now_ns`, as SteadyClock tells it: the
  // clock of the system may be set, and times would no longer add up. A session is added as often
  // as it is looked at; while several are there, all of them before a Read.
  void Add(uint64_t session, const planner::Plan& plan,
           const std::vector<actors::DeviceSnapshot>& devices, int64_t now_ns);

  // Says that the session will not be added again.
  void End(uint64_t session) { last_.erase(session); }

  // Of the devices that have been seen, by index. `is_idle`: no session is there at `now_ns`, as
  // while the model is loaded for a sample, and the time since the last look was idle time.
  std::vector<Device> Read(int64_t now_ns, bool is_idle);

 private:
  // The part that sessions count.
  struct Counts {
    int64_t busy_ns = 0;
    int64_t collective_ns = 0;
    int64_t transfer_ns = 0;
    int64_t microbatches = 0;
  };
  struct Total {
    Device device;
    int64_t begin_ns = 0;
    int64_t seen_ns = 0;
  };

  std::map<uint64_t, std::vector<Counts>> last_;  // by session and device: the largest so far
  std::map<uint32_t, Total> totals_;              // by device
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_DEVICE_TOTALS_H_
