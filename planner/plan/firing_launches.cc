#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/firing_internal.h"

namespace penstock::planner::internal {

absl::StatusOr<LaunchOrder> Firing::OrderLaunches(Launched launched) {
  is_ordering_ = true;
  SetLaunched(launched);
  num_steps_ = 1;
  ordered_.resize(plan_.devices.size());
  Number();
  RETURN_IF_ERROR(OrderStages());
  for (uint32_t d = 0; d < plan_.devices.size(); ++d) AddDevice(d);
  for (uint32_t p = 0; p < phases_.size(); ++p) List(p);
  std::vector<uint32_t> turns;
  while (true) {
    for (uint32_t s = 0; s < stages_.size(); ++s) Choose(s);
    if (worklist_.empty()) break;
    turns.swap(worklist_);
    for (const uint32_t p : turns) phases_[p].is_listed = false;
    for (const uint32_t p : turns) Poll(p);
    turns.clear();
  }
  for (uint32_t p = 0; p < phases_.size(); ++p) {
    if (IsDone(p)) continue;
    return absl::FailedPreconditionError(StrCat(
        Name(launched), " have no order in which all devices could launch them: ", Describe(p),
        " does not come to its end if it waits at each for the other members"));
  }
  return std::move(ordered_);
}

void Firing::AdvanceInTurn(uint32_t p) {
  PhaseState& state = phases_[p];
  if (state.next_item == state.end_item || FirstWait(state) != kNone) return;
  const uint32_t item = state.next_item;
  const uint32_t member = items_[item].member;
  if (member == kNone) {
    ++state.next_item;
    Complete(item);
    List(p);
    return;
  }
  if (!IsLaunched(items_[item])) {
    ++state.next_item;
    StartCommunication(p, item);
    List(p);
    return;
  }
  if (std::exchange(members_[member].has_arrived, true)) return;
  const uint32_t rendezvous = members_[member].rendezvous;
  if (++num_arrived_[rendezvous] < rendezvous_.Of(rendezvous).size()) return;
  num_arrived_[rendezvous] = 0;
  for (uint32_t i = rendezvous_.begin(rendezvous); i < rendezvous_.ends[rendezvous]; ++i) {
    members_[i].has_arrived = false;
    ++members_[i].num_completed;
    PhaseState& other = phases_[members_[i].phase];
    ++other.next_item;
    std::vector<LaunchRun>& runs = ordered_[other.device];
    if (runs.empty() || runs.back().phase != other.phase) runs.push_back({other.phase, 0});
    ++runs.back().count;
    List(members_[i].phase);
  }
}

void Firing::CompleteLaunched(const PhaseState& state) {
  for (uint32_t i = state.first_item; i < state.end_item; ++i) {
    if (IsLaunched(items_[i])) Complete(i);
  }
}

absl::Status Firing::CheckLaunches(const LaunchOrder& order, Launched launched) {
  order_ = &order;
  SetLaunched(launched);
  positions_.resize(plan_.devices.size());
  return Run().status();
}

bool Firing::MayLaunch(const PhaseState& state) const {
  const std::vector<LaunchRun>& runs = (*order_)[state.device];
  return !runs.empty() && runs[positions_[state.device].run].phase == state.phase;
}

void Firing::CountLaunch(const PhaseState& state) {
  const std::vector<LaunchRun>& runs = (*order_)[state.device];
  Position& position = positions_[state.device];
  if (++position.launched < runs[position.run].count) return;
  position.launched = 0;
  position.run = (position.run + 1) % static_cast<uint32_t>(runs.size());
  List(phase_base_[state.device] + runs[position.run].phase);
}

}  // namespace penstock::planner::internal
