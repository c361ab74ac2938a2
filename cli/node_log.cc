#include "cli/node_log.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

absl::Status Failure(std::string_view what) {
  return absl::UnavailableError(StrCat(what, ": ", strerror(errno)));
}

// That nobody else can put something else in place of a part of the path: what lies in a folder to
// which all may write, such as /tmp, has to be a folder of this user to which others may not.
absl::Status CheckFolders(const std::filesystem::path& folder) {
  std::filesystem::path at;
  bool may_all_write = false;
  for (const std::filesystem::path& part : std::filesystem::absolute(folder)) {
    if (part.empty()) continue;
    at /= part;
    struct stat info = {};
    if (lstat(at.c_str(), &info) != 0) return Failure(at.string());
    if (may_all_write &&
        (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & S_IWOTH) != 0)) {
      return absl::PermissionDeniedError(
          StrCat(at.string(), " is not a folder of this user to which nobody else may write"));
    }
    if (S_ISLNK(info.st_mode) && stat(at.c_str(), &info) != 0) return Failure(at.string());
    may_all_write = (info.st_mode & S_IWOTH) != 0;
  }
  return absl::OkStatus();
}

// Nobody else can have put the file there, nor a link to another.
absl::Status MakeFile(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const mode_t before = umask(077);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  umask(before);
  if (error) return absl::UnavailableError(StrCat(folder.string(), ": ", error.message()));
  RETURN_IF_ERROR(CheckFolders(folder));
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return Failure(path);
  const absl::Cleanup closes = [file] { close(file); };
  struct stat info = {};
  if (fstat(file, &info) != 0) return Failure(path);
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid()) {
    return absl::PermissionDeniedError(StrCat(path, " is not a file of this user"));
  }
  return absl::OkStatus();
}

// In the child of a fork: only what a signal handler may call.
[[noreturn]] void BecomeTee(char* const* arguments, int input_fd, int error_fd) {
  // What ends the node leaves the rest of its output to be written.
  for (const int ignored : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) signal(ignored, SIG_IGN);
  // Not a child of the node, as what the node has started is killed with it.
  if (const pid_t child = fork(); child != 0) _exit(child > 0 ? 0 : 126);
  const int output_fd = dup(STDERR_FILENO);
  const int nowhere = open("/dev/null", O_WRONLY);
  if (dup2(input_fd, STDIN_FILENO) >= 0 && dup2(output_fd, STDOUT_FILENO) >= 0 &&
      dup2(nowhere, STDERR_FILENO) >= 0) {
    close(output_fd);
    close(nowhere);
    execvp(arguments[0], arguments);
  }
  const int error = errno;
  (void)!write(error_fd, &error, sizeof(error));
  _exit(127);
}

}  // namespace

std::string DefaultLogFolder(std::string_view job) {
  return StrCat("/tmp/penstock-logs-", geteuid(), "/",
                absl::FormatTime("%Y%m%d", absl::Now(), absl::LocalTimeZone()), "-", job);
}

std::string LogPath(std::string_view folder, std::string_view host, int64_t rank) {
  return StrCat(folder, "/", host, ".", rank, ".log");
}

absl::Status KeepOutput(const std::string& path) {
  RETURN_IF_ERROR(MakeFile(path));
  int lines[2];
  int error[2];
  if (pipe2(lines, O_CLOEXEC) != 0) return Failure("pipe");
  const absl::Cleanup closes_lines = [&lines] {
    close(lines[0]);
    close(lines[1]);
  };
  if (pipe2(error, O_CLOEXEC) != 0) return Failure("pipe");
  std::string words[] = {"tee", "-a", "--", path};
  char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
  const pid_t child = fork();
  if (child == 0) BecomeTee(arguments, lines[0], error[1]);
  const int fork_error = errno;
  close(error[1]);
  int code = child < 0 ? fork_error : 0;
  bool has_failed = child < 0;
  if (child > 0) {
    ssize_t num_read = 0;
    do num_read = read(error[0], &code, sizeof(code));
    while (num_read < 0 && errno == EINTR);
    has_failed = num_read == sizeof(code);
  }
  close(error[0]);
  int wait_status = 0;
  pid_t reaped = -1;
  do reaped = child > 0 ? waitpid(child, &wait_status, 0) : -1;
  while (reaped < 0 && child > 0 && errno == EINTR);
  if (reaped == child && wait_status != 0 && !has_failed) {
    has_failed = true;
    code = EAGAIN;  // it could not fork
  }
  if (has_failed) {
    return absl::UnavailableError(StrCat("tee: ", strerror(code)));
  }
  (void)fflush(stdout);
  (void)fflush(stderr);
  if (dup2(lines[1], STDOUT_FILENO) < 0 || dup2(lines[1], STDERR_FILENO) < 0) {
    return Failure("dup2");
  }
  return absl::OkStatus();
}

}  // namespace penstock::cli
