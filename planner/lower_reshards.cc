#include "planner/lower_reshards.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "planner/execution_sharding.h"
#include "planner/select_mesh.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::DimSharding;
using graph::Graph;
using graph::Mesh;
using graph::Node;
using graph::NodeId;
using graph::Sharding;
using graph::ValueId;

using Atoms = std::vector<AxisRef>;

// Points at which an axis is cut by any of the shardings: products of parts, from 1 to the size.
using Cuts = std::map<int, std::set<int64_t>>;

void Collect(absl::Span<const AxisRef> axes, Cuts* cuts) {
  for (const AxisRef& axis : axes) {
    (*cuts)[axis.axis].insert(axis.pre);
    (*cuts)[axis.axis].insert(axis.pre * axis.size);
  }
}

void Collect(const Sharding& sharding, Cuts* cuts) {
  for (const DimSharding& dim : sharding.dims) Collect(dim.axes, cuts);
  for (const graph::PartialSpec& partial : sharding.partials) Collect(partial.axes, cuts);
}

// True when each cut divides the next: then all pieces between cuts can exist side by side.
bool FormsChain(const Cuts& cuts) {
  for (const auto& [axis, points] : cuts) {
    int64_t previous = 1;
    for (int64_t point : points) {
      if (point % previous != 0) return false;
      previous = point;
    }
  }
  return true;
}

Atoms Refine(absl::Span<const AxisRef> axes, const Cuts& cuts) {
  Atoms atoms;
  for (const AxisRef& axis : axes) {
    int64_t begin = axis.pre;
    for (int64_t point : cuts.at(axis.axis)) {
      if (point <= begin) continue;
      if (point > axis.pre * axis.size) break;
      atoms.push_back({axis.axis, begin, point / begin});
      begin = point;
    }
  }
  return atoms;
}

Sharding Refine(const Sharding& sharding, const Cuts& cuts) {
  Sharding refined = sharding;
  for (DimSharding& dim : refined.dims) dim.axes = Refine(dim.axes, cuts);
  for (graph::PartialSpec& partial : refined.partials) partial.axes = Refine(partial.axes, cuts);
  return refined;
}

bool Has(const Atoms& atoms, const AxisRef& atom) {
  return std::find(atoms.begin(), atoms.end(), atom) != atoms.end();
}

bool IsPrefix(const Atoms& prefix, const Atoms& whole) {
  return prefix.size() <= whole.size() && std::equal(prefix.begin(), prefix.end(), whole.begin());
}

size_t CommonPrefix(const Atoms& a, const Atoms& b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  return n;
}

class ReshardPlanner {
 public:
  ReshardPlanner(const Mesh& mesh, Sharding from, Sharding to)
      : mesh_(mesh), now_(std::move(from)), to_(std::move(to)) {}

  std::vector<ReshardStep> Plan() {
    ReducePartials();
    while (now_.dims != to_.dims) {
      if (Slice() || AllToAll() || Permute()) continue;
      Gather();
    }
    if (now_.partials != to_.partials) {
      // The target holds the value as a sum of which all terms but one are neutral.
      now_.partials = to_.partials;
      Emit("local_slice");
    }
    return std::move(steps_);
  }

 private:
  bool IsTemporal(const AxisRef& atom) const { return graph::IsTemporal(mesh_, atom); }

  void Emit(std::string op) {
    Sharding canonical = now_;
    graph::Canonicalize(mesh_, &canonical);
    steps_.push_back({std::move(op), std::move(canonical)});
  }

  bool InDims(const AxisRef& atom) const {
    return std::any_of(now_.dims.begin(), now_.dims.end(),
                       [&](const DimSharding& dim) { return Has(dim.axes, atom); });
  }
  bool InPartials(const AxisRef& atom) const {
    return std::any_of(now_.partials.begin(), now_.partials.end(),
                       [&](const graph::PartialSpec& p) { return Has(p.axes, atom); });
  }

  void RemovePartials(const Atoms& atoms) {
    for (graph::PartialSpec& partial : now_.partials) {
      std::erase_if(partial.axes, [&](const AxisRef& a) { return Has(atoms, a); });
    }
    std::erase_if(now_.partials, [](const graph::PartialSpec& p) { return p.axes.empty(); });
  }

  void ReducePartials() {
    const std::vector<graph::PartialSpec> partials = now_.partials;
    for (const graph::PartialSpec& partial : partials) {
      Atoms kept;
      for (const graph::PartialSpec& target : to_.partials) {
        if (target.reduction == partial.reduction) kept = target.axes;
      }
      Atoms temporal;
      Atoms spatial;
      for (const AxisRef& atom : partial.axes) {
        if (Has(kept, atom)) continue;
        (IsTemporal(atom) ? temporal : spatial).push_back(atom);
      }
      if (!temporal.empty()) {
        RemovePartials(temporal);
        Emit("accumulate");
      }
      // Scatter while some dimension wants one of the axes next.
      bool scattered = true;
      while (scattered && !spatial.empty()) {
        scattered = false;
        for (size_t d = 0; d < now_.dims.size() && !scattered; ++d) {
          Atoms& axes = now_.dims[d].axes;
          const Atoms& wanted = to_.dims[d].axes;
          if (!IsPrefix(axes, wanted)) continue;
          Atoms taken;
          while (axes.size() < wanted.size() && Has(spatial, wanted[axes.size()])) {
            taken.push_back(wanted[axes.size()]);
            axes.push_back(taken.back());
          }
          if (taken.empty()) continue;
          RemovePartials(taken);
          std::erase_if(spatial, [&](const AxisRef& a) { return Has(taken, a); });
          Emit("reduce_scatter");
          scattered = true;
        }
      }
      if (!spatial.empty()) {
        RemovePartials(spatial);
        Emit("all_reduce");
      }
    }
  }

  bool Slice() {
    bool sliced = false;
    for (size_t d = 0; d < now_.dims.size(); ++d) {
      Atoms& axes = now_.dims[d].axes;
      const Atoms& wanted = to_.dims[d].axes;
      if (!IsPrefix(axes, wanted)) continue;
      while (axes.size() < wanted.size() && !InDims(wanted[axes.size()]) &&
             !InPartials(wanted[axes.size()])) {
        axes.push_back(wanted[axes.size()]);
        sliced = true;
      }
    }
    if (sliced) Emit("local_slice");
    return sliced;
  }

  bool AllToAll() {
    for (size_t i = 0; i < now_.dims.size(); ++i) {
      Atoms& from = now_.dims[i].axes;
      if (from.size() <= CommonPrefix(from, to_.dims[i].axes)) continue;
      const AxisRef atom = from.back();
      if (IsTemporal(atom)) continue;
      for (size_t j = 0; j < now_.dims.size(); ++j) {
        Atoms& into = now_.dims[j].axes;
        const Atoms& wanted = to_.dims[j].axes;
        if (i == j || !IsPrefix(into, wanted) || into.size() == wanted.size()) continue;
        if (wanted[into.size()] != atom) continue;
        from.pop_back();
        into.push_back(atom);
        Emit("all_to_all");
        return true;
      }
    }
    return false;
  }

  // Applies where every dimension has as many parts as wanted, over the same axes in all, and the
  // temporal axes already stand where they should.
  bool Permute() {
    Atoms have;
    Atoms want;
    for (size_t d = 0; d < now_.dims.size(); ++d) {
      const Atoms& axes = now_.dims[d].axes;
      const Atoms& wanted = to_.dims[d].axes;
      if (graph::NumParts(now_.dims[d]) != graph::NumParts(to_.dims[d])) return false;
      for (size_t i = 0; i < std::max(axes.size(), wanted.size()); ++i) {
        const bool temporal = (i < axes.size() && IsTemporal(axes[i])) ||
                              (i < wanted.size() && IsTemporal(wanted[i]));
        if (temporal && (i >= axes.size() || i >= wanted.size() || axes[i] != wanted[i])) {
          return false;
        }
      }
      // Before a temporal axis the spatial parts must agree in number, or micro-batches would mix.
      int64_t parts_now = 1;
      int64_t parts_wanted = 1;
      for (size_t i = 0; i < std::min(axes.size(), wanted.size()); ++i) {
        if (IsTemporal(axes[i]) && parts_now != parts_wanted) return false;
        parts_now *= axes[i].size;
        parts_wanted *= wanted[i].size;
      }
      have.insert(have.end(), axes.begin(), axes.end());
      want.insert(want.end(), wanted.begin(), wanted.end());
    }
    std::sort(have.begin(), have.end());
    std::sort(want.begin(), want.end());
    if (have != want) return false;
    now_.dims = to_.dims;
    Emit("permute");
    return true;
  }

  void Gather() {
    // The dimension whose obstacle is smallest to gather: fewest parts.
    std::optional<size_t> best;
    for (size_t d = 0; d < now_.dims.size(); ++d) {
      const Atoms& axes = now_.dims[d].axes;
      if (axes.size() <= CommonPrefix(axes, to_.dims[d].axes)) continue;
      if (!best || axes.back().size < now_.dims[*best].axes.back().size) best = d;
    }
    Atoms& axes = now_.dims[*best].axes;
    const bool temporal = IsTemporal(axes.back());
    axes.pop_back();
    Emit(temporal ? "gather_microbatches" : "all_gather");
  }

  const Mesh& mesh_;
  Sharding now_;
  Sharding to_;
  std::vector<ReshardStep> steps_;
};

// Of an accumulate step: the reduction that ends with it.
graph::Reduction ReductionOverTime(const Mesh& mesh, const Sharding& from, const Sharding& to) {
  for (const graph::PartialSpec& partial : from.partials) {
    const bool is_over_time =
        std::any_of(partial.axes.begin(), partial.axes.end(),
                    [&](const AxisRef& axis) { return graph::IsTemporal(mesh, axis); });
    const bool is_kept =
        std::find(to.partials.begin(), to.partials.end(), partial) != to.partials.end();
    if (is_over_time && !is_kept) return partial.reduction;
  }
  return graph::Reduction::kSum;
}

Sharding Whole(const Sharding& sharding) {
  return Sharding::Replicated(static_cast<int>(sharding.dims.size()));
}

}  // namespace

std::vector<ReshardStep> PlanReshard(const Mesh& mesh, const Sharding& from, const Sharding& to) {
  if (from == to) return {};
  Cuts cuts;
  Collect(from, &cuts);
  Collect(to, &cuts);
  if (!FormsChain(cuts)) {
    // Pieces such as "(1)2" and "(1)3" of an axis of 6 have no common refinement: by way of whole.
    std::vector<ReshardStep> steps = PlanReshard(mesh, from, Whole(from));
    for (ReshardStep& step : PlanReshard(mesh, Whole(from), to)) steps.push_back(std::move(step));
    return steps;
  }
  return ReshardPlanner(mesh, Refine(from, cuts), Refine(to, cuts)).Plan();
}

absl::Status LowerReshards(const graph::OpRegistry& ops, Graph& graph) {
  RETURN_IF_ERROR(SelectMesh(graph));
  if (graph.meshes().empty()) return absl::OkStatus();
  const Mesh& mesh = graph.meshes()[0];
  Graph out(graph.name());
  out.mutable_meshes() = graph.meshes();
  out.ReserveNames(graph);
  std::vector<ValueId> now(graph.num_values(), graph::kNoValue);
  std::vector<NodeId> now_node;
  for (const Node& node : graph.nodes()) {
    Node copy = node;
    for (ValueId& operand : copy.operands) operand = now[operand];
    if (copy.forward != graph::kNoNode) copy.forward = now_node[copy.forward];
    copy.results.clear();
    if (node.op->name() != "reshard") {
      std::vector<std::string> names;
      for (ValueId result : node.results) names.push_back(graph.value(result).name);
      const NodeId id = out.AddTyped(std::move(copy), graph.ResultTypes(node), names);
      now_node.push_back(id);
      for (size_t r = 0; r < node.results.size(); ++r) {
        now[node.results[r]] = out.node(id).results[r];
        out.mutable_value(now[node.results[r]]).sharding = graph.value(node.results[r]).sharding;
      }
      continue;
    }
    const graph::Value& result = graph.value(node.results[0]);
    ValueId value = copy.operands[0];
    const std::vector<ReshardStep> steps =
        PlanReshard(mesh, ClosedSharding(mesh, out.value(value)), ClosedSharding(mesh, result));
    for (size_t i = 0; i < steps.size(); ++i) {
      Node step = copy;
      step.op = ops.Find(steps[i].op);
      if (step.op == nullptr) {
        return absl::InternalError(absl::StrCat("no operator ", steps[i].op));
      }
      step.operands = {value};
      if (steps[i].op == "accumulate") {
        const graph::Reduction reduction =
            ReductionOverTime(mesh, ClosedSharding(mesh, out.value(value)), steps[i].sharding);
        if (reduction != graph::Reduction::kSum) {
          step.attributes.Set("reduction", std::string(graph::Name(reduction)));
        }
      }
      const std::string name = i + 1 == steps.size()
                                   ? result.name
                                   : out.UniqueName(absl::StrCat(result.name, ".", steps[i].op));
      const NodeId id = out.AddTyped(std::move(step), {result.type}, {name});
      value = out.node(id).results[0];
      out.mutable_value(value).sharding = steps[i].sharding;
    }
    now[node.results[0]] = value;
    now_node.push_back(out.value(value).producer);
  }
  for (const graph::Return& ret : graph.returns()) {
    out.mutable_returns().push_back({now[ret.value], ret.sharding});
  }
  graph = std::move(out);
  return absl::OkStatus();
}

}  // namespace penstock::planner
