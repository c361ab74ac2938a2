#include <utility>

#include "absl/strings/cord.h"

#include "actors/cluster/cluster.h"
#include "actors/cluster/membership_internal.h"
#include "actors/engine/caf_thread_internal.h"
#include "actors/engine/error_origin.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

// The state of the membership actor, which nobody else uses.
struct Members {
  RankTable ranks;
  const Membership::OnLoss on_loss;
};

void HandleLoss(Members& members, const MemberLoss& loss) {
  if (loss.rank >= members.ranks.size() || members.ranks.is_lost(loss.rank)) return;
  members.ranks.MarkLost(loss.rank);
  members.on_loss(loss, LossReport(members.ranks.NameOf(loss.rank), loss));
}

MembershipActor::behavior_type Behave(MembershipActor::pointer,
                                      const std::shared_ptr<Members>& members) {
  return {
      [members](const ReserveRank& reserved) {
        members->ranks.Reserve(reserved.rank, reserved.pid, reserved.host);
      },
      [members](const JoinRequest& request) {
        JoinReply reply;
        const absl::StatusOr<uint32_t> rank = members->ranks.Join(request.wanted, request.node);
        reply.status = rank.status();
        if (rank.ok()) reply.node = members->ranks.node(*rank);
        return reply;
      },
      [members](const MemberLoss& loss) { HandleLoss(*members, loss); },
      [members](ListAtom) {
        MemberList list{members->ranks.nodes(), members->ranks.missing()};
        return list;
      },
  };
}

// Requests ranks for threads that must not wait, and bounds how long an answer takes.
JoinProxyActor::behavior_type JoinProxy(JoinProxyActor::pointer self,
                                        const MembershipActor& membership) {
  return {
      [self, membership](const PendingJoin& join) {
        self->request(membership, absl::ToChronoMilliseconds(Membership::kJoinTimeout),
                      join.request)
            .then(
                [answer = join.answer](const JoinReply& reply) {
                  if (reply.status.ok()) {
                    answer->Give(reply.node);
                  } else {
                    answer->Give(reply.status);
                  }
                },
                [answer = join.answer](const caf::error& error) {
                  answer->Give(absl::DeadlineExceededError(StrCat(
                      "the membership of the job does not answer: ", caf::to_string(error))));
                });
      },
  };
}

}  // namespace

absl::Status LossReport(std::string_view member_name, const MemberLoss& loss) {
  absl::Status report = absl::UnavailableError(StrCat(member_name, " ", loss.cause, loss.when));
  SetOrigin({.rank = static_cast<int32_t>(loss.rank)}, &report);
  if (loss.shell_status > 0) {
    report.SetPayload(kShellStatusPayload, absl::Cord(StrCat(loss.shell_status)));
  }
  return report;
}

JoinAnswer::~JoinAnswer() {
  Give(absl::UnavailableError("the join proxy of the job has ended; join again"));
}

void JoinAnswer::Give(const absl::StatusOr<NodeDescription>& joined) {
  if (on_joined_) std::exchange(on_joined_, nullptr)(joined);
}

Membership::Membership(caf::actor_system& system, RankTable ranks, OnLoss on_loss)
    : system_(system) {
  actor_ = system_.spawn(
      Behave, std::shared_ptr<Members>(new Members{std::move(ranks), std::move(on_loss)}));
  StartJoinProxy();
}

caf::actor Membership::StartJoinProxy() {
  const absl::MutexLock lock(&mutex_);
  join_proxy_ = system_.spawn(JoinProxy, actor_);
  return caf::actor_cast<caf::actor>(join_proxy_);
}

JoinProxyActor Membership::typed_join_proxy() const {
  const absl::MutexLock lock(&mutex_);
  return join_proxy_;
}

void Membership::Reserve(ReserveRank reserved) { caf::anon_send(actor_, std::move(reserved)); }

void Membership::Join(JoinRequest request, OnJoined on_joined) {
  PendingJoin join{std::move(request), std::make_shared<JoinAnswer>(std::move(on_joined))};
  if (const JoinProxyActor proxy = typed_join_proxy()) caf::anon_send(proxy, std::move(join));
}

absl::StatusOr<MemberList> Membership::List(absl::Duration timeout) const {
  const CafThread thread;
  absl::StatusOr<MemberList> list = absl::UnknownError("");
  caf::scoped_actor self(system_);
  self->request(actor_, absl::ToChronoMilliseconds(timeout), ListAtom::value)
      .receive([&list](const MemberList& answer) { list = answer; },
               [&list](const caf::error& error) {
                 list = absl::DeadlineExceededError(
                     StrCat("the membership of the job does not answer: ", caf::to_string(error)));
               });
  return list;
}

void Membership::Stop() {
  if (!actor_) return;
  const CafThread thread;
  caf::scoped_actor self(system_);
  // The membership first: its end answers the requests that the join proxy waits for.
  self->send_exit(actor_, caf::exit_reason::user_shutdown);
  self->wait_for(actor_);
  actor_ = nullptr;
  JoinProxyActor proxy;
  {
    const absl::MutexLock lock(&mutex_);
    proxy = std::exchange(join_proxy_, nullptr);
  }
  self->send_exit(proxy, caf::exit_reason::user_shutdown);
  self->wait_for(proxy);
}

}  // namespace penstock::actors
