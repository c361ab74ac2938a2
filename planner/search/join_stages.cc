#include "planner/search/join_stages.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock::planner {

ModelWork Join(const ModelWork& work, absl::Span<const int> starts) {
  ModelWork joined;
  joined.reduction_groups = work.reduction_groups;
  joined.num_microbatches = work.num_microbatches;
  joined.devices_per_stage = work.devices_per_stage;
  joined.stages.resize(starts.size());
  std::vector<int> joined_into(work.stages.size(), 0);
  int into = 0;
  for (int s = 0; s < static_cast<int>(work.stages.size()); ++s) {
    if (into + 1 < static_cast<int>(starts.size()) && s >= starts[into + 1]) ++into;
    joined_into[s] = into;
    const StageWork& part = work.stages[s];
    StageWork& whole = joined.stages[into];
    whole.forward += part.forward;
    whole.backward += part.backward;
    whole.weight += part.weight;
    whole.hidden_by_weights_s += part.hidden_by_weights_s;
    whole.update += part.update;
    for (const GradientReduction& reduction : part.gradients) {
      const auto same = std::find_if(
          whole.gradients.begin(), whole.gradients.end(),
          [&](const GradientReduction& other) { return other.group == reduction.group; });
      if (same == whole.gradients.end()) {
        whole.gradients.push_back(reduction);
      } else {
        same->num_bytes += reduction.num_bytes;
      }
    }
    whole.memory.parameters += part.memory.parameters;
    whole.memory.optimizer += part.memory.optimizer;
    whole.memory.gradients += part.memory.gradients;
    whole.memory.activations += part.memory.activations;
    whole.memory.until_weight += part.memory.until_weight;
    whole.memory.host += part.memory.host;
    whole.memory.host_activations += part.memory.host_activations;
    for (double StageMemory::*workspace :
         {&StageMemory::forward_workspace, &StageMemory::backward_workspace,
          &StageMemory::update_workspace}) {
      whole.memory.*workspace = std::max(whole.memory.*workspace, part.memory.*workspace);
    }
  }
  // One copy of a value goes to each stage that reads it.
  std::map<std::tuple<int, int, int, int>, size_t> index;
  std::set<std::tuple<int, int, int>> kept;
  for (StageTransfer transfer : work.transfers) {
    transfer.from = joined_into[transfer.from];
    transfer.to = joined_into[transfer.to];
    if (transfer.from == transfer.to) {
      if (transfer.is_kept_by_reader && !transfer.is_kept_by_source &&
          kept.insert({transfer.value, transfer.copy, transfer.to}).second) {
        joined.stages[transfer.to].memory.activations += transfer.num_bytes;
      }
      continue;
    }
    const auto [it, is_new] = index.try_emplace(
        {transfer.value, transfer.copy, transfer.from, transfer.to}, joined.transfers.size());
    if (is_new) {
      joined.transfers.push_back(transfer);
    } else {
      joined.transfers[it->second].is_kept_by_reader |= transfer.is_kept_by_reader;
      joined.transfers[it->second].is_kept_by_source |= transfer.is_kept_by_source;
    }
  }
  return joined;
}

ModelWork JoinOnGroups(absl::Span<const ModelWork* const> works, absl::Span<const int> starts,
                       Placement placement) {
  const StagePlacement on_groups = {static_cast<int>(works.size()), 1, placement};
  ModelWork joined = Join(*works[0], starts);
  std::set<const ModelWork*> done = {works[0]};
  for (const ModelWork* work : works) {
    if (!done.insert(work).second) continue;
    ModelWork there = Join(*work, starts);
    for (size_t s = 0; s < joined.stages.size(); ++s) {
      if (works[on_groups.GroupOf(static_cast<int>(s))] == work)
        joined.stages[s] = std::move(there.stages[s]);
    }
  }
  return joined;
}

}  // namespace penstock::planner
