// Chakra traces in virtual time, on a machine: a plan's own, or those of other tools.
//
// A node starts when all that it depends on has ended. Computation takes its duration; nodes of one
// stream of a rank run one after another, of those that are ready the first in the file.
// Communication starts when all members have, and takes what the machine's links say
// (simulator/machine_resources.h), whatever its duration. Metadata takes no time.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_CHAKRA_SIMULATE_CHAKRA_H_
#define PENSTOCK_PLANNER_CHAKRA_SIMULATE_CHAKRA_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "planner/chakra/read_chakra.h"
#include "planner/search/machine.h"
#include "planner/simulator/device_times.h"

namespace penstock::planner {

struct ChakraSimulation {
  // Of the last step but one, if the traces have at least three; otherwise from the end of the one
  // before the last, or from the beginning, to the end.
  double step_s = 0;
  double total_s = 0;
  uint32_t num_steps = 1;
  std::vector<DeviceTimes> times;  // of the first traces, 64 at most

  double exposed_comm_s() const { return MeanExposedSeconds(times); }
  double bubble() const { return MeanIdleShare(times, step_s); }
};

// Errors: the machine has fewer devices than the job has ranks, or nodes wait for each other; the
// message names one and what it waits for.
absl::StatusOr<ChakraSimulation> SimulateChakra(const ChakraTraces& traces, const Machine& machine);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_CHAKRA_SIMULATE_CHAKRA_H_
