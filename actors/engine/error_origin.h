// Where an error arose, as fields of its status that survive from process to process, beside the
// message, which is for people.
//
//   SetOrigin({.device = 2, .step = 7}, &status);
//   if (OriginOf(status).rank == 1) ...
//
// Thread rule: pure functions on values.
// Invariant: a field that is known is not changed again, so the first who knows it counts.

#ifndef PENSTOCK_ACTORS_ENGINE_ERROR_ORIGIN_H_
#define PENSTOCK_ACTORS_ENGINE_ERROR_ORIGIN_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace penstock::actors {

struct ErrorOrigin {
  int32_t rank = -1;       // of the process in its cluster
  int32_t device = -1;     // of the plan
  int64_t step = -1;       // counted from 0
  std::string actor = "";  // such as "communication executor"; empty: not known
  int32_t peer = -1;       // the rank of the other process, of an error between two
  friend bool operator==(const ErrorOrigin&, const ErrorOrigin&) = default;
};

// Adds the fields of `origin` that are known to those of an error. OK stays OK.
void SetOrigin(const ErrorOrigin& origin, absl::Status* status);
ErrorOrigin OriginOf(const absl::Status& status);

// The status with `prefix` before its message; code, origin and all payloads stay.
absl::Status WithPrefix(std::string_view prefix, const absl::Status& status);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_ERROR_ORIGIN_H_
