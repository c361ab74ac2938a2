// Chains of redistribution steps that were planned before, and their costs. Layers repeat, so a
// graph asks for the same ones many times, and so do the graphs of a search on meshes of one shape.
//
// Thread rule: external synchronisation.

#ifndef PENSTOCK_PLANNER_SHARDING_RESHARD_CACHE_H_
#define PENSTOCK_PLANNER_SHARDING_RESHARD_CACHE_H_

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "graph/sharding.h"
#include "planner/sharding/plan_reshard.h"

namespace penstock::planner {

class ReshardCache {
 public:
  explicit ReshardCache(graph::Mesh mesh) : mesh_(std::move(mesh)) {}

  const graph::Mesh& mesh() const { return mesh_; }

  // As PlanReshard. Valid until the next call.
  const std::vector<ReshardStep>& Steps(const graph::Sharding& from, const graph::Sharding& to) {
    return Find(from, to).steps;
  }
  // As ReshardCost of that chain.
  double Cost(const graph::Sharding& from, const graph::Sharding& to) {
    return from == to ? 0 : Find(from, to).cost;
  }

 private:
  struct Chain {
    std::vector<ReshardStep> steps;
    double cost = 0;
  };

  const Chain& Find(const graph::Sharding& from, const graph::Sharding& to) {
    const auto [it, is_new] =
        chains_.try_emplace({graph::ToString(mesh_, from), graph::ToString(mesh_, to)});
    if (is_new) {
      it->second.steps = PlanReshard(mesh_, from, to);
      it->second.cost = ReshardCost(mesh_, from, it->second.steps);
    }
    return it->second;
  }

  const graph::Mesh mesh_;
  absl::flat_hash_map<std::pair<std::string, std::string>, Chain> chains_;
};

// A cache for each mesh.
class ReshardCaches {
 public:
  // Valid as long as this object.
  ReshardCache& Of(const graph::Mesh& mesh) {
    const auto is_of_mesh = [&mesh](const ReshardCache& cache) { return cache.mesh() == mesh; };
    const auto found = std::find_if(caches_.begin(), caches_.end(), is_of_mesh);
    return found != caches_.end() ? *found : caches_.emplace_back(mesh);
  }

 private:
  std::deque<ReshardCache> caches_;
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_RESHARD_CACHE_H_
