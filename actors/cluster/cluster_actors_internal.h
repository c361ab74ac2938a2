// The actors of a coordinator, each with one job, and their supervisor. What calls nodes or reads
// their connections is not among them: it belongs to the event loop of Cap'n Proto, which tells the
// actors what it sees.
//
// Thread rule: the constructor and Stop on one thread; the rest is thread-safe between them.
// Invariant: after Stop none of them is left, but a pump whose reader has not returned; their
// threads end with this, which waits for the reader.

#ifndef PENSTOCK_ACTORS_CLUSTER_CLUSTER_ACTORS_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_CLUSTER_ACTORS_INTERNAL_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "caf/all.hpp"

#include "actors/cluster/failure_detector_internal.h"
#include "actors/cluster/membership_internal.h"
#include "actors/cluster/output_pump_internal.h"
#include "actors/cluster/process_launcher_internal.h"
#include "actors/engine/supervisor_internal.h"

namespace penstock::actors {

class ClusterActors {
 public:
  // All functions are called on threads of the actors.
  struct Setup {
    OutputPump::OnOutput on_output = nullptr;
    RankTable ranks;
    Membership::OnLoss on_loss;
    FailureDetector::Times times;
    FailureDetector::Handlers detector;  // `kill` is set here
    LauncherFactory make_launcher;
    ProcessLauncher::Events processes;  // `on_line`, if any, before the pump has the line
    // Told of an actor that has ended for good.
    std::function<void(const absl::Status& status)> on_failure;
  };

  explicit ClusterActors(Setup setup);
  ~ClusterActors();
  ClusterActors(const ClusterActors&) = delete;
  ClusterActors& operator=(const ClusterActors&) = delete;

  OutputPump& pump() { return *pump_; }
  Membership& membership() { return *membership_; }
  FailureDetector& failure_detector() { return *failure_detector_; }
  ProcessLauncher& launcher() { return *launcher_; }

  // Where actors around the cluster's engines live, too; also after Stop.
  caf::actor_system& system() { return *system_; }

  // Waits so long for the reader of the output.
  void Stop(absl::Duration reader_timeout);

 private:
  caf::actor_system_config config_;
  std::unique_ptr<caf::actor_system> system_;
  std::unique_ptr<OutputPump> pump_;
  std::unique_ptr<Membership> membership_;
  std::unique_ptr<ProcessLauncher> launcher_;
  std::unique_ptr<FailureDetector> failure_detector_;
  SupervisorActor supervisor_;  // null: stopped
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_CLUSTER_ACTORS_INTERNAL_H_
