#include "bench/pipe_io.h"

#include <poll.h>
#include <unistd.h>

namespace penstock::bench {

bool WriteAll(int fd, const void* bytes, size_t size) {
  return write(fd, bytes, size) == static_cast<ssize_t>(size);
}

bool ReadAll(int fd, void* bytes, size_t size) {
  constexpr int kPatienceMs = 60000;
  auto* at = static_cast<char*>(bytes);
  while (size > 0) {
    pollfd entry = {fd, POLLIN, 0};
    if (poll(&entry, 1, kPatienceMs) != 1) return false;
    const ssize_t got = read(fd, at, size);
    if (got <= 0) return false;
    at += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

}  // namespace penstock::bench
