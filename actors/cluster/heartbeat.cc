#include <algorithm>
#include <utility>

#include "actors/cluster/connection_internal.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/heartbeat_internal.h"

namespace penstock::actors {

Heartbeat::Heartbeat(kj::Timer& timer, control::Node::Client node, const HeartbeatTimes& times,
                     std::function<void(absl::Duration bound)> on_silence,
                     std::function<void(const kj::Exception& exception)> on_error)
    : timer_(timer),
      node_(kj::mv(node)),
      times_(times),
      on_silence_(std::move(on_silence)),
      on_error_(std::move(on_error)),
      last_answer_(timer.now()) {
  running_ = Run().eagerlyEvaluate([this](const kj::Exception& exception) {
    if (node_ != nullptr) on_error_(exception);
  });
}

kj::Promise<void> Heartbeat::Run() {
  return timer_.afterDelay(control::ToKj(times_.interval)).then([this]() -> kj::Promise<void> {
    KJ_IF_MAYBE (node, node_) {
      auto call = node->pingRequest();
      if (times_.have_all_joined) call.setSilenceMs(times_.silence_ms);
      return call.send()
          .ignoreResult()
          .then([] { return absl::ZeroDuration(); })
          .exclusiveJoin(AwaitSilence(absl::ZeroDuration()))
          .then([this](absl::Duration exceeded) -> kj::Promise<void> {
            if (exceeded == absl::ZeroDuration()) {
              last_answer_ = timer_.now();
              return Run();
            }
            if (node_ != nullptr) on_silence_(exceeded);
            return kj::READY_NOW;
          });
    }
    return kj::READY_NOW;
  });
}

// Waits a part of the patience at a time, because all nodes may join meanwhile: from then on the
// timeout holds.
kj::Promise<absl::Duration> Heartbeat::AwaitSilence(absl::Duration asked) {
  const bool is_patient = !times_.have_all_joined;
  const absl::Duration part =
      is_patient ? std::min(times_.timeout, times_.patience - asked) : times_.timeout;
  return timer_.afterDelay(control::ToKj(part))
      .then([this, is_patient, waited = asked + part]() -> kj::Promise<absl::Duration> {
        if (is_patient && waited < times_.patience) return AwaitSilence(waited);
        const absl::Duration bound = is_patient ? times_.patience : times_.timeout;
        return timer_.afterDelay(control::kSecondLook).then([bound] { return bound; });
      });
}

}  // namespace penstock::actors
