// Starts and ends the processes of a job: an actor with a thread of its own, which has a Launcher
// (launcher_internal.h) and the event loop that one needs. What processes print and how long the
// system takes to start one therefore hold up neither the event loop of the control plane nor its
// pings.
//
//   caller ── request(LaunchCommand) ──► launcher ── reply ──► caller
//   failure detector, NodeSupervisor ── kill ──► launcher ── lines ──► output pump
//                                                   └── launched, exited, finished ──► loop
//
// Thread rule: thread-safe; Launch waits, as Stop does, and neither is called by an event.
// Invariants: on_launched comes before the other events of a process and before Launch returns, and
// on_finished is the last; no event comes after on_ended. However the actor ends, it ends the
// processes that still run.

#ifndef PENSTOCK_ACTORS_CLUSTER_PROCESS_LAUNCHER_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_PROCESS_LAUNCHER_INTERNAL_H_

#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "caf/all.hpp"

#include "actors/cluster/launcher_internal.h"

namespace penstock::actors {

struct LaunchReply {
  absl::Status status;
};

using KillAtom = caf::atom_constant<caf::atom("kill")>;
using TerminateAtom = caf::atom_constant<caf::atom("terminate")>;

}  // namespace penstock::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::LaunchCommand)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::LaunchReply)

namespace penstock::actors {

using ProcessLauncherActor =
    caf::typed_actor<caf::replies_to<LaunchCommand>::with<LaunchReply>,
                     caf::reacts_to<KillAtom, uint32_t>, caf::reacts_to<TerminateAtom, uint32_t>>;

class ProcessLauncher {
 public:
  // Called by the thread of the launcher's loop, on_ended by that of the actor.
  struct Events {
    std::function<void(const LaunchCommand& command, const LaunchedProcess& process)> on_launched;
    std::function<void(uint32_t rank, std::string_view line)> on_line;
    std::function<void(uint32_t rank, int wait_status, std::string_view note)> on_exit;
    // It has ended, and all its output was told.
    std::function<void(uint32_t rank)> on_finished;
    // None is left.
    std::function<void()> on_ended;
  };

  // Starts the actor. `system` outlives it. The launcher is made for the first command.
  ProcessLauncher(caf::actor_system& system, LauncherFactory make_launcher, Events events);
  ~ProcessLauncher() { Stop(); }
  ProcessLauncher(const ProcessLauncher&) = delete;
  ProcessLauncher& operator=(const ProcessLauncher&) = delete;

  caf::actor actor() const { return caf::actor_cast<caf::actor>(actor_); }

  // An error is that of Launcher::Launch, or kDeadlineExceeded.
  absl::Status Launch(const LaunchCommand& command, absl::Duration timeout) const;
  // As Launcher::Kill.
  void Kill(uint32_t rank) const { caf::anon_send(actor_, KillAtom::value, rank); }

  // As Launcher::Terminate.
  void Terminate(uint32_t rank) const { caf::anon_send(actor_, TerminateAtom::value, rank); }

  // Ends the actor and waits for it.
  void Stop();

 private:
  caf::actor_system& system_;
  const ProcessLauncherActor actor_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_PROCESS_LAUNCHER_INTERNAL_H_
