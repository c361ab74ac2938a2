#include "planner/sharding/execution_sharding.h"

#include <algorithm>
#include <optional>

#include "planner/sharding/halo.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::DimFactors;
using graph::FactorKind;
using graph::Mesh;
using graph::Sharding;
using graph::ShardingRule;
using graph::TensorFactors;

int64_t Parts(absl::Span<const AxisRef> axes) {
  int64_t parts = 1;
  for (const AxisRef& axis : axes) parts *= axis.size;
  return parts;
}

bool CanUse(const AxisRef& axis, const FactorAxes& factors) {
  for (const std::vector<AxisRef>& used : factors) {
    for (const AxisRef& other : used) {
      if (graph::Overlap(axis, other) || !graph::CanCoexist(axis, other)) return false;
    }
  }
  return true;
}

// Micro-batches of a dimension that is split into `major_parts` already are of equal size.
bool DividesInTime(const Mesh& mesh, absl::Span<const AxisRef> axes, int64_t major_parts,
                   int64_t extent) {
  for (const AxisRef& axis : axes) {
    major_parts *= axis.size;
    if (graph::IsTemporal(mesh, axis) && extent % major_parts != 0) return false;
  }
  return true;
}

// Drops axes until every dimension of the tensor can express the split of its factors. `shape` is
// null where micro-batches are known to divide it.
bool TrimToLayout(const Mesh& mesh, const TensorFactors& dims, const Shape* shape,
                  const ShardingRule& rule, FactorAxes* chosen) {
  bool changed = false;
  for (size_t d = 0; d < dims.size(); ++d) {
    const DimFactors& dim = dims[d];
    bool major_used_up = true;
    int64_t major_parts = 1;
    for (size_t i = 0; i < dim.size(); ++i) {
      std::vector<AxisRef>& axes = (*chosen)[dim[i]];
      const int64_t size = rule.factors[dim[i]].size;
      const bool has_minor = i + 1 < dim.size();
      const auto fits = [&] {
        return major_used_up && (!has_minor || size % Parts(axes) == 0) &&
               (shape == nullptr || DividesInTime(mesh, axes, major_parts, (*shape)[d]));
      };
      while (!axes.empty() && !fits()) {
        axes.pop_back();
        changed = true;
      }
      major_used_up = major_used_up && Parts(axes) == size;
      major_parts *= Parts(axes);
    }
  }
  return changed;
}

// A roll whose parts do not each have devices of their own needs its dimension whole. So does one
// of which windows are read, in time.
bool TrimMoved(const Mesh& mesh, const ShardingRule& rule, FactorAxes* chosen) {
  bool changed = false;
  for (size_t factor = 0; factor < chosen->size(); ++factor) {
    std::vector<AxisRef>& axes = (*chosen)[factor];
    if (axes.empty()) continue;
    const bool rolls = rule.factors[factor].kind == FactorKind::kRoll;
    const bool has_windows = std::any_of(rule.windows.begin(), rule.windows.end(),
                                         [&](const graph::OperandWindow& window) {
                                           return window.factor == static_cast<int>(factor);
                                         });
    if (!rolls && !has_windows) continue;
    const bool is_in_time = std::any_of(axes.begin(), axes.end(), [&](const AxisRef& axis) {
      return graph::IsTemporal(mesh, axis);
    });
    if (!is_in_time && (!rolls || Parts(axes) == rule.factors[factor].size)) continue;
    axes.clear();
    changed = true;
  }
  return changed;
}

Sharding Express(const Mesh& mesh, const TensorFactors& dims, const FactorAxes& chosen) {
  Sharding sharding = Sharding::Replicated(static_cast<int>(dims.size()));
  for (size_t d = 0; d < dims.size(); ++d) {
    for (int factor : dims[d]) {
      sharding.dims[d].axes.insert(sharding.dims[d].axes.end(), chosen[factor].begin(),
                                   chosen[factor].end());
    }
  }
  graph::Canonicalize(mesh, &sharding);
  return sharding;
}

bool Contains(const TensorFactors& dims, int factor) {
  return std::any_of(dims.begin(), dims.end(), [&](const DimFactors& dim) {
    return std::find(dim.begin(), dim.end(), factor) != dim.end();
  });
}

}  // namespace

Sharding ClosedSharding(const Mesh& mesh, const graph::Value& value) {
  Sharding closed = Sharding::Replicated(static_cast<int>(value.type.shape.size()));
  if (!value.sharding.has_value()) return closed;
  for (size_t d = 0; d < closed.dims.size(); ++d) {
    closed.dims[d].axes = value.sharding->dims[d].axes;
    closed.dims[d].window = value.sharding->dims[d].window;
    closed.dims[d].sub_batch = value.sharding->dims[d].sub_batch;
  }
  closed.partials = value.sharding->partials;
  graph::Canonicalize(mesh, &closed);
  return closed;
}

TensorType LargestTile(TensorType type, const Sharding& sharding) {
  for (size_t d = 0; d < type.shape.size(); ++d) {
    type.shape[d] = LargestPart(sharding.dims[d], type.shape[d]);
  }
  return type;
}

std::vector<std::vector<AxisRef>> SplitOverFactors(absl::Span<const AxisRef> axes,
                                                   const DimFactors& dim,
                                                   const ShardingRule& rule) {
  std::vector<std::vector<AxisRef>> split(dim.size());
  if (dim.size() == 1) {
    split[0].assign(axes.begin(), axes.end());
    return split;
  }
  size_t i = 0;
  int64_t room = dim.empty() ? 1 : rule.factors[dim[0]].size;
  for (AxisRef axis : axes) {
    while (axis.size > 1) {
      while (room == 1 && i + 1 < dim.size()) room = rule.factors[dim[++i]].size;
      const bool is_last = i + 1 >= dim.size();
      if (dim.empty() || (is_last && room == 1)) return split;
      if (is_last || room % axis.size == 0) {
        split[i].push_back(axis);
        room = is_last ? room : room / axis.size;
        axis.size = 1;
      } else if (axis.size % room == 0) {
        split[i].push_back({axis.axis, axis.pre, room});
        axis = {axis.axis, axis.pre * room, axis.size / room};
        room = 1;
      } else {
        return split;
      }
    }
  }
  return split;
}

std::optional<std::vector<AxisRef>> AxesOn(int factor, const Sharding& sharding,
                                           const TensorFactors& dims, const ShardingRule& rule) {
  for (size_t d = 0; d < dims.size(); ++d) {
    const auto it = std::find(dims[d].begin(), dims[d].end(), factor);
    if (it == dims[d].end()) continue;
    return SplitOverFactors(sharding.dims[d].axes, dims[d], rule)[it - dims[d].begin()];
  }
  return std::nullopt;
}

void AssignAxes(const Mesh& mesh, absl::Span<const AxisRef> wanted, int factor,
                FactorAxes* chosen) {
  for (const AxisRef& axis : wanted) {
    // Micro-batches follow one dimension: no factor takes a piece of their axis.
    const bool is_cut = graph::IsTemporal(mesh, axis) && axis != graph::WholeAxis(mesh, axis.axis);
    if (is_cut || !CanUse(axis, *chosen)) return;
    (*chosen)[factor].push_back(axis);
  }
}

void TrimAxes(const Mesh& mesh, const ShardingRule& rule,
              absl::Span<const TensorType> operand_types, size_t num_results, FactorAxes* chosen) {
  bool changed = true;
  while (changed) {
    changed = TrimMoved(mesh, rule, chosen);
    for (size_t o = 0; o < operand_types.size(); ++o) {
      changed |= TrimToLayout(mesh, rule.operands[o], &operand_types[o].shape, rule, chosen);
    }
    for (size_t r = 0; r < num_results; ++r) {
      changed |= TrimToLayout(mesh, rule.results[r], nullptr, rule, chosen);
    }
  }
}

FactorAxes ChooseFactorAxes(const Mesh& mesh, const ShardingRule& rule,
                            absl::Span<const TensorType> operand_types,
                            absl::Span<const Sharding> operands,
                            absl::Span<const Sharding> results) {
  const int num_factors = static_cast<int>(rule.factors.size());
  FactorAxes chosen(num_factors);
  for (int factor = 0; factor < num_factors; ++factor) {
    if (rule.factors[factor].kind == FactorKind::kReduction || !rule.MaySplit(factor)) continue;
    std::optional<std::vector<AxisRef>> wanted;
    for (size_t r = 0; r < results.size() && !wanted; ++r) {
      wanted = AxesOn(factor, results[r], rule.results[r], rule);
    }
    for (size_t o = 0; o < operands.size() && !wanted; ++o) {
      wanted = AxesOn(factor, operands[o], rule.operands[o], rule);
    }
    if (wanted) AssignAxes(mesh, *wanted, factor, &chosen);
  }
  for (int factor = 0; factor < num_factors; ++factor) {
    if (rule.factors[factor].kind != FactorKind::kReduction) continue;
    std::vector<AxisRef> wanted;
    int64_t largest = -1;
    auto consider = [&](const std::optional<std::vector<AxisRef>>& axes, int64_t elements) {
      if (axes && !axes->empty() && elements > largest && CanUse(axes->front(), chosen)) {
        wanted = *axes;
        largest = elements;
      }
    };
    for (size_t o = 0; o < operands.size(); ++o) {
      consider(AxesOn(factor, operands[o], rule.operands[o], rule),
               operand_types[o].num_elements());
    }
    AssignAxes(mesh, wanted, factor, &chosen);
  }
  TrimAxes(mesh, rule, operand_types, results.size(), &chosen);
  return chosen;
}

ExecutionSharding ExecutionOf(const Mesh& mesh, const ShardingRule& rule, size_t num_operands,
                              size_t num_results, const FactorAxes& chosen) {
  const int num_factors = static_cast<int>(rule.factors.size());
  ExecutionSharding execution;
  for (size_t o = 0; o < num_operands; ++o) {
    Sharding& sharding = execution.operands.emplace_back(Express(mesh, rule.operands[o], chosen));
    for (size_t d = 0; d < sharding.dims.size(); ++d) {
      if (rule.operands[o][d].size() != 1 || sharding.dims[d].axes.empty()) continue;
      const graph::Window* window =
          rule.FindWindow(static_cast<int>(o), rule.operands[o][d].front());
      if (window != nullptr) sharding.dims[d].window = *window;
    }
  }
  for (size_t r = 0; r < num_results; ++r) {
    Sharding sharding = Express(mesh, rule.results[r], chosen);
    for (int factor = 0; factor < num_factors; ++factor) {
      if (rule.factors[factor].kind != FactorKind::kReduction || chosen[factor].empty()) continue;
      if (Contains(rule.results[r], factor)) continue;
      sharding.partials.push_back({rule.factors[factor].reduction, chosen[factor]});
    }
    graph::Canonicalize(mesh, &sharding);
    execution.results.push_back(std::move(sharding));
  }
  return execution;
}

ExecutionSharding ChooseExecution(const Mesh& mesh, const ShardingRule& rule,
                                  absl::Span<const TensorType> operand_types,
                                  absl::Span<const Sharding> operands,
                                  absl::Span<const Sharding> results) {
  return ExecutionOf(mesh, rule, operands.size(), results.size(),
                     ChooseFactorAxes(mesh, rule, operand_types, operands, results));
}

}  // namespace penstock::planner
