#include "planner/chakra/chakra_files.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/cluster/cluster_model.h"

namespace penstock::planner {
namespace {

constexpr std::string_view kName = "trace";
constexpr std::string_view kSuffix = ".et";

struct TraceName {
  std::string name;
  uint32_t rank = 0;
};

// "NAME.RANK.et".
std::optional<TraceName> ParseName(const std::string& file) {
  if (file.size() < kSuffix.size() || file.substr(file.size() - kSuffix.size()) != kSuffix) {
    return std::nullopt;
  }
  const std::string stem = file.substr(0, file.size() - kSuffix.size());
  const size_t dot = stem.rfind('.');
  TraceName name;
  if (dot == std::string::npos || !absl::SimpleAtoi(stem.substr(dot + 1), &name.rank) ||
      name.rank >= kMaxClusterDevices) {
    return std::nullopt;
  }
  name.name = stem.substr(0, dot);
  return name;
}

absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& folder) {
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  std::vector<std::string> files;
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    files.push_back(entries->path().filename().string());
  }
  if (!error) return files;
  return absl::NotFoundError(StrCat("cannot read folder ", folder, ": ", error.message()));
}

}  // namespace

std::string ChakraTracePath(const std::string& folder, uint32_t rank) {
  return StrCat(folder, "/", kName, ".", rank, kSuffix);
}

std::string ChakraGroupsPath(const std::string& folder) {
  return StrCat(folder, "/comm_groups.json");
}

absl::StatusOr<std::map<uint32_t, std::string>> FindChakraTraces(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesOf(folder));
  std::map<uint32_t, std::string> traces;
  for (const std::string& file : files) {
    const std::optional<TraceName> name = ParseName(file);
    if (!name.has_value()) continue;
    const std::string path = StrCat(folder, "/", file);
    const auto [it, is_new] = traces.try_emplace(name->rank, path);
    if (is_new) continue;
    return absl::InvalidArgumentError(
        StrCat(it->second, " and ", path, " are both traces of rank ", name->rank));
  }
  if (!traces.empty()) return traces;
  return absl::InvalidArgumentError(
      StrCat(folder,
             ": there is no Chakra trace, as `penstock simulate --chakra` writes: a file "
             "NAME.RANK.et for each rank"));
}

absl::StatusOr<std::string> ReadChakraFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::NotFoundError(StrCat(path, ": not a regular file"));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(StrCat(path, ": cannot be opened: ", std::strerror(errno)));
  std::string bytes;
  char chunk[1 << 16];
  while (file.read(chunk, sizeof(chunk)) || file.gcount() > 0) {
    bytes.append(chunk, static_cast<size_t>(file.gcount()));
  }
  if (!file.bad()) return bytes;
  return absl::DataLossError(StrCat(path, ": cannot be read: ", std::strerror(errno)));
}

absl::Status RemoveChakraTraces(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesOf(folder));
  for (const std::string& file : files) {
    const std::optional<TraceName> name = ParseName(file);
    if (!name.has_value() || name->name != kName) continue;
    std::error_code error;
    std::filesystem::remove(StrCat(folder, "/", file), error);
    if (!error) continue;
    return absl::UnavailableError(
        StrCat("cannot remove ", folder, "/", file, ": ", error.message()));
  }
  return absl::OkStatus();
}

}  // namespace penstock::planner
