// Finds hosts that come to compute slower while a job runs, such as one whose clock is held down,
// or on which something else has begun to run.
//
// The steps of a job are alike, so the time for which the devices of a host are busy in a step
// grows only with what slows the host down. It is compared with what it was, in windows of some
// seconds, and not with other hosts, which may have other work:
//
//   busy time a step, of host    a        b        c
//   at best                      10 ms    20 ms    10 ms
//   now                          10 ms    25 ms    10.1 ms
//   rate                         1        0.8      0.99
//
// Host b computes 20 % slower than it did: the median of the rates is 0.99. What slows all hosts
// down alike names none. Where devices outnumber the cores that they may use, the time for which
// others have the cores is no busy time, so only slower cores are found.
//
// Thread rule: not thread-safe.

#ifndef PENSTOCK_CLI_SLOWDOWN_DETECTOR_H_
#define PENSTOCK_CLI_SLOWDOWN_DETECTOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

#include "actors/cluster/node_description.h"
#include "actors/engine/executor.h"
#include "planner/cluster/probed_hosts.h"

namespace penstock::cli {

class SlowdownDetector {
 public:
  // Steps of one window took so long together, and are so many.
  static constexpr int64_t kWindowNs = 2'000'000'000;
  static constexpr int kMinSteps = 4;
  // Windows in a row in which a host is slow, before it counts: what disturbs it for a moment does
  // not.
  static constexpr int kNumWindows = 3;
  // Times that a host is found: one that changes all the time would fill the console.
  static constexpr int kMaxFound = 3;

  // `hosts`: the number of the host of each device.
  explicit SlowdownDetector(std::vector<uint32_t> hosts);

  bool has_several_hosts() const { return hosts_.size() > 1; }
  // What the devices report of a step. Returns the hosts that have become slow with it: each once,
  // and again where it has recovered meanwhile, but kMaxFound times at most.
  std::vector<planner::SlowHost> Add(absl::Span<const actors::DeviceStepReport> devices);

 private:
  struct Host {
    int64_t busy_ns = 0;  // in this window
    // A step, of the two fastest windows. The second one counts, as one may have been lucky.
    double fastest_ns = 0;
    double second_ns = 0;
    int num_slow = 0;  // windows in a row
    int num_fast = 0;  // likewise
    int num_found = 0;
    bool is_slow = false;

    // Of a window's busy time a step: as a part of the rate that the host has had.
    double RateOf(double step_ns);
  };

  std::vector<planner::SlowHost> EndWindow();

  const std::vector<uint32_t> host_of_device_;
  std::vector<Host> hosts_;
  int64_t window_ns_ = 0;
  int num_steps_ = 0;
};

// The number of the host of each device, in the order of the first ranks of hosts; `first_ranks`
// gets these ranks.
std::vector<uint32_t> HostsOfDevices(const std::vector<actors::NodeDescription>& nodes,
                                     std::vector<uint32_t>* first_ranks);

// "note: node4 has become 18 % slower than the other hosts\n".
std::string SlowdownNote(const std::string& host, const planner::SlowHost& slow);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_SLOWDOWN_DETECTOR_H_
