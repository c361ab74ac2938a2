// Has the nodes of a cluster move kept states among themselves, into a session that lays them out
// in another way. The coordinator plans the moves and tells each node its part
// (node_exchange_internal.h); the bytes of the states do not pass through it.
//
// Thread rule: Move on any thread but the loop's.
// Invariants: as NodeCalls; Move tells every node to finish before it returns, and a node handles
// that before its next call.

#ifndef PENSTOCK_ACTORS_CLUSTER_STATE_EXCHANGE_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_STATE_EXCHANGE_INTERNAL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "actors/cluster/cluster_kept_states_internal.h"
#include "actors/cluster/cluster_session_internal.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/node_calls_internal.h"
#include "actors/cluster/node_supervisor_internal.h"
#include "actors/cluster/state_moves.h"

namespace penstock::actors {

class StateExchange {
 public:
  // `hosts` names the host of each node. The arguments outlive the exchange.
  StateExchange(control::ControlLoop& loop, NodeSupervisor& supervisor,
                const ClusterSession& session, const ClusterKeptStates& kept,
                const std::vector<std::string>& hosts, absl::Duration timeout);

  // `missing` are the states (of the session's plan) that each node of the session lacks. Returns
  // those that were not kept, or as another type.
  absl::StatusOr<std::vector<uint32_t>> Move(const std::vector<std::vector<uint32_t>>& missing);

 private:
  struct Part {
    uint32_t kept_state = 0;
    uint32_t state = 0;  // of the session's plan
    uint32_t tile = 0;   // of the kept state in its process
    Box box;
  };

  absl::StatusOr<std::vector<uint32_t>> Plan(const std::vector<std::vector<uint32_t>>& missing);
  absl::Status Open();
  absl::Status Run();
  void Finish();
  // On the loop's thread; once.
  void TellToFinish();
  // Of those that take part.
  absl::Status CallAll(const NodeCalls::CallNode& call, std::string_view what,
                       absl::Duration timeout) const;

  control::ControlLoop& loop_;
  NodeSupervisor& supervisor_;
  const ClusterSession& session_;
  const ClusterKeptStates& kept_;
  const std::vector<std::string>& hosts_;
  const absl::Duration timeout_;
  const NodeCalls calls_;
  uint32_t number_ = 0;
  // By sender and receiver, which may be one node. Read on the loop's thread, while it is waited
  // for.
  std::map<std::pair<uint32_t, uint32_t>, std::vector<Part>> parts_;
  std::vector<std::vector<uint32_t>> peers_;  // of each node: other nodes, in order
  std::vector<bool> takes_part_;              // of each node
  std::vector<std::string> addresses_;        // likewise
  std::vector<uint64_t> bytes_received_;      // likewise, from others
  uint64_t num_bytes_ = 0;                    // copies within a node too
  bool is_finished_ = false;                  // used on the loop's thread
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_STATE_EXCHANGE_INTERNAL_H_
