#include "transport/transport.h"

#include <poll.h>

namespace penstock::transport {

// Where no other process sends, wake-ups come from threads of this one.
void Transport::Wait(int fd, int timeout_ms) {
  pollfd entry = {fd, POLLIN, 0};
  poll(&entry, 1, timeout_ms);
}

}  // namespace penstock::transport
