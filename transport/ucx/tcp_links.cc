#include "transport/ucx/tcp_links.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>

#include "base/strings.h"

namespace penstock::transport::ucx {
namespace {

// UCX has an epoll set of TCP connections in the one of the worker.
constexpr int kMaxNesting = 3;
// TCP_RTO_MAX_MS, which Debian's headers do not have.
constexpr int kLongestRetransmission = 44;
constexpr std::chrono::milliseconds kMinInterval{1000};  // of the system

std::optional<NetworkAddress> AddressOf(const sockaddr* address) {
  const auto bytes = [](const void* data, size_t size) {
    return NetworkAddress(static_cast<const char*>(data), size);
  };
  if (address == nullptr) return std::nullopt;
  if (address->sa_family == AF_INET) {
    const auto* ipv4 = reinterpret_cast<const sockaddr_in*>(address);
    return bytes(&ipv4->sin_addr, sizeof(ipv4->sin_addr));
  }
  if (address->sa_family != AF_INET6) return std::nullopt;
  const auto* ipv6 = reinterpret_cast<const sockaddr_in6*>(address);
  if (IN6_IS_ADDR_V4MAPPED(&ipv6->sin6_addr)) return bytes(&ipv6->sin6_addr.s6_addr[12], 4);
  return bytes(&ipv6->sin6_addr, sizeof(ipv6->sin6_addr));
}

// Returns whether the system does that.
bool BoundRetries(int fd, std::chrono::milliseconds max_interval) {
  const auto interval = static_cast<int>(std::max(max_interval, kMinInterval).count());
  return setsockopt(fd, IPPROTO_TCP, kLongestRetransmission, &interval, sizeof(interval)) == 0;
}

// Returns whether `fd` is a socket.
bool AddSocket(int fd, std::chrono::milliseconds max_interval, TcpLinks* links) {
  int type = 0;
  socklen_t size = sizeof(type);
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0) return false;
  tcp_info info = {};
  size = sizeof(info);
  sockaddr_storage peer = {};
  socklen_t peer_size = sizeof(peer);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_state == TCP_LISTEN ||
      info.tcpi_state == TCP_CLOSE ||
      getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) {
    return true;
  }
  const bool is_bounded = BoundRetries(fd, max_interval);
  if (const auto address = AddressOf(reinterpret_cast<const sockaddr*>(&peer))) {
    (*links)[*address].Add(
        {info.tcpi_unacked > 0, info.tcpi_probes > 0, !is_bounded,
         std::chrono::milliseconds(std::min(info.tcpi_last_data_recv, info.tcpi_last_ack_recv))});
  }
  return true;
}

void AddMembers(int epoll_fd, int nesting, std::chrono::milliseconds max_interval,
                TcpLinks* links) {
  std::ifstream members(StrCat("/proc/self/fdinfo/", epoll_fd));
  std::string line;
  while (std::getline(members, line)) {
    int fd = -1;
    if (std::sscanf(line.c_str(), "tfd: %d", &fd) != 1) continue;
    if (!AddSocket(fd, max_interval, links) && nesting < kMaxNesting) {
      AddMembers(fd, nesting + 1, max_interval, links);
    }
  }
}

}  // namespace

TcpLinks ReadTcpLinks(int epoll_fd, std::chrono::milliseconds max_interval) {
  TcpLinks links;
  AddMembers(epoll_fd, 1, max_interval, &links);
  return links;
}

std::vector<NetworkAddress> OwnAddresses() {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(found, &freeifaddrs);
  std::vector<NetworkAddress> addresses;
  std::vector<NetworkAddress> loopback;
  for (const ifaddrs* entry = all.get(); entry != nullptr; entry = entry->ifa_next) {
    if ((entry->ifa_flags & IFF_UP) == 0) continue;
    const auto address = AddressOf(entry->ifa_addr);
    if (!address.has_value()) continue;
    ((entry->ifa_flags & IFF_LOOPBACK) == 0 ? addresses : loopback).push_back(*address);
  }
  return addresses.empty() ? loopback : addresses;
}

uint64_t NetworkNamespace() {
  struct stat state = {};
  return stat("/proc/thread-self/ns/net", &state) == 0 ? state.st_ino : 0;
}

}  // namespace penstock::transport::ucx
