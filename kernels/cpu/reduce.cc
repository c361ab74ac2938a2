#include "kernels/cpu/reduce.h"

namespace penstock::kernels {

ReducePlan::ReducePlan(const KernelSpec& spec) {
  const TileDesc& input = spec.inputs[0];
  const int rank = Rank(input);
  std::vector<bool> is_reduced(rank, false);
  for (int64_t axis : spec.attributes.GetInts("axes")) {
    is_reduced[NormalizeAxis(axis, rank)] = true;
  }

  struct Group {
    Loop loop;
    bool is_reduced;
  };
  std::vector<Group> groups;  // innermost first
  int64_t stride = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (is_reduced[i]) global_count *= GlobalExtent(input, i);
    if (input.shape[i] == 1) continue;
    if (!groups.empty() && groups.back().is_reduced == is_reduced[i]) {
      groups.back().loop.size *= input.shape[i];
    } else {
      groups.push_back({{input.shape[i], stride}, is_reduced[i]});
    }
    stride *= input.shape[i];
  }
  if (!groups.empty()) {
    row_size = groups[0].loop.size;
    is_row_reduced = groups[0].is_reduced;
  }
  for (size_t i = groups.size(); i-- > 1;) {
    (groups[i].is_reduced ? reduced : kept).push_back(groups[i].loop);
  }
  for (const Loop& loop : kept) kept_count *= loop.size;
  for (const Loop& loop : reduced) reduced_count *= loop.size;
  has_dense_columns = !is_row_reduced && reduced.size() == 1 && reduced[0].stride == row_size &&
                      row_size < kNarrowColumns;
}

int64_t ReducePlan::Offset(const std::vector<Loop>& loops, int64_t iteration) {
  int64_t offset = 0;
  for (size_t i = loops.size(); i-- > 0;) {
    offset += iteration % loops[i].size * loops[i].stride;
    iteration /= loops[i].size;
  }
  return offset;
}

}  // namespace penstock::kernels
