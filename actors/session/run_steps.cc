#include "actors/session/run_steps.h"

#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "caf/all.hpp"

#include "actors/engine/caf_thread_internal.h"
#include "actors/engine/step_name.h"
#include "actors/engine/supervisor_internal.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

// What both actors and the caller share.
struct Run {
  Session& session;
  const int64_t first_step;
  const int64_t num_steps;
  Source& source;
  Sink& sink;

  absl::Mutex mutex;
  std::optional<absl::Status> end ABSL_GUARDED_BY(mutex);

  void End(absl::Status status) {
    const absl::MutexLock lock(&mutex);
    if (!end.has_value()) end = std::move(status);
  }
  // Has no bound of its own, because each part has one or is the caller's: the session's timeout
  // bounds each step, a supervisor reports the end of an actor, and how long Get and Take may take
  // only their caller knows. They use its objects, so that it cannot be returned to before they
  // have.
  absl::Status AwaitEnd() {
    const auto has_ended = [this]()
                               ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return end.has_value(); };
    const absl::MutexLock lock(&mutex, absl::Condition(&has_ended));
    return *end;
  }
};

// Room for one more step.
struct CreditMessage {};

// Step `step` is under way under the session's number.
struct SubmittedMessage {
  int64_t step = 0;
  int64_t id = 0;
};

// To the source: hand in no more. From the source: nothing more comes, for this reason.
struct EndMessage {
  absl::Status status;
};

}  // namespace
}  // namespace penstock::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::CreditMessage)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::SubmittedMessage)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::EndMessage)

namespace penstock::actors {
namespace {

using SinkHandle = caf::typed_actor<caf::reacts_to<SubmittedMessage>, caf::reacts_to<EndMessage>>;
// Is told once to which sink it hands steps.
using SourceHandle = caf::typed_actor<caf::reacts_to<SinkHandle>, caf::reacts_to<CreditMessage>,
                                      caf::reacts_to<EndMessage>>;

class SourceActor : public SourceHandle::base {
 public:
  SourceActor(caf::actor_config& config, std::shared_ptr<Run> run)
      : SourceHandle::base(config), run_(std::move(run)) {}

  const char* name() const override { return "source"; }

  behavior_type make_behavior() override {
    return {
        [this](const SinkHandle& sink) { sink_ = sink; },
        [this](const CreditMessage&) { HandIn(); },
        [this](const EndMessage& message) { End(message.status); },
    };
  }

  void on_exit() override { sink_ = nullptr; }

 private:
  void HandIn() {
    if (next_ == run_->num_steps || has_ended_) return;
    absl::StatusOr<Feeds> feeds = absl::InternalError("the source has no feeds");
    try {
      feeds = run_->source.Get(run_->first_step + next_);
    } catch (const std::exception& error) {
      feeds = absl::InternalError(
          StrCat("the source of ", StepName(run_->first_step + next_), " threw: ", error.what()));
    }
    const absl::StatusOr<int64_t> id =
        feeds.ok() ? run_->session.Submit(*feeds) : absl::StatusOr<int64_t>(feeds.status());
    if (!id.ok()) {
      End(id.status());
      return;
    }
    send(sink_, SubmittedMessage{next_++, *id});
  }

  // Behind the steps that were handed in.
  void End(const absl::Status& status) {
    if (has_ended_) return;
    has_ended_ = true;
    send(sink_, EndMessage{status});
  }

  const std::shared_ptr<Run> run_;
  SinkHandle sink_;
  int64_t next_ = 0;
  bool has_ended_ = false;
};

class SinkActor : public SinkHandle::base {
 public:
  SinkActor(caf::actor_config& config, std::shared_ptr<Run> run, SourceHandle source)
      : SinkHandle::base(config), run_(std::move(run)), source_(std::move(source)) {}

  const char* name() const override { return "sink"; }

  behavior_type make_behavior() override {
    return {
        [this](const SubmittedMessage& message) { Take(message); },
        [this](const EndMessage& message) { run_->End(status_.ok() ? message.status : status_); }};
  }

  void on_exit() override { source_ = nullptr; }

 private:
  void Take(const SubmittedMessage& message) {
    const absl::StatusOr<StepResult> result = run_->session.Wait(message.id);
    if (!status_.ok()) return;  // the run is ending
    absl::Status status = result.status();
    try {
      if (result.ok()) status = run_->sink.Take(run_->first_step + message.step, *result);
    } catch (const std::exception& error) {
      status = absl::InternalError(StrCat("the sink of ", StepName(run_->first_step + message.step),
                                          " threw: ", error.what()));
    }
    if (!status.ok()) {
      status_ = status;
      send(source_, EndMessage{status});
    } else if (message.step + 1 == run_->num_steps) {
      run_->End(absl::OkStatus());
    } else {
      send(source_, CreditMessage{});
    }
  }

  const std::shared_ptr<Run> run_;
  SourceHandle source_;
  absl::Status status_;  // the first error of the session or the sink
};

}  // namespace

absl::Status RunSteps(Session& session, int64_t num_steps, int64_t steps_ahead, Source& source,
                      Sink& sink, int64_t first_step) {
  if (num_steps <= 0) return absl::OkStatus();
  const std::shared_ptr<Run> run(new Run{session, first_step, num_steps, source, sink, {}, {}});
  const CafThread thread;
  caf::actor_system& system = session.actor_system();
  const SourceHandle source_actor = system.spawn<SourceActor, caf::detached>(run);
  const SinkHandle sink_actor = system.spawn<SinkActor, caf::detached>(run, source_actor);
  const SupervisorActor supervisor =
      system.spawn<Supervisor>([run](const absl::Status& status) { run->End(status); });
  const auto untyped = [](const auto& actor) { return caf::actor_cast<caf::actor>(actor); };
  Watch(supervisor, {untyped(source_actor), "source", Child::kSource, nullptr});
  Watch(supervisor, {untyped(sink_actor), "sink", Child::kSink, nullptr});
  caf::anon_send(source_actor, sink_actor);
  for (int64_t i = 0; i < steps_ahead; ++i) caf::anon_send(source_actor, CreditMessage{});

  const absl::Status status = run->AwaitEnd();
  caf::scoped_actor self(system, true);
  const std::vector<caf::actor> actors = {untyped(source_actor), untyped(sink_actor),
                                          untyped(supervisor)};
  for (const caf::actor& actor : actors) {
    caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
  }
  self->wait_for(actors);
  return status;
}

}  // namespace penstock::actors
