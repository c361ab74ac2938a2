#include "transport/transport.h"

#include <poll.h>

#include <utility>

namespace penstock::transport {

// Where the transport itself moves all bytes, nothing uses the memory once it has gone.
void Transport::Hold(std::shared_ptr<const void> owner, uint64_t /*num_bytes*/) {
  const absl::MutexLock lock(&owners_mutex_);
  owners_.push_back(std::move(owner));
}

// Where no other process sends, wake-ups come from threads of this one.
void Transport::Wait(int fd, int timeout_ms) {
  pollfd entry = {fd, POLLIN, 0};
  poll(&entry, 1, timeout_ms);
}

}  // namespace penstock::transport
