#include "tests/support/temp_folder.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock::testing {
namespace {

namespace fs = std::filesystem;

// Folders are called penstock_test.PID.XXXXXX.
constexpr std::string_view kPrefix = "penstock_test.";

void RemoveAbandoned(const fs::path& parent) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, error)) {
    const std::string name = entry.path().filename().string();
    if (name.compare(0, kPrefix.size(), kPrefix) != 0) continue;
    const size_t end = name.find('.', kPrefix.size());
    int pid = 0;
    if (end == std::string::npos ||
        !absl::SimpleAtoi(name.substr(kPrefix.size(), end - kPrefix.size()), &pid)) {
      continue;
    }
    const bool is_gone = pid > 0 && kill(pid, 0) != 0 && errno == ESRCH;
    if (is_gone) fs::remove_all(entry.path(), error);
  }
}

}  // namespace

TempFolder::TempFolder() {
  const fs::path parent = ::testing::TempDir();
  RemoveAbandoned(parent);
  std::string name = (parent / StrCat(kPrefix, getpid(), ".XXXXXX")).string();
  const char* made = mkdtemp(name.data());
  EXPECT_NE(made, nullptr) << name;
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code error;
  fs::remove_all(path_, error);
}

}  // namespace penstock::testing
