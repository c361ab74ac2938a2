// Who is in a job: an actor that gives ranks to the nodes that join, and that handles the loss of a
// member. Today a loss ends the job with a report; another handler may go on without the member.
//
//   loop ── Join ──► membership ── reply ──► loop
//   loop ── Lose ──► membership ── handler(loss, report) ──► loop: ends the job
//
// Thread rule: thread-safe; replies and the handler are called on threads of the actor system.
// Invariants: what is posted from one thread is handled in its order; the handler is called once
// for each member that is lost.

#ifndef PENSTOCK_ACTORS_CLUSTER_MEMBERSHIP_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_MEMBERSHIP_INTERNAL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "caf/all.hpp"

#include "actors/cluster/node_description.h"
#include "actors/cluster/rank_table.h"

namespace penstock::actors {

// A process was launched that will join as this rank.
struct ReserveRank {
  uint32_t rank = 0;
  int pid = 0;
  std::string host;
};

struct JoinRequest {
  int wanted = -1;  // rank; -1: any
  NodeDescription node;
};
struct JoinReply {
  absl::Status status;
  NodeDescription node;  // with its rank and devices
};

struct MemberLoss {
  uint32_t rank = 0;
  std::string cause;     // "was killed by signal 9 (Killed)"
  std::string when;      // " in step 7"
  int shell_status = 0;  // what a shell would say of its process; 0: not known
};

// What a job says of the loss: kUnavailable, "rank 1 (host) was killed by signal 9 (Killed) in step
// 7", with the rank as origin and the status for the shell.
absl::Status LossReport(std::string_view member_name, const MemberLoss& loss);

struct MemberList {
  std::vector<NodeDescription> nodes;  // by rank
  std::vector<uint32_t> missing;       // ranks that nobody has joined with
};

// For the asker, which is another actor.
struct JoinQuestion {
  JoinRequest request;
  std::function<void(const absl::StatusOr<NodeDescription>& joined)> on_joined;
};

using ListAtom = caf::atom_constant<caf::atom("list")>;

}  // namespace penstock::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::ReserveRank)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::JoinRequest)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::JoinReply)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::JoinQuestion)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::MemberLoss)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::MemberList)

namespace penstock::actors {

using MembershipActor =
    caf::typed_actor<caf::reacts_to<ReserveRank>, caf::replies_to<JoinRequest>::with<JoinReply>,
                     caf::reacts_to<MemberLoss>, caf::replies_to<ListAtom>::with<MemberList>>;

class Membership {
 public:
  // `report` is the error that ends the job, with who was lost and why.
  using OnLoss = std::function<void(const MemberLoss& loss, const absl::Status& report)>;
  using OnJoined = std::function<void(const absl::StatusOr<NodeDescription>& joined)>;

  // For the answer to a node that joins.
  static constexpr absl::Duration kJoinTimeout = absl::Seconds(3);

  // Starts the actor. `system` outlives it.
  Membership(caf::actor_system& system, RankTable ranks, OnLoss on_loss);
  ~Membership() { Stop(); }
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  caf::actor actor() const { return caf::actor_cast<caf::actor>(actor_); }

  void Reserve(ReserveRank reserved);
  // `on_joined` gets the node with its rank, or why it has none; kDeadlineExceeded if the actor
  // does not answer in time.
  void Join(JoinRequest request, OnJoined on_joined);
  void Lose(MemberLoss loss);
  // Waits for the answer.
  absl::StatusOr<MemberList> List(absl::Duration timeout) const;

  // Ends the actor and waits for it.
  void Stop();

 private:
  caf::actor_system& system_;
  MembershipActor actor_;
  caf::actor asker_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_MEMBERSHIP_INTERNAL_H_
