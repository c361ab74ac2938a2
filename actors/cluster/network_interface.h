// Network interfaces of this host: which one carries a job's data.
//
// Thread rule: pure functions but for what the system says.

#ifndef PENSTOCK_ACTORS_CLUSTER_NETWORK_INTERFACE_H_
#define PENSTOCK_ACTORS_CLUSTER_NETWORK_INTERFACE_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock::actors {

// An error unless every one of `names`, separated by commas, is an interface that is up and has an
// address, or a device of another network that UCX knows by that name ("mlx5_0:1"). It lists those
// that there are.
absl::Status CheckInterfaces(std::string_view names);

// The interface of the route to a coordinator's address: "lo" for loopback addresses and unix
// sockets alone; another address of this host gives the interface that has it. An error where the
// host is unknown or there is no route.
absl::StatusOr<std::string> InterfaceOfRoute(const std::string& coordinator);

// The address of this host from which it reaches `host`, a name or an address: where that one can
// reach this host. An error as above.
absl::StatusOr<std::string> AddressTowards(const std::string& host);

// The one address of this host that `host`, a name or an address, stands for on every host. Empty
// where it is another host's, where a name stands for several addresses, or where it stands for
// loopback here (other than "localhost"), as the name of a host often does on itself.
std::string OwnAddressOf(const std::string& host);

// An address of this host that others can reach: the first that is up and not the loopback's, or
// 127.0.0.1 where there is none.
std::string ReachableAddress();

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_NETWORK_INTERFACE_H_
