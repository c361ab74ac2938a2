#include "actors/cluster/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/find_program.h"
#include "base/status_macros.h"
#include "base/strings.h"

extern char** environ;

namespace penstock::actors {
namespace {

absl::Status FromErrno(std::string_view what) {
  return absl::UnavailableError(StrCat(what, ": ", strerror(errno)));
}

// Closed at the end of its scope.
struct Pipe {
  std::array<int, 2> ends = {-1, -1};

  Pipe() = default;
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    for (const int fd : ends) {
      if (fd >= 0) close(fd);
    }
  }
  bool Open() { return pipe2(ends.data(), O_CLOEXEC) == 0; }
};

// Between fork and exec: only calls that are safe there. Ends the process with errno in `error_fd`.
[[noreturn]] void BecomeCommand(const char* program, char* const* arguments,
                                char* const* environment, const cpu_set_t* cores, int input_fd,
                                int output_fd, int error_fd) {
  // A group of its own: Ctrl-C on the terminal is the coordinator's to tell. A scheduler that
  // passes it on tells all processes of a step, of whatever group.
  setpgid(0, 0);
  signal(SIGINT, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int signal_number : {SIGTERM, SIGPIPE}) signal(signal_number, SIG_DFL);
  if (cores != nullptr) sched_setaffinity(0, sizeof(*cores), cores);
  if (input_fd < 0) input_fd = open("/dev/null", O_RDONLY);
  if (input_fd >= 0 && dup2(input_fd, STDIN_FILENO) >= 0 && dup2(output_fd, STDOUT_FILENO) >= 0 &&
      dup2(output_fd, STDERR_FILENO) >= 0) {
    execve(program, arguments, environment);
  }
  const int error = errno;
  (void)!write(error_fd, &error, sizeof(error));
  _exit(127);
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(const ChildCommand& command) {
  if (command.arguments.empty()) return absl::InvalidArgumentError("there is no command");
  if (command.input.size() > kMaxInputBytes) {
    return absl::InvalidArgumentError(StrCat("an input of more than ", kMaxInputBytes, " bytes"));
  }
  ASSIGN_OR_RETURN(const std::string program, FindProgram(command.arguments[0]));
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const std::string_view name = text.substr(0, text.find('='));
    if (std::none_of(command.environment.begin(), command.environment.end(),
                     [name](const auto& added) { return added.first == name; })) {
      variables.emplace_back(text);
    }
  }
  for (const auto& [name, value] : command.environment) {
    variables.push_back(StrCat(name, "=", value));
  }
  const auto pointers = [](const std::vector<std::string>& texts) {
    std::vector<char*> result;
    for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
    result.push_back(nullptr);
    return result;
  };
  const std::vector<char*> arguments = pointers(command.arguments);
  const std::vector<char*> environment = pointers(variables);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const int core : command.cores) CPU_SET(core, &cores);

  Pipe input;
  Pipe output;
  Pipe error;
  if (!output.Open() || !error.Open()) return FromErrno("pipe");
  if (!command.input.empty()) {
    if (!input.Open()) return FromErrno("pipe");
    const ssize_t num_written = write(input.ends[1], command.input.data(), command.input.size());
    if (num_written != static_cast<ssize_t>(command.input.size())) return FromErrno("pipe");
  }
  ChildProcess child;
  child.output_fd_ = std::exchange(output.ends[0], -1);
  child.pid_ = fork();
  if (child.pid_ == 0) {
    BecomeCommand(program.c_str(), arguments.data(), environment.data(),
                  command.cores.empty() ? nullptr : &cores, input.ends[0], output.ends[1],
                  error.ends[1]);
  }
  const absl::Status forked = child.pid_ < 0 ? FromErrno("fork") : absl::OkStatus();
  close(std::exchange(output.ends[1], -1));
  close(std::exchange(error.ends[1], -1));
  if (!forked.ok()) return forked;
  int code = 0;
  ssize_t num_read = 0;
  do {
    num_read = read(error.ends[0], &code, sizeof(code));
  } while (num_read < 0 && errno == EINTR);
  if (num_read == sizeof(code)) {
    return absl::NotFoundError(StrCat("starting ", command.arguments[0], ": ", strerror(code)));
  }
  child.exit_fd_ = static_cast<int>(syscall(SYS_pidfd_open, child.pid_, 0));
  if (child.exit_fd_ < 0) return FromErrno("pidfd_open");
  return child;
}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(exit_fd_, other.exit_fd_);
  std::swap(output_fd_, other.output_fd_);
  std::swap(wait_status_, other.wait_status_);
  std::swap(is_terminated_, other.is_terminated_);
  std::swap(descendants_, other.descendants_);
  return *this;
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0 && !Reap().has_value()) {
    Kill();
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  if (exit_fd_ >= 0) close(exit_fd_);
  if (output_fd_ >= 0) close(output_fd_);
}

std::optional<int> ChildProcess::Reap() {
  if (wait_status_.has_value() || pid_ <= 0) return wait_status_;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) == pid_) wait_status_ = status;
  return wait_status_;
}

void ChildProcess::Terminate() {
  if (pid_ <= 0 || wait_status_.has_value() || std::exchange(is_terminated_, true)) return;
  for (const pid_t descendant : DescendantsOf(pid_)) descendants_.Add(descendant);
  kill(pid_, SIGTERM);
}

void ChildProcess::Kill() {
  if (pid_ > 0 && !wait_status_.has_value()) {
    // Whose children they are is forgotten when it has ended.
    const std::vector<pid_t> descendants = DescendantsOf(pid_);
    // It first: a shell goes on with its next command when the one before has ended.
    kill(pid_, SIGKILL);
    // One that is ending by itself may have forgotten some. The id of its group is its own until it
    // is reaped.
    if (is_terminated_) kill(-pid_, SIGKILL);
    for (const pid_t descendant : descendants) kill(descendant, SIGKILL);
  }
  descendants_.Signal(SIGKILL);
}

std::string DescribeWaitStatus(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    return StrCat("was killed by signal ", WTERMSIG(wait_status), " (",
                  strsignal(WTERMSIG(wait_status)), ")");
  }
  return StrCat("exited with status ", WEXITSTATUS(wait_status));
}

int ShellStatus(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

}  // namespace penstock::actors
