// States that outlive the session that made them, in the memory of the processes that ran it:
// Session::KeepStates makes them, SessionOptions::states starts another session from them.
//
//   ASSIGN_OR_RETURN(options.states, training->KeepStates(StateSelection::kParameters));
//   ASSIGN_OR_RETURN(auto validation, Session::Start(forward_plan, options));
//
// Each process keeps a copy of the tiles that its devices hold, each once. A session whose devices
// have the same tiles in the same processes takes them there. What lies elsewhere or is split in
// another way goes from node to node of a cluster; only between a cluster and this process, or
// another cluster, does it pass through this process.
//
// Memory: the bytes of the tiles, in each process, from KeepStates until the last reference to the
// KeptStates goes, or the process ends. A session copies them: its updates and its failure change
// nothing that was kept. The loss of a process loses what it has kept, and with it the job.
//
// Thread rule: thread-safe.

#ifndef PENSTOCK_ACTORS_SESSION_KEPT_STATES_H_
#define PENSTOCK_ACTORS_SESSION_KEPT_STATES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "actors/checkpoint/checkpoint.h"
#include "base/tensor.h"
#include "planner/plan/plan.h"

namespace penstock::actors {

// States of a plan, with the values that they had when they were kept.
class KeptStates {
 public:
  virtual ~KeptStates() = default;
  KeptStates(const KeptStates&) = delete;
  KeptStates& operator=(const KeptStates&) = delete;

  // As in the plan that they were kept of.
  const std::vector<planner::StatePlan>& states() const { return states_; }

  // Whether a state of this name was kept.
  bool Has(std::string_view name) const;
  // The value of a state, gathered from the processes. kNotFound: it was not kept.
  absl::StatusOr<Tensor> Read(std::string_view name) const;

  // Writes all of it as a checkpoint into an empty folder: where several processes keep it, each of
  // them the part that it has. kNotFound: it is no more. kOutOfRange: a parameter is not finite.
  // Blocks until the files lie on the disk.
  virtual absl::Status Write(const std::string& folder, const Metadata& metadata) const;

 protected:
  // For implementations; `states` as in the plan.
  explicit KeptStates(std::vector<planner::StatePlan> states) : states_(std::move(states)) {}

  // `value` has the state's type.
  virtual absl::Status ReadInto(uint32_t state, Tensor* value) const = 0;

 private:
  const std::vector<planner::StatePlan> states_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_SESSION_KEPT_STATES_H_
