#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "planner/lower/lowering_internal.h"
#include "planner/sharding/execution_sharding.h"

namespace penstock::planner::internal {
namespace {

// A KernelPlan that holds the tile of a feed, a fetch or a copy (ActorPlan::kernel).
bool IsNoKernel(std::string_view op) {
  return op == "feed" || op == "fetch" || op == "to_host" || op == "to_device";
}

}  // namespace

// The work of a kernel, feed or fetch on its tiles.
uint32_t Lowering::ShardingIndex(ValueId value, bool always) {
  sharding_index_.resize(graph_.num_values());
  std::optional<uint32_t>& index = sharding_index_[value];
  if (index.has_value() && !(always && *index == kNone)) return *index;
  Sharding sharding = ShardingOf(value);
  sharding.partials.clear();
  sharding.replicated.clear();
  const bool is_whole = std::all_of(
      sharding.dims.begin(), sharding.dims.end(),
      [](const graph::DimSharding& dim) { return dim.axes.empty() && !dim.sub_batch.has_value(); });
  if (is_whole && !always) {
    index = kNone;
    return kNone;
  }
  const auto next = static_cast<uint32_t>(folded_.shardings.size());
  const auto [known, is_new] = sharding_by_text_.emplace(
      absl::StrCat(ProducerOf(value).mesh, graph::ToString(MeshOf(value), sharding)), next);
  if (is_new) folded_.shardings.push_back(std::move(sharding));
  if (!is_whole) index = known->second;
  return known->second;
}

uint32_t Lowering::ViewIndex(ValueId whole, ValueId part) {
  const FoldedView view = {graph_.value(whole).type, ShardingIndex(whole, true),
                           ShardingIndex(part, true)};
  const auto known = std::find(folded_.views.begin(), folded_.views.end(), view);
  if (known != folded_.views.end()) return static_cast<uint32_t>(known - folded_.views.begin());
  folded_.views.push_back(view);
  return static_cast<uint32_t>(folded_.views.size() - 1);
}

uint32_t Lowering::KernelIndex(const KernelPlan& spec, const std::vector<uint32_t>& shardings) {
  std::string key = spec.op;
  for (const TilePlan& tile : spec.inputs) absl::StrAppend(&key, penstock::ToString(tile.shape));
  for (const TilePlan& tile : spec.outputs) {
    absl::StrAppend(&key, "|", penstock::ToString(tile.shape), penstock::ToString(tile.offset));
  }
  std::vector<uint32_t>& candidates = kernels_by_op_[key];
  for (uint32_t index : candidates) {
    if (folded_.kernels[index] == spec && folded_.kernel_shardings[index] == shardings) {
      return index;
    }
  }
  candidates.push_back(static_cast<uint32_t>(folded_.kernels.size()));
  folded_.kernels.push_back(spec);
  folded_.kernel_shardings.push_back(shardings);
  return candidates.back();
}

void Lowering::FindKernels() {
  for (int group = 0; group < num_stages_; ++group) {
    kernels_.push_back(options_.kernels_of == nullptr
                           ? options_.kernels
                           : options_.kernels_of(first_device_[group], NumDevicesOfGroup(group)));
  }
}

// That every operator runs on these element types; an error names the first node that does not.
absl::Status Lowering::CheckKernels() const {
  // Each group with kernels of its own is checked; otherwise each kernel once.
  const size_t num_lists = options_.kernels_of == nullptr ? 1 : kernels_.size();
  std::vector<std::vector<bool>> is_checked(num_lists,
                                            std::vector<bool>(folded_.kernels.size(), false));
  for (const DevicePlan& program : folded_.programs) {
    std::vector<bool>& done = is_checked[num_lists == 1 ? 0 : program.stage];
    for (const ActorPlan& actor : program.actors) {
      if (actor.kernel == kNone || done[actor.kernel]) continue;
      done[actor.kernel] = true;
      const KernelPlan& kernel = folded_.kernels[actor.kernel];
      if (IsNoKernel(kernel.op)) continue;
      const absl::Status status = kernels_[program.stage].check_kernel(kernel);
      if (status.ok()) continue;
      const ValueId value = graph_.FindValue(actor.name);
      std::string where;
      if (value != kNoValue && ProducerOf(value).location.line > 0) {
        const graph::SourceLocation& place = ProducerOf(value).location;
        where = absl::StrCat(place.file, ":", place.line, ":", place.column, ": ");
      }
      return absl::Status(status.code(),
                          absl::StrCat(where, "%", actor.name, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace penstock::planner::internal
