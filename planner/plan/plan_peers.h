// With whom the devices of a folded plan communicate, found without spelling them out.
//
// A *meeting* is a collective or transfer as actors of programs name it: meeting m is collective m
// of the plan, and those after the collectives are its transfers. Every meeting has a *set* of
// groups: each group of a collective runs it by itself, and a transfer has a group of two for each
// message, the source first. Collectives whose groups are the same share a set, and so do
// transfers.
//
// Devices are numbered as in ExpandPlan. In a plan that is not folded, each device is its own
// program, and each set has one group.
//
// Example: dp=2 and tp=2 in two stages. In stage 1, the set of the collectives over dp has the
// groups {4, 6} and {5, 7}; the set of transfers from stage 0 to stage 1 has {0, 4}, {1, 5}, {2, 6}
// and {3, 7}.
//
// Thread rule: const after construction.

#ifndef PENSTOCK_PLANNER_PLAN_PLAN_PEERS_H_
#define PENSTOCK_PLANNER_PLAN_PLAN_PEERS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "base/collective.h"
#include "planner/plan/folded_plan.h"
#include "planner/plan/plan.h"

namespace penstock::planner {

class PlanPeers {
 public:
  struct GroupSet {
    std::vector<std::vector<uint32_t>> groups;  // devices of the plan, by rank
    std::vector<uint32_t> group_of;             // of each device of the plan; kNone: in none
  };

  // `plan` outlives the result. Errors are those of TileOf (coordinates.h).
  static absl::StatusOr<PlanPeers> Create(const FoldedPlan& plan);

  uint32_t num_collectives() const { return num_collectives_; }
  uint32_t num_meetings() const { return static_cast<uint32_t>(set_of_.size()); }
  const std::vector<GroupSet>& sets() const { return sets_; }

  // The meeting of a collective, send or receive; kNone for other actors.
  uint32_t MeetingOf(const ActorPlan& actor) const {
    if (!IsCommunication(actor.kind)) return kNone;
    return actor.kind == ActorKind::kCollective ? actor.target : num_collectives_ + actor.target;
  }
  bool IsTransfer(uint32_t meeting) const { return meeting >= num_collectives_; }
  uint32_t SetOf(uint32_t meeting) const { return set_of_[meeting]; }
  // In the meeting's set. REQUIRES: the device takes part.
  uint32_t GroupOf(uint32_t meeting, uint32_t device) const {
    return sets_[set_of_[meeting]].group_of[device];
  }
  const std::vector<uint32_t>& DevicesOf(uint32_t meeting, uint32_t group) const {
    return sets_[set_of_[meeting]].groups[group];
  }

  // Whether the sizes of a collective depend on the group.
  bool DiffersByGroup(uint32_t collective) const {
    return plan_->is_folded() && plan_->collectives[collective].specs.size() > 1;
  }
  // Of a group of a collective. Its devices and channel may be missing.
  const CollectiveSpec& SpecOf(uint32_t collective, uint32_t group) const;
  // Of the message of a group of a transfer.
  uint64_t MessageBytes(uint32_t meeting, uint32_t group) const;

 private:
  explicit PlanPeers(const FoldedPlan& plan);
  absl::Status AddFolded();
  void AddSpelledOut();

  const FoldedPlan* plan_;
  uint32_t num_collectives_ = 0;
  std::vector<GroupSet> sets_;
  std::vector<uint32_t> set_of_;                      // of each meeting
  std::vector<std::vector<uint64_t>> message_bytes_;  // of each transfer, by class or once
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_PLAN_PEERS_H_
