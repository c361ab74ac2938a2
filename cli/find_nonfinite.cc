#include "cli/find_nonfinite.h"

#include <memory>

#include "absl/cleanup/cleanup.h"

#include "actors/engine/error_origin.h"
#include "actors/engine/step_name.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/checked/checked_kernels.h"

namespace penstock::cli {
namespace {

using kernels::ResultCheck;

// An infinity may be a mask.
absl::Status CheckFeeds(const actors::Feeds& feeds, int64_t step) {
  for (const auto& [name, tensor] : feeds) {
    const int64_t index =
        kernels::FindNotFinite(tensor.dtype(), tensor.data(), tensor.num_elements()).nan;
    if (index < 0) continue;
    return absl::InvalidArgumentError(StrCat("input ", name, " (", ToString(tensor.type()), ") of ",
                                             actors::StepName(step), " is nan at element ", index));
  }
  return absl::OkStatus();
}

absl::Status RunChecked(const planner::Plan& plan, actors::SessionOptions options,
                        const StepFeeds& feeds, const Snapshot& snapshot, int64_t last_step,
                        const std::function<void(actors::Session*)>& on_session) {
  options.trace = false;
  options.reserves_state_copy = false;
  options.first_step = snapshot.step;
  options.states = snapshot.states;
  ASSIGN_OR_RETURN(const std::unique_ptr<actors::Session> session,
                   actors::Session::Start(plan, options));
  on_session(session.get());
  const auto forget = absl::MakeCleanup([&on_session] { on_session(nullptr); });
  // One at a time: what fails first is the cause.
  for (int64_t step = snapshot.step; step <= last_step; ++step) {
    ASSIGN_OR_RETURN(const actors::Feeds step_feeds, feeds.Get(step));
    RETURN_IF_ERROR(CheckFeeds(step_feeds, step));
    RETURN_IF_ERROR(session->Run(step_feeds).status());
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FindNonFinite(const planner::Plan& plan, actors::SessionOptions options,
                           const StepFeeds& feeds, const Snapshot& snapshot, int64_t last_step,
                           const std::function<void(actors::Session*)>& on_session) {
  // The loss of a step before the last was finite: infinities of the first are intended.
  if (last_step > snapshot.step) {
    options.check_results = ResultCheck::kAfterFirstStep;
    const absl::Status found = RunChecked(plan, options, feeds, snapshot, last_step, on_session);
    // Unless the first step itself has made the NaN, behind its loss: in a gradient or an update.
    const bool is_of_first_step = absl::IsOutOfRange(found) && last_step == snapshot.step + 1 &&
                                  actors::OriginOf(found).step == snapshot.step;
    if (!is_of_first_step) RETURN_IF_ERROR(found);
  }
  options.check_results = ResultCheck::kEveryStep;
  return RunChecked(plan, options, feeds, snapshot, last_step, on_session);
}

}  // namespace penstock::cli
