#include "actors/cluster/job_key.h"

#include <sys/random.h>

#include <algorithm>
#include <cctype>

#include "absl/strings/escaping.h"

#include "base/counted.h"
#include "base/strings.h"

namespace penstock::actors {

absl::StatusOr<std::string> NewJobKey() {
  char bytes[kJobKeyBytes];
  if (getrandom(bytes, sizeof(bytes), 0) != static_cast<ssize_t>(sizeof(bytes))) {
    return absl::UnavailableError("the system has no random numbers for the job's key");
  }
  return absl::BytesToHexString(absl::string_view(bytes, sizeof(bytes)));
}

absl::StatusOr<std::string> ParseJobKey(std::string_view digits) {
  if (digits.size() != 2 * kJobKeyBytes ||
      !std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return isxdigit(c); })) {
    return absl::InvalidArgumentError(StrCat("the job's key has ", 2 * kJobKeyBytes,
                                             " hexadecimal digits; what is given has ",
                                             Counted(digits.size(), "character")));
  }
  return absl::HexStringToBytes(ToAbsl(digits));
}

}  // namespace penstock::actors
