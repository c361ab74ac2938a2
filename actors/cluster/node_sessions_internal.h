// What a node holds for its coordinator: open sessions and kept copies of states, within the
// memory that the node may use.
//
// Thread rule: the node's work thread, but for CountLeaks and FindInspector.
// Invariant: a session of a generation opens once.

#ifndef PENSTOCK_ACTORS_CLUSTER_NODE_SESSIONS_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_NODE_SESSIONS_INTERNAL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "actors/cluster/node.h"
#include "actors/cluster/node_session_internal.h"
#include "actors/session/kept_tiles.h"

namespace penstock::actors {

class NodeSessions {
 public:
  // A job needs fewer.
  static constexpr size_t kMaxSessions = 8;
  static constexpr size_t kMaxKept = 16;

  // `options` outlives the sessions.
  NodeSessions(const NodeOptions& options, NodeSession::TransportFactory create_transport);

  // Before the plan of a session is read: whether it may open. The generation is over from here on.
  absl::Status Admit(uint32_t generation, uint64_t plan_bytes);
  // Returns the address of the session's transport. REQUIRES: the session was admitted.
  absl::StatusOr<std::string> Open(const SessionRequest& request, std::string_view plan,
                                   NodeSession::Tell tell);
  absl::StatusOr<NodeSession*> Find(uint32_t generation) const;
  void Close(uint32_t generation);
  void CloseAll();

  // The devices of a session are loaded.
  void AddInspector(uint32_t generation, std::shared_ptr<LocalInspector> inspector);
  // Null: the session is not loaded, or has ended. Any thread.
  std::shared_ptr<LocalInspector> FindInspector(uint32_t generation) const;

  // Keeps a copy of states of a session under a number.
  absl::Status Keep(uint64_t number, const std::vector<uint32_t>& states,
                    const NodeSession& session);
  // Null: there is none of this number.
  std::shared_ptr<const KeptTiles> FindKept(uint64_t number) const;
  void Drop(uint64_t number) { kept_.erase(number); }

  // The memory of the sessions, of the kept states, and leaked by ended sessions.
  uint64_t BytesInUse() const;
  // For transports: adds memory that one leaks. May be called from any thread, also when
  // the node has ended.
  std::function<void(uint64_t bytes)> CountLeaks() const;

  const NodeSession::TransportFactory& create_transport() const { return create_transport_; }

 private:
  const NodeOptions& options_;
  const NodeSession::TransportFactory create_transport_;
  std::map<uint32_t, std::unique_ptr<NodeSession>> sessions_;  // by generation
  uint32_t generation_ = 0;                                    // of the last session
  // By number; shared with what writes them into files.
  std::map<uint64_t, std::shared_ptr<const KeptTiles>> kept_;
  // Steps of all sessions that are done here and whose report the coordinator has not acknowledged.
  const std::shared_ptr<std::atomic<int64_t>> num_untold_ =
      std::make_shared<std::atomic<int64_t>>(0);
  mutable absl::Mutex inspectors_mutex_;
  std::map<uint32_t, std::shared_ptr<LocalInspector>> inspectors_
      ABSL_GUARDED_BY(inspectors_mutex_);  // by generation
  // Memory that transports of ended sessions have left behind.
  const std::shared_ptr<std::atomic<uint64_t>> bytes_leaked_ =
      std::make_shared<std::atomic<uint64_t>>(0);
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_NODE_SESSIONS_INTERNAL_H_
