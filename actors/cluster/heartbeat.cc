#include <utility>

#include "actors/cluster/connection_internal.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/heartbeat_internal.h"

namespace penstock::actors {

Heartbeat::Heartbeat(kj::Timer& timer, control::Node::Client node, absl::Duration interval,
                     absl::Duration timeout, std::function<void()> on_silence,
                     std::function<void(const kj::Exception& exception)> on_error)
    : timer_(timer),
      node_(kj::mv(node)),
      interval_(control::ToKj(interval)),
      timeout_(control::ToKj(timeout)),
      on_silence_(std::move(on_silence)),
      on_error_(std::move(on_error)),
      last_answer_(timer.now()) {
  running_ = Run().eagerlyEvaluate([this](const kj::Exception& exception) {
    if (node_ != nullptr) on_error_(exception);
  });
}

kj::Promise<void> Heartbeat::Run() {
  return timer_.afterDelay(interval_).then([this]() -> kj::Promise<void> {
    KJ_IF_MAYBE (node, node_) {
      return node->pingRequest()
          .send()
          .ignoreResult()
          .then([] { return true; })
          .exclusiveJoin(timer_.afterDelay(timeout_)
                             .then([this] { return timer_.afterDelay(control::kSecondLook); })
                             .then([] { return false; }))
          .then([this](bool has_answered) -> kj::Promise<void> {
            if (has_answered) {
              last_answer_ = timer_.now();
              return Run();
            }
            if (node_ != nullptr) on_silence_();
            return kj::READY_NOW;
          });
    }
    return kj::READY_NOW;
  });
}

}  // namespace penstock::actors
