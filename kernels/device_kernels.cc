#include "kernels/device_kernels.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/status_macros.h"

namespace penstock::kernels {

using graph::KernelTraits;

KernelTraits CommonTraits(std::vector<KernelTraits> kinds) {
  if (kinds.size() == 1) return std::move(kinds[0]);
  const auto all = std::make_shared<const std::vector<KernelTraits>>(std::move(kinds));
  KernelTraits common;
  common.check_kernel = [all](const KernelSpec& spec) -> absl::Status {
    for (const KernelTraits& kind : *all) RETURN_IF_ERROR(kind.check_kernel(spec));
    return absl::OkStatus();
  };
  common.workspace_bytes = [all](const KernelSpec& spec) {
    size_t most = 0;
    for (const KernelTraits& kind : *all) most = std::max(most, kind.workspace_bytes(spec));
    return most;
  };
  common.can_alias = [all](const KernelSpec& spec, int input) {
    return std::all_of(all->begin(), all->end(),
                       [&](const KernelTraits& kind) { return kind.can_alias(spec, input); });
  };
  common.supports_accumulate = [all](std::string_view op) {
    return std::all_of(all->begin(), all->end(),
                       [&](const KernelTraits& kind) { return kind.supports_accumulate(op); });
  };
  return common;
}

}  // namespace penstock::kernels
