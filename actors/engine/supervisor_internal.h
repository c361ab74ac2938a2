// An actor that watches over others: when one ends that was not told to, it is made again or its
// failure is reported, as the table in supervision.h says.
//
// Thread rule: an actor; Watch from any thread.
// Invariants: a child that ends with user_shutdown or without a reason has been told to; the
// supervisor owns no child and does not end with one.

#ifndef PENSTOCK_ACTORS_ENGINE_SUPERVISOR_INTERNAL_H_
#define PENSTOCK_ACTORS_ENGINE_SUPERVISOR_INTERNAL_H_

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "caf/all.hpp"

#include "actors/engine/supervision.h"

namespace penstock::actors {

// One that was started, with a name for reports such as "executor of device 2".
struct ChildRecord {
  caf::actor actor;
  std::string name;
  Child child = Child::kDeviceExecutor;
  // Starts another one in its place; called by the supervisor. Null: escalates, and so does one
  // that throws or returns none.
  std::function<caf::actor()> restart;
};

}  // namespace penstock::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::ChildRecord)

namespace penstock::actors {

using SupervisorActor = caf::typed_actor<caf::reacts_to<ChildRecord>>;

class Supervisor : public SupervisorActor::base {
 public:
  // Called with the end of a child that escalates; the origin names the child.
  using OnFailure = std::function<void(const absl::Status& status)>;

  Supervisor(caf::actor_config& config, OnFailure on_failure);

  const char* name() const override { return "supervisor"; }
  behavior_type make_behavior() override;
  void on_exit() override;

 private:
  struct Watched {
    ChildRecord record;
    std::deque<std::chrono::steady_clock::time_point> restarts;  // in the last kRestartWindow
  };

  void Monitor(Watched watched);
  void OnDown(const caf::down_msg& message);
  void Escalate(const Watched& watched, const std::string& cause);

  const OnFailure on_failure_;
  std::map<caf::actor_addr, Watched> watched_;
};

// Has `supervisor` watch over a child. One that has ended already is noticed too.
void Watch(const SupervisorActor& supervisor, ChildRecord record);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_SUPERVISOR_INTERNAL_H_
