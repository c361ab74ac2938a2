#include "cli/trace_file.h"

#include <sstream>

#include "cli/files.h"

#include "actors/trace/trace.h"

namespace penstock::cli {

absl::Status WriteTraceFile(const std::string& path, const planner::Plan& plan,
                            absl::Span<const actors::TraceEvent> events,
                            const actors::TraceContext& context) {
  std::ostringstream bytes;
  if (HasSuffix(path, ".json")) {
    actors::WriteTraceJson(plan, events, bytes);
  } else {
    actors::WritePerfettoTrace(plan, events, context, bytes);
  }
  return WriteTextFile(path, bytes.str());
}

}  // namespace penstock::cli
