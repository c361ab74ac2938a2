#include "cli/status_sockets.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/numbers.h"
#include "cli/files.h"
#include "cli/job_key_option.h"

#include "actors/cluster/job_key.h"
#include "actors/cluster/socket_address.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

constexpr std::string_view kSuffix = ".sock";
// Longer than a coordinator waits for nodes that do not answer.
constexpr absl::Duration kAnswerTimeout = absl::Seconds(5);
// Files in the folder that are looked at.
constexpr int kMaxSockets = 1024;

// Whether the path is a folder that this user alone may enter.
absl::Status CheckPrivate(const std::string& folder) {
  struct stat info = {};
  if (lstat(folder.c_str(), &info) != 0) {
    return absl::UnavailableError(StrCat(folder, ": ", strerror(errno)));
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        StrCat(folder,
               " is not a folder that this user alone may enter (mode 0700): remove it, or "
               "set XDG_RUNTIME_DIR"));
  }
  return absl::OkStatus();
}

std::string FolderPath() {
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') return StrCat(runtime, "/penstock");
  return StrCat("/tmp/penstock-", geteuid());
}

// The process of a status socket, as digits; empty: the address is another one.
std::string ProcessOf(std::string_view address) {
  const std::string_view name = address.substr(address.rfind('/') + 1);
  const size_t begin = name.find('-');
  const size_t end = name.find('-', begin + 1);
  if (begin == name.npos || end == name.npos || !HasSuffix(name, kSuffix)) return "";
  return std::string(name.substr(begin + 1, end - begin - 1));
}

// Whether a process was stopped by a signal or a debugger.
bool IsStopped(const std::string& pid) {
  std::ifstream file(StrCat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  // "4711 (name) T ...", and the name may hold anything.
  const size_t end = line.rfind(')');
  if (end == line.npos || end + 2 >= line.size()) return false;
  return line[end + 2] == 'T' || line[end + 2] == 't';
}

bool IsNumber(const std::string& text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

}  // namespace

absl::StatusOr<std::string> StatusFolder() {
  const std::string folder = FolderPath();
  if (mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    return absl::UnavailableError(StrCat("cannot make the folder ", folder, ": ", strerror(errno)));
  }
  RETURN_IF_ERROR(CheckPrivate(folder));
  return folder;
}

absl::StatusOr<std::string> NewStatusSocket(std::string_view role) {
  ASSIGN_OR_RETURN(const std::string folder, StatusFolder());
  // A process may run several jobs.
  ASSIGN_OR_RETURN(const std::string unique, actors::NewJobKey());
  return StrCat(folder, "/", role, "-", getpid(), "-", unique.substr(0, 8), kSuffix);
}

absl::StatusOr<std::vector<std::string>> FindStatusSockets() {
  const std::string folder = FolderPath();
  std::vector<std::string> paths;
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) return paths;
  RETURN_IF_ERROR(CheckPrivate(folder));
  std::filesystem::directory_iterator entry(folder, error);
  for (int count = 0; !error && entry != std::filesystem::directory_iterator();
       entry.increment(error)) {
    if (++count > kMaxSockets) break;
    const std::string path = entry->path().string();
    if (!HasSuffix(path, kSuffix)) continue;
    actors::RemoveStaleSocket(StrCat("unix:", path));
    if (std::filesystem::exists(path, error)) paths.push_back(path);
  }
  if (error) return absl::UnavailableError(StrCat(folder, ": ", error.message()));
  std::sort(paths.begin(), paths.end());
  return paths;
}

absl::StatusOr<actors::JobStatus> AskJob(const actors::StatusAddress& address,
                                         actors::StatusClient& client) {
  absl::StatusOr<actors::JobStatus> status = client.Ask(address, kAnswerTimeout);
  if (!absl::IsDeadlineExceeded(status.status())) return status;
  const std::string pid = ProcessOf(address.address);
  return absl::DeadlineExceededError(
      StrCat("the job at ", address.address, " has not answered for ",
             absl::FormatDuration(kAnswerTimeout),
             pid.empty() ? ""
                         : StrCat(": process ", pid, IsStopped(pid) ? " is stopped" : "",
                                  " (kill -CONT ", pid, " continues one that is stopped)")));
}

absl::StatusOr<actors::StatusAddress> FindJob(const std::string& text, const std::string& key_file,
                                              actors::StatusClient& client) {
  if (!text.empty() && !IsNumber(text)) {
    struct stat info = {};
    const bool is_path = text.find('/') != std::string::npos && text.find(':') == text.npos;
    if (is_path) {
      if (stat(text.c_str(), &info) != 0 || !S_ISSOCK(info.st_mode)) {
        return absl::NotFoundError(StrCat(text, " is not a socket of a job"));
      }
      return actors::StatusAddress{StrCat("unix:", text), ""};
    }
    if (!actors::CheckJoinAddress(text).ok()) {
      return absl::InvalidArgumentError(
          StrCat("\"", text,
                 "\" names no job: expected a process id, the path of a status socket, "
                 "or HOST:PORT of a coordinator"));
    }
    // The socket of a job in a folder of its user needs no key; a coordinator's does.
    const bool needs_key = !HasSuffix(text, kSuffix);
    actors::StatusAddress address{text, ""};
    if (needs_key) {
      ASSIGN_OR_RETURN(address.key, ReadJobKey(key_file));
    }
    return address;
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, FindStatusSockets());
  if (!text.empty()) {
    for (const std::string& path : paths) {
      if (ProcessOf(path) == text) {
        return actors::StatusAddress{StrCat("unix:", path), ""};
      }
    }
    return absl::NotFoundError(StrCat("process ", text,
                                      " on this host is no job of this user, nor a node of a job "
                                      "that runs on another host"));
  }
  if (paths.size() == 1) return actors::StatusAddress{StrCat("unix:", paths[0]), ""};
  // Several processes may belong to one job; a coordinator answers more surely than its nodes.
  std::vector<std::string> found;  // "PID  NAME", of each job
  std::vector<std::string> ids;
  actors::StatusAddress only;
  for (const bool is_node : {false, true}) {
    for (const std::string& path : paths) {
      if ((path.find("/node-") != std::string::npos) != is_node) continue;
      const actors::StatusAddress address{StrCat("unix:", path), ""};
      const absl::StatusOr<actors::JobStatus> status = AskJob(address, client);
      const std::string id = status.ok() ? status->id : path;
      if (std::find(ids.begin(), ids.end(), id) != ids.end()) continue;
      ids.push_back(id);
      found.push_back(status.ok() ? StrCat(path, ": ", status->name, ", process ", status->pid,
                                           " on ", status->host)
                                  : StrCat(path, ": ", ToStd(status.status().message())));
      only = address;
    }
  }
  if (ids.size() == 1) return only;
  if (ids.empty()) {
    return absl::NotFoundError(
        "no job of this user runs on this host; `penstock run` starts one, and HOST:PORT with "
        "PENSTOCK_KEY names one on another host");
  }
  return absl::InvalidArgumentError(
      StrCat("several jobs run here; give the process id or the path of one:\n  ",
             StrJoin(found, "\n  ")));
}

}  // namespace penstock::cli
