#include <exception>
#include <utility>

#include "actors/engine/error_origin.h"
#include "actors/engine/supervisor_internal.h"
#include "base/strings.h"

namespace penstock::actors {

Supervisor::Supervisor(caf::actor_config& config, OnFailure on_failure)
    : SupervisorActor::base(config), on_failure_(std::move(on_failure)) {
  set_down_handler([this](const caf::down_msg& message) { OnDown(message); });
}

Supervisor::behavior_type Supervisor::make_behavior() {
  return {
      [this](const ChildRecord& record) {
        Monitor({record, {}});
      },
  };
}

void Supervisor::on_exit() { watched_.clear(); }

void Supervisor::Monitor(Watched watched) {
  const caf::actor actor = watched.record.actor;
  watched_[actor.address()] = std::move(watched);
  monitor(actor);
}

void Supervisor::OnDown(const caf::down_msg& message) {
  const auto it = watched_.find(message.source);
  if (it == watched_.end()) return;
  Watched watched = std::move(it->second);
  watched_.erase(it);
  if (message.reason == caf::exit_reason::user_shutdown || !message.reason) return;
  const std::string cause = caf::to_string(message.reason);
  const ChildStrategy& strategy = StrategyOf(watched.record.child);
  if (strategy.on_end == OnEnd::kEscalate || watched.record.restart == nullptr) {
    Escalate(watched, cause);
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  while (!watched.restarts.empty() && now - watched.restarts.front() > kRestartWindow) {
    watched.restarts.pop_front();
  }
  if (static_cast<int>(watched.restarts.size()) >= strategy.max_restarts) {
    Escalate(watched, StrCat(cause, ", after ", watched.restarts.size(), " restarts in ",
                             kRestartWindow.count(), " s"));
    return;
  }
  watched.restarts.push_back(now);
  // Nobody watches over this actor: it has to go on with its other children, whatever happens.
  try {
    watched.record.actor = watched.record.restart();
  } catch (const std::exception& error) {
    Escalate(watched, StrCat(cause, ", and could not be started again: ", error.what()));
    return;
  } catch (...) {
    Escalate(watched, StrCat(cause, ", and could not be started again"));
    return;
  }
  if (!watched.record.actor) {
    Escalate(watched, StrCat(cause, ", and could not be started again"));
    return;
  }
  Monitor(std::move(watched));
}

void Supervisor::Escalate(const Watched& watched, const std::string& cause) {
  absl::Status status =
      absl::InternalError(StrCat("the ", watched.record.name, " has ended: ", cause));
  SetOrigin({.actor = watched.record.name}, &status);
  on_failure_(status);
}

void Watch(const SupervisorActor& supervisor, ChildRecord record) {
  caf::anon_send(supervisor, std::move(record));
}

}  // namespace penstock::actors
