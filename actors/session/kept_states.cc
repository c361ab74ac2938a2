#include "actors/session/kept_states.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "actors/checkpoint/state_file.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {

bool KeptStates::Has(std::string_view name) const {
  return std::any_of(states_.begin(), states_.end(),
                     [name](const planner::StatePlan& state) { return state.name == name; });
}

absl::StatusOr<Tensor> KeptStates::Read(std::string_view name) const {
  for (uint32_t i = 0; i < states_.size(); ++i) {
    if (states_[i].name != name) continue;
    Tensor value(states_[i].type);
    RETURN_IF_ERROR(ReadInto(i, &value));
    return value;
  }
  return absl::NotFoundError(StrCat("the state '", name, "' was not kept"));
}

absl::Status KeptStates::Write(const std::string& folder, const Metadata& metadata) const {
  Tensor value;  // of one state at a time
  std::vector<SafetensorsSource> sources;
  for (uint32_t i = 0; i < states_.size(); ++i) {
    SafetensorsSource source = {states_[i].name, states_[i].type, nullptr};
    source.bytes = [this, i, &value]() -> absl::StatusOr<const std::byte*> {
      value = Tensor(states_[i].type);
      RETURN_IF_ERROR(ReadInto(i, &value));
      return static_cast<const std::byte*>(value.data());
    };
    if (states_[i].is_parameter) source = FiniteSource(std::move(source));
    sources.push_back(std::move(source));
  }
  return WriteSafetensors(StrCat(folder, "/", CheckpointFileName(0, 1)), sources, metadata)
      .status();
}

}  // namespace penstock::actors
