#include <signal.h>

#include <utility>

#include <kj/debug.h>

#include "actors/cluster/child_process.h"
#include "actors/cluster/failure_detector_internal.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

// How long a closed connection or silence waits for the status of the process.
constexpr kj::Duration kExitGrace = 500 * kj::MILLISECONDS;

}  // namespace

FailureDetector::FailureDetector(kj::Timer& timer, Launcher& launcher, const HeartbeatTimes& times,
                                 OnLoss on_loss)
    : timer_(timer),
      launcher_(launcher),
      times_(times),
      on_loss_(std::move(on_loss)),
      tasks_(*this) {}

void FailureDetector::Watch(uint32_t rank, control::Node::Client node) {
  heartbeats_[rank] = std::make_unique<Heartbeat>(
      timer_, kj::mv(node), times_, [this, rank](absl::Duration bound) { OnSilence(rank, bound); },
      [this, rank](const kj::Exception& exception) {
        if (exception.getType() == kj::Exception::Type::DISCONNECTED) {
          OnDisconnected(rank);
        } else {
          on_loss_({.rank = rank, .cause = "answers with errors"});
        }
      });
}

void FailureDetector::Unwatch(uint32_t rank) {
  const auto it = heartbeats_.find(rank);
  if (it != heartbeats_.end()) it->second->Stop();
}

void FailureDetector::OnExit(uint32_t rank, int wait_status, std::string_view note) {
  const auto silence = silences_.find(rank);
  if (silence != silences_.end() && ShellStatus(wait_status) == 128 + SIGKILL) {
    on_loss_({.rank = rank, .cause = silence->second});
  } else {
    on_loss_({rank, StrCat(DescribeWaitStatus(wait_status), note), ShellStatus(wait_status),
              wait_status == 0});
  }
}

// A process that was launched here may be dead already, and about to be reported so (a large core
// file is being written): its status is more important than its silence.
void FailureDetector::OnSilence(uint32_t rank, absl::Duration bound) {
  const std::string cause = StrCat("has not answered for ", absl::FormatDuration(bound));
  if (!launcher_.HasLaunched(rank)) {
    on_loss_({.rank = rank, .cause = cause});
    return;
  }
  silences_[rank] = cause;
  launcher_.Kill(rank);
  TellAfterGrace({.rank = rank, .cause = cause});
}

void FailureDetector::OnDisconnected(uint32_t rank) {
  const Loss loss = {.rank = rank, .cause = "has closed its connection", .is_orderly = true};
  if (launcher_.HasLaunched(rank)) {
    TellAfterGrace(loss);
  } else {
    on_loss_(loss);
  }
}

void FailureDetector::TellAfterGrace(const Loss& loss) {
  tasks_.add(timer_.afterDelay(kExitGrace).then([this, loss] { on_loss_(loss); }));
}

void FailureDetector::taskFailed(kj::Exception&& exception) {
  KJ_LOG(ERROR, "failure detector", exception);
}

}  // namespace penstock::actors
