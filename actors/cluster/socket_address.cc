#include "actors/cluster/socket_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/numbers.h"

#include "base/strings.h"

namespace penstock::actors {
namespace {

constexpr uint32_t kMaxPort = 65535;

bool IsIpv6(const std::string& text) {
  in6_addr address;
  return inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

// What is wrong with a unix address; empty: nothing.
std::string WrongUnixAddress(std::string_view text) {
  const std::string_view path = text.substr(text.find(':') + 1);
  if (path.empty()) return "the path is missing; expected unix:PATH or unix-abstract:NAME";
  constexpr size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() > kMaxPathBytes) {
    return StrCat("the path is longer than ", kMaxPathBytes, " bytes; use a shorter one");
  }
  return "";
}

std::string WrongHost(std::string_view text, const std::string& host) {
  if (host.empty()) return "the host is missing; expected HOST:PORT";
  if (text[0] == '[' && !IsIpv6(host)) {
    return StrCat("'", host, "' is not an IPv6 address; expected [IPV6]:PORT");
  }
  if (text[0] != '[' && host.find(':') != std::string::npos && !IsIpv6(host)) {
    return "it has more than one colon and is not an IPv6 address; expected HOST:PORT or "
           "[IPV6]:PORT";
  }
  for (const char c : host) {
    if (static_cast<unsigned char>(c) <= ' ' || c == '/' || c == '[' || c == ']') {
      return StrCat("'", host, "' is not a host; expected HOST:PORT");
    }
  }
  return "";
}

std::string WrongPort(const std::string& port, uint32_t least) {
  uint32_t number = 0;
  const bool is_number =
      std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
      absl::SimpleAtoi(port, &number);
  if (is_number && number >= least && number <= kMaxPort) return "";
  return StrCat("'", port, "' is not a port; expected a number from ", least, " to ", kMaxPort);
}

// What is wrong with HOST:PORT; empty: nothing.
std::string WrongInternetAddress(std::string_view text, bool needs_port) {
  if (text[0] == '[') {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return "']' is missing; expected [IPV6]:PORT";
    const std::string_view rest = text.substr(end + 1);
    if (!rest.empty() && rest[0] != ':') return "expected ':' and a port after ']'";
  }
  const SocketAddress address = SplitAddress(text);
  if (std::string wrong = WrongHost(text, address.host); !wrong.empty()) return wrong;
  if (address.port.empty()) {
    if (std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      return StrCat("the host is missing; expected HOST:PORT, such as 127.0.0.1:", text);
    }
    const bool ends_in_colon = text.back() == ':' && (text[0] == '[' || !IsIpv6(address.host));
    if (!needs_port && !ends_in_colon) return "";
    return "the port is missing; expected HOST:PORT";
  }
  return WrongPort(address.port, needs_port ? 1 : 0);
}

absl::Status CheckAddress(std::string_view text, bool needs_port) {
  const std::string wrong = text.empty() ? "the address is empty; expected HOST:PORT or unix:PATH"
                            : IsUnixAddress(text) ? WrongUnixAddress(text)
                                                  : WrongInternetAddress(text, needs_port);
  if (wrong.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("\"", text, "\": ", wrong));
}

}  // namespace

absl::Status CheckListenAddress(std::string_view text) { return CheckAddress(text, false); }

absl::Status CheckJoinAddress(std::string_view text) { return CheckAddress(text, true); }

bool IsUnixAddress(std::string_view text) {
  return text.substr(0, 5) == "unix:" || text.substr(0, 14) == "unix-abstract:";
}

SocketAddress SplitAddress(std::string_view text) {
  if (!text.empty() && text[0] == '[') {
    const size_t end = text.find(']');
    if (end != std::string_view::npos) {
      const std::string_view rest = text.substr(end + 1);
      return {std::string(text.substr(1, end - 1)),
              rest.substr(0, 1) == ":" ? std::string(rest.substr(1)) : std::string()};
    }
  }
  // Several colons are an IPv6 address without a port.
  if (std::count(text.begin(), text.end(), ':') != 1) return {std::string(text), ""};
  const size_t colon = text.find(':');
  return {std::string(text.substr(0, colon)), std::string(text.substr(colon + 1))};
}

void RemoveStaleSocket(std::string_view text) {
  const std::string path = FileOf(text);
  struct stat info = {};
  if (path.empty() || lstat(path.c_str(), &info) != 0 || !S_ISSOCK(info.st_mode)) return;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return;
  std::copy(path.begin(), path.end(), address.sun_path);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  const int result = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const bool is_stale = result != 0 && errno == ECONNREFUSED;
  close(fd);
  if (is_stale) unlink(path.c_str());
}

std::string FileOf(std::string_view text) {
  constexpr std::string_view kUnix = "unix:";
  return text.substr(0, kUnix.size()) == kUnix ? std::string(text.substr(kUnix.size()))
                                               : std::string();
}

std::string JoinAddress(std::string_view host, unsigned port) {
  const bool is_ipv6 = host.find(':') != std::string_view::npos;
  return is_ipv6 ? StrCat("[", host, "]:", port) : StrCat(host, ":", port);
}

bool IsLoopback(std::string_view host) {
  const std::string text(host);
  in_addr address;
  if (inet_pton(AF_INET, text.c_str(), &address) == 1) return ntohl(address.s_addr) >> 24 == 127;
  in6_addr address6;
  if (inet_pton(AF_INET6, text.c_str(), &address6) == 1) {
    return IN6_IS_ADDR_LOOPBACK(&address6) != 0;
  }
  return host == "localhost";
}

bool IsIpAddress(std::string_view host) {
  const std::string text(host);
  in_addr address;
  return inet_pton(AF_INET, text.c_str(), &address) == 1 || IsIpv6(text);
}

absl::Status CheckIsInsecureAddress(std::string_view text) {
  if (IsUnixAddress(text) || IsLoopback(SplitAddress(text).host)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("--insecure sends the job's key and messages as they are, and goes with a loopback "
             "address alone, such as 127.0.0.1:0, not with ",
             text));
}

bool IsWildcard(std::string_view host) { return host == "0.0.0.0" || host == "::" || host == "*"; }

}  // namespace penstock::actors
