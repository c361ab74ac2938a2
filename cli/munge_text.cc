#include "cli/munge_text.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "cli/program_output.h"

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

constexpr std::string_view kPrefix = "MUNGE:";
// Hosts may start one after another, and slowly.
constexpr char kLife[] = "--ttl=3600";
// The status of unmunge for what was opened on this host before (EMUNGE_CRED_REPLAYED): it prints
// the text all the same.
constexpr int kReplayed = 17;
constexpr std::string_view kUid = "UID:";

// The last line that a program prints: warnings, which go to the same pipe, come before.
absl::StatusOr<std::string> LastLineOf(std::vector<std::string> arguments,
                                       const std::string& input) {
  ASSIGN_OR_RETURN(const std::string output, OutputOf(std::move(arguments), input));
  return output.substr(output.rfind('\n') + 1);
}

}  // namespace

absl::StatusOr<std::string> SealWithMunge(const std::string& text) {
  ASSIGN_OR_RETURN(std::string line,
                   LastLineOf({"munge", StrCat("--restrict-uid=", geteuid()), kLife}, text));
  if (IsSealedWithMunge(line)) return line;
  return absl::UnavailableError("munge has printed no credential");
}

bool IsSealedWithMunge(std::string_view line) { return line.substr(0, kPrefix.size()) == kPrefix; }

absl::StatusOr<std::string> OpenWithMunge(const std::string& line) {
  ASSIGN_OR_RETURN(const ProgramOutput output,
                   EndOf({"unmunge", "--keys=UID", "--numeric"}, StrCat(line, "\n")));
  const bool is_open =
      WIFEXITED(output.wait_status) &&
      (WEXITSTATUS(output.wait_status) == 0 || WEXITSTATUS(output.wait_status) == kReplayed);
  // "UID:   1000", an empty line, and the text. A message about a replay may come before or after.
  const size_t uid = output.text.find(kUid);
  const size_t end = output.text.find("\n\n", uid);
  if (!is_open || uid == std::string::npos || end == std::string::npos) {
    return FailureOf(output);
  }
  uint32_t user = 0;
  const std::string_view text = output.text;
  if (!absl::SimpleAtoi(ToAbsl(text.substr(uid + kUid.size(), end - uid - kUid.size())), &user) ||
      user != geteuid()) {
    return absl::PermissionDeniedError("it is not from a process of this user");
  }
  const std::string_view opened = text.substr(end + 2);
  return std::string(opened.substr(0, opened.find('\n')));
}

KeySeal SealOfAllocation() {
  if (std::getenv("SLURM_JOB_ID") == nullptr) return nullptr;
  // Hosts of a cluster have the same munge: where what it makes cannot be opened here, such as by
  // an older `unmunge` without these options, the others could not open the key.
  constexpr char kTest[] = "test";
  const absl::StatusOr<std::string> sealed = SealWithMunge(kTest);
  if (!sealed.ok() || OpenWithMunge(*sealed).value_or("") != kTest) return nullptr;
  return SealWithMunge;
}

KeySeal KeySealFor(const std::vector<actors::NodePlace>& places) {
  const bool is_sent = !places.empty() && !places[0].through.empty() && places[0].key_file.empty();
  return is_sent && !places[0].joins_arguments ? SealOfAllocation() : nullptr;
}

}  // namespace penstock::cli
