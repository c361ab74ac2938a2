#include "transport/ucx/ucx_system.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <ucp/api/ucp.h>

#include "base/strings.h"
#include "transport/ucx/ucx_log.h"
#include "transport/ucx/ucx_status.h"

namespace penstock::transport {
namespace {

// By ucs_memory_type_t, to which later versions of UCX add.
constexpr std::array<std::string_view, 5> kMemoryNames = {"host", "CUDA", "CUDA managed", "ROCm",
                                                          "ROCm managed"};
static_assert(UCS_MEMORY_TYPE_HOST == 0 && UCS_MEMORY_TYPE_CUDA == 1 &&
              UCS_MEMORY_TYPE_ROCM_MANAGED == 4);

absl::Status AskForMemory(uint64_t* types) {
  const ucx::LogScope log;
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM;
  ucp_context_h context = nullptr;
  absl::Status status = ucx::FromUcs(ucp_init(&params, nullptr, &context), "starting UCX", log);
  if (!status.ok()) return status;
  ucp_context_attr_t attributes = {};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  status = ucx::FromUcs(ucp_context_query(context, &attributes), "asking UCX for memory types");
  *types = attributes.memory_types;
  ucp_cleanup(context);
  return status;
}

}  // namespace

std::vector<std::string> MemoryNames(uint64_t types) {
  std::vector<std::string> names;
  for (size_t bit = 0; bit < 64; ++bit) {
    if ((types >> bit & 1) == 0) continue;
    names.push_back(bit < kMemoryNames.size() ? std::string(kMemoryNames[bit])
                                              : StrCat("type ", bit));
  }
  return names;
}

UcxSystem FindUcx() {
  UcxSystem system;
  system.version = ucp_get_version_string();
  uint64_t types = 0;
  system.status = AskForMemory(&types);
  if (!system.status.ok()) return system;
  system.memory = MemoryNames(types);
  system.knows_cuda = (types >> UCS_MEMORY_TYPE_CUDA & 1) != 0;
  return system;
}

std::string DescribeUcx(const UcxSystem& system) {
  const std::string name = StrCat("UCX ", system.version);
  if (!system.status.ok()) {
    return StrCat(name, ": its memory types are not known: ", ToStd(system.status.message()));
  }
  return StrCat(name, " knows ", StrJoin(system.memory, ", "),
                " memory; what GPUs send through it ", "is staged in host memory",
                system.knows_cuda ? " all the same" : "");
}

}  // namespace penstock::transport
