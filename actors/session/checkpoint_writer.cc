#include "actors/session/checkpoint_writer.h"

#include <filesystem>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "caf/all.hpp"

#include "actors/engine/caf_thread_internal.h"
#include "actors/engine/supervisor_internal.h"
#include "actors/session/session.h"
#include "base/await.h"
#include "base/device.h"
#include "base/exception_text.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

struct WriteMessage {
  CheckpointInfo info;
  std::shared_ptr<const KeptStates> states;
};

uint64_t BytesIn(const std::string& folder) {
  uint64_t num_bytes = 0;
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    std::error_code unknown;
    const uint64_t size = entries->file_size(unknown);
    if (!unknown) num_bytes += size;
  }
  return num_bytes;
}

}  // namespace

// What the actor and its owner share: the steps whose checkpoints are not written yet.
struct CheckpointWriter::Progress {
  absl::Mutex mutex;
  std::multiset<int64_t> steps ABSL_GUARDED_BY(mutex);
  absl::Status ended ABSL_GUARDED_BY(mutex);  // OK as long as the actor lives

  // Nobody waits for an actor that has ended.
  void End(const absl::Status& cause) {
    const absl::MutexLock lock(&mutex);
    ended = cause;
    steps.clear();
  }
};

}  // namespace penstock::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::WriteMessage)

namespace penstock::actors {
namespace {

using WriterHandle = caf::typed_actor<caf::reacts_to<WriteMessage>>;

}  // namespace

class CheckpointWriter::Actor : public WriterHandle::base {
 public:
  Actor(caf::actor_config& config, std::shared_ptr<Progress> progress,
        std::shared_ptr<CheckpointFolder> folder,
        std::function<void(const CheckpointResult&)> on_done)
      : WriterHandle::base(config),
        progress_(std::move(progress)),
        folder_(std::move(folder)),
        on_done_(std::move(on_done)) {}

  const char* name() const override { return "checkpoint_writer"; }

  behavior_type make_behavior() override {
    return {[this](WriteMessage& message) { Handle(message); }};
  }

 private:
  void Handle(WriteMessage& message) {
    const CheckpointResult result = TryToWrite(message);
    try {
      if (on_done_) on_done_(result);
    } catch (...) {
      quit(caf::make_error(caf::sec::runtime_error,
                           StrCat("the callback for the checkpoint of step ", message.info.step,
                                  " threw: ", ExceptionText())));
      return;
    }
    const absl::MutexLock lock(&progress_->mutex);
    progress_->steps.erase(progress_->steps.find(message.info.step));
  }

  CheckpointResult TryToWrite(WriteMessage& message) {
    const SteadyClock clock;
    const int64_t begin_ns = clock.NowNs();
    CheckpointResult result;
    result.step = message.info.step;
    try {
      const absl::StatusOr<std::string> path = Write(message);
      result.status = path.status();
      result.path = path.value_or("");
      message.states = nullptr;
      result.num_bytes = path.ok() ? BytesIn(result.path) : 0;
      result.seconds = 1e-9 * static_cast<double>(clock.NowNs() - begin_ns);
    } catch (...) {
      result.status = absl::InternalError(StrCat("writing a checkpoint threw: ", ExceptionText()));
      folder_->Abandon(message.info.step);
    }
    return result;
  }

  absl::StatusOr<std::string> Write(const WriteMessage& message) {
    ASSIGN_OR_RETURN(const std::string part, folder_->Begin(message.info.step));
    const absl::Status written = message.states->Write(part, ToMetadata(message.info));
    if (written.ok()) return folder_->Commit(message.info.step);
    folder_->Abandon(message.info.step);
    return written;
  }

  const std::shared_ptr<Progress> progress_;
  const std::shared_ptr<CheckpointFolder> folder_;
  const std::function<void(const CheckpointResult&)> on_done_;
};

struct CheckpointWriter::Handle {
  caf::actor_system& system;
  WriterHandle actor;
  SupervisorActor supervisor;
};

CheckpointWriter::CheckpointWriter(const Session& session, std::unique_ptr<CheckpointFolder> folder,
                                   std::function<void(const CheckpointResult&)> on_done)
    : progress_(std::make_shared<Progress>()) {
  const CafThread thread;
  caf::actor_system& system = session.actor_system();
  handle_ = std::make_unique<Handle>(Handle{
      system,
      system.spawn<Actor, caf::detached>(
          progress_, std::shared_ptr<CheckpointFolder>(std::move(folder)), std::move(on_done)),
      system.spawn<Supervisor>(
          [progress = progress_](const absl::Status& status) { progress->End(status); })});
  Watch(handle_->supervisor, {caf::actor_cast<caf::actor>(handle_->actor), "checkpoint writer",
                              Child::kCheckpointWriter, nullptr});
}

CheckpointWriter::~CheckpointWriter() {
  // An exit message may overtake others, so what was handed in is waited for first. That wait has
  // no bound of its own: the thread is in a call of the file system, which only the kernel can end,
  // and the end of the actor system would wait for the thread as well. If the actor ends, its
  // supervisor ends the wait. Callers that want a bound call Wait first, and if that is late they
  // leave the process without this.
  (void)Wait(absl::InfiniteDuration());
  const CafThread thread;
  caf::scoped_actor self(handle_->system, true);
  caf::anon_send_exit(handle_->actor, caf::exit_reason::user_shutdown);
  self->wait_for(handle_->actor);
  caf::anon_send_exit(handle_->supervisor, caf::exit_reason::user_shutdown);
  self->wait_for(handle_->supervisor);
}

void CheckpointWriter::Write(CheckpointInfo info, std::shared_ptr<const KeptStates> states) {
  {
    const absl::MutexLock lock(&progress_->mutex);
    if (!progress_->ended.ok()) return;
    progress_->steps.insert(info.step);
  }
  const CafThread thread;
  caf::anon_send(handle_->actor, WriteMessage{std::move(info), std::move(states)});
}

absl::Status CheckpointWriter::Wait(absl::Duration timeout) {
  Progress& progress = *progress_;
  const auto is_done = [&progress]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(progress.mutex) {
    return progress.steps.empty();
  };
  const absl::MutexLock lock(&progress.mutex);
  if (AwaitFor(absl::Condition(&is_done), timeout, &progress.mutex)) return progress.ended;
  return absl::DeadlineExceededError(StrCat("the checkpoint of step ", *progress.steps.begin(),
                                            " has not been written within ",
                                            ToStd(absl::FormatDuration(timeout))));
}

}  // namespace penstock::actors
