// How fast plans are simulated, and what memory that takes.
//
// Thread rule: one thread.

#ifndef PENSTOCK_BENCH_SIMULATOR_BENCH_H_
#define PENSTOCK_BENCH_SIMULATOR_BENCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "planner/strategy/strategy.h"

namespace penstock::bench {

struct SimulatorCase {
  std::string preset = "gpt3-125m";
  planner::Strategy strategy = {2, 2, 2};
  int64_t microbatches = 4;  // of one sequence on each data parallel replica
  bool aggregates = false;

  // "simulator/gpt3-125m/dp=2,tp=2,pp=2/exact".
  std::string name() const;
};

// From 8 to 100,000 devices of gpt3-125m, all of them fired up to 4,096, and gpt3-175b on 4,096.
std::vector<SimulatorCase> SimulatorCases();

struct SimulatorFigures {
  uint64_t devices = 0;
  uint64_t fired_devices = 0;  // as many, or one of each class
  uint64_t fired_actors = 0;
  uint64_t firings = 0;        // in four steps
  double simulate_s = 0;       // from the folded plan
  double bytes_per_actor = 0;  // that was fired: growth of resident memory at its most
  double step_s = 0;           // that was predicted, on nodes of 8 H100

  double firings_per_s() const { return static_cast<double>(firings) / simulate_s; }
};

absl::StatusOr<SimulatorFigures> MeasureSimulator(const SimulatorCase& simulated);

// A line for each; `figures` are those of `cases`.
std::string SimulatorTable(const std::vector<SimulatorCase>& cases,
                           const std::vector<SimulatorFigures>& figures);

}  // namespace penstock::bench

#endif  // PENSTOCK_BENCH_SIMULATOR_BENCH_H_
