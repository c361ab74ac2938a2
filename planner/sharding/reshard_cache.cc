#include "planner/sharding/reshard_cache.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::Mesh;
using graph::Sharding;

// As many micro-batches as any.
constexpr int64_t kSomeMicrobatches = 2;

class Hasher {
 public:
  void Add(uint64_t value) {
    value_ = (value_ ^ value) * 0x9e3779b97f4a7c15;
    value_ ^= value_ >> 32;
  }
  void Add(const std::vector<AxisRef>& axes) {
    Add(axes.size());
    for (const AxisRef& axis : axes) {
      Add(static_cast<uint64_t>(axis.axis) << 56 ^ static_cast<uint64_t>(axis.pre) << 28 ^
          static_cast<uint64_t>(axis.size));
    }
  }
  void Add(const Sharding& sharding) {
    Add(sharding.dims.size());
    for (const graph::DimSharding& dim : sharding.dims) Add(dim.axes);
    for (const graph::PartialSpec& partial : sharding.partials) Add(partial.axes);
  }
  size_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

// Calls visit(axis) for each axis of the sharding.
template <typename S, typename Visit>
void ForEachAxis(S& sharding, const Visit& visit) {
  for (auto& dim : sharding.dims) {
    for (auto& axis : dim.axes) visit(axis);
  }
  for (auto& partial : sharding.partials) {
    for (auto& axis : partial.axes) visit(axis);
  }
  for (auto& axis : sharding.replicated) visit(axis);
}

// A mesh with the axes that two shardings mention.
class Excerpt {
 public:
  Excerpt(const Mesh& mesh, const Sharding& from, const Sharding& to)
      : whole_(mesh), numbers_(mesh.axes.size(), -1) {
    std::vector<bool> is_mentioned(mesh.axes.size(), false);
    for (const Sharding* sharding : {&from, &to}) {
      ForEachAxis(*sharding, [&](const AxisRef& axis) {
        is_mentioned[static_cast<size_t>(axis.axis)] = true;
        is_cut_in_time_ |= graph::IsTemporal(mesh, axis) && axis != WholeAxis(mesh, axis.axis);
      });
    }
    for (size_t a = 0; a < mesh.axes.size(); ++a) {
      if (!is_mentioned[a]) continue;
      numbers_[a] = static_cast<int>(axes_.size());
      axes_.push_back(static_cast<int>(a));
      graph::MeshAxis& axis = mesh_.axes.emplace_back(mesh.axes[a]);
      axis.name.clear();
      if (axis.is_temporal) axis.size = kSomeMicrobatches;
    }
  }

  // Whether pieces of micro-batches are mentioned.
  bool is_cut_in_time() const { return is_cut_in_time_; }
  const Mesh& mesh() const { return mesh_; }

  Sharding ToExcerpt(Sharding sharding) const {
    return Renumber(std::move(sharding), numbers_, mesh_);
  }
  Sharding ToWhole(Sharding sharding) const { return Renumber(std::move(sharding), axes_, whole_); }

 private:
  static Sharding Renumber(Sharding sharding, const std::vector<int>& numbers, const Mesh& mesh) {
    ForEachAxis(sharding, [&](AxisRef& axis) {
      axis.axis = numbers[static_cast<size_t>(axis.axis)];
      const graph::MeshAxis& now = mesh.axes[static_cast<size_t>(axis.axis)];
      if (now.is_temporal) axis.size = now.size;
    });
    return sharding;
  }

  const Mesh& whole_;
  Mesh mesh_;
  std::vector<int> numbers_;  // of the axes, in mesh_; -1: not mentioned
  std::vector<int> axes_;     // the other way round
  bool is_cut_in_time_ = false;
};

ReshardTable::Chain PlanChain(const Mesh& mesh, const Sharding& from, const Sharding& to) {
  ReshardTable::Chain chain;
  chain.steps = PlanReshard(mesh, from, to);
  chain.cost = ReshardCost(mesh, from, chain.steps);
  return chain;
}

}  // namespace

size_t ReshardTable::Hash::operator()(const EndsView& ends) const {
  Hasher hasher;
  hasher.Add(ends.from);
  hasher.Add(ends.to);
  return hasher.value();
}

const ReshardTable::Chain* ReshardTable::Find(const Sharding& from, const Sharding& to) const {
  const auto found = chains_.find(EndsView{from, to});
  return found == chains_.end() ? nullptr : &found->second;
}

const ReshardTable::Chain& ReshardTable::Add(const Sharding& from, const Sharding& to,
                                             Chain chain) {
  return chains_.insert_or_assign(Ends{from, to}, std::move(chain)).first->second;
}

ReshardTable::Chain SharedReshards::Plan(const Mesh& mesh, const Sharding& from,
                                         const Sharding& to) {
  const Excerpt excerpt(mesh, from, to);
  if (excerpt.is_cut_in_time()) return PlanChain(mesh, from, to);
  auto found = std::find_if(tables_.begin(), tables_.end(),
                            [&](const TableOfMesh& table) { return table.mesh == excerpt.mesh(); });
  if (found == tables_.end()) {
    tables_.push_back({excerpt.mesh(), {}});
    found = std::prev(tables_.end());
  }
  const Sharding begin = excerpt.ToExcerpt(from);
  const Sharding end = excerpt.ToExcerpt(to);
  const ReshardTable::Chain* known = found->table.Find(begin, end);
  if (known == nullptr) {
    known = &found->table.Add(begin, end, PlanChain(excerpt.mesh(), begin, end));
  }
  ReshardTable::Chain chain = *known;
  for (ReshardStep& step : chain.steps) step.sharding = excerpt.ToWhole(std::move(step.sharding));
  return chain;
}

ReshardCache::ReshardCache(Mesh mesh, std::shared_ptr<SharedReshards> shared)
    : mesh_(std::move(mesh)), shared_(std::move(shared)) {}

const ReshardTable::Chain& ReshardCache::Find(const Sharding& from, const Sharding& to) {
  const ReshardTable::Chain* known = table_.Find(from, to);
  if (known != nullptr) return *known;
  return table_.Add(
      from, to, shared_ == nullptr ? PlanChain(mesh_, from, to) : shared_->Plan(mesh_, from, to));
}

ReshardCache& ReshardCaches::Of(const Mesh& mesh) {
  const auto is_of_mesh = [&mesh](const ReshardCache& cache) { return cache.mesh() == mesh; };
  const auto found = std::find_if(caches_.begin(), caches_.end(), is_of_mesh);
  return found != caches_.end() ? *found : caches_.emplace_back(mesh, shared_);
}

}  // namespace penstock::planner
