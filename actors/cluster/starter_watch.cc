#include "actors/cluster/starter_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
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

struct Starter {
  pid_t pid = -1;
  int fd = -1;
};

// A message with its descriptor; nullopt: the socket is closed.
std::optional<Starter> Receive(int socket) {
  while (true) {
    Starter starter;
    iovec data = {&starter.pid, sizeof(starter.pid)};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t num_read = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (num_read < 0 && errno == EINTR) continue;
    if (num_read <= 0) return std::nullopt;
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    if (num_read != sizeof(starter.pid) || header == nullptr) continue;
    memcpy(&starter.fd, CMSG_DATA(header), sizeof(starter.fd));
    return starter;
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

void Signal(const Starter& starter, int signal_number) {
  syscall(SYS_pidfd_send_signal, starter.fd, signal_number, nullptr, 0);
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
  const pid_t pid = fork();
  if (pid == 0) {
    // In the child: only what a signal handler may call. Signals of the terminal are not for it,
    // and it keeps nothing of the parent's open.
    setsid();
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, nullptr);
    const int null = open("/dev/null", O_RDWR);
    if (dup2(ends[1], STDIN_FILENO) < 0 || dup2(null, STDOUT_FILENO) < 0 ||
        dup2(null, STDERR_FILENO) < 0) {
      _exit(127);
    }
    close_range(STDERR_FILENO + 1, ~0u, 0);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  const int error = errno;
  close(ends[1]);
  if (pid > 0) return std::unique_ptr<StarterWatch>(new StarterWatch(ends[0]));
  close(ends[0]);
  return absl::UnavailableError(StrCat("fork: ", strerror(error)));
}

StarterWatch::~StarterWatch() { close(socket_); }

void StarterWatch::Add(int pid, int pid_fd) const {
  iovec data = {&pid, sizeof(pid)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(pid_fd));
  memcpy(CMSG_DATA(header), &pid_fd, sizeof(pid_fd));
  while (sendmsg(socket_, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    pollfd room = {socket_, POLLOUT, 0};
    if (errno != EAGAIN || poll(&room, 1, kTakeTimeoutMs) <= 0) return;
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
    Signal(starter, SIGTERM);
  }
  (void)AwaitEnds(std::min(grace, kTerminationGrace), &starters);
  for (const Starter& starter : starters) {
    for (const pid_t descendant : DescendantsOf(starter.pid)) descendants.Add(descendant);
    Signal(starter, SIGKILL);
  }
  descendants.Signal(SIGKILL);
}

}  // namespace penstock::actors
