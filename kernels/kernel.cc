#include "kernels/kernel.h"

#include <algorithm>
#include <utility>

#include "absl/strings/string_view.h"
#include "fmt/format.h"

namespace penstock::kernels {

absl::Status KernelRegistry::Add(std::string op, KernelDef def) {
  const auto [it, is_new] = defs_.try_emplace(std::move(op), std::move(def));
  if (!is_new) {
    return absl::AlreadyExistsError(fmt::format("there is a kernel for {} already", it->first));
  }
  return absl::OkStatus();
}

const KernelDef* KernelRegistry::Find(std::string_view op) const {
  const auto it = defs_.find(absl::string_view(op.data(), op.size()));
  return it != defs_.end() ? &it->second : nullptr;
}

std::vector<std::string_view> KernelRegistry::Names() const {
  std::vector<std::string_view> names;
  names.reserve(defs_.size());
  for (const auto& [name, def] : defs_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

graph::KernelTraits TraitsOf(const KernelRegistry& registry, int num_threads) {
  const KernelRegistry* kernels = &registry;
  graph::KernelTraits traits;
  // On trial: which element types a kernel takes is known by making it.
  const std::shared_ptr<Device> device = CreateCpuDevice(1);
  const std::shared_ptr<Stream> stream = device->CreateStream();
  traits.check_kernel = [kernels, device, stream](const KernelSpec& spec) -> absl::Status {
    const KernelDef* def = kernels->Find(spec.op);
    if (def == nullptr || def->create == nullptr) {
      return absl::UnimplementedError(fmt::format("there is no kernel for {}", spec.op));
    }
    return def->create(spec, *device, *stream).status();
  };
  traits.workspace_bytes = [kernels, num_threads](const KernelSpec& spec) -> size_t {
    const KernelDef* def = kernels->Find(spec.op);
    return def != nullptr && def->workspace_bytes ? def->workspace_bytes(spec, num_threads) : 0;
  };
  traits.can_alias = [kernels](const KernelSpec& spec, int input) {
    const KernelDef* def = kernels->Find(spec.op);
    return def != nullptr && def->can_alias && def->can_alias(spec, input);
  };
  traits.supports_accumulate = [kernels](std::string_view op) {
    const KernelDef* def = kernels->Find(op);
    return def != nullptr && def->supports_accumulate;
  };
  return traits;
}

}  // namespace penstock::kernels
