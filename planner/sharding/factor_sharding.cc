#include "planner/sharding/factor_sharding.h"

#include <numeric>
#include <utility>

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::DimFactors;
using graph::DimSharding;
using graph::Factor;
using graph::Sharding;

// Hands out the axes of a dimension piece by piece, major first.
class AxisSource {
 public:
  explicit AxisSource(AxisSpan axes) : axes_(axes) {
    if (!axes_.empty()) rest_ = axes_[0];
  }

  bool is_empty() const { return next_ >= axes_.size(); }
  // What is left of the current axis. REQUIRES: !is_empty().
  const AxisRef& current() const { return rest_; }

  // Takes the major piece of `size`, which divides the current axis.
  AxisRef Take(int64_t size) {
    const AxisRef taken = {rest_.axis, rest_.pre, size};
    rest_.pre *= size;
    rest_.size /= size;
    if (rest_.size == 1) {
      ++next_;
      if (!is_empty()) rest_ = axes_[next_];
    }
    return taken;
  }

  AxisList TakeAll() {
    AxisList all;
    while (!is_empty()) AppendAxis(Take(rest_.size), &all);
    return all;
  }

 private:
  AxisSpan axes_;
  size_t next_ = 0;
  AxisRef rest_;
};

void ProjectDim(const DimFactors& mapping, absl::Span<const Factor> factors, const DimSharding& dim,
                TensorProjection* projection) {
  AxisSource source(dim.axes);
  bool has_overflow = false;
  for (int index : mapping) {
    FactorSharding& factor = projection->factors[index];
    factor.is_mapped = true;
    factor.is_minor_most = index == mapping.back();
    factor.is_closed = !dim.is_open || has_overflow;
    if (has_overflow) continue;
    if (factor.is_minor_most) {
      factor.axes = source.TakeAll();
      continue;
    }
    int64_t rest = factors[index].size;
    while (!source.is_empty()) {
      const int64_t size = source.current().size;
      const int64_t common = std::gcd(rest, size);
      if (common == 1 && size != 1) break;
      AppendAxis(source.Take(common), &factor.axes);
      rest /= common;
    }
    if (rest > 1 && !source.is_empty()) {
      factor.overflow = source.TakeAll();
      has_overflow = true;
    }
  }
}

std::vector<AxisRef> UnprojectDim(const DimFactors& mapping, absl::Span<const Factor> factors,
                                  const TensorProjection& projection) {
  AxisList axes;
  for (int index : mapping) {
    const FactorSharding& factor = projection.factors[index];
    for (const AxisRef& axis : factor.axes) AppendAxis(axis, &axes);
    for (const AxisRef& axis : factor.overflow) AppendAxis(axis, &axes);
    if (!factor.overflow.empty() || NumParts(factor.axes) < factors[index].size) break;
  }
  return {axes.begin(), axes.end()};
}

// Cuts the list where a temporal axis would not divide the dimension or is not whole.
void DropIndivisible(const graph::Mesh& mesh, int64_t extent, std::vector<AxisRef>* axes) {
  int64_t parts = 1;
  for (size_t i = 0; i < axes->size(); ++i) {
    const AxisRef& axis = (*axes)[i];
    parts *= axis.size;
    const bool fits = axis.size == mesh.axes[axis.axis].size && extent % parts == 0;
    if (graph::IsTemporal(mesh, axis) && !fits) {
      axes->resize(i);
      return;
    }
  }
}

}  // namespace

TensorProjection ProjectTensor(const graph::TensorFactors& mapping,
                               absl::Span<const Factor> factors, const Sharding& sharding) {
  TensorProjection projection;
  ProjectTensor(mapping, factors, sharding, &projection);
  return projection;
}

void ProjectTensor(const graph::TensorFactors& mapping, absl::Span<const Factor> factors,
                   const Sharding& sharding, TensorProjection* projection) {
  projection->factors.resize(factors.size());
  for (FactorSharding& factor : projection->factors) {
    factor.axes.clear();
    factor.overflow.clear();
    factor.is_mapped = factor.is_closed = factor.is_minor_most = false;
  }
  projection->fixed.clear();
  for (size_t i = 0; i < mapping.size(); ++i) {
    const DimSharding& dim = sharding.dims[i];
    if (mapping[i].empty()) {
      projection->fixed.insert(projection->fixed.end(), dim.axes.begin(), dim.axes.end());
    } else {
      ProjectDim(mapping[i], factors, dim, projection);
    }
  }
  projection->blocked.assign(sharding.replicated.begin(), sharding.replicated.end());
  for (const graph::PartialSpec& partial : sharding.partials) {
    projection->blocked.insert(projection->blocked.end(), partial.axes.begin(), partial.axes.end());
  }
}

Sharding UnprojectTensor(const graph::Mesh& mesh, const graph::TensorFactors& mapping,
                         absl::Span<const Factor> factors, const TensorProjection& projection,
                         const Shape& shape, const Sharding& old) {
  Sharding sharding = old;
  for (size_t i = 0; i < mapping.size(); ++i) {
    if (mapping[i].empty()) continue;
    std::vector<AxisRef> axes = UnprojectDim(mapping[i], factors, projection);
    DropIndivisible(mesh, shape[i], &axes);
    sharding.dims[i].axes = std::move(axes);
  }
  return sharding;
}

}  // namespace penstock::planner
