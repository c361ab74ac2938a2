#include "planner/sharding/common_mesh.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::Mesh;
using graph::MeshAxis;
using graph::Sharding;

// Of a spatial axis: the parts of all devices that are major to it, and those that it ends at.
struct Extent {
  int64_t begin = 1;
  int64_t end = 1;
};

Extent ExtentOf(const Mesh& mesh, int axis) {
  Extent extent;
  for (int a = 0; a <= axis; ++a) {
    if (mesh.axes[static_cast<size_t>(a)].is_temporal) continue;
    extent.begin = extent.end;
    extent.end *= mesh.axes[static_cast<size_t>(a)].size;
  }
  return extent;
}

std::vector<MeshAxis> TemporalAxes(const Mesh& mesh) {
  std::vector<MeshAxis> axes;
  std::copy_if(mesh.axes.begin(), mesh.axes.end(), std::back_inserter(axes),
               [](const MeshAxis& axis) { return axis.is_temporal; });
  return axes;
}

// Of the axis that some mesh has there.
std::string NameOf(absl::Span<const Mesh> meshes, int64_t begin, int64_t end, const Mesh& common) {
  const auto is_free = [&](const std::string& name) { return common.FindAxis(name) < 0; };
  for (const Mesh& mesh : meshes) {
    for (int a = 0; a < static_cast<int>(mesh.axes.size()); ++a) {
      const MeshAxis& axis = mesh.axes[static_cast<size_t>(a)];
      if (axis.is_temporal || axis.size == 1 || !is_free(axis.name)) continue;
      const Extent extent = ExtentOf(mesh, a);
      if (extent.begin == begin && extent.end == end) return axis.name;
    }
  }
  std::string name = StrCat("part", begin);
  while (!is_free(name)) name += "_";
  return name;
}

}  // namespace

absl::StatusOr<CommonMesh> CommonMesh::Create(absl::Span<const Mesh> meshes) {
  CommonMesh common;
  common.meshes_.assign(meshes.begin(), meshes.end());
  common.mesh_.name = meshes[0].name;
  common.mesh_.axes = TemporalAxes(meshes[0]);
  std::set<int64_t> cuts;
  for (const Mesh& mesh : meshes) {
    if (mesh.num_devices() != meshes[0].num_devices()) {
      return absl::UnimplementedError(StrCat("'", meshes[0].name, "' has ", meshes[0].num_devices(),
                                             " devices and '", mesh.name, "' ",
                                             mesh.num_devices()));
    }
    if (TemporalAxes(mesh) != common.mesh_.axes) {
      return absl::UnimplementedError(
          StrCat("'", meshes[0].name, "' and '", mesh.name, "' have different temporal axes"));
    }
    for (int a = 0; a < static_cast<int>(mesh.axes.size()); ++a) {
      const Extent extent = ExtentOf(mesh, a);
      cuts.insert(extent.begin);
      cuts.insert(extent.end);
    }
  }
  int64_t begin = 1;
  for (const int64_t end : cuts) {
    if (end == begin) continue;
    if (end % begin != 0) {
      return absl::UnimplementedError(StrCat("their axes divide the devices after ", begin,
                                             " and after ", end,
                                             " parts, and neither divides the other"));
    }
    std::string name = NameOf(meshes, begin, end, common.mesh_);
    common.mesh_.axes.push_back({std::move(name), end / begin, /*is_temporal=*/false});
    begin = end;
  }
  return common;
}

absl::StatusOr<std::vector<AxisRef>> CommonMesh::Translate(int index, const AxisRef& axis) const {
  const Mesh& from = meshes_[static_cast<size_t>(index)];
  const MeshAxis& whole = from.axes[static_cast<size_t>(axis.axis)];
  std::vector<AxisRef> pieces;
  if (whole.is_temporal) {
    const int at = mesh_.FindAxis(whole.name);
    pieces.push_back({at, axis.pre, axis.size});
    return pieces;
  }
  const int64_t begin = ExtentOf(from, axis.axis).begin * axis.pre;
  const int64_t end = begin * axis.size;
  for (int a = 0; a < static_cast<int>(mesh_.axes.size()); ++a) {
    if (mesh_.axes[static_cast<size_t>(a)].is_temporal) continue;
    const Extent extent = ExtentOf(mesh_, a);
    const int64_t first = std::max(begin, extent.begin);
    const int64_t last = std::min(end, extent.end);
    if (first >= last) continue;
    if (first % extent.begin != 0 || last % first != 0 || extent.end % last != 0) {
      return absl::UnimplementedError(
          StrCat("'", ToString(from, axis), "' of '", from.name, "' and '",
                 mesh_.axes[static_cast<size_t>(a)].name,
                 "' of another mesh overlap, and neither divides the other"));
    }
    pieces.push_back({a, first / extent.begin, last / first});
  }
  return pieces;
}

absl::StatusOr<Sharding> CommonMesh::Translate(int index, const Sharding& sharding) const {
  Sharding translated = sharding;
  const auto translate = [&](std::vector<AxisRef>* axes) -> absl::Status {
    std::vector<AxisRef> all;
    for (const AxisRef& axis : *axes) {
      ASSIGN_OR_RETURN(const std::vector<AxisRef> pieces, Translate(index, axis));
      all.insert(all.end(), pieces.begin(), pieces.end());
    }
    *axes = std::move(all);
    return absl::OkStatus();
  };
  for (graph::DimSharding& dim : translated.dims) RETURN_IF_ERROR(translate(&dim.axes));
  for (graph::PartialSpec& partial : translated.partials) RETURN_IF_ERROR(translate(&partial.axes));
  std::erase_if(translated.partials, [](const graph::PartialSpec& p) { return p.axes.empty(); });
  RETURN_IF_ERROR(translate(&translated.replicated));
  graph::Canonicalize(mesh_, &translated);
  return translated;
}

}  // namespace penstock::planner
