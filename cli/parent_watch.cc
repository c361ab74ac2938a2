#include "cli/parent_watch.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "base/strings.h"

namespace penstock::cli {

ParentWatch::ParentWatch(std::ostream& err, std::string starter)
    : err_(err), starter_(std::move(starter)), parent_(getppid()) {
  struct sigaction on_hangup {};
  sigaction(SIGHUP, nullptr, &on_hangup);
  if (parent_ <= 1 || on_hangup.sa_handler == SIG_IGN) return;
  parent_fd_ = static_cast<int>(syscall(SYS_pidfd_open, parent_, 0));
  stop_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  // It may have ended before, and another process may have its number.
  if (parent_fd_ < 0 || stop_fd_ < 0 || getppid() != parent_) return;
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Main(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ParentWatch::~ParentWatch() {
  if (thread_.joinable()) {
    (void)eventfd_write(stop_fd_, 1);
    thread_.join();
  }
  if (parent_fd_ >= 0) close(parent_fd_);
  if (stop_fd_ >= 0) close(stop_fd_);
}

void ParentWatch::Main() {
  pollfd fds[2] = {{parent_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
  while (poll(fds, 2, -1) < 0) {
  }
  if (fds[1].revents != 0) return;
  const std::string pid = StrCat(" (pid ", parent_, ")");
  err_ << StrCat("penstock: ",
                 starter_.empty() ? StrCat("the process that had started this one", pid)
                                  : StrCat(starter_, pid, ", which had started this process,"),
                 " is gone; ending\n")
       << std::flush;
  kill(getpid(), SIGTERM);
}

}  // namespace penstock::cli
