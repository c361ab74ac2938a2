// Where nodes on other hosts reach this process.
//
// Thread rule: any thread, which may block for seconds where a name is looked for.

#ifndef PENSTOCK_CLI_COORDINATOR_HOST_H_
#define PENSTOCK_CLI_COORDINATOR_HOST_H_

#include <ostream>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace penstock::cli {

// The address of this host in the network of `host`, "node1" or "me@node1", to which `program`
// connects: {"ssh", "-p", "2222"}. ssh may know a host by a name of its own configuration. Where
// the host's address is not known, a note goes to `err`, and the address is the one by which others
// most likely reach this host.
std::string CoordinatorHost(std::ostream& err, const std::vector<std::string>& program,
                            const std::string& host);

// The same of each host, of which some are looked up at a time. What takes long is named in a note;
// hosts that are not found within `timeout` count as not known.
std::vector<std::string> CoordinatorHosts(std::ostream& err,
                                          const std::vector<std::string>& program,
                                          const std::vector<std::string>& hosts,
                                          absl::Duration timeout);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_COORDINATOR_HOST_H_
