#include "cli/job_key_option.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "cli/files.h"
#include "cli/munge_text.h"
#include "cli/status_sockets.h"

#include "actors/cluster/job_key.h"
#include "base/status_macros.h"
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

bool IsInGroup(gid_t group) {
  if (group == getegid()) return true;
  std::vector<gid_t> groups(static_cast<size_t>(std::max(getgroups(0, nullptr), 0)));
  const int count = getgroups(static_cast<int>(groups.size()), groups.data());
  groups.resize(static_cast<size_t>(std::max(count, 0)));
  return std::find(groups.begin(), groups.end(), group) != groups.end();
}

absl::Status CheckIsSecret(const std::string& key_file) {
  struct stat info = {};
  if (stat(key_file.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return absl::OkStatus();
  if ((info.st_mode & 077) == 0) return absl::OkStatus();
  // As Kubernetes hands a secret to a container of another user than root, whose pod has a group of
  // its own (fsGroup): root's, readable by that group.
  const bool is_given_to_group = info.st_uid == 0 && (info.st_mode & 037) == 0;
  if (is_given_to_group && IsInGroup(info.st_gid)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      StrCat("--key-file ", key_file, ": others may read the job's key; chmod 600 ", key_file));
}

}  // namespace

absl::StatusOr<std::string> OpenSentKey(const std::string& sealed) {
  absl::StatusOr<std::string> opened = OpenWithMunge(sealed);
  if (opened.ok()) return opened;
  return absl::UnavailableError(
      StrCat("the job's key cannot be decrypted on this host: ", ToStd(opened.status().message()),
             "; with --key-file, `penstock launch` does not send it"));
}

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
    // As `launch` hands it on through srun.
    if (key_file == "-" && IsSealedWithMunge(key)) {
      ASSIGN_OR_RETURN(key, OpenSentKey(key));
    }
  } else if (const char* variable = std::getenv("PENSTOCK_KEY")) {
    key = variable;
  } else {
    return absl::InvalidArgumentError(
        "the job's key is missing: set PENSTOCK_KEY or give --key-file");
  }
  if (const absl::Status parsed = actors::ParseJobKey(key).status(); !parsed.ok()) {
    return absl::InvalidArgumentError(StrCat(source, ": ", ToStd(parsed.message()),
                                             "; `penstock run --listen` prints which file has it"));
  }
  if (!key_file.empty() && key_file != "-") RETURN_IF_ERROR(CheckIsSecret(key_file));
  return key;
}

absl::StatusOr<std::unique_ptr<JobKeyFile>> JobKeyFile::Create() {
  ASSIGN_OR_RETURN(const std::string folder, StatusFolder());
  ASSIGN_OR_RETURN(std::string key, actors::NewJobKey());
  ASSIGN_OR_RETURN(const std::string unique, actors::NewJobKey());
  std::string path = StrCat(folder, "/run-", getpid(), "-", unique.substr(0, 8), ".key");
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd < 0) {
    return absl::UnavailableError(StrCat("cannot write ", path, ": ", strerror(errno)));
  }
  const std::string line = StrCat(key, "\n");
  const bool is_written = write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  const int error = errno;
  close(fd);
  std::unique_ptr<JobKeyFile> file(new JobKeyFile(std::move(path), std::move(key)));
  if (is_written) return file;
  return absl::UnavailableError(StrCat("cannot write ", file->path(), ": ", strerror(error)));
}

JobKeyFile::~JobKeyFile() { unlink(path_.c_str()); }

}  // namespace penstock::cli
