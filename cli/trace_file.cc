#include "cli/trace_file.h"

#include <ostream>

#include "cli/files.h"

#include "actors/trace/trace.h"

namespace penstock::cli {

absl::Status WriteTraceFile(const std::string& path, const planner::Plan& plan,
                            absl::Span<const actors::TraceEvent> events,
                            const actors::TraceContext& context) {
  return WriteStreamedFile(path, [&](std::ostream& out) {
    if (HasSuffix(path, ".json")) {
      actors::WriteTraceJson(plan, events, out);
    } else {
      actors::WritePerfettoTrace(plan, events, context, out);
    }
  });
}

}  // namespace penstock::cli
