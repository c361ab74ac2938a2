#include "cli/node_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

#include "actors/cluster/child_process.h"
#include "actors/cluster/oom_kills.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

// A message is one packet: a task is its fields, a line each; "joined"; or an end, which is the
// code of the status in a line and its text.
constexpr std::string_view kJoined = "joined";
constexpr std::string_view kRejoin = "rejoin";
constexpr size_t kMaxPacketBytes = size_t{32} << 10;
// For a process that has nothing left to do.
constexpr int kExitGraceMs = 2000;

void Send(int socket, std::string_view packet) {
  packet = packet.substr(0, kMaxPacketBytes);
  while (send(socket, packet.data(), packet.size(), MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

// Empty: the other end is closed; with MSG_DONTWAIT also that there is nothing.
std::string Receive(int socket, int flags = 0) {
  std::string packet(kMaxPacketBytes, '\0');
  ssize_t num_bytes = 0;
  do {
    num_bytes = recv(socket, packet.data(), packet.size(), flags);
  } while (num_bytes < 0 && errno == EINTR);
  packet.resize(static_cast<size_t>(std::max<ssize_t>(num_bytes, 0)));
  return packet;
}

std::string ToPacket(const NodeProcess::Task& task) {
  return StrCat(task.rank, "\n", task.coordinator, "\n", task.key, "\n",
                absl::ToInt64Milliseconds(task.connect_timeout), "\n", task.is_watched ? 1 : 0,
                "\n", task.may_fail ? 1 : 0);
}

std::optional<NodeProcess::Task> TaskOf(const std::string& packet) {
  const std::vector<std::string> fields = absl::StrSplit(packet, '\n');
  NodeProcess::Task task;
  int64_t connect_ms = 0;
  if (fields.size() != 6 || !absl::SimpleAtoi(fields[0], &task.rank) ||
      !absl::SimpleAtoi(fields[3], &connect_ms)) {
    return std::nullopt;
  }
  task.coordinator = fields[1];
  task.key = fields[2];
  task.connect_timeout = absl::Milliseconds(connect_ms);
  task.is_watched = fields[4] == "1";
  task.may_fail = fields[5] == "1";
  return task;
}

absl::Status StatusOf(const std::string& packet) {
  const size_t end = packet.find('\n');
  int code = 0;
  if (end == std::string::npos || !absl::SimpleAtoi(packet.substr(0, end), &code)) {
    return absl::InternalError("a malformed message of the node's process");
  }
  return absl::Status(static_cast<absl::StatusCode>(code), packet.substr(end + 1));
}

bool HasOneThread() {
  std::error_code error;
  const std::filesystem::directory_iterator threads("/proc/self/task", error);
  return !error && std::distance(begin(threads), end(threads)) == 1;
}

}  // namespace

NodeProcess::NodeProcess(Work work)
    : work_(std::move(work)), num_memory_kills_(actors::OutOfMemoryKills()) {
  int ends[2];
  if (!HasOneThread() || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
  std::cout << std::flush;
  (void)fflush(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    close(ends[0]);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // it has ended before
    Serve(ends[1], work_);
  }
  close(ends[1]);
  if (pid_ > 0) exit_fd_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  if (exit_fd_ >= 0) {
    socket_ = ends[0];
    return;
  }
  close(ends[0]);
  if (pid_ < 0) return;
  // Nothing would tell its end where a child of its own keeps the socket open.
  kill(pid_, SIGKILL);
  Reap(nullptr);
}

NodeProcess::~NodeProcess() {
  if (socket_ >= 0) close(socket_);
  if (pid_ > 0) {
    pollfd exit = {exit_fd_, POLLIN, 0};
    if (poll(&exit, 1, kExitGraceMs) <= 0) kill(pid_, SIGKILL);
    Reap(nullptr);
  }
  if (exit_fd_ >= 0) close(exit_fd_);
}

pid_t NodeProcess::pid() const { return pid_ > 0 ? pid_ : getpid(); }

void NodeProcess::Serve(int socket, const Work& work) {
  while (true) {
    const std::optional<Task> task = TaskOf(Receive(socket));
    if (!task.has_value()) {
      std::cout << std::flush;
      (void)fflush(nullptr);
      // Objects of the parent are not this process's to destroy.
      _exit(0);
    }
    const absl::Status status = work(*task, {.on_joined =
                                                 [socket] {
                                                   (void)signal(SIGINT, SIG_IGN);
                                                   Send(socket, kJoined);
                                                 },
                                             .on_rejoin =
                                                 [socket] {
                                                   (void)signal(SIGINT, SIG_DFL);
                                                   Send(socket, kRejoin);
                                                 }});
    Send(socket, StrCat(static_cast<int>(status.code()), "\n", ToStd(status.message())));
  }
}

NodeProcess::End NodeProcess::Run(const Task& task) {
  End end;
  if (!is_own()) {
    end.status = work_(task, {.on_joined =
                                  [&end] {
                                    end.has_joined = true;
                                    (void)signal(SIGINT, SIG_IGN);
                                  },
                              .on_rejoin =
                                  [&end] {
                                    end.is_to_rejoin = true;
                                    (void)signal(SIGINT, SIG_DFL);
                                  }});
    return end;
  }
  has_joined_ = false;
  Send(socket_, ToPacket(task));
  while (true) {
    // A child of the node may keep its end of the socket open.
    pollfd fds[2] = {{socket_, POLLIN, 0}, {exit_fd_, POLLIN, 0}};
    if (poll(fds, 2, -1) < 0) continue;
    // What it has sent before its end comes first. poll may have looked at the socket before that.
    const std::string packet = Receive(socket_, MSG_DONTWAIT);
    if (packet.empty()) return AwaitDeath();
    if (packet == kJoined) {
      has_joined_ = true;
      (void)signal(SIGINT, SIG_IGN);
      continue;
    }
    if (packet == kRejoin) {
      end.is_to_rejoin = true;
      (void)signal(SIGINT, SIG_DFL);  // nobody passes it on until it joins again
      continue;
    }
    end.status = StatusOf(packet);
    end.has_joined = has_joined_;
    return end;
  }
}

void NodeProcess::Reap(int* wait_status) {
  while (waitpid(pid_, wait_status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

NodeProcess::End NodeProcess::AwaitDeath() {
  int wait_status = 0;
  Reap(&wait_status);
  End end;
  end.has_joined = has_joined_;
  end.wait_status = wait_status;
  end.is_out_of_memory = actors::IsProbablyOutOfMemory(wait_status, num_memory_kills_);
  end.status =
      absl::UnavailableError(StrCat(actors::DescribeWaitStatus(wait_status),
                                    end.is_out_of_memory ? actors::kProbablyOutOfMemory : ""));
  return end;
}

}  // namespace penstock::cli
