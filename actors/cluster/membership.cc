#include "absl/strings/cord.h"

#include "actors/cluster/cluster.h"
#include "actors/cluster/membership_internal.h"
#include "actors/engine/caf_thread_internal.h"
#include "actors/engine/error_origin.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

// Of the actor alone.
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

// Asks for those who cannot wait, and bounds how long that takes.
caf::behavior Ask(caf::event_based_actor* self, const MembershipActor& membership) {
  return {
      [self, membership](const JoinQuestion& question) {
        self->request(membership, absl::ToChronoMilliseconds(Membership::kJoinTimeout),
                      question.request)
            .then(
                [on_joined = question.on_joined](const JoinReply& reply) {
                  if (reply.status.ok()) {
                    on_joined(reply.node);
                  } else {
                    on_joined(reply.status);
                  }
                },
                [on_joined = question.on_joined](const caf::error& error) {
                  on_joined(absl::DeadlineExceededError(StrCat(
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

Membership::Membership(caf::actor_system& system, RankTable ranks, OnLoss on_loss)
    : system_(system) {
  actor_ = system_.spawn(
      Behave, std::shared_ptr<Members>(new Members{std::move(ranks), std::move(on_loss)}));
  asker_ = system_.spawn(Ask, actor_);
}

void Membership::Reserve(ReserveRank reserved) { caf::anon_send(actor_, std::move(reserved)); }

void Membership::Lose(MemberLoss loss) { caf::anon_send(actor_, std::move(loss)); }

void Membership::Join(JoinRequest request, OnJoined on_joined) {
  caf::anon_send(asker_, JoinQuestion{std::move(request), std::move(on_joined)});
}

absl::StatusOr<MemberList> Membership::List(absl::Duration timeout) const {
  const CafThread thread;
  absl::StatusOr<MemberList> list = absl::UnknownError("");
  caf::scoped_actor self(system_);
  self->request(actor_, absl::ToChronoMilliseconds(timeout), ListAtom::value)
      .receive([&list, this](const MemberList& answer) { list = answer; },
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
  // What the asker waits for ends with the other one.
  self->send_exit(actor_, caf::exit_reason::user_shutdown);
  self->wait_for(actor_);
  self->send_exit(asker_, caf::exit_reason::user_shutdown);
  self->wait_for(asker_);
  actor_ = nullptr;
  asker_ = nullptr;
}

}  // namespace penstock::actors
