// Runs one device executor on a thread of its own. The thread polls the executor. If nothing
// happens for about as long as waking a thread takes, it sleeps until the waker is notified.
//
// Thread rule: a detached actor; any thread may call enqueue.
// Invariant: the executor is created and polled on the actor's thread only.

#ifndef PENSTOCK_ACTORS_ENGINE_EXECUTOR_ACTOR_INTERNAL_H_
#define PENSTOCK_ACTORS_ENGINE_EXECUTOR_ACTOR_INTERNAL_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "caf/all.hpp"

#include "actors/engine/executor.h"
#include "actors/engine/host.h"
#include "actors/engine/host_activity_internal.h"
#include "actors/engine/reply_collector_internal.h"
#include "actors/engine/waker.h"

namespace penstock::actors {

// Spawn it detached.
class ExecutorActor : public caf::blocking_actor {
 public:
  // All pointers must outlive the actor.
  struct Setup {
    uint32_t index = 0;   // among the executors of the host
    uint32_t device = 0;  // of the plan
    ExecutorFactory create;
    Waker* waker = nullptr;
    bool is_oversubscribed = false;  // more threads poll than the process has cores
    PollCounters* counters = nullptr;
    std::shared_ptr<ReplyCollector<absl::Status>> loaded;  // gets the status of `create`
    std::unique_ptr<DeviceExecutor>* executor = nullptr;   // gets the executor
  };

  ExecutorActor(caf::actor_config& config, Setup setup);

  const char* name() const override { return "executor"; }
  void enqueue(caf::mailbox_element_ptr element, caf::execution_unit* unit) override;
  void act() override;

 private:
  bool Load();
  void Run();
  // Handles messages and polls once. Returns whether anything happened.
  bool Work(caf::behavior& commands);
  // Polls for a while. Returns whether anything happened.
  bool Spin(caf::behavior& commands);

  Setup setup_;
  DeviceExecutor* executor_ = nullptr;
  bool is_stopping_ = false;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_EXECUTOR_ACTOR_INTERNAL_H_
