// Ends the start of a cluster from another thread, such as one that takes signals.
//
//   ClusterStart start;
//   auto cluster = Cluster::Start({.start = &start, ...});   // meanwhile: start.Cancel(cause)
//
// Thread rule: thread-safe.

#ifndef PENSTOCK_ACTORS_CLUSTER_CLUSTER_START_H_
#define PENSTOCK_ACTORS_CLUSTER_CLUSTER_START_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace penstock::actors {

// One start that others may end. May be used for one Cluster::Start.
class ClusterStart {
 public:
  // Has Cluster::Start return `cause` soon, also one that begins later: nodes that have joined are
  // told to exit, programs that start others are asked to end by SIGTERM, and what is left after
  // ClusterOptions::stop_timeout is killed. Does not wait.
  void Cancel(const absl::Status& cause);
  // The same at once: what was started on this host is killed. Does not wait.
  void Kill();
  // Ranks that have not joined yet, as far as that is known within a second; empty where no cluster
  // is starting.
  std::vector<uint32_t> MissingRanks() const;

 private:
  friend class Cluster;

  // Of a start that is under way.
  struct Hooks {
    std::function<void(const absl::Status& cause)> cancel;
    std::function<void()> kill;
    std::function<std::vector<uint32_t>()> missing_ranks;
  };
  // Returns the cause of a Cancel that came before; the hooks are not used then. None of them runs
  // when Detach has returned.
  absl::Status Attach(Hooks hooks);
  void Detach();

  mutable absl::Mutex mutex_;
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);
  std::optional<Hooks> hooks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_CLUSTER_START_H_
