// The order of phases that DualPipe and DualPipeV share: DeepSeek, "DeepSeek-V3 Technical Report"
// (2024), and https://github.com/deepseek-ai/DualPipe.
//
// Micro-batches meet on every device from two sides: in DualPipe they enter at both ends of the
// pipeline, in DualPipeV they come back from the last group. In the steady state, a device
// alternates between F of one side and B of the other, so that one computes while the other
// communicates.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_POLICY_DUAL_PIPE_ORDER_H_
#define PENSTOCK_PLANNER_POLICY_DUAL_PIPE_ORDER_H_

#include <vector>

#include "planner/policy/phase.h"

namespace penstock::planner::internal {

// The order of one device. `position` counts from the device where the micro-batches of side 0
// enter to the one where they meet those of side 1, `num_positions` - 1. The chunk of a phase is
// the side that its micro-batch comes from. Each side has `num_microbatches`, numbered from 0.
// REQUIRES: 0 <= position < num_positions, num_microbatches >= 1.
//
// Example: 2 positions, 4 micro-batches a side; a prime marks side 1, brackets a pair of F and B
// that can overlap:
//   position 0: F0 F1 F2 F0' B0' W0' F1' [F3 B1' W1'] [F2' B0 W0] B2' W2' [F3' B1 W1] B3' W3' B2 W2
//               B3 W3
//   position 1: F0 F0' F1 F1' [F2 B0' W0'] [F2' B0 W0] [F3 B1' W1'] [F3' B1 W1] B2' W2' B2 W2 B3'
//               B3 W3' W3
std::vector<PhaseChoice> DualPipeOrder(int position, int num_positions, int num_microbatches);

}  // namespace penstock::planner::internal

#endif  // PENSTOCK_PLANNER_POLICY_DUAL_PIPE_ORDER_H_
