// Many steps of a session, fed by a source and drained by a sink: two actors with threads of their
// own, so that both may do blocking I/O while the devices compute.
//
//   source ── feeds ──► session ── results ──► sink
//      ▲──────────── credits, one a step ─────────┘
//
// Thread rule: RunSteps blocks its caller; Source and Sink are called on the threads of their
// actors, one call at a time each.
// Invariants: at most `steps_ahead` steps are handed in and not yet taken; steps are taken in
// order; nothing of the actors is left when RunSteps returns.

#ifndef PENSTOCK_ACTORS_SESSION_RUN_STEPS_H_
#define PENSTOCK_ACTORS_SESSION_RUN_STEPS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "actors/session/session.h"

namespace penstock::actors {

// Where the feeds of a run come from.
class Source {
 public:
  virtual ~Source() = default;
  // What step `step` is fed; counted from first_step, each once and in order. An error ends the
  // run.
  virtual absl::StatusOr<Feeds> Get(int64_t step) = 0;
};

// Where the results of a run go.
class Sink {
 public:
  virtual ~Sink() = default;
  // An error ends the run.
  virtual absl::Status Take(int64_t step, const StepResult& result) = 0;
};

// Returns the first error of the source, the session or the sink. An error of the source ends the
// run when the sink has taken the steps before it; after an error of the session or the sink the
// steps under way are waited for and dropped. So no step of this run is under way when RunSteps
// returns, unless the session was stopped or an actor has ended (kInternal, "the sink has ended:
// ..."): then stop the session. REQUIRES: 0 < steps_ahead <= kMaxStepsInFlight.
absl::Status RunSteps(Session& session, int64_t num_steps, int64_t steps_ahead, Source& source,
                      Sink& sink, int64_t first_step = 0);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_SESSION_RUN_STEPS_H_
