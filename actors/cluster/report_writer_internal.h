// Writes lines to a pipe, a socket or a terminal without ever waiting for its reader: what is not
// taken yet is kept, up to a limit. The descriptor stays as it is, as other processes may share it.
//
// Thread rule: one thread, which has SIGPIPE blocked or ignored.

#ifndef PENSTOCK_ACTORS_CLUSTER_REPORT_WRITER_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_REPORT_WRITER_INTERNAL_H_

#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

namespace penstock::actors {

class ReportWriter {
 public:
  // `fd` outlives it.
  explicit ReportWriter(int fd, size_t max_kept_bytes = size_t{8} << 20);
  ~ReportWriter();
  ReportWriter(const ReportWriter&) = delete;
  ReportWriter& operator=(const ReportWriter&) = delete;

  // Whether a line that may be left out should be added.
  bool HasRoom() const { return num_kept_bytes_ < max_kept_bytes_; }
  // A line without its newline. Nothing if nobody reads any more.
  void Add(std::string_view line);
  // Writes what the reader takes now.
  void Flush();
  // Whether all was written.
  bool is_empty() const { return kept_.empty(); }
  // Whether nobody reads any more.
  bool IsClosed();

 private:
  // As write(2); EAGAIN where the reader takes nothing now.
  ssize_t TryWrite(std::string_view bytes) const;

  const int fd_;
  const size_t max_kept_bytes_;
  bool is_socket_ = false;
  int terminal_fd_ = -1;  // the terminal, opened again so that a write does not wait
  bool is_closed_ = false;
  std::deque<std::string> kept_;
  size_t num_kept_bytes_ = 0;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_REPORT_WRITER_INTERNAL_H_
