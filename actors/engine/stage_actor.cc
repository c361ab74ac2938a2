#include <chrono>
#include <utility>

#include "actors/engine/stage_actor_internal.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

// Between two checks for a stall. Several times the longest sleep of an executor, which polls once
// per sleep.
constexpr std::chrono::milliseconds kStallInterval{500};

}  // namespace

StageActor::StageActor(caf::actor_config& config, std::unique_ptr<StageController> controller,
                       size_t index, const StallDetector* stall_detector, HostActivity* activity,
                       StageCallbacks callbacks)
    : StageHandle::base(config),
      controller_(std::move(controller)),
      index_(index),
      stall_detector_(stall_detector),
      activity_(*activity),
      callbacks_(std::move(callbacks)) {}

StageActor::behavior_type StageActor::make_behavior() {
  return {
      [this](WakeAtom) { Decide(); },
      [this](StallAtom) { CheckStall(); },
      [this](const SubmitMessage& message) {
        controller_->SetSubmittedSteps(message.step + 1);
        Decide();
      },
      [this](const DescribeMessage& message) {
        message.replies->Set(activity_.executors.size() + index_,
                             {{controller_->Describe(), controller_->HasNoChoice()}});
      },
      [this](const DeclinedMessage& message) {
        Decide();
        message.replies->Set(index_, controller_->HasDeclined() ? controller_->Describe() : "");
      },
  };
}

void StageActor::Decide() {
  do {
    while (Poll()) {
    }
    controller_->ArmWait();
  } while (Poll());
  if (!controller_->status().ok()) {
    Fail(controller_->status());
  } else if (!is_watching_ && controller_->HasDeclined()) {
    is_watching_ = true;
    Watch();
  }
}

bool StageActor::Poll() {
  if (!controller_->Poll()) return false;
  activity_.num_decisions.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void StageActor::Fail(const absl::Status& status) {
  if (has_failed_) return;
  has_failed_ = true;
  callbacks_.on_failure(status);
}

void StageActor::Watch() {
  last_report_ = activity_.Report("");
  delayed_send(this, kStallInterval, StallAtom::value);
}

void StageActor::CheckStall() {
  Decide();  // the policy decides once more, on current information
  if (has_failed_ || !controller_->HasDeclined()) {
    is_watching_ = false;
    return;
  }
  const ActivityReport now = activity_.Report(controller_->Describe());
  if (stall_detector_ == nullptr) {
    if (IsStill(last_report_, now)) callbacks_.on_declined();
  } else if (stall_detector_->FindStall({last_report_}, {now}).has_value()) {
    Fail(absl::FailedPreconditionError(StrCat(kPolicyStalled, now.declined)));
    return;
  }
  Watch();
}

}  // namespace penstock::actors
