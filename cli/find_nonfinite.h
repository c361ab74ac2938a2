// Where a loss that is not finite comes from: the steps before it are run again from a snapshot of
// the states, which gives the same bits, with every kernel's results checked.
//
// Thread rule: blocks its caller.

#ifndef PENSTOCK_CLI_FIND_NONFINITE_H_
#define PENSTOCK_CLI_FIND_NONFINITE_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "cli/feeds.h"
#include "cli/trainer.h"

#include "actors/session/session.h"
#include "planner/plan/plan.h"

namespace penstock::cli {

// Runs the steps from the snapshot's to `last_step`. kOutOfRange names the actor, device and step
// whose result was the first with a NaN or infinity that its operands had not (checked_kernels.h);
// kInvalidArgument the input that held a NaN; OK where there was none. `options` are those of the
// run. `on_session` is told of the session, so that it can be stopped, and null when it ends.
absl::Status FindNonFinite(const planner::Plan& plan, actors::SessionOptions options,
                           const StepFeeds& feeds, const Snapshot& snapshot, int64_t last_step,
                           const std::function<void(actors::Session*)>& on_session);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_FIND_NONFINITE_H_
