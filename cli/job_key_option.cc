#include "cli/job_key_option.h"

#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "cli/files.h"

#include "actors/cluster/job_key.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

constexpr size_t kMaxKeyBytes = 4096;

// The first line of the standard input, without its end; what follows stays there.
std::string ReadLine() {
  std::string line;
  char c = 0;
  while (line.size() < kMaxKeyBytes && read(STDIN_FILENO, &c, 1) == 1 && c != '\n') line += c;
  return line;
}

}  // namespace

absl::StatusOr<std::string> ReadJobKey(const std::string& key_file) {
  std::string key;
  std::string source = "PENSTOCK_KEY";
  if (!key_file.empty()) {
    source = StrCat("--key-file ", key_file);
    absl::StatusOr<std::string> text =
        key_file == "-" ? ReadLine() : ReadTextFile(key_file, kMaxKeyBytes);
    if (!text.ok()) {
      return absl::Status(text.status().code(),
                          StrCat("--key-file ", ToStd(text.status().message())));
    }
    key = *std::move(text);
    while (!key.empty() && key.back() == '\n') key.pop_back();
  } else if (const char* variable = std::getenv("PENSTOCK_KEY")) {
    key = variable;
  } else {
    return absl::InvalidArgumentError(
        "the job's key is missing: set PENSTOCK_KEY or give --key-file");
  }
  if (const absl::Status parsed = actors::ParseJobKey(key).status(); !parsed.ok()) {
    return absl::InvalidArgumentError(
        StrCat(source, ": ", ToStd(parsed.message()),
               "; copy it from the command that `penstock run --listen` prints"));
  }
  return key;
}

}  // namespace penstock::cli
