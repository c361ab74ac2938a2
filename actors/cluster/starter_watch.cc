#include "actors/cluster/starter_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/time/clock.h"

#include "actors/cluster/process_tree.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

// For the watching process to take a message: it has nothing else to do.
constexpr int kTakeTimeoutMs = 1000;
constexpr absl::Duration kTerminationGrace = absl::Seconds(2);
// Before the socket is read again after an error that may pass, such as a lack of memory.
constexpr absl::Duration kReceiveRetryPause = absl::Milliseconds(50);

struct Starter {
  pid_t pid = -1;
  int fd = -1;
};

// Whether an error of recvmsg says that no message will come any more: the other end is gone, or
// there never was one, in a process that was started by hand.
bool IsEndOfSocket(int error) {
  return error == ECONNRESET || error == ENOTCONN || error == ENOTSOCK || error == EBADF;
}

// The descriptor that came with a message; -1: none did, which is so if this process has too many.
int DescriptorOf(const msghdr& message) {
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  int fd = -1;
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len >= CMSG_LEN(sizeof(fd))) {
    memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  }
  return fd;
}

// What a message over the socket consists of: the id of a process, with its descriptor.
struct StarterMessage {
  explicit StarterMessage(pid_t* pid) : data{pid, sizeof(*pid)} {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  StarterMessage(const StarterMessage&) = delete;
  StarterMessage& operator=(const StarterMessage&) = delete;

  iovec data;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
};

// A message with its descriptor; nullopt: the socket is closed. Any other error leaves the job as
// it is: to return would end the starters of one that runs.
std::optional<Starter> Receive(int socket) {
  while (true) {
    Starter starter;
    StarterMessage message(&starter.pid);
    const ssize_t num_read = recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC);
    if (num_read == 0) return std::nullopt;
    if (num_read < 0) {
      if (IsEndOfSocket(errno)) return std::nullopt;
      if (errno != EINTR) absl::SleepFor(kReceiveRetryPause);
      continue;
    }
    starter.fd = DescriptorOf(message.header);
    if (starter.fd < 0) continue;
    if (num_read == static_cast<ssize_t>(sizeof(starter.pid))) return starter;
    close(starter.fd);
  }
}

// Forgets those that have ended, for so long as some have not. Whether all have.
bool AwaitEnds(absl::Duration timeout, std::vector<Starter>* starters) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!starters->empty()) {
    std::vector<pollfd> fds;
    for (const Starter& starter : *starters) fds.push_back({starter.fd, POLLIN, 0});
    const int64_t left_ms = std::max<int64_t>(absl::ToInt64Milliseconds(deadline - absl::Now()), 0);
    const int num_ready = poll(fds.data(), fds.size(), static_cast<int>(left_ms));
    if (num_ready < 0 && errno == EINTR) continue;
    if (num_ready <= 0) return false;
    std::vector<Starter> left;
    for (size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].revents == 0) {
        left.push_back((*starters)[i]);
      } else {
        close(fds[i].fd);
      }
    }
    *starters = std::move(left);
  }
  return true;
}

// Between fork and exec: only calls that are safe there. Ends the process with errno in `error_fd`.
[[noreturn]] void BecomeWatch(char* const* arguments, int socket, int error_fd) {
  // Signals of the terminal are not for it.
  setsid();
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  // Where this process was started without standard descriptors, pipes and sockets have got their
  // numbers, which are replaced here.
  const int moved_fd = fcntl(error_fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int null = open("/dev/null", O_RDWR);
  // dup2 of a descriptor onto itself does nothing: FD_CLOEXEC would stay.
  if (moved_fd >= 0 && null >= 0 && dup2(socket, STDIN_FILENO) >= 0 &&
      fcntl(STDIN_FILENO, F_SETFD, 0) >= 0 && dup2(null, STDOUT_FILENO) >= 0 &&
      dup2(null, STDERR_FILENO) >= 0) {
    // It keeps nothing of the parent's open. One of these two ranges may be empty.
    close_range(STDERR_FILENO + 1, static_cast<unsigned>(moved_fd) - 1, 0);
    close_range(static_cast<unsigned>(moved_fd) + 1, ~0u, 0);
    execv(arguments[0], arguments);
  }
  const int error = errno;
  (void)!write(moved_fd >= 0 ? moved_fd : error_fd, &error, sizeof(error));
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<StarterWatch>> StarterWatch::Start(
    std::vector<std::string> command) {
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::UnavailableError(StrCat("socketpair: ", strerror(errno)));
  }
  std::unique_ptr<StarterWatch> watch(new StarterWatch(ends[0]));
  // The child says in it why it has failed; closed by a successful exec.
  int errors[2];
  if (pipe2(errors, O_CLOEXEC) != 0) {
    const int error = errno;
    close(ends[1]);
    return absl::UnavailableError(StrCat("pipe: ", strerror(error)));
  }
  const pid_t pid = fork();
  if (pid == 0) BecomeWatch(arguments.data(), ends[1], errors[1]);
  const int fork_error = errno;
  close(ends[1]);
  close(errors[1]);
  int code = 0;
  ssize_t num_read = 0;
  do {
    num_read = read(errors[0], &code, sizeof(code));
  } while (num_read < 0 && errno == EINTR);
  close(errors[0]);
  if (pid < 0) return absl::UnavailableError(StrCat("fork: ", strerror(fork_error)));
  if (num_read == static_cast<ssize_t>(sizeof(code))) {
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return absl::NotFoundError(StrCat("starting ", arguments[0], ": ", strerror(code)));
  }
  return watch;
}

StarterWatch::~StarterWatch() { close(socket_); }

void StarterWatch::Add(int pid, int pid_fd) const {
  if (has_given_up_) return;
  StarterMessage message(&pid);
  cmsghdr* const header = CMSG_FIRSTHDR(&message.header);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(pid_fd));
  memcpy(CMSG_DATA(header), &pid_fd, sizeof(pid_fd));
  while (sendmsg(socket_, &message.header, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return;
    pollfd room = {socket_, POLLOUT, 0};
    const int num_ready = poll(&room, 1, kTakeTimeoutMs);
    if (num_ready > 0 || (num_ready < 0 && errno == EINTR)) continue;
    has_given_up_ = true;
    return;
  }
}

void WatchStarters(int socket, absl::Duration grace) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;  // a descriptor for each starter
    (void)setrlimit(RLIMIT_NOFILE, &files);
  }
  std::vector<Starter> starters;
  while (const std::optional<Starter> starter = Receive(socket)) starters.push_back(*starter);
  if (AwaitEnds(grace, &starters)) return;
  ProcessHandles descendants;
  for (const Starter& starter : starters) {
    for (const pid_t descendant : DescendantsOf(starter.pid)) descendants.Add(descendant);
    SendSignal(starter.fd, SIGTERM);
  }
  (void)AwaitEnds(std::min(grace, kTerminationGrace), &starters);
  for (const Starter& starter : starters) {
    for (const pid_t descendant : DescendantsOf(starter.pid)) descendants.Add(descendant);
    SendSignal(starter.fd, SIGKILL);
  }
  descendants.Signal(SIGKILL);
}

}  // namespace penstock::actors
