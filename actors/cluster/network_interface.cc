#include "actors/cluster/network_interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "absl/cleanup/cleanup.h"

#include "actors/cluster/socket_address.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

struct Interface {
  std::string name;
  sockaddr_storage address = {};
  bool is_loopback = false;
};

// Those that are up, an entry an internet address.
std::vector<Interface> ListInterfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return {};
  const auto free_list = absl::MakeCleanup([first] { freeifaddrs(first); });
  std::vector<Interface> interfaces;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    Interface& interface = interfaces.emplace_back();
    interface.name = entry->ifa_name;
    interface.is_loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    std::memcpy(&interface.address, entry->ifa_addr,
                family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  }
  return interfaces;
}

bool IsSameHost(const sockaddr_storage& a, const sockaddr_storage& b) {
  if (a.ss_family != b.ss_family) return false;
  if (a.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(b).sin_addr.s_addr;
  }
  return std::memcmp(&reinterpret_cast<const sockaddr_in6&>(a).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6&>(b).sin6_addr, sizeof(in6_addr)) == 0;
}

// The address that this host sends from to `remote`; none without a route. Sends nothing.
std::optional<sockaddr_storage> SourceOfRoute(const addrinfo& remote) {
  const int fd = socket(remote.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return std::nullopt;
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  sockaddr_storage local = {};
  socklen_t size = sizeof(local);
  if (connect(fd, remote.ai_addr, remote.ai_addrlen) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) != 0) {
    return std::nullopt;
  }
  return local;
}

// The addresses that this host sends from to `host`, best first; none without a route. `what` is
// for the error where the host is unknown.
absl::StatusOr<std::vector<sockaddr_storage>> SourcesTowards(const std::string& host,
                                                             std::string_view what) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    return absl::InvalidArgumentError(
        StrCat(what, " '", host, "' is not known: ", gai_strerror(error)));
  }
  const auto free_list = absl::MakeCleanup([found] { freeaddrinfo(found); });
  std::vector<sockaddr_storage> sources;
  for (const addrinfo* remote = found; remote != nullptr; remote = remote->ai_next) {
    const std::optional<sockaddr_storage> local = SourceOfRoute(*remote);
    if (local.has_value()) sources.push_back(*local);
  }
  return sources;
}

}  // namespace

absl::Status CheckInterfaces(std::string_view names) {
  const std::vector<Interface> interfaces = ListInterfaces();
  while (true) {
    const std::string name(names.substr(0, names.find(',')));
    const bool is_listed = std::any_of(interfaces.begin(), interfaces.end(),
                                       [&name](const Interface& i) { return i.name == name; });
    const std::string device = name.substr(0, name.find(':'));
    std::error_code error;
    const bool is_device = !device.empty() && device.find('/') == std::string::npos &&
                           device[0] != '.' &&
                           std::filesystem::exists("/sys/class/infiniband/" + device, error);
    if (!is_listed && !is_device) {
      std::vector<std::string> known;
      for (const Interface& interface : interfaces) known.push_back(interface.name);
      std::sort(known.begin(), known.end());
      known.erase(std::unique(known.begin(), known.end()), known.end());
      return absl::InvalidArgumentError(
          StrCat("network interface '", name,
                 "': there is none of that name that is up; this host "
                 "has ",
                 StrJoin(known, ", ")));
    }
    if (names.find(',') == std::string_view::npos) return absl::OkStatus();
    names.remove_prefix(names.find(',') + 1);
  }
}

absl::StatusOr<std::string> InterfaceOfRoute(const std::string& coordinator) {
  constexpr std::string_view kLoopback = "lo";
  if (IsUnixAddress(coordinator)) return std::string(kLoopback);
  const SocketAddress address = SplitAddress(coordinator);
  ASSIGN_OR_RETURN(const std::vector<sockaddr_storage> sources,
                   SourcesTowards(address.host, "the coordinator's host"));
  const std::vector<Interface> interfaces = ListInterfaces();
  for (const sockaddr_storage& local : sources) {
    for (const Interface& interface : interfaces) {
      if (IsSameHost(interface.address, local)) return interface.name;
    }
  }
  return absl::UnavailableError(
      StrCat("there is no route from this host to the coordinator's host '", address.host, "'"));
}

absl::StatusOr<std::string> AddressTowards(const std::string& host) {
  ASSIGN_OR_RETURN(const std::vector<sockaddr_storage> sources, SourcesTowards(host, "host"));
  for (const sockaddr_storage& local : sources) {
    char text[INET6_ADDRSTRLEN] = {};
    const auto* address = reinterpret_cast<const sockaddr*>(&local);
    if (getnameinfo(address, sizeof(local), text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0) {
      return text;
    }
  }
  return absl::UnavailableError(StrCat("there is no route from this host to '", host, "'"));
}

std::string OwnAddressOf(const std::string& host) {
  if (host == "localhost") return "127.0.0.1";
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return "";
  const auto free_list = absl::MakeCleanup([found] { freeaddrinfo(found); });
  if (found == nullptr || found->ai_next != nullptr) return "";
  char text[INET6_ADDRSTRLEN] = {};
  if (getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof(text), nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    return "";
  }
  // Linux has all of 127.0.0.0/8, and lists one of them.
  if (IsLoopback(text)) return IsIpAddress(host) ? text : "";
  sockaddr_storage address = {};
  std::memcpy(&address, found->ai_addr, found->ai_addrlen);
  const std::vector<Interface> interfaces = ListInterfaces();
  const bool is_own = std::any_of(
      interfaces.begin(), interfaces.end(),
      [&address](const Interface& interface) { return IsSameHost(interface.address, address); });
  return is_own ? text : "";
}

std::string ReachableAddress() {
  for (const Interface& interface : ListInterfaces()) {
    if (interface.is_loopback || interface.address.ss_family != AF_INET) continue;
    char text[INET_ADDRSTRLEN] = {};
    const auto& address = reinterpret_cast<const sockaddr_in&>(interface.address);
    if (inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text)) != nullptr) return text;
  }
  return "127.0.0.1";
}

}  // namespace penstock::actors
