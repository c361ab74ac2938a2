#include "planner/sharding/factor_propagation.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::Factor;

// Whether `direction` includes `part`.
bool Includes(Direction direction, Direction part) {
  return (static_cast<uint8_t>(direction) & static_cast<uint8_t>(part)) != 0;
}

// The list agreed on so far, and whether later tensors may still make it longer: no longer after a
// contradiction.
class Agreement {
 public:
  void Freeze() { can_grow_ = false; }

  void Add(AxisSpan other) {
    size_t i = 0;
    for (; i < axes_.size() && i < other.size(); ++i) {
      if (axes_[i] == other[i]) continue;
      if (IsPrefix(other[i], axes_[i])) {
        // `other` stops inside our axis. If it goes on with another axis it contradicts the rest.
        if (i + 1 == other.size()) continue;
        return StopAfter(i, other[i]);
      }
      if (IsPrefix(axes_[i], other[i])) {
        if (!can_grow_ || i + 1 < axes_.size()) return StopAfter(i, axes_[i]);
        axes_[i] = other[i];
        continue;
      }
      axes_.resize(i);
      can_grow_ = false;
      return;
    }
    if (can_grow_ && i < other.size()) {
      axes_.insert(axes_.end(), other.begin() + i, other.end());
    }
  }

  AxisList Take() { return std::move(axes_); }

 private:
  void StopAfter(size_t index, AxisRef last) {
    axes_.resize(index);
    axes_.push_back(last);
    can_grow_ = false;
  }

  AxisList axes_;
  bool can_grow_ = true;
};

void AddAll(absl::Span<const TensorProjection> tensors, int factor, Agreement* agreement) {
  for (const TensorProjection& tensor : tensors) {
    if (tensor.Has(factor)) agreement->Add(tensor.factors[factor].axes);
  }
}

// The largest prefix of `axis` that is not used elsewhere in the tensor.
std::optional<AxisRef> FitAcrossFactors(const AxisRef& axis, const TensorProjection& tensor,
                                        int factor) {
  std::optional<AxisRef> fit = PrefixBeside(axis, tensor.fixed);
  for (size_t i = 0; i < tensor.factors.size() && fit.has_value(); ++i) {
    if (static_cast<int>(i) == factor) continue;
    fit = PrefixBeside(*fit, tensor.factors[i].overflow);
    if (fit.has_value()) fit = PrefixBeside(*fit, tensor.factors[i].axes);
  }
  return fit;
}

// The largest prefix of `axis` by which the tensor's `factor` is or can be split, behind axes of
// `previous_parts` parts.
std::optional<AxisRef> FitWithinFactor(const AxisRef& axis, const TensorProjection& tensor,
                                       const FactorSharding& factor, int64_t previous_parts,
                                       int64_t factor_size) {
  const std::optional<AxisRef> fit = PrefixBeside(axis, tensor.blocked);
  if (!fit.has_value()) return std::nullopt;
  const bool is_there =
      std::any_of(factor.axes.begin(), factor.axes.end(),
                  [&](const AxisRef& existing) { return IsWithin(*fit, existing); });
  if (is_there) return fit;

  if (!factor.is_closed && factor.overflow.empty()) {
    if (factor.is_minor_most) return fit;
    if (factor_size % previous_parts == 0) {
      const int64_t common = std::gcd(factor_size / previous_parts, fit->size);
      if (common == fit->size) return fit;
      if (common != 1) return AxisRef{fit->axis, fit->pre, common};
    }
  }
  // The factor takes nothing more; what it has of this axis is still common ground.
  if (!factor.axes.empty() && IsPrefix(factor.axes.back(), *fit)) return factor.axes.back();
  return std::nullopt;
}

// Cuts `axes` at the first that `fit` (axis, parts before it -> prefix or none) shortens or
// refuses.
template <typename Fit>
void Truncate(AxisList* axes, Fit fit) {
  int64_t previous_parts = 1;
  for (size_t i = 0; i < axes->size(); ++i) {
    const std::optional<AxisRef> kept = fit((*axes)[i], previous_parts);
    if (!kept.has_value()) {
      axes->resize(i);
      return;
    }
    if (*kept != (*axes)[i]) {
      (*axes)[i] = *kept;
      axes->resize(i + 1);
      return;
    }
    previous_parts *= kept->size;
  }
}

bool Expand(const AxisList& axes, FactorSharding* factor) {
  if (!factor->is_mapped || !IsStrictPrefix(factor->axes, axes)) return false;
  factor->axes = axes;
  return true;
}

std::vector<bool> PropagateBasic(absl::Span<const Factor> factors,
                                 absl::Span<const Direction> directions, Projection* projection) {
  std::vector<bool> is_changed(projection->tensors.size(), false);
  for (size_t f = 0; f < factors.size(); ++f) {
    const int factor = static_cast<int>(f);
    AxisList axes = CompatibleAxes(*projection, factor, directions[f]);
    Truncate(&axes, [&](const AxisRef& axis, int64_t previous_parts) {
      std::optional<AxisRef> fit = axis;
      for (const TensorProjection& tensor : projection->tensors) {
        fit = FitAcrossFactors(*fit, tensor, factor);
        if (!fit.has_value()) return fit;
        if (!tensor.Has(factor)) continue;
        fit = FitWithinFactor(*fit, tensor, tensor.factors[f], previous_parts, factors[f].size);
        if (!fit.has_value()) return fit;
      }
      return fit;
    });
    for (size_t t = 0; t < projection->tensors.size(); ++t) {
      if (Expand(axes, &projection->tensors[t].factors[f])) is_changed[t] = true;
    }
  }
  return is_changed;
}

// The tensor that a factor's axes come from: the largest that has all of them.
struct Source {
  int64_t num_elements = -1;
  int tensor = -1;
};

std::vector<Source> FindSources(absl::Span<const Factor> factors, const Projection& projection,
                                absl::Span<const AxisList> axes) {
  std::vector<Source> sources(factors.size());
  for (size_t t = 0; t < projection.tensors.size(); ++t) {
    const TensorProjection& tensor = projection.tensors[t];
    int64_t num_elements = 1;
    for (size_t f = 0; f < factors.size(); ++f) {
      if (tensor.Has(static_cast<int>(f))) num_elements *= factors[f].size;
    }
    for (size_t f = 0; f < factors.size(); ++f) {
      if (!tensor.Has(static_cast<int>(f)) || axes[f].empty()) continue;
      if (num_elements > sources[f].num_elements && IsPrefix(axes[f], tensor.factors[f].axes)) {
        sources[f] = {num_elements, static_cast<int>(t)};
      }
    }
  }
  return sources;
}

// Factors in the order in which they win conflicts.
std::vector<int> RankFactors(absl::Span<const Source> sources, absl::Span<const AxisList> axes,
                             bool is_elementwise) {
  std::vector<int> order(sources.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int x, int y) {
    auto key = [&](int f) {
      const int64_t parts = is_elementwise ? NumParts(axes[f]) : 0;
      return std::make_tuple(-sources[f].num_elements, -parts, sources[f].tensor, f);
    };
    return key(x) < key(y);
  });
  return order;
}

std::vector<bool> PropagateAggressive(absl::Span<const Factor> factors,
                                      absl::Span<const Direction> directions, bool is_elementwise,
                                      Projection* projection) {
  std::vector<bool> is_changed(projection->tensors.size(), false);
  std::vector<AxisList> agreed;
  for (size_t f = 0; f < factors.size(); ++f) {
    agreed.push_back(CompatibleAxes(*projection, static_cast<int>(f), directions[f]));
  }
  if (std::all_of(agreed.begin(), agreed.end(),
                  [](const AxisList& axes) { return axes.empty(); })) {
    return is_changed;
  }
  const std::vector<int> order =
      RankFactors(FindSources(factors, *projection, agreed), agreed, is_elementwise);

  auto propagate_to = [&](size_t t) {
    TensorProjection& tensor = projection->tensors[t];
    const bool is_operand = static_cast<int>(t) < projection->num_operands;
    for (int f : order) {
      FactorSharding& factor = tensor.factors[f];
      if (!factor.is_mapped) continue;
      AxisList axes = agreed[f];
      Truncate(&axes, [&](const AxisRef& axis, int64_t previous_parts) {
        return FitWithinFactor(axis, tensor, factor, previous_parts, factors[f].size);
      });
      if (!IsStrictPrefix(factor.axes, axes)) continue;
      Truncate(&axes,
               [&](const AxisRef& axis, int64_t) { return FitAcrossFactors(axis, tensor, f); });
      if (is_operand && is_elementwise) {
        for (const TensorProjection& result : projection->results()) {
          if (result.Has(f) && IsStrictPrefix(result.factors[f].axes, axes)) {
            axes = result.factors[f].axes;
          }
        }
      }
      if (Expand(axes, &factor)) is_changed[t] = true;
    }
  };
  // Results first: operands look at what the results have become.
  for (size_t t = projection->num_operands; t < projection->tensors.size(); ++t) propagate_to(t);
  for (int t = 0; t < projection->num_operands; ++t) propagate_to(t);
  return is_changed;
}

}  // namespace

AxisList CompatibleAxes(const Projection& projection, int factor, Direction direction) {
  if (direction == Direction::kNone) return {};
  Agreement agreement;
  const bool starts_with_operands = Includes(direction, Direction::kForward);
  AddAll(starts_with_operands ? projection.operands() : projection.results(), factor, &agreement);
  if (direction != Direction::kBoth) agreement.Freeze();
  AddAll(starts_with_operands ? projection.results() : projection.operands(), factor, &agreement);
  return agreement.Take();
}

std::vector<bool> PropagateFactors(PropagationStrategy strategy, absl::Span<const Factor> factors,
                                   absl::Span<const Direction> directions, bool is_elementwise,
                                   Projection* projection) {
  return strategy == PropagationStrategy::kBasic
             ? PropagateBasic(factors, directions, projection)
             : PropagateAggressive(factors, directions, is_elementwise, projection);
}

}  // namespace penstock::planner
