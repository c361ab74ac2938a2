#include "actors/cluster/process_tree.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "base/strings.h"

namespace penstock::actors {

std::vector<pid_t> DescendantsOf(pid_t pid) {
  std::vector<pid_t> found;
  std::vector<pid_t> open = {pid};
  while (!open.empty()) {
    const std::string threads = StrCat("/proc/", open.back(), "/task");
    open.pop_back();
    std::error_code error;
    for (std::filesystem::directory_iterator it(threads, error), end; !error && it != end;
         it.increment(error)) {
      std::ifstream children(it->path() / "children");
      for (pid_t child = 0; children >> child;) {
        found.push_back(child);
        open.push_back(child);
      }
    }
  }
  return found;
}

void SendSignal(int pid_fd, int signal_number) {
  syscall(SYS_pidfd_send_signal, pid_fd, signal_number, nullptr, 0);
}

ProcessHandles::~ProcessHandles() {
  for (const int fd : fds_) close(fd);
}

void ProcessHandles::Add(pid_t pid) {
  const auto fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd >= 0) fds_.push_back(fd);
}

void ProcessHandles::Signal(int signal_number) const {
  for (const int fd : fds_) SendSignal(fd, signal_number);
}

}  // namespace penstock::actors
