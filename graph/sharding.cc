#include "graph/sharding.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"

#include "base/counted.h"
#include "base/strings.h"

namespace penstock::graph {
namespace {

constexpr std::array<std::string_view, 4> kReductionNames = {"sum", "max", "min", "prod"};
constexpr int64_t kMaxMeshParts = int64_t{1} << 20;

bool IsIdentifier(std::string_view name) {
  if (name.empty() || name == "_" || absl::ascii_isdigit(static_cast<unsigned char>(name[0]))) {
    return false;
  }
  return std::all_of(name.begin(), name.end(), [](char c) {
    return c == '_' || absl::ascii_isalnum(static_cast<unsigned char>(c));
  });
}

// Parts of the axis up to and including the piece.
int64_t NextPre(const AxisRef& axis) { return axis.pre * axis.size; }

void JoinAdjacent(std::vector<AxisRef>* axes) {
  size_t kept = 0;
  for (size_t i = 1; i < axes->size(); ++i) {
    AxisRef& last = (*axes)[kept];
    const AxisRef& next = (*axes)[i];
    if (last.axis == next.axis && NextPre(last) == next.pre) {
      last.size *= next.size;
    } else {
      (*axes)[++kept] = next;
    }
  }
  if (!axes->empty()) axes->resize(kept + 1);
}

void CanonicalizeSet(std::vector<AxisRef>* axes) {
  std::sort(axes->begin(), axes->end());
  JoinAdjacent(axes);
}

// One mention of an axis in a sharding, with the words that tell the user where.
struct AxisUse {
  AxisRef axis;
  std::string where;
};

absl::Status CheckAxis(const Mesh& mesh, const AxisUse& use) {
  const AxisRef& axis = use.axis;
  if (axis.axis < 0 || axis.axis >= static_cast<int>(mesh.axes.size())) {
    return absl::InvalidArgumentError(StrCat(use.where, ": mesh ", mesh.name,
                                             " has no axis number ", axis.axis, " (it has ",
                                             mesh.axes.size(), " axes)"));
  }
  const MeshAxis& whole = mesh.axes[axis.axis];
  const bool is_whole = axis.pre == 1 && axis.size == whole.size;
  if (is_whole) return absl::OkStatus();
  if (whole.is_temporal) {
    return absl::InvalidArgumentError(StrCat(use.where, ": the temporal axis ", whole.name,
                                             " is used whole or not at all, not as ",
                                             ToString(mesh, axis)));
  }
  // The sizes are compared by division first, so that no product overflows.
  if (axis.pre < 1 || axis.size < 2 || axis.pre > whole.size || axis.size > whole.size ||
      whole.size % (axis.pre * axis.size) != 0) {
    return absl::InvalidArgumentError(
        StrCat(use.where, ": the sub-axis ", whole.name, ":(", axis.pre, ")", axis.size,
               " does not divide axis ", whole.name, " of size ", whole.size,
               " (its parts times the parts major to it must divide the size, and be at least 2)"));
  }
  return absl::OkStatus();
}

absl::Status CheckDisjoint(const Mesh& mesh, const std::vector<AxisUse>& uses) {
  for (size_t i = 0; i < uses.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (Overlap(uses[i].axis, uses[j].axis)) {
        return absl::InvalidArgumentError(StrCat(uses[i].where, ": axis ",
                                                 ToString(mesh, uses[i].axis),
                                                 " is already used by ", uses[j].where));
      }
      if (!CanCoexist(uses[i].axis, uses[j].axis)) {
        return absl::InvalidArgumentError(
            StrCat(uses[i].where, ": axis ", ToString(mesh, uses[i].axis),
                   " cannot be used beside ", ToString(mesh, uses[j].axis), " in ", uses[j].where,
                   ": the parts of the one are not whole multiples of the other's"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWindowOf(const Mesh& mesh, const DimSharding& dim, int index) {
  absl::Status status = CheckWindow(*dim.window);
  int64_t parts = 1;
  for (const AxisRef& axis : dim.axes) {
    parts *= axis.size;
    if (status.ok() && IsTemporal(mesh, axis)) {
      status = absl::InvalidArgumentError(
          StrCat("the temporal axis ", ToString(mesh, axis), " does not split windows"));
    }
  }
  if (status.ok() && (dim.axes.empty() || dim.is_open)) {
    status = absl::InvalidArgumentError("windows need axes, and are closed");
  }
  if (status.ok() && dim.window->extent > 0 &&
      parts > std::numeric_limits<int64_t>::max() / 2 / dim.window->extent) {
    status = absl::InvalidArgumentError(
        StrCat(parts, " parts of ", dim.window->extent, " elements are too many"));
  }
  if (status.ok()) return status;
  return absl::InvalidArgumentError(StrCat("dimension ", index, ": ", status.message()));
}

// REQUIRES: so many parts are allowed of the mesh.
absl::Status CheckSubBatch(const DimSharding& dim, int64_t parts, int64_t extent, int index) {
  const SubBatch& sub = *dim.sub_batch;
  const bool is_one = sub.count >= 1 && sub.count <= kMaxMeshParts && sub.index >= 0 &&
                      sub.index < sub.count && !dim.is_open && !dim.window.has_value();
  if (is_one && extent % (parts * sub.count) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("dimension ", index, ": sub-batch ", sub.index, " of ", sub.count,
             is_one ? StrCat(" of each of ", parts, " parts does not divide ", extent)
                    : std::string(" is none of a closed dimension without windows")));
}

absl::Status CheckDim(const Mesh& mesh, const DimSharding& dim, int64_t extent, int index) {
  int64_t parts = 1;
  for (const AxisRef& axis : dim.axes) {
    parts *= axis.size;  // bounded by the mesh's parts: the axes are disjoint
    if (IsTemporal(mesh, axis) && extent % parts != 0) {
      return absl::InvalidArgumentError(
          StrCat("dimension ", index, ": the temporal axis ", ToString(mesh, axis),
                 " must divide the dimension, and ", extent, " is not a multiple of ", parts));
    }
  }
  if (extent > 0 && parts > std::numeric_limits<int64_t>::max() / 2 / extent) {
    return absl::InvalidArgumentError(
        StrCat("dimension ", index, ": ", parts, " parts of ", extent, " elements are too many"));
  }
  if (dim.priority.has_value() && *dim.priority < 0) {
    return absl::InvalidArgumentError(
        StrCat("dimension ", index, ": the priority ", *dim.priority, " is negative"));
  }
  if (dim.sub_batch.has_value()) return CheckSubBatch(dim, parts, extent, index);
  return dim.window.has_value() ? CheckWindowOf(mesh, dim, index) : absl::OkStatus();
}

std::string ToString(const Mesh& mesh, const DimSharding& dim) {
  std::string text;
  for (const AxisRef& axis : dim.axes) {
    StrAppend(&text, text.empty() ? "" : ".", ToString(mesh, axis));
  }
  if (dim.is_open) {
    text += "?";
  } else if (dim.axes.empty()) {
    text += "_";
  }
  if (dim.window.has_value()) StrAppend(&text, " ", ToString(*dim.window));
  if (dim.sub_batch.has_value()) {
    StrAppend(&text, " subbatch(of=", dim.sub_batch->count, ", index=", dim.sub_batch->index, ")");
  }
  if (dim.priority.has_value()) StrAppend(&text, " p", *dim.priority);
  return text;
}

}  // namespace

int64_t Mesh::num_devices() const {
  int64_t count = 1;
  for (const MeshAxis& axis : axes) count *= axis.is_temporal ? 1 : axis.size;
  return count;
}

int64_t Mesh::num_microbatches() const {
  int64_t count = 1;
  for (const MeshAxis& axis : axes) count *= axis.is_temporal ? axis.size : 1;
  return count;
}

int Mesh::FindAxis(std::string_view axis) const {
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].name == axis) return static_cast<int>(i);
  }
  return -1;
}

absl::Status CheckMesh(const Mesh& mesh) {
  if (!IsIdentifier(mesh.name)) {
    return absl::InvalidArgumentError(
        StrCat("the mesh name '", mesh.name, "' is not an identifier"));
  }
  int64_t parts = 1;
  for (size_t i = 0; i < mesh.axes.size(); ++i) {
    const MeshAxis& axis = mesh.axes[i];
    if (!IsIdentifier(axis.name)) {
      return absl::InvalidArgumentError(
          StrCat("mesh ", mesh.name, ": the axis name '", axis.name, "' is not an identifier"));
    }
    if (mesh.FindAxis(axis.name) != static_cast<int>(i)) {
      return absl::InvalidArgumentError(
          StrCat("mesh ", mesh.name, ": axis ", axis.name, " is declared twice"));
    }
    if (axis.size < 1) {
      return absl::InvalidArgumentError(StrCat("mesh ", mesh.name, ": axis ", axis.name,
                                               " has size ", axis.size, "; it must be at least 1"));
    }
    if (axis.size > kMaxMeshParts / parts) {
      return absl::InvalidArgumentError(StrCat(
          "mesh ", mesh.name, ": devices times micro-batches exceed the limit of ", kMaxMeshParts));
    }
    parts *= axis.size;
  }
  return absl::OkStatus();
}

AxisRef WholeAxis(const Mesh& mesh, int axis) { return {axis, 1, mesh.axes[axis].size}; }

bool Overlap(const AxisRef& a, const AxisRef& b) {
  if (a.axis != b.axis) return false;
  // Two mentions of one whole axis of size 1 overlap although they have no parts.
  return a == b || (a.pre < NextPre(b) && b.pre < NextPre(a));
}

bool CanCoexist(const AxisRef& a, const AxisRef& b) {
  if (a.axis != b.axis) return true;
  const auto [min_pre, max_pre] = std::minmax(a.pre, b.pre);
  const int64_t next_a = NextPre(a);
  const int64_t next_b = NextPre(b);
  const auto [min_next, max_next] = std::minmax(next_a, next_b);
  if (min_next > max_pre) {
    return min_next % max_pre == 0 && max_pre % min_pre == 0 && max_next % min_next == 0;
  }
  return max_pre % min_next == 0;
}

bool IsTemporal(const Mesh& mesh, const AxisRef& axis) { return mesh.axes[axis.axis].is_temporal; }

std::string_view Name(Reduction reduction) {
  return kReductionNames[static_cast<size_t>(reduction)];
}

std::optional<Reduction> ParseReduction(std::string_view name) {
  for (size_t i = 0; i < kReductionNames.size(); ++i) {
    if (kReductionNames[i] == name) return static_cast<Reduction>(i);
  }
  return std::nullopt;
}

Sharding Sharding::Open(int rank) {
  Sharding sharding;
  sharding.dims.resize(rank);
  for (DimSharding& dim : sharding.dims) dim.is_open = true;
  return sharding;
}

Sharding Sharding::Replicated(int rank) {
  Sharding sharding;
  sharding.dims.resize(rank);
  return sharding;
}

bool Sharding::has_windows() const {
  return std::any_of(dims.begin(), dims.end(),
                     [](const DimSharding& dim) { return dim.window.has_value(); });
}

absl::Status CheckSharding(const Mesh& mesh, const Sharding& sharding, const Shape& shape) {
  if (sharding.dims.size() != shape.size()) {
    return absl::InvalidArgumentError(
        StrCat("the sharding has ", Counted(sharding.dims.size(), "dimension"), ", the value ",
               penstock::ToString(shape), " has ", shape.size()));
  }
  std::vector<AxisUse> uses;
  for (size_t i = 0; i < sharding.dims.size(); ++i) {
    for (const AxisRef& axis : sharding.dims[i].axes) {
      uses.push_back({axis, StrCat("dimension ", i)});
    }
  }
  for (const PartialSpec& partial : sharding.partials) {
    if (partial.axes.empty()) {
      return absl::InvalidArgumentError(
          StrCat("partial(", Name(partial.reduction), ") names no axis"));
    }
    for (const AxisRef& axis : partial.axes) {
      uses.push_back({axis, StrCat("partial(", Name(partial.reduction), ")")});
    }
  }
  for (const AxisRef& axis : sharding.replicated) uses.push_back({axis, "replicated"});

  for (const AxisUse& use : uses) {
    if (absl::Status status = CheckAxis(mesh, use); !status.ok()) return status;
  }
  if (absl::Status status = CheckDisjoint(mesh, uses); !status.ok()) return status;
  for (size_t i = 0; i < sharding.dims.size(); ++i) {
    absl::Status status = CheckDim(mesh, sharding.dims[i], shape[i], static_cast<int>(i));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void Canonicalize(const Mesh&, Sharding* sharding) {
  for (DimSharding& dim : sharding->dims) JoinAdjacent(&dim.axes);
  CanonicalizeSet(&sharding->replicated);

  std::vector<PartialSpec> partials;
  for (size_t i = 0; i < kReductionNames.size(); ++i) {
    PartialSpec joined;
    joined.reduction = static_cast<Reduction>(i);
    for (const PartialSpec& partial : sharding->partials) {
      if (partial.reduction != joined.reduction) continue;
      joined.axes.insert(joined.axes.end(), partial.axes.begin(), partial.axes.end());
    }
    if (joined.axes.empty()) continue;
    CanonicalizeSet(&joined.axes);
    partials.push_back(std::move(joined));
  }
  sharding->partials = std::move(partials);
}

int64_t NumParts(const DimSharding& dim) {
  int64_t parts = 1;
  for (const AxisRef& axis : dim.axes) parts *= axis.size;
  return parts;
}

int64_t Coordinate(const Mesh& mesh, const AxisRef& axis, int64_t device, int64_t microbatch) {
  const MeshAxis& whole = mesh.axes[axis.axis];
  int64_t stride = 1;
  for (size_t i = axis.axis + 1; i < mesh.axes.size(); ++i) {
    if (mesh.axes[i].is_temporal == whole.is_temporal) stride *= mesh.axes[i].size;
  }
  const int64_t position = whole.is_temporal ? microbatch : device;
  const int64_t coordinate = position / stride % whole.size;
  return coordinate / (whole.size / NextPre(axis)) % axis.size;
}

Range LocalRange(const Mesh& mesh, const DimSharding& dim, int64_t extent, int64_t device,
                 int64_t microbatch) {
  int64_t part = 0;
  int64_t parts = 1;
  for (const AxisRef& axis : dim.axes) {
    part = part * axis.size + Coordinate(mesh, axis, device, microbatch);
    parts *= axis.size;
  }
  if (dim.sub_batch.has_value()) {
    const Range whole = PartOf(extent, part, parts);
    const Range range = PartOf(whole.size(), dim.sub_batch->index, dim.sub_batch->count);
    return {whole.begin + range.begin, whole.begin + range.end};
  }
  if (!dim.window.has_value()) return PartOf(extent, part, parts);
  return dim.window->Reads(PartOf(dim.window->extent, part, parts), extent);
}

std::string ToString(const Mesh& mesh, const AxisRef& axis) {
  // Dumps and error messages also show graphs that do not verify.
  if (axis.axis < 0 || axis.axis >= static_cast<int>(mesh.axes.size())) {
    return StrCat("axis#", axis.axis, ":(", axis.pre, ")", axis.size);
  }
  const MeshAxis& whole = mesh.axes[axis.axis];
  if (axis.pre == 1 && axis.size == whole.size) return whole.name;
  return StrCat(whole.name, ":(", axis.pre, ")", axis.size);
}

std::string ToString(const Mesh& mesh, const Sharding& sharding) {
  std::string text = "@[";
  for (size_t i = 0; i < sharding.dims.size(); ++i) {
    StrAppend(&text, i == 0 ? "" : ", ", ToString(mesh, sharding.dims[i]));
  }
  text += "]";
  for (const PartialSpec& partial : sharding.partials) {
    StrAppend(&text, " partial(", Name(partial.reduction));
    for (const AxisRef& axis : partial.axes) StrAppend(&text, ", ", ToString(mesh, axis));
    text += ")";
  }
  if (!sharding.replicated.empty()) {
    text += " replicated(";
    for (size_t i = 0; i < sharding.replicated.size(); ++i) {
      StrAppend(&text, i == 0 ? "" : ", ", ToString(mesh, sharding.replicated[i]));
    }
    text += ")";
  }
  return text;
}

}  // namespace penstock::graph
