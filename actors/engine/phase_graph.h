// Which phases of an asynchronous device are captured into graphs (base/stream_graph.h), and what
// is kept of those.
//
// An instance of a phase gives its stream the same work as an earlier one if both use the same
// slots of registers and of host staging, in the same micro-batch. These repeat, so instances n and
// n + period have the same work: a graph each of 0, ..., period - 1.
//
// Example: two micro-batches; the phase reads a register of three slots a micro-batch
//   instance     0  1  2  3  4  5 | 6  7 ...
//   micro-batch  0  1  0  1  0  1 | 0  1
//   slot         0  1  2  0  1  2 | 0  1        period 6
//
// Thread rule: pure functions and values.

#ifndef PENSTOCK_ACTORS_ENGINE_PHASE_GRAPH_H_
#define PENSTOCK_ACTORS_ENGINE_PHASE_GRAPH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"

#include "actors/engine/link.h"
#include "base/stream_graph.h"

namespace penstock::actors {

// Graphs of a phase. Each takes memory of the device in proportion to the acts of the phase.
inline constexpr int64_t kMaxGraphsOfPhase = 64;

// After how many instances the work of a phase repeats; more than kMaxGraphsOfPhase: any such
// number.
int64_t PeriodOf(const Phase& phase, absl::Span<const SlotGroup> groups, int64_t num_microbatches);

// Why the phase cannot be captured; empty: it can. `actors`: those of the phase.
std::string WhyNotCaptured(const Phase& phase, absl::Span<const Actor> actors, int64_t period);

// What is kept of a phase.
struct PhaseGraph {
  // The graph of those instances that give the stream the same work.
  struct Variant {
    bool has_run = false;  // without being captured, so that nothing is loaded or set up any more
    std::unique_ptr<StreamGraph> graph;  // null: not captured so far
    int64_t step = 0;                    // that it was captured in
    uint64_t first_launch = 0;           // likewise: KernelArgs::launch of actor 0
  };

  CapturingStream* stream = nullptr;  // that the phase runs on; null: it is not captured
  bool is_captured = false;           // one of the variants is
  std::vector<Variant> variants;      // by instance, modulo their number
  std::vector<uint32_t> feeds;        // actors whose host part comes before a launch
  std::vector<uint32_t> senders;      // actors with tokens or credits for other phases
};

// Phases of a device, in words: "3 of 5 phases; others: communication (2)".
struct GraphCounts {
  uint32_t num_phases = 0;           // of the device
  uint32_t num_captured = 0;         // that are launched as graphs
  std::vector<std::string> reasons;  // of the others, one each
};
// The text above.
std::string DescribeGraphs(const GraphCounts& counts);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_PHASE_GRAPH_H_
