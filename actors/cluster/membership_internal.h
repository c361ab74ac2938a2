// Who is in a job: an actor that gives ranks to the nodes that join, and that handles the loss of a
// member. Its handler decides what a loss means: a cluster's ends the job with the report, unless
// ClusterOptions::on_loss has it go on without the member.
//
//   loop ── Join ──► join proxy ── request ──► membership ── reply ──► join proxy ──► loop
//   failure detector ── MemberLoss ──► membership ── handler(loss, report) ──► loop: ends the job,
//                                                                            or goes on
//
// The join proxy waits for replies on behalf of threads that must not wait.
//
// Thread rule: thread-safe; replies and the handler are called on threads of the actor system, or
// on that of Join or Stop where an actor has ended.
// Invariants: losses that one actor reports are handled in its order; the handler is called once
// for each member that is lost; each Join is answered exactly once, whichever actor ends.

#ifndef PENSTOCK_ACTORS_CLUSTER_MEMBERSHIP_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_MEMBERSHIP_INTERNAL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
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

// The error of a job that has lost a member: kUnavailable, "rank 1 (host) was killed by signal 9
// (Killed) in step 7", with the rank as origin and the status for the shell.
absl::Status LossReport(std::string_view member_name, const MemberLoss& loss);

struct MemberList {
  std::vector<NodeDescription> nodes;  // by rank
  std::vector<uint32_t> missing;       // ranks that nobody has joined with
};

// Passes on one answer: the first, or kUnavailable if it goes without one, because the actor that
// held it has ended.
class JoinAnswer {
 public:
  using OnJoined = std::function<void(const absl::StatusOr<NodeDescription>& joined)>;

  explicit JoinAnswer(OnJoined on_joined) : on_joined_(std::move(on_joined)) {}
  ~JoinAnswer();
  JoinAnswer(const JoinAnswer&) = delete;
  JoinAnswer& operator=(const JoinAnswer&) = delete;

  void Give(const absl::StatusOr<NodeDescription>& joined);

 private:
  OnJoined on_joined_;  // null: it was given
};

// For the join proxy.
struct PendingJoin {
  JoinRequest request;
  std::shared_ptr<JoinAnswer> answer;
};

using ListAtom = caf::atom_constant<caf::atom("list")>;

}  // namespace penstock::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::ReserveRank)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::JoinRequest)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::JoinReply)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::PendingJoin)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::MemberLoss)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::MemberList)

namespace penstock::actors {

using MembershipActor =
    caf::typed_actor<caf::reacts_to<ReserveRank>, caf::replies_to<JoinRequest>::with<JoinReply>,
                     caf::reacts_to<MemberLoss>, caf::replies_to<ListAtom>::with<MemberList>>;

using JoinProxyActor = caf::typed_actor<caf::reacts_to<PendingJoin>>;

class Membership {
 public:
  // `report` says who was lost and why.
  using OnLoss = std::function<void(const MemberLoss& loss, const absl::Status& report)>;
  using OnJoined = JoinAnswer::OnJoined;

  // For the answer to a node that joins.
  static constexpr absl::Duration kJoinTimeout = absl::Seconds(3);

  // Starts the actors. `system` outlives them.
  Membership(caf::actor_system& system, RankTable ranks, OnLoss on_loss);
  ~Membership() { Stop(); }
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  caf::actor actor() const { return caf::actor_cast<caf::actor>(actor_); }
  // Takes the losses.
  const MembershipActor& typed_actor() const { return actor_; }
  caf::actor join_proxy() const { return caf::actor_cast<caf::actor>(typed_join_proxy()); }
  // Starts one in the place of the other, which has ended.
  caf::actor StartJoinProxy();

  void Reserve(ReserveRank reserved);
  // `on_joined` gets the node with its rank, or why it has none: kDeadlineExceeded if the
  // membership does not answer in time, kUnavailable if the join proxy ends meanwhile.
  void Join(JoinRequest request, OnJoined on_joined);
  // Waits for the answer.
  absl::StatusOr<MemberList> List(absl::Duration timeout) const;

  // Ends the actors and waits for them.
  void Stop();

 private:
  JoinProxyActor typed_join_proxy() const;

  caf::actor_system& system_;
  MembershipActor actor_;
  mutable absl::Mutex mutex_;
  JoinProxyActor join_proxy_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_MEMBERSHIP_INTERNAL_H_
