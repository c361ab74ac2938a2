#include <utility>

#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/heartbeat_internal.h"

namespace penstock::actors {

Heartbeat::Heartbeat(kj::Timer& timer, control::Node::Client node, const PingOptions& options,
                     Events events)
    : timer_(timer), node_(kj::mv(node)), options_(options), events_(std::move(events)) {
  running_ = Run().eagerlyEvaluate(
      [this](const kj::Exception& exception) { events_.on_error(exception); });
}

kj::Promise<void> Heartbeat::Run() {
  return timer_.afterDelay(control::ToKj(options_.interval)).then([this] {
    events_.on_asked();
    auto call = node_.pingRequest();
    if (options_.have_all_joined) call.setSilenceMs(options_.silence_ms);
    return call.send().ignoreResult().then([this] {
      events_.on_answered();
      return Run();
    });
  });
}

}  // namespace penstock::actors
