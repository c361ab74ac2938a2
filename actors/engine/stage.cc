#include "actors/engine/stage.h"

#include <algorithm>
#include <utility>

#include "actors/engine/step_name.h"
#include "base/exception_text.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/stage_schedule.h"

namespace penstock::actors {

using planner::kNumPolicyKinds;
using planner::PhaseChoice;
using planner::PhaseKind;

std::string ToString(const PhaseDecision& decision) {
  return planner::ToString({static_cast<PhaseKind>(decision.type % kNumPolicyKinds),
                            static_cast<int>(decision.microbatch),
                            static_cast<int>(decision.type / kNumPolicyKinds)});
}

absl::StatusOr<std::unique_ptr<StageController>> StageController::Create(
    const planner::Plan& plan, uint32_t stage, const planner::PolicyRegistry& policies,
    std::vector<StageLink*> links, int64_t first_step) {
  const planner::StageContext context = planner::StageContextOf(plan, stage);
  std::unique_ptr<StageController> controller(
      new StageController(stage, plan.policy, context, std::move(links), first_step));
  ASSIGN_OR_RETURN(planner::StageSchedule schedule, planner::ScheduleOf(plan, stage, policies));
  controller->scheduler_ = std::move(schedule.scheduler);
  // Without a choice, nothing depends on the view.
  controller->is_planned_ = !context.has_choices() || !schedule.order.empty();
  for (StageLink* link : controller->links_) link->counts_ready = !controller->is_planned_;
  return controller;
}

StageController::StageController(uint32_t stage, std::string policy_name,
                                 planner::StageContext context, std::vector<StageLink*> links,
                                 int64_t first_step)
    : stage_(stage),
      policy_name_(std::move(policy_name)),
      context_(std::move(context)),
      links_(std::move(links)),
      first_step_(first_step) {
  view_.chunks.resize(context_.chunks.size());
  for (StageLink* link : links_) Prepare(link);
}

void StageController::Prepare(StageLink* link) const {
  link->counts = std::vector<PhaseCounts>(context_.chunks.size() * kNumPolicyKinds);
}

void StageController::AddLink(StageLink* link) {
  Prepare(link);
  link->counts_ready = true;
  links_.push_back(link);
}

absl::Status StageController::ThrewError(std::string_view what) const {
  return absl::InternalError(StrCat("policy '", policy_name_, "' threw at stage ", stage_, ", ",
                                    StepName(step_, first_step_), ": ", what));
}

bool StageController::IsStepIssued() const {
  for (int chunk = 0; chunk < context_.num_chunks(); ++chunk) {
    for (int kind = 0; kind < kNumPolicyKinds; ++kind) {
      if (context_.chunks[chunk][kind] &&
          view_.chunks[chunk].issued[kind] < context_.num_microbatches) {
        return false;
      }
    }
  }
  return true;
}

const planner::StageView& StageController::View() {
  const int64_t before = step_ * context_.num_microbatches;
  const int64_t limit = context_.num_microbatches;
  for (int chunk = 0; chunk < context_.num_chunks(); ++chunk) {
    planner::ChunkView& view = view_.chunks[chunk];
    for (int kind = 0; kind < kNumPolicyKinds; ++kind) {
      if (!context_.chunks[chunk][kind]) continue;
      const uint32_t type = planner::PhaseType(static_cast<PhaseKind>(kind), chunk);
      int64_t completed = INT64_MAX;
      int64_t available = INT64_MAX;
      int64_t total = 0;
      int64_t duration_ns = 0;
      for (const StageLink* link : links_) {
        const PhaseCounts& counts = link->counts[type];
        const int64_t device_completed = counts.completed.load(std::memory_order_acquire);
        completed = std::min(completed, device_completed);
        available = std::min(available, counts.available.load(std::memory_order_acquire));
        total += device_completed;
        duration_ns += counts.duration_ns.load(std::memory_order_relaxed);
      }
      view.completed[kind] = static_cast<int>(std::clamp<int64_t>(completed - before, 0, limit));
      const int64_t available_in_step = std::clamp<int64_t>(available - before, 0, limit);
      view.ready[kind] = std::max(static_cast<int>(available_in_step) - view.issued[kind], 0);
      view.mean_ns[kind] = total > 0 ? duration_ns / total : 0;
    }
  }
  return view_;
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
      for (planner::ChunkView& view : view_.chunks) view.issued = {};
      scheduler_->Reset();
    }
    if (!is_planned_ && step_ >= submitted_) break;
    std::optional<PhaseChoice> choice;
    try {
      choice = scheduler_->Next(View());
    } catch (...) {
      status_ = ThrewError(ExceptionText());
      break;
    }
    if (!choice.has_value()) break;
    if (!IsNext(*choice)) {
      status_ = absl::InternalError(
          StrCat("policy '", policy_name_, "' chose ", planner::ToString(*choice), " on stage ",
                 stage_, " in ", StepName(step_, first_step_),
                 ", which is not the next of a chunk and kind that it has (of ",
                 context_.num_microbatches, " micro-batches", DescribeCounts(), ")"));
      break;
    }
    ++view_.chunks[choice->chunk].issued[static_cast<int>(choice->kind)];
    for (StageLink* link : links_) {
      link->decisions.TryPush({step_, static_cast<uint32_t>(choice->microbatch),
                               planner::PhaseType(choice->kind, choice->chunk)});
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

bool StageController::IsNext(const PhaseChoice& choice) const {
  return context_.has(choice.kind, choice.chunk) && choice.microbatch < context_.num_microbatches &&
         choice.microbatch == view_.chunks[choice.chunk].issued[static_cast<int>(choice.kind)];
}

bool StageController::HasDeclined() {
  if (is_planned_ || !status_.ok() || step_ >= submitted_ || IsStepIssued()) return false;
  bool could_run = false;
  for (const planner::ChunkView& view : View().chunks) {
    for (int kind = 0; kind < kNumPolicyKinds; ++kind) {
      if (view.completed[kind] < view.issued[kind]) return false;
      could_run |= view.ready[kind] > 0;
    }
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

// ", F issued 2 completed 1, B issued 0 completed 0", with the chunk where there are several.
std::string StageController::DescribeCounts() {
  std::string text;
  const planner::StageView& view = View();
  for (int chunk = 0; chunk < context_.num_chunks(); ++chunk) {
    for (int kind = 0; kind < kNumPolicyKinds; ++kind) {
      if (!context_.chunks[chunk][kind]) continue;
      const planner::ChunkView& counts = view.chunks[chunk];
      StrAppend(&text, ", ", planner::Name(static_cast<PhaseKind>(kind)),
                context_.num_chunks() > 1 ? StrCat(" of chunk ", chunk) : "", " issued ",
                counts.issued[kind], " completed ", counts.completed[kind]);
      if (!is_planned_) StrAppend(&text, " ready ", counts.ready[kind]);
    }
  }
  return text;
}

std::string StageController::Describe() {
  std::string text = StrCat("stage ", stage_, ", policy '", policy_name_,
                            "': ", StepName(step_, first_step_), DescribeCounts());
  if (HasNoChoice()) StrAppend(&text, "; the policy chooses nothing more");
  if (!status_.ok()) StrAppend(&text, "; ", ToStd(status_.message()));
  return text;
}

}  // namespace penstock::actors
