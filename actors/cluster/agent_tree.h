// A tree of agents (host_agent.h): the agent of a host starts those of further hosts, so that no
// process has more than `fanout` programs such as ssh to run.
//
//   coordinator ── ssh n1 ... --slots 2 --below n2/2,n3/2 ──► agent of n1 ──► nodes 0 and 1
//                                                               ├─ ssh n2 ... ──► nodes 2 and 3
//                                                               └─ ssh n3 ... ──► nodes 4 and 5
//
// What an agent below reports (AgentReport) the one above passes on as it is, so that the
// coordinator sees the nodes of all hosts as if it had started them. Ranks go on from host to host,
// so those of a part of the tree are consecutive. Nodes join the coordinator themselves: the tree
// only starts them and tells what they print and how they end.
//
// Thread rule: values and pure functions.

#ifndef PENSTOCK_ACTORS_CLUSTER_AGENT_TREE_H_
#define PENSTOCK_ACTORS_CLUSTER_AGENT_TREE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace penstock::actors {

struct LaunchCommand;  // launcher_internal.h

struct TreeHost {
  std::string host;
  uint32_t num_ranks = 1;
};

// "n1/2,n2/2", and back.
std::string ToText(absl::Span<const TreeHost> hosts);
absl::StatusOr<std::vector<TreeHost>> ParseTreeHosts(std::string_view text);

uint32_t NumRanks(absl::Span<const TreeHost> hosts);

// Parts of consecutive hosts, at most `fanout` of them, whose numbers of hosts differ by at most
// one. The first host of a part starts the others of it.
//
// Example: 7 hosts with a fanout of 3 are parts of 3, 2 and 2.
std::vector<absl::Span<const TreeHost>> SplitHosts(absl::Span<const TreeHost> hosts,
                                                   uint32_t fanout);

// What is the same for all hosts of a tree.
struct TreeOptions {
  std::vector<std::string> through;  // NodePlace::through, without its last word: the host
  uint32_t fanout = 1;               // at least 1
  // A node's command on another host, without "--rank", "--slots" and "--key-file".
  std::vector<std::string> node_command;
  std::string pinning;   // PinningName; empty: none
  std::string key;       // the job's, for the standard input
  std::string key_file;  // on each host; empty: the key goes to the standard input
};

// Starts the nodes of `part`, which has at least one host, from `first_rank` on.
LaunchCommand CommandOfPart(const TreeOptions& options, absl::Span<const TreeHost> part,
                            uint32_t first_rank);

// The arguments of a program that has `words` run by a shell on a host: `through` is that program
// with its arguments, as NodePlace has it. The shell stays, and tells a signal as a status.
std::vector<std::string> RunThrough(std::vector<std::string> through, bool joins_arguments,
                                    absl::Span<const std::string> words);

// Of the last line of a program that starts nodes, what an error shows.
inline constexpr size_t kMaxStarterLineBytes = 300;

// What is said of a node behind "exited with status 255", the status of an ssh that has failed
// itself: " (ssh on n1: its last line)", with the host that has run it, and what to do where ssh
// does not trust the key of the host `remote`. Nothing of another status, which is the node's.
std::string StarterNote(std::string_view program, std::string_view host, std::string_view remote,
                        int wait_status, std::string_view last_line);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_AGENT_TREE_H_
