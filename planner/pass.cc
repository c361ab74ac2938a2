#include "planner/pass.h"

#include <algorithm>

#include "base/strings.h"
#include "graph/text.h"
#include "graph/verify.h"

namespace penstock::planner {

absl::Status RunPasses(absl::Span<const Pass> passes, const PassOptions& options,
                       graph::Graph* graph) {
  const SteadyClock machine_clock;
  const Clock& clock = options.clock != nullptr ? *options.clock : machine_clock;
  for (const Pass& pass : passes) {
    const int64_t begin_ns = clock.NowNs();
    if (absl::Status status = pass.run(*graph); !status.ok()) {
      return absl::Status(status.code(), StrCat("pass ", pass.name, ": ", status.message()));
    }
    const int64_t end_ns = clock.NowNs();
    const absl::Status verified = graph::VerifyGraph(*graph);
    const int64_t verified_ns = clock.NowNs();
    if (options.on_timing != nullptr) {
      options.on_timing({pass.name, end_ns - begin_ns, verified_ns - end_ns, graph->num_nodes()});
    }
    // A graph that does not verify is dumped as well: that is when it is wanted most.
    const auto& names = options.dump_after;
    if (options.on_dump != nullptr &&
        std::find(names.begin(), names.end(), pass.name) != names.end()) {
      options.on_dump(pass.name, graph::PrintGraph(*graph));
    }
    if (!verified.ok()) {
      return absl::InternalError(
          StrCat("pass ", pass.name, " left a graph that does not verify: ", verified.message()));
    }
    if (options.on_graph != nullptr) options.on_graph(pass.name, *graph);
  }
  return absl::OkStatus();
}

}  // namespace penstock::planner
