#include "planner/lower/unasked_gathers.h"

#include <algorithm>
#include <deque>
#include <string_view>
#include <utility>

#include "base/collective.h"
#include "graph/op.h"
#include "graph/sharding.h"
#include "planner/lower/communication.h"
#include "planner/plan/recomputed_mark.h"
#include "planner/sharding/execution_sharding.h"
#include "planner/sharding/plan_reshard.h"
#include "planner/sharding/reshard_cache.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::Graph;
using graph::Mesh;
using graph::Node;
using graph::NodeId;
using graph::Sharding;
using graph::ValueId;

bool Has(absl::Span<const AxisRef> axes, absl::Span<const AxisRef> some) {
  return std::any_of(axes.begin(), axes.end(), [&](const AxisRef& axis) {
    return std::any_of(some.begin(), some.end(),
                       [&](const AxisRef& other) { return graph::Overlap(axis, other); });
  });
}

bool Has(const Sharding& sharding, absl::Span<const AxisRef> some) {
  return std::any_of(sharding.dims.begin(), sharding.dims.end(),
                     [&](const graph::DimSharding& dim) { return Has(dim.axes, some); }) ||
         std::any_of(sharding.partials.begin(), sharding.partials.end(),
                     [&](const graph::PartialSpec& partial) { return Has(partial.axes, some); });
}

class Finder {
 public:
  Finder(const Graph& written, const Graph& graph)
      : written_(written),
        graph_(graph),
        users_(graph.Users()),
        is_returned_(static_cast<size_t>(graph.num_values()), false) {
    for (const graph::Return& result : graph.returns()) {
      is_returned_[static_cast<size_t>(result.value)] = true;
    }
    for (const Mesh& mesh : graph.meshes()) chains_.emplace_back(mesh);
  }

  std::vector<UnaskedGather> Run() {
    for (const Node& node : graph_.nodes()) {
      if (node.op->role() != graph::OpRole::kReshard) continue;
      if (node.attributes.GetBool("per_use", false)) continue;
      AddOf(node);
    }
    return std::move(found_);
  }

 private:
  const Mesh& MeshOf(const Node& node) const { return graph_.meshes()[node.mesh]; }
  Sharding ShardingOf(ValueId value) const {
    const graph::Value& v = graph_.value(value);
    return ClosedSharding(MeshOf(graph_.node(v.producer)), v);
  }

  void AddOf(const Node& reshard) {
    const ValueId source = reshard.operands[0];
    const TensorType& type = graph_.value(source).type;
    const Mesh& mesh = MeshOf(reshard);
    Sharding from = ShardingOf(source);
    for (const ReshardStep& step :
         chains_[reshard.mesh].Steps(from, ShardingOf(reshard.results[0]))) {
      const Sharding before = std::exchange(from, step.sharding);
      if (CollectiveOf(step.op) != CollectiveKind::kAllGather) continue;
      const std::vector<AxisRef> axes =
          MovedAxes(CollectiveKind::kAllGather, before, step.sharding);
      const Node* reader = nullptr;
      if (IsAskedFor(reshard.results[0], axes, &reader) || reader == nullptr) continue;
      found_.push_back({graph_.value(source).name, std::string(reader->op->name()),
                        reader->location, graph::ToString(mesh, before),
                        graph::ToString(mesh, step.sharding),
                        static_cast<int64_t>(LargestTile(type, step.sharding).num_bytes()) -
                            static_cast<int64_t>(LargestTile(type, before).num_bytes())});
    }
  }

  // `reader`: set to the first node that reads the value.
  bool IsAskedFor(ValueId value, absl::Span<const AxisRef> axes, const Node** reader) const {
    if (IsWritten(value) || is_returned_[static_cast<size_t>(value)]) return true;
    const std::vector<NodeId>& users = users_[value];
    return std::any_of(users.begin(), users.end(), [&](NodeId id) {
      const Node& user = graph_.node(id);
      if (user.op->role() == graph::OpRole::kAssign) return true;
      if (user.op->role() == graph::OpRole::kReshard) {
        return IsAskedFor(user.results[0], axes, reader);
      }
      if (*reader == nullptr) *reader = &user;
      const auto is_split = [&](ValueId other) { return Has(ShardingOf(other), axes); };
      return std::any_of(user.operands.begin(), user.operands.end(), is_split) ||
             std::any_of(user.results.begin(), user.results.end(), is_split) ||
             std::any_of(user.results.begin(), user.results.end(),
                         [&](ValueId result) { return IsWritten(result); });
    });
  }

  // Whether the value, or the one that it is computed again for, has a sharding before any is
  // propagated, or is a reshard that is not ours. What a kernel leaves otherwise than its value is
  // to be has a name of its own.
  bool IsWritten(ValueId value) const {
    constexpr std::string_view kLocal = ".local";
    const Node& producer = graph_.node(graph_.value(value).producer);
    if (producer.attributes.Find(kRecomputedMark) != nullptr &&
        producer.forward != graph::kNoNode) {
      return IsWritten(graph_.node(producer.forward).results[graph_.value(value).result_index]);
    }
    std::string_view name = graph_.value(value).name;
    if (name.ends_with(kLocal)) name.remove_suffix(kLocal.size());
    const ValueId before = written_.FindValue(name);
    if (before == graph::kNoValue) return false;
    const graph::Value& v = written_.value(before);
    return v.sharding.has_value() ||
           written_.node(v.producer).op->role() == graph::OpRole::kReshard;
  }

  const Graph& written_;
  const Graph& graph_;
  const std::vector<std::vector<NodeId>> users_;
  std::vector<bool> is_returned_;
  std::deque<ReshardCache> chains_;  // of each mesh
  std::vector<UnaskedGather> found_;
};

}  // namespace

std::vector<UnaskedGather> FindUnaskedGathers(const Graph& written, const Graph& resharded) {
  return Finder(written, resharded).Run();
}

}  // namespace penstock::planner
