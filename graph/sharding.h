// Meshes and shardings: how a value is laid out over devices and micro-batches. Data only; the
// algorithms over them are the planner's.
//
// A mesh is an ordered list of named axes. Device d of a mesh has one coordinate an axis, the first
// spatial axis being the major one. A temporal axis has no devices: its parts (micro-batches) pass
// through the same devices one after another.
//
// A sharding gives each dimension of a tensor an ordered list of axes or sub-axes, major first.
// Example: on [mb=4 temporal, dp=2, tp=2] a value f32[16, 8] with @[mb.dp, tp] has 4*2 parts of
// dimension 0 and 2 of dimension 1; the device (dp=1, tp=0) holds rows 4*mb+2 .. 4*mb+3 of
// columns 0..3 in micro-batch mb.
//
// A sub-axis "tp:(2)4" is the part of size 4 of axis tp with 2 parts major to it: of an axis of 16
// with coordinate c, its coordinate is (c / (16/2/4)) % 4.
//
// A dimension may be held in *windows*: each part then has what its part of another tensor, the
// result of the operator that reads it, needs (graph/window.h). Parts may overlap, and some
// elements may be in none. "@[d window(of=7, low=1)]" of a f32[8] over d=4 has the elements 1 and
// 2, 3 and 4, 5 and 6, and 7. Only redistribution makes such a value, for that operator.
//
// A value may be one of several *sub-batches*: of each part of a dimension, one of `count` equal
// ranges. "@[dp subbatch(of=2, index=1)]" of a f32[8] over dp=2 has the elements 2 and 3 on the
// first device, 6 and 7 on the second. Only the pass that splits micro-batches makes such values
// (planner/lower/sub_batches.h).
//
// Thread rule: values.

#ifndef PENSTOCK_GRAPH_SHARDING_H_
#define PENSTOCK_GRAPH_SHARDING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

#include "base/collective.h"
#include "base/shape.h"
#include "base/tensor.h"
#include "graph/window.h"

namespace penstock::graph {

// One dimension of a mesh.
struct MeshAxis {
  std::string name;          // an identifier, used once in the mesh
  int64_t size = 1;          // parts: devices, or micro-batches of a temporal axis; at least 1
  bool is_temporal = false;  // its parts follow each other on the same devices
  friend bool operator==(const MeshAxis&, const MeshAxis&) = default;
};

// Devices in a grid, and the micro-batches that pass through them. CheckMesh says what is allowed.
struct Mesh {
  std::string name;            // an identifier, which graphs refer to the mesh by
  std::vector<MeshAxis> axes;  // spatial and temporal ones, major first

  int64_t num_devices() const;       // product of the spatial axes
  int64_t num_microbatches() const;  // product of the temporal axes
  // Index of the axis, or -1.
  int FindAxis(std::string_view axis) const;
  friend bool operator==(const Mesh&, const Mesh&) = default;
};

// A whole axis or a sub-axis of it. Of a whole axis pre is 1 and size the axis's size.
struct AxisRef {
  int axis = 0;      // index into Mesh::axes
  int64_t pre = 1;   // parts of the axis major to this piece
  int64_t size = 1;  // parts of this piece
  friend auto operator<=>(const AxisRef&, const AxisRef&) = default;
};

// Refuses names that are empty, not identifiers or used twice, sizes below 1, and meshes of more
// than 2^20 parts in all.
absl::Status CheckMesh(const Mesh& mesh);

// The piece that is the whole axis. REQUIRES: the mesh has an axis of this number.
AxisRef WholeAxis(const Mesh& mesh, int axis);
// Whether the pieces have parts of one axis in common. A whole axis of size 1 overlaps itself.
bool Overlap(const AxisRef& a, const AxisRef& b);
// Whether one tensor may use both at once: they are pieces of different axes, or pieces of one axis
// whose bounds divide each other, as "(1)2" and "(2)3" of an axis of 6 do and "(1)2" and "(3)2" do
// not. REQUIRES for a usable answer: they do not overlap.
bool CanCoexist(const AxisRef& a, const AxisRef& b);
// Whether the axis that this is a piece of is temporal. REQUIRES: the mesh has it.
bool IsTemporal(const Mesh& mesh, const AxisRef& axis);

// Which of several equal ranges a value is, of each part of one dimension.
struct SubBatch {
  int64_t count = 1;  // ranges that a part is divided into; at least 1
  int64_t index = 0;  // this one, in [0, count)
  friend auto operator<=>(const SubBatch&, const SubBatch&) = default;
};

// How one dimension of a value is laid out over a mesh.
struct DimSharding {
  std::vector<AxisRef> axes;          // major first
  bool is_open = false;               // propagation may add axes at the minor end
  std::optional<int> priority;        // user priority; 0, the strongest, when absent
  std::optional<Window> window = {};  // of the value's reader; the axes split that one's result
  std::optional<SubBatch> sub_batch = {};  // of each part; the parts and these divide the dimension
  friend bool operator==(const DimSharding&, const DimSharding&) = default;
};

// How the terms of a partial value are combined.
using Reduction = ReduceOp;
// "sum", "max", "min" or "prod", as text and attributes have it.
std::string_view Name(Reduction reduction);
// The reduction of that name; nullopt: there is none.
std::optional<Reduction> ParseReduction(std::string_view name);

// The value on each device is one term of a reduction over these axes.
struct PartialSpec {
  Reduction reduction = Reduction::kSum;  // what makes the value of its terms
  std::vector<AxisRef> axes;              // over which the terms lie, as a set
  friend bool operator==(const PartialSpec&, const PartialSpec&) = default;
};

// How a value is laid out over a mesh. Over axes that it does not name, it is replicated.
struct Sharding {
  std::vector<DimSharding> dims;  // one a dimension
  // At most one of each reduction in canonical form; empty: not partial.
  std::vector<PartialSpec> partials;
  std::vector<AxisRef> replicated;  // explicitly replicated: propagation may not use them

  // Every dimension open and unsplit.
  static Sharding Open(int rank);
  // Every dimension closed and unsplit.
  static Sharding Replicated(int rank);

  // Whether devices hold terms, which have to be reduced before the value is known.
  bool is_partial() const { return !partials.empty(); }
  // Whether a dimension is held in windows.
  bool has_windows() const;
  friend bool operator==(const Sharding&, const Sharding&) = default;
};

// Refuses unknown axes, sub-axes that do not divide, pieces of temporal axes, an axis used twice,
// rank mismatch, temporal axes that do not divide their dimension or split one that is held in
// windows. The message names the dimension and the axis.
absl::Status CheckSharding(const Mesh& mesh, const Sharding& sharding, const Shape& shape);

// Joins adjacent sub-axes of one axis ("a:(1)2 . a:(2)2" of a=4 is "a"): the canonical form. The
// axes of partials and of `replicated` are sets: they are sorted too, and partials of one
// reduction are joined.
void Canonicalize(const Mesh& mesh, Sharding* sharding);

// Parts of the dimension over all its axes.
int64_t NumParts(const DimSharding& dim);

// Coordinate of the device on the (sub-)axis. `device` counts within the mesh, row-major over the
// spatial axes; `microbatch` likewise over the temporal ones.
int64_t Coordinate(const Mesh& mesh, const AxisRef& axis, int64_t device, int64_t microbatch);

// The range of a dimension of `extent` that (device, microbatch) holds.
Range LocalRange(const Mesh& mesh, const DimSharding& dim, int64_t extent, int64_t device,
                 int64_t microbatch);

// The text forms: "tp:(2)4" and "@[mb.dp, ?] partial(sum, tp)".
std::string ToString(const Mesh& mesh, const AxisRef& axis);
// As above; what is neither open, split nor partial is "_".
std::string ToString(const Mesh& mesh, const Sharding& sharding);

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_SHARDING_H_
