// The actors of a coordinator, each with one job, and their supervisor. What calls nodes or reads
// their connections is not among them: it belongs to the event loop of Cap'n Proto.
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

#include "actors/cluster/membership_internal.h"
#include "actors/cluster/output_pump_internal.h"
#include "actors/engine/supervisor_internal.h"

namespace penstock::actors {

class ClusterActors {
 public:
  // `on_loss` is told of members, and `on_failure` of an actor that has ended for good, on threads
  // of theirs.
  ClusterActors(OutputPump::OnOutput on_output, RankTable ranks, Membership::OnLoss on_loss,
                std::function<void(const absl::Status& status)> on_failure);
  ~ClusterActors();
  ClusterActors(const ClusterActors&) = delete;
  ClusterActors& operator=(const ClusterActors&) = delete;

  OutputPump& pump() { return *pump_; }
  Membership& membership() { return *membership_; }

  // Where actors around the cluster's engines live, too; also after Stop.
  caf::actor_system& system() { return *system_; }

  // Waits so long for the reader of the output.
  void Stop(absl::Duration reader_timeout);

 private:
  caf::actor_system_config config_;
  std::unique_ptr<caf::actor_system> system_;
  std::unique_ptr<OutputPump> pump_;
  std::unique_ptr<Membership> membership_;
  caf::actor supervisor_;  // null: stopped
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_CLUSTER_ACTORS_INTERNAL_H_
