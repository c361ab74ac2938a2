// How messages, traces and drawings number steps: from 1, as the console does. The indices of the
// API and of the wire start at 0, those of a session's steps at its first one: see
// SessionOptions::first_step. Any index has a name, as a peer may send any.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_ACTORS_ENGINE_STEP_NAME_H_
#define PENSTOCK_ACTORS_ENGINE_STEP_NAME_H_

#include <cstdint>
#include <string>

#include "base/strings.h"

namespace penstock::actors {

inline int64_t StepNumber(int64_t step_index) {
  return step_index < INT64_MAX ? step_index + 1 : step_index;
}

// "step 1" for index 0.
inline std::string StepName(int64_t step_index) { return StrCat("step ", StepNumber(step_index)); }

// The same of step `step_index` of a session whose first one counts as `first_step`: "step 201" for
// index 0 after 200 steps. REQUIRES: first_step >= 0.
inline std::string StepName(int64_t step_index, int64_t first_step) {
  return StepName(step_index < INT64_MAX - first_step ? step_index + first_step : INT64_MAX);
}

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_STEP_NAME_H_
