// The text of the addresses at which a coordinator listens: "HOST:PORT", "[IPV6]:PORT", "HOST",
// "unix:PATH" and "unix-abstract:NAME".
//
// Thread rule: pure functions, but for the one that touches a file.

#ifndef PENSTOCK_ACTORS_CLUSTER_SOCKET_ADDRESS_H_
#define PENSTOCK_ACTORS_CLUSTER_SOCKET_ADDRESS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace penstock::actors {

bool IsUnixAddress(std::string_view text);

struct SocketAddress {
  std::string host;  // without brackets
  std::string port;  // empty: none is given
};

// REQUIRES: not a unix address.
SocketAddress SplitAddress(std::string_view text);

// An error, which begins with the address in quotes, unless a coordinator could listen there, as
// far as the text tells. The port may be missing or 0: any.
absl::Status CheckListenAddress(std::string_view text);
// The same of an address to connect to: the port has to be given and above 0.
absl::Status CheckJoinAddress(std::string_view text);

// The file of "unix:PATH"; empty: the address has none.
std::string FileOf(std::string_view text);

// Removes the file of an address if it is a socket where nobody listens, which a coordinator that
// was killed leaves behind.
void RemoveStaleSocket(std::string_view text);

// With brackets around an IPv6 host.
std::string JoinAddress(std::string_view host, unsigned port);

// Whether a host is this one for sure: an address of 127.0.0.0/8, ::1, or "localhost".
bool IsLoopback(std::string_view host);

// Whether a host is given as an IPv4 or IPv6 address (without brackets), not by name.
bool IsIpAddress(std::string_view host);

// An error unless connections to the address stay on this host, as --insecure demands.
absl::Status CheckIsInsecureAddress(std::string_view text);

// Stands for every address of the host: "0.0.0.0", "::" or "*".
bool IsWildcard(std::string_view host);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_SOCKET_ADDRESS_H_
