#include "base/find_program.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/strings.h"

namespace penstock {

absl::StatusOr<std::string> FindProgram(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* const variable = std::getenv("PATH");
  const std::string path = variable == nullptr ? "" : variable;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const std::string program = StrCat(path.substr(begin, end - begin), "/", name);
    std::error_code error;
    if (end > begin && access(program.c_str(), X_OK) == 0 &&
        std::filesystem::is_regular_file(program, error)) {
      return program;
    }
    begin = end + 1;
  }
  return absl::NotFoundError(StrCat(name, ": there is no such program in PATH"));
}

}  // namespace penstock
