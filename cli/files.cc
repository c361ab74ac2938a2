#include "cli/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/strings.h"

namespace penstock::cli {

absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t max_bytes) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return absl::NotFoundError(StrCat(path, ": no such file"));
  if (std::filesystem::is_directory(status)) {
    return absl::InvalidArgumentError(StrCat(path, ": is a folder"));
  }
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return absl::InvalidArgumentError(StrCat(path, ": cannot be opened"));
  std::string text;
  char chunk[1 << 14];
  while (stream.read(chunk, sizeof(chunk)) || stream.gcount() > 0) {
    text.append(chunk, static_cast<size_t>(stream.gcount()));
    if (text.size() > max_bytes) {
      return absl::InvalidArgumentError(StrCat(path, ": is longer than ", max_bytes, " bytes"));
    }
  }
  if (stream.bad()) return absl::InvalidArgumentError(StrCat(path, ": cannot be read"));
  return text;
}

absl::Status CheckWritable(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(StrCat(path, ": is a folder"));
  }
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  const bool exists = std::filesystem::exists(status);
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  if (!exists && !std::filesystem::is_directory(folder, error)) {
    return absl::InvalidArgumentError(StrCat(path, ": there is no folder ", folder));
  }
  const auto refuse = [&path] {
    return absl::InvalidArgumentError(StrCat(path, ": cannot be written (", strerror(errno), ")"));
  };
  if (exists && !std::filesystem::is_regular_file(status)) {
    // The reader of a pipe would take an opening for all there is.
    return access(path.c_str(), W_OK) == 0 ? absl::OkStatus() : refuse();
  }
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return refuse();
  close(fd);
  // Of a symbolic link only what it has led to.
  if (!exists) std::filesystem::remove(std::filesystem::canonical(path, error), error);
  return absl::OkStatus();
}

absl::Status CheckCreatable(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::path nearest = std::filesystem::absolute(path, error);
  while (nearest.has_relative_path() && !std::filesystem::exists(nearest, error)) {
    nearest = nearest.parent_path();
  }
  if (!std::filesystem::is_directory(nearest, error)) {
    return absl::InvalidArgumentError(StrCat(path, ": ", nearest.string(), " is not a folder"));
  }
  if (access(nearest.c_str(), W_OK | X_OK) != 0) {
    return absl::InvalidArgumentError(StrCat(path, ": cannot be written"));
  }
  return absl::OkStatus();
}

absl::Status WriteTextFile(const std::string& path, std::string_view text) {
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream.write(text.data(), static_cast<std::streamsize>(text.size()));
  stream.close();
  if (!stream) return absl::InvalidArgumentError(StrCat(path, ": cannot be written"));
  return absl::OkStatus();
}

absl::Status CreateFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return absl::InvalidArgumentError(StrCat(path, ": ", error.message()));
  return absl::OkStatus();
}

bool HasSuffix(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

}  // namespace penstock::cli
