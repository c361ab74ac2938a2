// What the kernel knows of the TCP connections of a UCX worker. A link that is cut shows there:
// what was sent stays unconfirmed, and nothing is received. UCX itself waits as long as the kernel
// sends again, which is about 15 minutes.
//
// The kernels of both hosts answer whatever their processes do: a peer that computes, waits for a
// core, or is stopped confirms what it is sent. So does one behind a slow link, byte by byte, while
// a long message is on its way and no message arrives. Of a peer that takes nothing, whose window
// is closed, the kernel asks now and then whether it is open again, and the peer's kernel answers
// that.
//
// What is not confirmed is sent again, and a closed window asked about, ever less often the longer
// that lasts. So after a pause of two seconds, a link may be silent for two more. Where the system
// lets one (Linux 6.15), the time between two retries is bounded here, to a second at best.
// Elsewhere, a link has to be silent for longer before it counts as cut, and a cut behind a closed
// window shows after as long again as the window has been closed.
//
// The connections are found through the worker's descriptor, an epoll set, whose members the system
// lists in /proc/self/fdinfo. Where it does not, there are none.
//
// Thread rule: any thread; no locks. A connection that is closed meanwhile may be missed or
// mistaken.

#ifndef PENSTOCK_TRANSPORT_UCX_TCP_LINKS_H_
#define PENSTOCK_TRANSPORT_UCX_TCP_LINKS_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace penstock::transport::ucx {

// Of a host: the 4 or 16 bytes of an IP address, in network order.
using NetworkAddress = std::string;

// All connections to one address.
struct TcpLink {
  bool has_unconfirmed = false;  // something was sent, and its receipt is not confirmed
  bool has_unanswered = false;   // nothing was, as the peer takes nothing, but it was asked
  bool is_retried_late = false;  // the system doubles the time between retries, see above
  // Since the last segment that told anything new. Hours, before the first one.
  std::chrono::milliseconds silence = std::chrono::milliseconds::max();

  void Add(const TcpLink& other) {
    has_unconfirmed |= other.has_unconfirmed;
    has_unanswered |= other.has_unanswered;
    is_retried_late |= other.is_retried_late;
    silence = std::min(silence, other.silence);
  }
};

using TcpLinks = std::map<NetworkAddress, TcpLink>;

// By the address of the peer; `epoll_fd` is the worker's descriptor. From now on, the system
// retries at least once in each `max_interval`, which is a second or more, if it can be told so.
TcpLinks ReadTcpLinks(int epoll_fd, std::chrono::milliseconds max_interval);

// Those of the interfaces of this host that are up, but for loopback addresses where there are
// others.
std::vector<NetworkAddress> OwnAddresses();

// The number of the network namespace of this thread, in which it opens sockets; 0: not known.
uint64_t NetworkNamespace();

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_TCP_LINKS_H_
