// Passes over a graph and the one driver that runs them: it gives every pass its timing, its dump
// and a verification afterwards.
//
// Thread rule: RunPasses on one thread; a Pass is a value.

#ifndef PENSTOCK_PLANNER_PASS_H_
#define PENSTOCK_PLANNER_PASS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "base/device.h"
#include "graph/graph.h"

namespace penstock::planner {

// A transformation in place. On an error the graph may be left half changed: it is thrown away.
struct Pass {
  std::string name;  // verb-object, as `penstock opt --pass` spells it
  // An error ends the driver; the graph may be changed before it.
  std::function<absl::Status(graph::Graph& graph)> run;
};

// What a pass took, in nanoseconds of PassOptions::clock.
struct PassTiming {
  std::string name;       // of the pass
  int64_t wall_ns = 0;    // of the pass itself
  int64_t verify_ns = 0;  // of the verification after it
  int num_nodes = 0;      // afterwards
};

// What the driver tells while it runs passes. It works without any of it.
struct PassOptions {
  // Passes after which on_dump receives the printed graph.
  std::vector<std::string> dump_after;
  std::function<void(std::string_view pass, std::string_view text)> on_dump;  // null: no dumps
  // Receives the graph after each pass, if it verifies.
  std::function<void(std::string_view pass, const graph::Graph& graph)> on_graph;
  std::function<void(const PassTiming&)> on_timing;  // after each pass that succeeded; may be null
  const Clock* clock = nullptr;                      // null: the machine's
};

// Runs the passes in order and stops at the first error, which names the pass. A graph that does
// not verify after a pass is an error of the pass (kInternal). REQUIRES: `graph` verifies.
absl::Status RunPasses(absl::Span<const Pass> passes, const PassOptions& options,
                       graph::Graph* graph);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PASS_H_
