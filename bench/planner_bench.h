// How long planning takes, and how large plans are.
//
// Thread rule: one thread.

#ifndef PENSTOCK_BENCH_PLANNER_BENCH_H_
#define PENSTOCK_BENCH_PLANNER_BENCH_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

#include "planner/strategy/strategy.h"

namespace penstock::bench {

// Seconds that the propagation of shardings takes in a chain of products and additions with
// `num_nodes` nodes, of which the first input and two weights have shardings. The best of 3.
absl::StatusOr<double> MeasurePropagation(int64_t num_nodes);

struct PlanningCase {
  std::string preset = "gpt3-175b";
  planner::Strategy strategy = {16, 8, 8};
  int64_t batch = 1536;
  int64_t microbatches = 96;
};

struct PlanningFigures {
  double build_s = 0;    // the graph of a training step, with its gradients
  double compile_s = 0;  // to a verified plan
  uint64_t file_bytes = 0;
  uint64_t actors = 0;
  // Of the program where it is largest: the arena, over the bytes that live at once when the plan
  // is fired.
  double arena_over_live = 0;
};

absl::StatusOr<PlanningFigures> MeasurePlanning(const PlanningCase& planning);

}  // namespace penstock::bench

#endif  // PENSTOCK_BENCH_PLANNER_BENCH_H_
