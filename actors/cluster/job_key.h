// The secret that the processes of a job share: who does not know it is turned away before anything
// that it sends is parsed.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_ACTORS_CLUSTER_JOB_KEY_H_
#define PENSTOCK_ACTORS_CLUSTER_JOB_KEY_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace penstock::actors {

inline constexpr size_t kJobKeyBytes = 32;

// 64 hexadecimal digits from the system's random source.
absl::StatusOr<std::string> NewJobKey();

// The kJobKeyBytes that 64 hexadecimal digits stand for.
absl::StatusOr<std::string> ParseJobKey(std::string_view digits);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_JOB_KEY_H_
