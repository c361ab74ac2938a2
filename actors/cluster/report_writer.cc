#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "actors/cluster/report_writer_internal.h"
#include "base/strings.h"

namespace penstock::actors {

ReportWriter::ReportWriter(int fd, size_t max_kept_bytes)
    : fd_(fd), max_kept_bytes_(max_kept_bytes) {
  struct stat status {};
  is_socket_ = fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode);
  if (isatty(fd) != 0) {
    terminal_fd_ =
        open(StrCat("/proc/self/fd/", fd).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  }
}

ReportWriter::~ReportWriter() {
  if (terminal_fd_ >= 0) close(terminal_fd_);
}

void ReportWriter::Add(std::string_view line) {
  if (is_closed_) return;
  kept_.push_back(StrCat(line, "\n"));
  num_kept_bytes_ += kept_.back().size();
  Flush();
}

void ReportWriter::Flush() {
  while (!kept_.empty() && !is_closed_) {
    std::string& first = kept_.front();
    const ssize_t num_written = TryWrite(first);
    if (num_written < 0 && errno == EINTR) continue;
    if (num_written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (num_written <= 0) {
      is_closed_ = true;
      break;
    }
    num_kept_bytes_ -= static_cast<size_t>(num_written);
    if (static_cast<size_t>(num_written) < first.size()) {
      first.erase(0, static_cast<size_t>(num_written));
    } else {
      kept_.pop_front();
    }
  }
  if (!is_closed_) return;
  kept_.clear();
  num_kept_bytes_ = 0;
}

bool ReportWriter::IsClosed() {
  // Also where there was nothing to write.
  pollfd entry = {fd_, 0, 0};
  if (!is_closed_ && poll(&entry, 1, 0) > 0) {
    is_closed_ = (entry.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0;
    Flush();
  }
  return is_closed_;
}

ssize_t ReportWriter::TryWrite(std::string_view bytes) const {
  if (is_socket_) return send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (terminal_fd_ >= 0) return write(terminal_fd_, bytes.data(), bytes.size());
  pollfd entry = {fd_, POLLOUT, 0};
  if (poll(&entry, 1, 0) <= 0) {
    errno = EAGAIN;
    return -1;
  }
  // A pipe that has room at all takes so much at once.
  return write(fd_, bytes.data(), std::min<size_t>(bytes.size(), PIPE_BUF));
}

}  // namespace penstock::actors
