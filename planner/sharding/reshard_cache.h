// Chains of redistribution steps that were planned before, and their costs. Layers repeat, so a
// graph asks for the same ones many times, and so do the graphs of a search.
//
// A chain depends on the axes that its two shardings mention alone, and on the sizes of those that
// are spatial. So meshes share chains that differ in nothing but other axes and the number of
// micro-batches. Example: from @[mb.dp, tp] to @[mb.dp, _] with dp=4 and tp=8 is one chain,
// whatever else the meshes have, and with whatever number of micro-batches.
//
// Thread rule: external synchronisation.

#ifndef PENSTOCK_PLANNER_SHARDING_RESHARD_CACHE_H_
#define PENSTOCK_PLANNER_SHARDING_RESHARD_CACHE_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "graph/sharding.h"
#include "planner/sharding/plan_reshard.h"

namespace penstock::planner {

// Chains between shardings whose axes are those of one mesh, by these shardings.
class ReshardTable {
 public:
  // What PlanReshard gives for two ends, and ReshardCost for that.
  struct Chain {
    std::vector<ReshardStep> steps;  // from the first end to the second
    double cost = 0;                 // as a fraction of the tensor
  };

  // Null: not known. Valid until the next Add.
  const Chain* Find(const graph::Sharding& from, const graph::Sharding& to) const;
  // Adds the chain, or replaces the one between these ends. Valid until the next Add.
  const Chain& Add(const graph::Sharding& from, const graph::Sharding& to, Chain chain);

 private:
  struct Ends {
    graph::Sharding from;
    graph::Sharding to;
  };
  struct EndsView {
    const graph::Sharding& from;
    const graph::Sharding& to;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(const Ends& ends) const { return (*this)(EndsView{ends.from, ends.to}); }
    size_t operator()(const EndsView& ends) const;
  };
  struct Equal {
    using is_transparent = void;
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return a.from == b.from && a.to == b.to;
    }
  };

  absl::flat_hash_map<Ends, Chain, Hash, Equal> chains_;
};

// Chains by the axes that their ends mention, for all meshes.
class SharedReshards {
 public:
  // As PlanReshard and ReshardCost on `mesh`, planned at most once for meshes that share the chain.
  ReshardTable::Chain Plan(const graph::Mesh& mesh, const graph::Sharding& from,
                           const graph::Sharding& to);

 private:
  struct TableOfMesh {
    graph::Mesh mesh;
    ReshardTable table;
  };
  std::deque<TableOfMesh> tables_;
};

// Chains of one mesh.
class ReshardCache {
 public:
  // With chains of its own.
  explicit ReshardCache(graph::Mesh mesh) : ReshardCache(std::move(mesh), nullptr) {}
  // With chains that it shares with other meshes. Null `shared`: as above.
  ReshardCache(graph::Mesh mesh, std::shared_ptr<SharedReshards> shared);

  // The mesh of all chains.
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
  const ReshardTable::Chain& Find(const graph::Sharding& from, const graph::Sharding& to);

  graph::Mesh mesh_;
  ReshardTable table_;
  std::shared_ptr<SharedReshards> shared_;
};

// A cache for each mesh.
class ReshardCaches {
 public:
  // Valid as long as this object.
  ReshardCache& Of(const graph::Mesh& mesh);

 private:
  std::shared_ptr<SharedReshards> shared_ = std::make_shared<SharedReshards>();
  std::deque<ReshardCache> caches_;
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_RESHARD_CACHE_H_
