#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"

#include "actors/engine/executor_actor_internal.h"
#include "actors/engine/host_messages_internal.h"
#include "base/exception_text.h"
#include "base/spin_pause.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

// About what waking a sleeping thread costs; see docs/ARCHITECTURE.md.
constexpr int64_t kSpinNs = 50'000;
// Between looks at the clock, which takes as long as a poll.
constexpr int kPollsPerLook = 16;
// Polls before sleeping if more threads poll than there are cores.
constexpr int kOversubscribedPolls = 4;
// Limit of one sleep, so that a lost wake-up costs time and not progress.
constexpr int64_t kSleepMs = 100;

}  // namespace

ExecutorActor::ExecutorActor(caf::actor_config& config, Setup setup)
    : caf::blocking_actor(config), setup_(std::move(setup)) {}

void ExecutorActor::enqueue(caf::mailbox_element_ptr element, caf::execution_unit* unit) {
  caf::blocking_actor::enqueue(std::move(element), unit);
  setup_.waker->Notify();
}

void ExecutorActor::act() {
  pthread_setname_np(pthread_self(), name());  // for `top`; threads of its pool inherit it
  if (!Load()) return;
  // What is under way ends here however Run does: afterwards the endpoint may go.
  const absl::Cleanup cancel = [this] { executor_->Cancel(); };
  Run();
}

bool ExecutorActor::Load() {
  absl::Status status;
  try {
    absl::StatusOr<std::unique_ptr<DeviceExecutor>> created = setup_.create();
    status = created.status();
    if (status.ok()) *setup_.executor = *std::move(created);
  } catch (...) {
    status = absl::InternalError(
        StrCat("device ", setup_.device, " threw while it loaded: ", ExceptionText()));
  }
  if (status.ok()) {
    executor_ = setup_.executor->get();
    executor_->set_counts_cpu_time(setup_.is_oversubscribed);
  }
  setup_.loaded->Set(setup_.index, status);
  return status.ok();
}

void ExecutorActor::Run() {
  caf::behavior commands{
      [this](const SubmitMessage& message) {
        executor_->SubmitStep(message.step, message.buffers);
      },
      [this](const DescribeMessage& message) {
        std::vector<WaitDescription> waits;
        for (std::string& line : executor_->Describe()) waits.push_back({std::move(line)});
        message.replies->Set(setup_.index, std::move(waits));
      },
      [this](const InspectMessage& message) {
        DeviceSnapshot snapshot = executor_->Snapshot();
        snapshot.waits = executor_->Waits();
        message.replies->Set(setup_.index, std::move(snapshot));
      },
      [this](const caf::exit_msg& message) {
        is_stopping_ = true;
        fail_state(message.reason);
      },
  };
  while (!is_stopping_) {
    if (Work(commands) || Spin(commands) || is_stopping_) continue;
    setup_.waker->PrepareSleep();
    const int arrivals = executor_->PrepareSleep();
    if (Work(commands) || is_stopping_) {
      setup_.waker->CancelSleep();
    } else {
      setup_.waker->Sleep(kSleepMs, arrivals);
    }
    executor_->EndSleep();
  }
}

bool ExecutorActor::Work(caf::behavior& commands) {
  bool has_moved = false;
  while (has_next_message() && !is_stopping_) {
    const caf::mailbox_element_ptr element = next_message();
    commands(element->content());
    has_moved = true;
  }
  if (is_stopping_) return false;
  has_moved |= executor_->Poll();
  if (has_moved) {
    PollCounters::Increment(&setup_.counters->moves);
  } else if (!executor_->has_pending_events()) {
    PollCounters::Increment(&setup_.counters->idle_polls);
  }
  return has_moved;
}

bool ExecutorActor::Spin(caf::behavior& commands) {
  const auto begin = std::chrono::steady_clock::now();
  for (int polls = 0; !is_stopping_; ++polls) {
    if (Work(commands)) return true;
    if (executor_->has_pending_events() || setup_.is_oversubscribed) {
      sched_yield();
    } else {
      SpinPause();
    }
    // Streams notify nobody when their work is done, so they are polled until then.
    if (executor_->has_pending_events()) continue;
    if (setup_.is_oversubscribed) {
      if (polls >= kOversubscribedPolls) return false;
    } else if (polls % kPollsPerLook == 0 &&
               (std::chrono::steady_clock::now() - begin).count() >= kSpinNs) {
      return false;
    }
  }
  return false;
}

}  // namespace penstock::actors
