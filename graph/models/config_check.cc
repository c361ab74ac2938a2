#include "graph/models/config_check.h"

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::graph {

absl::Status CheckModelSize(std::string_view name, int64_t size, int64_t most) {
  if (size < 1 || size > most) {
    return absl::InvalidArgumentError(StrCat(name, " = ", size, ": must lie between 1 and ", most));
  }
  return absl::OkStatus();
}

absl::Status CheckModelConfig(const ModelConfig& config) {
  RETURN_IF_ERROR(CheckModelSize("layers", config.layers, kMaxLayers));
  RETURN_IF_ERROR(CheckModelSize("width", config.width));
  RETURN_IF_ERROR(CheckModelSize("context", config.context));
  RETURN_IF_ERROR(CheckModelSize("vocabulary", config.vocabulary));
  if (!(config.dropout >= 0 && config.dropout < 1)) {
    return absl::InvalidArgumentError(StrCat("dropout = ", config.dropout, ": must lie in [0, 1)"));
  }
  if (!IsFloat(config.dtype)) {
    return absl::InvalidArgumentError(
        StrCat("dtype = ", Name(config.dtype), ": a model needs a float type"));
  }
  return absl::OkStatus();
}

}  // namespace penstock::graph
