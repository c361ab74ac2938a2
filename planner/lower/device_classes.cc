#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "planner/lower/lowering_internal.h"
#include "planner/sharding/execution_sharding.h"

namespace penstock::planner::internal {

bool IsFirstOf(const Mesh& mesh, const Sharding& from, const graph::PartialSpec& partial,
               uint32_t device) {
  std::vector<graph::AxisRef> summed;
  for (const graph::PartialSpec& before : from.partials) {
    summed.insert(summed.end(), before.axes.begin(), before.axes.end());
  }
  const std::vector<graph::AxisRef> added = Difference(partial.axes, summed);
  return std::all_of(added.begin(), added.end(), [&](const graph::AxisRef& axis) {
    return graph::Coordinate(mesh, axis, device, 0) == 0;
  });
}

bool IsFirstWithTile(const Mesh& mesh, const Sharding& sharding, uint32_t device) {
  for (int axis = 0; axis < static_cast<int>(mesh.axes.size()); ++axis) {
    if (mesh.axes[axis].is_temporal) continue;
    int64_t part = 0;
    for (const graph::DimSharding& dim : sharding.dims) {
      for (const graph::AxisRef& piece : dim.axes) {
        if (piece.axis != axis) continue;
        part += graph::Coordinate(mesh, piece, device, 0) *
                (mesh.axes[axis].size / (piece.pre * piece.size));
      }
    }
    if (part != graph::Coordinate(mesh, graph::WholeAxis(mesh, axis), device, 0)) return false;
  }
  return true;
}

std::vector<std::vector<int64_t>> Lowering::Signatures() const {
  const Mesh& mesh = graph_.meshes()[0];
  const auto num_devices = static_cast<uint32_t>(mesh.num_devices());
  std::vector<std::vector<int64_t>> signatures(num_devices);
  const auto add = [&](const auto& of_device) {
    for (uint32_t d = 0; d < num_devices; ++d) signatures[d].push_back(of_device(d));
  };
  // Sizes of tiles.
  std::set<std::tuple<std::vector<graph::AxisRef>, std::optional<graph::Window>, int64_t>> seen;
  for (ValueId value = 0; value < graph_.num_values(); ++value) {
    const graph::Value& v = graph_.value(value);
    const Sharding sharding = ClosedSharding(mesh, v);
    for (size_t i = 0; i < sharding.dims.size(); ++i) {
      const graph::DimSharding& dim = sharding.dims[i];
      const int64_t extent = v.type.shape[i];
      if (extent % graph::NumParts(dim) == 0 && !dim.window.has_value()) continue;
      if (!seen.insert({dim.axes, dim.window, extent}).second) continue;
      add([&](uint32_t d) { return graph::LocalRange(mesh, dim, extent, d, 0).size(); });
      if (mesh.num_microbatches() == 1) continue;
      add([&](uint32_t d) {
        return graph::LocalRange(mesh, dim, extent, d, 1).begin -
               graph::LocalRange(mesh, dim, extent, d, 0).begin;
      });
    }
  }
  // Groups of other sizes than the rest have.
  for (size_t c = 0; c < groups_.size(); ++c) {
    const std::vector<CollectiveSpec>& specs = folded_.collectives[c].specs;
    if (specs.size() == 1) continue;
    add([&](uint32_t d) {
      return std::find(specs.begin(), specs.end(), specs[groups_[c].group_of[d]]) - specs.begin();
    });
  }
  std::set<const Communication*> compared;
  for (const auto& [node, communication] : communications_) {
    if (!compared.insert(communication).second) continue;
    std::map<Communication::HaloCopies, int64_t> copies;  // in the order in which they occur
    if (communication->halo_dim.has_value()) {
      add([&](uint32_t d) {
        const auto next = static_cast<int64_t>(copies.size());
        return copies.emplace(communication->halo[d], next).first->second;
      });
    }
    const std::vector<uint32_t>& group_of = groups_[collectives_.at(node)].group_of;
    for (const auto* sizes : {&communication->pack_sizes, &communication->unpack_sizes}) {
      if (std::all_of(sizes->begin(), sizes->end(),
                      [&](const auto& other) { return other == sizes->front(); })) {
        continue;
      }
      add([&](uint32_t d) {
        return std::find(sizes->begin(), sizes->end(), (*sizes)[group_of[d]]) - sizes->begin();
      });
    }
  }
  // Terms that are neutral on all devices but some.
  for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
    const Node& node = graph_.node(id);
    if (node.op->role() != graph::OpRole::kLocalSlice) continue;
    const Sharding from = ClosedSharding(mesh, graph_.value(node.operands[0]));
    for (const graph::PartialSpec& partial :
         ClosedSharding(mesh, graph_.value(node.results[0])).partials) {
      add([&](uint32_t d) { return IsFirstOf(mesh, from, partial, d); });
    }
  }
  for (const graph::Return& ret : graph_.returns()) {
    const Sharding sharding = ClosedSharding(mesh, graph_.value(ret.value));
    add([&](uint32_t d) { return IsFirstWithTile(mesh, sharding, d); });
  }
  return signatures;
}

void Lowering::FindClasses() {
  if (!is_folded()) return;
  const auto num_devices = static_cast<uint32_t>(graph_.meshes()[0].num_devices());
  folded_.class_of.resize(num_devices);
  std::map<std::vector<int64_t>, uint32_t> class_by_signature;
  const std::vector<std::vector<int64_t>> signatures = Signatures();
  for (uint32_t d = 0; d < num_devices; ++d) {
    const auto next = static_cast<uint32_t>(class_by_signature.size());
    folded_.class_of[d] =
        options_.fold ? class_by_signature.emplace(signatures[d], next).first->second : d;
  }
  class_sizes_ = folded_.SizeOfClasses();
}

}  // namespace penstock::planner::internal
