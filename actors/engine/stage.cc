#include "actors/engine/stage.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "actors/engine/step_name.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/stage_schedule.h"

namespace penstock::actors {

using planner::kNumPolicyKinds;
using planner::PhaseChoice;
using planner::PhaseKind;

absl::StatusOr<std::unique_ptr<StageController>> StageController::Create(
    const planner::Plan& plan, uint32_t stage, const planner::PolicyRegistry& policies,
    std::vector<StageLink*> links) {
  const planner::StageContext context = planner::StageContextOf(plan, stage);
  std::unique_ptr<StageController> controller(
      new StageController(stage, plan.policy, context, std::move(links)));
  ASSIGN_OR_RETURN(planner::StageSchedule schedule, planner::ScheduleOf(plan, stage, policies));
  controller->scheduler_ = std::move(schedule.scheduler);
  // Where there is nothing to choose, nothing depends on the view.
  controller->is_planned_ = !context.has_choices() || !schedule.order.empty();
  for (StageLink* link : controller->links_) link->counts_ready = !controller->is_planned_;
  return controller;
}

StageController::StageController(uint32_t stage, std::string policy_name,
                                 planner::StageContext context, std::vector<StageLink*> links)
    : stage_(stage),
      policy_name_(std::move(policy_name)),
      context_(context),
      links_(std::move(links)) {}

absl::Status StageController::ThrewError(std::string_view what) const {
  return absl::InternalError(StrCat("policy '", policy_name_, "' threw at stage ", stage_, ", ",
                                    StepName(step_), ": ", what));
}

bool StageController::IsStepIssued() const {
  for (int kind = 0; kind < kNumPolicyKinds; ++kind) {
    if (context_.has_kind[kind] && issued_[kind] < context_.num_microbatches) return false;
  }
  return true;
}

planner::StageView StageController::View() const {
  planner::StageView view;
  view.issued = issued_;
  const int64_t before = step_ * context_.num_microbatches;
  for (int kind = 0; kind < kNumPolicyKinds; ++kind) {
    if (!context_.has_kind[kind]) continue;
    int64_t completed = INT64_MAX;
    int64_t available = INT64_MAX;
    int64_t total = 0;
    int64_t duration_ns = 0;
    for (const StageLink* link : links_) {
      const int64_t device_completed = link->counts.completed[kind].load(std::memory_order_acquire);
      completed = std::min(completed, device_completed);
      available = std::min(available, link->counts.available[kind].load(std::memory_order_acquire));
      total += device_completed;
      duration_ns += link->counts.duration_ns[kind].load(std::memory_order_relaxed);
    }
    const int64_t limit = context_.num_microbatches;
    view.completed[kind] = static_cast<int>(std::clamp<int64_t>(completed - before, 0, limit));
    const int64_t available_in_step = std::clamp<int64_t>(available - before, 0, limit);
    view.ready[kind] = std::max(static_cast<int>(available_in_step) - issued_[kind], 0);
    view.mean_ns[kind] = total > 0 ? duration_ns / total : 0;
  }
  return view;
}

bool StageController::Poll() {
  if (!context_.has_choices() || !status_.ok()) return false;
  size_t room = StageLink::kWindow;
  for (const StageLink* link : links_) {
    room = std::min(room, link->decisions.capacity() - link->decisions.size());
  }
  bool has_decided = false;
  for (; room > 0; --room) {
    if (IsStepIssued()) {
      ++step_;
      issued_ = {};
      scheduler_->Reset();
    }
    if (!is_planned_ && step_ >= submitted_) break;
    std::optional<PhaseChoice> choice;
    try {
      choice = scheduler_->Next(View());
    } catch (const std::exception& error) {
      status_ = ThrewError(error.what());
      break;
    } catch (...) {
      status_ = ThrewError("something that is no std::exception");
      break;
    }
    if (!choice.has_value()) break;
    const int kind = static_cast<int>(choice->kind);
    if (kind >= kNumPolicyKinds || !context_.has_kind[kind] ||
        choice->microbatch != issued_[kind] || choice->microbatch >= context_.num_microbatches) {
      status_ = absl::InternalError(
          StrCat("policy '", policy_name_, "' chose ", planner::Name(choice->kind),
                 choice->microbatch, " on stage ", stage_, " in ", StepName(step_),
                 ", which is not the next of a kind it has (issued ", "F ", issued_[0], ", B ",
                 issued_[1], ", W ", issued_[2], " of ", context_.num_microbatches, ")"));
      break;
    }
    ++issued_[kind];
    for (StageLink* link : links_) {
      link->decisions.TryPush({step_, static_cast<uint32_t>(choice->microbatch), choice->kind});
    }
    has_decided = true;
  }
  if (has_decided) {
    for (StageLink* link : links_) {
      if (link->wake_executor) link->wake_executor();
    }
  }
  return has_decided;
}

bool StageController::HasDeclined() const {
  if (is_planned_ || !status_.ok() || step_ >= submitted_ || IsStepIssued()) return false;
  const planner::StageView view = View();
  bool could_run = false;
  for (int kind = 0; kind < kNumPolicyKinds; ++kind) {
    if (!context_.has_kind[kind]) continue;
    if (view.completed[kind] < view.issued[kind]) return false;
    could_run |= view.ready[kind] > 0;
  }
  return could_run;
}

void StageController::ArmWait() {
  // A planned order needs asking again only as the window runs low.
  const size_t wake_size = is_planned_ ? StageLink::kWindow / 2 : StageLink::kWindow;
  for (StageLink* link : links_) {
    link->wake_size.store(wake_size, std::memory_order_relaxed);
    link->is_waiting.exchange(true, std::memory_order_acq_rel);
  }
}

std::string StageController::Describe() const {
  std::string text = StrCat("stage ", stage_, ", policy '", policy_name_, "': ", StepName(step_));
  const planner::StageView view = View();
  for (int kind = 0; kind < kNumPolicyKinds; ++kind) {
    if (!context_.has_kind[kind]) continue;
    StrAppend(&text, ", ", planner::Name(static_cast<PhaseKind>(kind)), " issued ",
              view.issued[kind], " completed ", view.completed[kind]);
    if (!is_planned_) StrAppend(&text, " ready ", view.ready[kind]);
  }
  if (HasNoChoice()) StrAppend(&text, "; the policy chooses nothing more");
  if (!status_.ok()) StrAppend(&text, "; ", ToStd(status_.message()));
  return text;
}

}  // namespace penstock::actors
