// The groups of devices that communicate in a model's work, numbered as in
// ModelWork::reduction_groups.
//
// Thread rule: one thread at a time.

#ifndef PENSTOCK_PLANNER_SEARCH_WORK_GROUPS_INTERNAL_H_
#define PENSTOCK_PLANNER_SEARCH_WORK_GROUPS_INTERNAL_H_

#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "planner/search/communicating_groups.h"
#include "planner/search/machine.h"
#include "planner/search/stage_work.h"

namespace penstock::planner {

class WorkGroups {
 public:
  // All of these outlive it.
  WorkGroups(const Machine& machine, const graph::Mesh& mesh, const WorkOptions& options,
             std::vector<CommunicatingGroups>* groups)
      : machine_(machine), mesh_(mesh), options_(options), groups_(*groups) {}

  // The number of the groups, which are added if they are new: see GroupsOf.
  int Find(CollectiveKind kind, const std::vector<graph::AxisRef>& axes,
           std::optional<int64_t> shift = std::nullopt) {
    const auto [it, is_new] =
        numbers_.try_emplace({kind, axes, shift}, static_cast<int>(groups_.size()));
    if (!is_new) return it->second;
    groups_.push_back(
        options_.groups != nullptr
            ? options_.groups->Find(machine_, mesh_, kind, axes, options_.num_groups, shift)
            : GroupsOf(machine_, mesh_, kind, axes, options_.num_groups, shift));
    return it->second;
  }

  double Seconds(int number, double num_bytes) const {
    return PredictSeconds(machine_, groups_[number], num_bytes);
  }

 private:
  const Machine& machine_;
  const graph::Mesh& mesh_;
  const WorkOptions& options_;
  std::vector<CommunicatingGroups>& groups_;
  std::map<std::tuple<CollectiveKind, std::vector<graph::AxisRef>, std::optional<int64_t>>, int>
      numbers_;
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_WORK_GROUPS_INTERNAL_H_
