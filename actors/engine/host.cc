#include "actors/engine/host.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "caf/all.hpp"

#include "actors/engine/communication_actor_internal.h"
#include "actors/engine/happens_before.h"
#include "actors/engine/supervisor_internal.h"
#include "base/machine.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

// About what waking a sleeping thread costs; see docs/ARCHITECTURE.md.
constexpr int64_t kSpinNs = 50'000;
// Polls before sleeping where pollers outnumber the cores.
constexpr int kCrowdedPolls = 4;
// A sleep ends after this even if nobody calls, so that a lost wake-up costs time and not progress.
constexpr int64_t kSleepMs = 100;
// Between two checks for a standstill; several times kSleepMs.
constexpr std::chrono::milliseconds kStallInterval{500};

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

std::chrono::nanoseconds ToChrono(absl::Duration duration) {
  constexpr absl::Duration kLongest = absl::Hours(24 * 365);
  return absl::ToChronoNanoseconds(std::min(duration, kLongest));
}

// Answers of a number of actors, gathered for one thread that waits for them.
template <typename Answer>
class Answers {
 public:
  explicit Answers(size_t count) : answers_(count), missing_(count) {}

  void Set(size_t index, Answer answer) {
    const std::lock_guard lock(mutex_);
    if (answers_[index].has_value()) return;
    answers_[index] = std::move(answer);
    if (--missing_ == 0) all_here_.notify_all();
  }

  // Those that came in time.
  std::vector<std::optional<Answer>> Wait(absl::Duration timeout) {
    std::unique_lock lock(mutex_);
    all_here_.wait_for(lock, ToChrono(timeout), [this] { return missing_ == 0; });
    return answers_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::vector<std::optional<Answer>> answers_;
  size_t missing_;
};

using Waits = std::vector<WaitDescription>;

// Control messages: small handles, never sent out of the process.
struct SubmitMessage {
  int64_t step = 0;
  std::shared_ptr<StepBuffers> buffers;
};

struct DescribeMessage {
  std::shared_ptr<Answers<Waits>> answers;
};

// Asks for the stage that declines what could run; "" if it does not.
struct DeclinedMessage {
  std::shared_ptr<Answers<std::string>> answers;
};

using WakeAtom = caf::atom_constant<caf::atom("wake")>;
using StallAtom = caf::atom_constant<caf::atom("stall")>;

}  // namespace
}  // namespace penstock::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::SubmitMessage)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::DescribeMessage)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::DeclinedMessage)

namespace penstock::actors {
namespace {

// Counts of an executor's polling rounds; see ActivityReport.
struct Activity {
  std::atomic<int64_t> moves{0};
  std::atomic<int64_t> idle_polls{0};
};

// What the actors of a host have done.
struct HostActivity {
  std::vector<std::unique_ptr<Activity>> rounds;           // of each executor
  std::vector<std::unique_ptr<DeviceExecutor>> executors;  // once they are loaded
  std::atomic<int64_t> num_decisions{0};

  // REQUIRES: the executors are loaded.
  ActivityReport Report(std::string declined) const {
    ActivityReport report;
    report.num_decisions = num_decisions.load(std::memory_order_relaxed);
    for (const auto& executor : rounds) {
      report.moves.push_back(executor->moves.load(std::memory_order_acquire));
      report.idle_polls.push_back(executor->idle_polls.load(std::memory_order_acquire));
    }
    for (const auto& executor : executors) executor->AppendCommunications(&report.communications);
    report.declined = std::move(declined);
    return report;
  }
};

// Hosts one device executor on a thread of its own.
class ExecutorActor : public caf::blocking_actor {
 public:
  struct Setup {
    uint32_t index = 0;
    ExecutorFactory create;
    Waker* waker = nullptr;
    std::shared_ptr<HappensBefore> happens_before;
    bool is_crowded = false;
    Activity* activity = nullptr;  // outlives the actor
    std::shared_ptr<Answers<absl::Status>> loaded;
    std::unique_ptr<DeviceExecutor>* executor = nullptr;  // where it is kept
  };

  ExecutorActor(caf::actor_config& config, Setup setup)
      : caf::blocking_actor(config), setup_(std::move(setup)) {}
  ~ExecutorActor() override { setup_.happens_before->Sync(); }

  const char* name() const override { return "executor"; }

  // Any thread.
  void enqueue(caf::mailbox_element_ptr element, caf::execution_unit* unit) override {
    caf::blocking_actor::enqueue(std::move(element), unit);
    setup_.waker->Notify();
    setup_.happens_before->Sync();
  }

  void act() override {
    setup_.happens_before->Sync();
    if (Load()) Run();
    setup_.happens_before->Sync();
  }

 private:
  void Run() {
    caf::behavior commands{
        [this](const SubmitMessage& message) {
          executor_->SubmitStep(message.step, message.buffers);
        },
        [this](const DescribeMessage& message) {
          Waits waits;
          for (std::string& line : executor_->Describe()) waits.push_back({std::move(line)});
          message.answers->Set(setup_.index, std::move(waits));
        },
        [this](const caf::exit_msg& message) {
          is_stopping_ = true;
          fail_state(message.reason);
        },
    };
    while (!is_stopping_) {
      if (Work(commands) || Spin(commands) || is_stopping_) continue;
      setup_.waker->PrepareSleep();
      executor_->PrepareSleep();
      if (Work(commands) || is_stopping_) {
        setup_.waker->CancelSleep();
      } else {
        setup_.waker->Sleep(kSleepMs);
      }
    }
    executor_->Cancel();
  }

  bool Load() {
    absl::StatusOr<std::unique_ptr<DeviceExecutor>> created = setup_.create();
    const absl::Status status = created.status();
    if (status.ok()) {
      *setup_.executor = *std::move(created);
      executor_ = setup_.executor->get();
      executor_->set_counts_cpu_time(setup_.is_crowded);
    }
    setup_.loaded->Set(setup_.index, status);
    return status.ok();
  }

  bool Work(caf::behavior& commands) {
    bool has_moved = false;
    while (has_next_message() && !is_stopping_) {
      const caf::mailbox_element_ptr element = next_message();
      setup_.happens_before->Sync();
      commands(element->content());
      has_moved = true;
    }
    if (is_stopping_) return false;
    has_moved |= executor_->Poll();
    if (has_moved) {
      Count(&setup_.activity->moves);
    } else if (!executor_->has_pending_events()) {
      Count(&setup_.activity->idle_polls);
    }
    return has_moved;
  }

  // The only writer: no locked instruction.
  static void Count(std::atomic<int64_t>* counter) {
    counter->store(counter->load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  // Polls on for a while. Streams call nobody when they are done, so they are polled till then.
  bool Spin(caf::behavior& commands) {
    const auto begin = std::chrono::steady_clock::now();
    for (int polls = 0; !is_stopping_; ++polls) {
      if (Work(commands)) return true;
      if (executor_->has_pending_events() || setup_.is_crowded) {
        sched_yield();
      } else {
        Pause();
      }
      if (executor_->has_pending_events()) continue;
      if (setup_.is_crowded ? polls >= kCrowdedPolls
                            : (std::chrono::steady_clock::now() - begin).count() >= kSpinNs) {
        return false;
      }
    }
    return false;
  }

  Setup setup_;
  DeviceExecutor* executor_ = nullptr;
  bool is_stopping_ = false;
};

// Where a stage actor reports what concerns the session.
struct StageReports {
  std::function<void(const absl::Status&)> on_failure;
  std::function<void()> on_declined;
};

// Hosts one stage controller. Wakes with every submitted step and when an executor asks.
//
// A dynamic policy may decline every phase that is ready. The actor then checks now and then
// whether the plan has stalled (stall_detector.h), if all its devices are here. Otherwise it checks
// whether the executors of this process stand still, and reports that a stage has declined.
class StageActor : public caf::event_based_actor {
 public:
  StageActor(caf::actor_config& config, std::unique_ptr<StageController> controller, size_t index,
             const StallDetector* stall_detector, HostActivity* activity, StageReports reports,
             std::shared_ptr<HappensBefore> happens_before)
      : caf::event_based_actor(config),
        controller_(std::move(controller)),
        index_(index),
        stall_detector_(stall_detector),
        activity_(*activity),
        reports_(std::move(reports)),
        happens_before_(std::move(happens_before)) {}
  ~StageActor() override { happens_before_->Sync(); }

  const char* name() const override { return "stage"; }

  caf::behavior make_behavior() override {
    return {
        [this](WakeAtom) { Decide(); },
        [this](StallAtom) { CheckStall(); },
        [this](const SubmitMessage& message) {
          happens_before_->Sync();
          controller_->SetSubmittedSteps(message.step + 1);
          Decide();
        },
        [this](const DescribeMessage& message) {
          happens_before_->Sync();
          message.answers->Set(activity_.executors.size() + index_,
                               {{controller_->Describe(), controller_->HasNoChoice()}});
        },
        [this](const DeclinedMessage& message) {
          Decide();
          message.answers->Set(index_, controller_->HasDeclined() ? controller_->Describe() : "");
        },
    };
  }

 private:
  void Decide() {
    happens_before_->Sync();
    do {
      while (Poll()) {
      }
      controller_->ArmWait();
    } while (Poll());
    happens_before_->Sync();
    if (!controller_->status().ok()) {
      Fail(controller_->status());
    } else if (!is_watching_ && controller_->HasDeclined()) {
      is_watching_ = true;
      Watch();
    }
  }

  bool Poll() {
    if (!controller_->Poll()) return false;
    activity_.num_decisions.fetch_add(1, std::memory_order_relaxed);
    return true;
  }

  void Fail(const absl::Status& status) {
    if (has_failed_) return;
    has_failed_ = true;
    reports_.on_failure(status);
  }

  void Watch() {
    seen_ = activity_.Report("");
    delayed_send(this, kStallInterval, StallAtom::value);
  }

  void CheckStall() {
    Decide();  // asked once more, by what is known now
    if (has_failed_ || !controller_->HasDeclined()) {
      is_watching_ = false;
      return;
    }
    const ActivityReport now = activity_.Report(controller_->Describe());
    if (stall_detector_ == nullptr) {
      if (IsStill(seen_, now)) reports_.on_declined();
    } else if (stall_detector_->FindStall({seen_}, {now}).has_value()) {
      Fail(absl::FailedPreconditionError(StrCat(kPolicyStalled, now.declined)));
      return;
    }
    Watch();
  }

  const std::unique_ptr<StageController> controller_;
  const size_t index_;                         // among the stages
  const StallDetector* const stall_detector_;  // null: not of this process alone
  HostActivity& activity_;
  const StageReports reports_;
  const std::shared_ptr<HappensBefore> happens_before_;
  ActivityReport seen_;  // at the last look
  bool is_watching_ = false;
  bool has_failed_ = false;
};

caf::actor_system_config& Configure(caf::actor_system_config& config) {
  // One worker that sleeps on one queue: it carries control, not data.
  config.set("scheduler.policy", caf::atom("sharing"));
  config.set("scheduler.max-threads", size_t{1});
  return config;
}

}  // namespace

class Host::Impl {
 public:
  Impl() : system_(Configure(config_)) {}

  ~Impl() { Stop(); }

  absl::Status Start(HostParts parts, absl::Duration timeout) {
    const size_t num_devices = parts.executors.size();
    links_ = parts.links;
    first_device_ = parts.first_device;
    activity_.executors.resize(num_devices);
    const StageReports reports = {parts.on_failure, parts.on_declined};
    supervisor_ = system_.spawn<Supervisor>(std::move(parts.on_failure), happens_before_);
    for (size_t i = 0; i < num_devices; ++i) {
      activity_.rounds.push_back(std::make_unique<Activity>());
    }
    for (size_t stage = 0; stage < parts.stages.size(); ++stage) {
      const caf::actor actor =
          system_.spawn<StageActor>(std::move(parts.stages[stage]), stage, parts.stall_detector,
                                    &activity_, reports, happens_before_);
      stage_actors_.push_back(actor);
      for (const uint32_t device : parts.stage_devices[stage]) {
        Waker* waker = parts.wakers[device];
        links_[device]->wake_controller = [actor] { caf::anon_send(actor, WakeAtom::value); };
        links_[device]->wake_executor = [waker] { waker->Notify(); };
      }
    }
    const size_t pollers = num_devices * static_cast<size_t>(std::max(parts.threads_per_device, 1));
    const bool is_crowded = pollers > static_cast<size_t>(UsableCores());
    const auto loaded = std::make_shared<Answers<absl::Status>>(num_devices);
    for (uint32_t i = 0; i < num_devices; ++i) {
      executor_actors_.push_back(system_.spawn<ExecutorActor, caf::detached>(ExecutorActor::Setup{
          i, std::move(parts.executors[i]), parts.wakers[i], happens_before_, is_crowded,
          activity_.rounds[i].get(), loaded, &activity_.executors[i]}));
    }
    happens_before_->Sync();
    for (size_t i = 0; i < num_devices; ++i) {
      Supervise(executor_actors_[i], StrCat("executor of device ", first_device_ + i),
                Child::kDeviceExecutor);
    }
    for (size_t i = 0; i < stage_actors_.size(); ++i) {
      Supervise(stage_actors_[i], StrCat("controller of stage ", i), Child::kStageController);
    }
    const std::vector<std::optional<absl::Status>> statuses = loaded->Wait(timeout);
    for (size_t i = 0; i < num_devices; ++i) {
      if (!statuses[i].has_value()) {
        return absl::DeadlineExceededError(
            StrCat("device ", first_device_ + i, " did not load in time"));
      }
      if (!statuses[i]->ok()) return *statuses[i];
    }
    // Loading is over: what it made is shared from here on.
    communication_actors_.push_back(system_.spawn<CommunicationActor, caf::detached>(
        std::move(parts.communications), parts.transport, parts.communication_waker,
        happens_before_));
    Supervise(communication_actors_.back(), "communication executor",
              Child::kCommunicationExecutor);
    return absl::OkStatus();
  }

  void Submit(int64_t step, const std::shared_ptr<StepBuffers>& buffers) {
    happens_before_->Sync();
    // Executors first: a planned policy's choices are there already.
    for (const caf::actor& actor : executor_actors_) {
      caf::anon_send(actor, SubmitMessage{step, buffers});
    }
    for (const caf::actor& actor : stage_actors_) {
      caf::anon_send(actor, SubmitMessage{step, nullptr});
    }
  }

  std::vector<WaitDescription> Describe(absl::Duration timeout) {
    const size_t num_devices = executor_actors_.size();
    const auto answers = std::make_shared<Answers<Waits>>(num_devices + stage_actors_.size());
    happens_before_->Sync();
    for (const std::vector<caf::actor>* actors : {&executor_actors_, &stage_actors_}) {
      for (const caf::actor& actor : *actors) caf::anon_send(actor, DescribeMessage{answers});
    }
    Waits waits;
    const std::vector<std::optional<Waits>> answered = answers->Wait(timeout);
    for (size_t i = 0; i < answered.size(); ++i) {
      if (answered[i].has_value()) {
        waits.insert(waits.end(), answered[i]->begin(), answered[i]->end());
      } else if (i < num_devices) {
        waits.push_back({StrCat("device ", first_device_ + i, ": does not answer; ",
                                activity_.executors[i]->DescribeRunningActor())});
      } else {
        waits.push_back({StrCat("stage ", i - num_devices, ": does not answer")});
      }
    }
    return waits;
  }

  absl::StatusOr<ActivityReport> ReportActivity(absl::Duration timeout) {
    const auto answers = std::make_shared<Answers<std::string>>(stage_actors_.size());
    happens_before_->Sync();
    for (const caf::actor& actor : stage_actors_) caf::anon_send(actor, DeclinedMessage{answers});
    const std::vector<std::optional<std::string>> answered = answers->Wait(timeout);
    std::string declined;
    for (size_t i = 0; i < answered.size(); ++i) {
      if (!answered[i].has_value()) {
        return absl::DeadlineExceededError(StrCat("stage ", i, " does not answer"));
      }
      if (declined.empty()) declined = *answered[i];
    }
    return activity_.Report(std::move(declined));
  }

  std::vector<TraceEvent> TakeTrace(uint32_t device) {
    return activity_.executors[device]->TakeTrace();
  }

  void Stop() {
    if (is_stopped_) return;
    is_stopped_ = true;
    Join(&executor_actors_);
    Join(&communication_actors_);
    Join(&stage_actors_);
    for (StageLink* link : links_) {
      link->wake_controller = nullptr;
      link->wake_executor = nullptr;
    }
    std::vector<caf::actor> last;
    if (supervisor_) last.push_back(std::move(supervisor_));
    supervisor_ = nullptr;
    Join(&last);
  }

 private:
  void Supervise(const caf::actor& actor, std::string name, Child child) {
    happens_before_->Sync();
    Watch(supervisor_, {actor, std::move(name), child, nullptr});
  }

  void Join(std::vector<caf::actor>* actors) {
    caf::scoped_actor self(system_, true);
    for (const caf::actor& actor : *actors) {
      caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
    }
    self->wait_for(*actors);
    happens_before_->Sync();
    actors->clear();
  }

  const std::shared_ptr<HappensBefore> happens_before_ = std::make_shared<HappensBefore>();
  HostActivity activity_;  // outlives the actors
  caf::actor_system_config config_;
  caf::actor_system system_;
  std::vector<StageLink*> links_;
  uint32_t first_device_ = 0;
  std::vector<caf::actor> executor_actors_;
  std::vector<caf::actor> stage_actors_;
  std::vector<caf::actor> communication_actors_;
  caf::actor supervisor_;
  bool is_stopped_ = false;
};

Host::Host(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Host::~Host() = default;

absl::StatusOr<std::unique_ptr<Host>> Host::Start(HostParts parts, absl::Duration timeout) {
  auto impl = std::make_unique<Impl>();
  const absl::Status status = impl->Start(std::move(parts), timeout);
  if (!status.ok()) return status;
  return std::unique_ptr<Host>(new Host(std::move(impl)));
}

void Host::Submit(int64_t step, const std::shared_ptr<StepBuffers>& buffers) {
  impl_->Submit(step, buffers);
}
std::vector<WaitDescription> Host::Describe(absl::Duration timeout) {
  return impl_->Describe(timeout);
}
absl::StatusOr<ActivityReport> Host::ReportActivity(absl::Duration timeout) {
  return impl_->ReportActivity(timeout);
}
std::vector<TraceEvent> Host::TakeTrace(uint32_t device) { return impl_->TakeTrace(device); }
void Host::Stop() { impl_->Stop(); }

}  // namespace penstock::actors
