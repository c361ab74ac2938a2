#include <signal.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "actors/cluster/child_process.h"
#include "actors/cluster/failure_detector_internal.h"
#include "actors/engine/caf_thread_internal.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using TimePoint = caf::actor_clock::time_point;

// How long a closed connection or silence waits for the status of the process.
constexpr std::chrono::milliseconds kExitGrace{500};

class DetectorActor : public FailureDetectorActor::base {
 public:
  DetectorActor(caf::actor_config& config, MembershipActor membership,
                const FailureDetector::Times& times, FailureDetector::Handlers handlers)
      : FailureDetectorActor::base(config),
        membership_(std::move(membership)),
        timeout_(absl::ToChronoNanoseconds(times.timeout)),
        patience_(absl::ToChronoNanoseconds(times.patience)),
        handlers_(std::move(handlers)) {}

  const char* name() const override { return "failure_detector"; }
  void on_exit() override { membership_ = nullptr; }

  behavior_type make_behavior() override {
    return {
        [this](AskedAtom, uint32_t rank) { HandleAsked(rank); },
        [this](AnsweredAtom, uint32_t rank) {
          Member& member = members_[rank];
          member.is_awaited = false;
          member.last_answer = Now();
        },
        [this](UnwatchAtom, uint32_t rank) { LetGo(members_[rank]); },
        [this](AllJoinedAtom) { HandleAllJoined(); },
        [this](EndingAtom) { is_ending_ = true; },
        [this](const ConnectionClosed& closed) { Handle(closed); },
        [this](const AnswerFailed& failed) {
          Lose({failed.rank, "answers with errors", failed.when, 0}, /*is_orderly=*/false);
        },
        [this](const ProcessExited& exited) { Handle(exited); },
        [this](const LookedAgain& looked) { Handle(looked); },
        [this](const SilenceCheck& check) { Handle(check); },
        [this](const GraceOver& over) { Lose(over.loss, over.is_orderly); },
        [this](SilencesAtom) { return Silences(); },
    };
  }

 private:
  struct Member {
    bool is_awaited = false;  // its answer to a ping
    bool is_let_go = false;
    TimePoint asked;
    TimePoint last_answer;
    TimePoint check_due = TimePoint::max();  // the last SilenceCheck; max: there is none
    uint64_t num_checks = 0;
    std::string silence;  // why its process was killed; empty: it was not
  };

  TimePoint Now() { return clock().now(); }

  // When the silence of one that is awaited counts. From the moment when all have joined, it has
  // the shorter time, in full.
  TimePoint DueOf(const Member& member) const {
    if (!have_all_joined_) return member.asked + patience_;
    return std::max(member.asked, all_joined_) + timeout_;
  }

  void HandleAsked(uint32_t rank) {
    Member& member = members_[rank];
    if (member.is_let_go) return;
    member.asked = Now();
    if (member.last_answer == TimePoint()) member.last_answer = member.asked;
    member.is_awaited = true;
    CheckAt(rank, DueOf(member));
  }

  void HandleAllJoined() {
    have_all_joined_ = true;
    all_joined_ = Now();
    for (const auto& [rank, member] : members_) {
      if (member.is_awaited) CheckAt(rank, DueOf(member));
    }
  }

  // One check at a time is under way for a member, which finds out when the next is due: most pings
  // are answered, and need none of their own.
  void CheckAt(uint32_t rank, TimePoint due) {
    Member& member = members_[rank];
    if (member.check_due <= due) return;
    member.check_due = due;
    delayed_send(this, due - Now(), SilenceCheck{rank, ++member.num_checks});
  }

  void Handle(const SilenceCheck& check) {
    Member& member = members_[check.rank];
    if (check.number != member.num_checks) return;
    member.check_due = TimePoint::max();
    if (!member.is_awaited) return;
    if (const TimePoint due = DueOf(member); Now() < due) {
      CheckAt(check.rank, due);
      return;
    }
    handlers_.look_again(check.rank);
    CheckAt(check.rank, Now() + absl::ToChronoNanoseconds(FailureDetector::kLookTimeout));
  }

  // A process of this job may be dead already, and about to be reported so (a large core file is
  // being written): its status is more important than its silence.
  void Handle(const LookedAgain& looked) {
    Member& member = members_[looked.rank];
    if (!member.is_awaited || Now() < DueOf(member)) return;
    const auto bound = absl::FromChrono(have_all_joined_ ? timeout_ : patience_);
    const MemberLoss loss{looked.rank, StrCat("has not answered for ", absl::FormatDuration(bound)),
                          looked.when, 0};
    if (!looked.is_launched) {
      Lose(loss, /*is_orderly=*/false);
      return;
    }
    LetGo(member);
    member.silence = loss.cause;
    handlers_.kill(looked.rank);
    delayed_send(this, kExitGrace, GraceOver{loss, /*is_orderly=*/false});
  }

  void Handle(const ConnectionClosed& closed) {
    const MemberLoss loss{closed.rank, "has closed its connection", closed.when, 0};
    if (closed.is_launched) {
      delayed_send(this, kExitGrace, GraceOver{loss, /*is_orderly=*/true});
    } else {
      Lose(loss, /*is_orderly=*/true);
    }
  }

  void Handle(const ProcessExited& exited) {
    const int shell_status = ShellStatus(exited.wait_status);
    const std::string& silence = members_[exited.rank].silence;
    if (!silence.empty() && shell_status == 128 + SIGKILL) {
      Lose({exited.rank, silence, exited.when, 0}, /*is_orderly=*/false);
    } else {
      Lose({exited.rank, StrCat(DescribeWaitStatus(exited.wait_status), exited.note), exited.when,
            shell_status},
           exited.wait_status == 0);
    }
  }

  void Lose(MemberLoss loss, bool is_orderly) {
    LetGo(members_[loss.rank]);
    if (is_ending_) loss.when = " while the job was stopping";
    handlers_.on_loss(loss, !is_ending_ || !is_orderly);
    if (!is_ending_) send(membership_, loss);
  }

  static void LetGo(Member& member) {
    member.is_let_go = true;
    member.is_awaited = false;
  }

  MemberSilences Silences() {
    MemberSilences silences;
    for (const auto& [rank, member] : members_) {
      if (member.last_answer == TimePoint()) continue;
      silences.by_rank[rank] = absl::FromChrono(Now() - member.last_answer);
    }
    return silences;
  }

  MembershipActor membership_;
  const std::chrono::nanoseconds timeout_;
  const std::chrono::nanoseconds patience_;
  const FailureDetector::Handlers handlers_;
  bool have_all_joined_ = false;
  TimePoint all_joined_;
  bool is_ending_ = false;
  std::map<uint32_t, Member> members_;  // of which something was told
};

}  // namespace

FailureDetector::FailureDetector(caf::actor_system& system, MembershipActor membership,
                                 const Times& times, Handlers handlers)
    : system_(system) {
  const CafThread thread;
  actor_ = system_.spawn<DetectorActor>(std::move(membership), times, std::move(handlers));
}

absl::StatusOr<MemberSilences> FailureDetector::Silences(absl::Duration timeout) const {
  const CafThread thread;
  absl::StatusOr<MemberSilences> silences = absl::UnknownError("");
  caf::scoped_actor self(system_);
  self->request(actor_, absl::ToChronoMilliseconds(timeout), SilencesAtom::value)
      .receive([&silences](const MemberSilences& answer) { silences = answer; },
               [&silences](const caf::error& error) {
                 silences = absl::DeadlineExceededError(StrCat(
                     "the failure detector of the job does not answer: ", caf::to_string(error)));
               });
  return silences;
}

void FailureDetector::Stop() {
  if (!actor_) return;
  const CafThread thread;
  caf::scoped_actor self(system_);
  self->send_exit(actor_, caf::exit_reason::user_shutdown);
  self->wait_for(actor_);
}

}  // namespace penstock::actors
