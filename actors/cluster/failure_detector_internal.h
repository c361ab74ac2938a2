// Decides that a member of a job is lost: its process has ended, its connection has closed, or it
// does not answer pings. An actor, which the event loop tells what it sees; the actor has the times
// and tells the membership (membership_internal.h), which decides what becomes of the job.
//
//   loop ── asked, answered, closed, exited ──► failure detector ── MemberLoss ──► membership
//   loop ◄── kill, look again, the loss ──────────────┘
//
// The status of a process that was launched by this job says more than a closed connection or
// silence, so these wait a moment for it. Silence is the lack of what the loop tells, and the loop
// may be late itself: before it counts, the loop looks again (NodeSupervisor::LookAgain). A loop
// that does not is asked again: its silence is not that of a member.
//
// Thread rule: thread-safe; the handlers are called by the actor, one at a time.
// Invariants: what one thread tells is handled in its order; the loop is told of a loss before the
// membership is; a loss may be reported more than once; the first report counts.

#ifndef PENSTOCK_ACTORS_CLUSTER_FAILURE_DETECTOR_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_FAILURE_DETECTOR_INTERNAL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "caf/all.hpp"

#include "actors/cluster/membership_internal.h"

namespace penstock::actors {

// --- What the event loop tells. `when`: what the job does, as in MemberLoss ----------------------

struct ConnectionClosed {
  uint32_t rank = 0;
  bool is_launched = false;  // by this job: the status of a process will come
  std::string when;
};

// A call has failed, but the connection stands.
struct AnswerFailed {
  uint32_t rank = 0;
  std::string when;
};

struct ProcessExited {
  uint32_t rank = 0;
  int wait_status = 0;
  std::string note;  // as Launcher::Events::on_exit has it
  std::string when;
};

// What had come from the member when its silence was noticed has been told.
struct LookedAgain {
  uint32_t rank = 0;
  bool is_launched = false;
  std::string when;
};

// Since the last sign of life of each member that was asked for one, by rank.
struct MemberSilences {
  std::map<uint32_t, absl::Duration> by_rank;
};

// --- What the actor sends itself, later ----------------------------------------------------------

struct SilenceCheck {
  uint32_t rank = 0;
  uint64_t number = 0;  // only the last one of a member counts
};

struct GraceOver {
  MemberLoss loss;
  bool is_orderly = false;
};

// With the rank of a member: a ping was sent, it was answered, there will be no more.
using AskedAtom = caf::atom_constant<caf::atom("asked")>;
using AnsweredAtom = caf::atom_constant<caf::atom("answered")>;
using UnwatchAtom = caf::atom_constant<caf::atom("unwatch")>;
// Of the job.
using AllJoinedAtom = caf::atom_constant<caf::atom("alljoined")>;
using EndingAtom = caf::atom_constant<caf::atom("ending")>;
using SilencesAtom = caf::atom_constant<caf::atom("silences")>;

}  // namespace penstock::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::ConnectionClosed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::AnswerFailed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::ProcessExited)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::LookedAgain)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::MemberSilences)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::SilenceCheck)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::GraceOver)

namespace penstock::actors {

using FailureDetectorActor = caf::typed_actor<
    caf::reacts_to<AskedAtom, uint32_t>, caf::reacts_to<AnsweredAtom, uint32_t>,
    caf::reacts_to<UnwatchAtom, uint32_t>, caf::reacts_to<AllJoinedAtom>,
    caf::reacts_to<EndingAtom>, caf::reacts_to<ConnectionClosed>, caf::reacts_to<AnswerFailed>,
    caf::reacts_to<ProcessExited>, caf::reacts_to<LookedAgain>, caf::reacts_to<SilenceCheck>,
    caf::reacts_to<GraceOver>, caf::replies_to<SilencesAtom>::with<MemberSilences>>;

class FailureDetector {
 public:
  struct Times {
    absl::Duration timeout;   // for the answer to a ping
    absl::Duration patience;  // the same until all have joined; at least `timeout`
  };
  struct Handlers {
    // `counts` is false of one that ends in order while the job does. Such a loss, as any other
    // while the job ends, is not one for the membership.
    std::function<void(const MemberLoss& loss, bool counts)> on_loss;
    // Has the loop handle what has arrived, and call OnLookedAgain.
    std::function<void(uint32_t rank)> look_again;
    // Ends a process of this job that is silent.
    std::function<void(uint32_t rank)> kill;
  };

  // How long the loop may take to look again before it is asked once more.
  static constexpr absl::Duration kLookTimeout = absl::Seconds(5);

  // Starts the actor. `system` outlives it.
  FailureDetector(caf::actor_system& system, MembershipActor membership, const Times& times,
                  Handlers handlers);
  ~FailureDetector() { Stop(); }
  FailureDetector(const FailureDetector&) = delete;
  FailureDetector& operator=(const FailureDetector&) = delete;

  caf::actor actor() const { return caf::actor_cast<caf::actor>(actor_); }

  void OnAsked(uint32_t rank) { caf::anon_send(actor_, AskedAtom::value, rank); }
  void OnAnswered(uint32_t rank) { caf::anon_send(actor_, AnsweredAtom::value, rank); }
  // It is not asked any more.
  void Unwatch(uint32_t rank) { caf::anon_send(actor_, UnwatchAtom::value, rank); }
  // From now on, members have less time to answer.
  void OnAllJoined() { caf::anon_send(actor_, AllJoinedAtom::value); }
  // From now on, members are expected to go.
  void OnJobEnding() { caf::anon_send(actor_, EndingAtom::value); }
  void OnDisconnected(ConnectionClosed closed) { caf::anon_send(actor_, std::move(closed)); }
  void OnAnswerFailed(AnswerFailed failed) { caf::anon_send(actor_, std::move(failed)); }
  void OnExit(ProcessExited exited) { caf::anon_send(actor_, std::move(exited)); }
  void OnLookedAgain(LookedAgain looked) { caf::anon_send(actor_, std::move(looked)); }

  // Waits for the answer, which comes after the handlers were called for what was told before.
  absl::StatusOr<MemberSilences> Silences(absl::Duration timeout) const;
  // Waits for just that.
  absl::Status Flush(absl::Duration timeout) const { return Silences(timeout).status(); }

  // Ends the actor and waits for it. Last, but for the destructor.
  void Stop();

 private:
  caf::actor_system& system_;
  FailureDetectorActor actor_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_FAILURE_DETECTOR_INTERNAL_H_
