#include "actors/session/kept_states.h"

#include <cstdint>

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {

absl::StatusOr<Tensor> KeptStates::Read(std::string_view name) const {
  for (uint32_t i = 0; i < states_.size(); ++i) {
    if (states_[i].name != name) continue;
    Tensor value(states_[i].type);
    RETURN_IF_ERROR(ReadInto(i, &value));
    return value;
  }
  return absl::NotFoundError(StrCat("the state '", name, "' was not kept"));
}

}  // namespace penstock::actors
