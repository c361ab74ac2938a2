// Writes the file of --trace.
//
// Thread rule: one thread.

#ifndef PENSTOCK_CLI_TRACE_FILE_H_
#define PENSTOCK_CLI_TRACE_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "actors/engine/executor.h"
#include "actors/trace/perfetto_trace.h"
#include "planner/plan/plan.h"

namespace penstock::cli {

// Perfetto's format; Chrome's, without what `context` adds, where the name ends in ".json".
absl::Status WriteTraceFile(const std::string& path, const planner::Plan& plan,
                            absl::Span<const actors::TraceEvent> events,
                            const actors::TraceContext& context);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_TRACE_FILE_H_
