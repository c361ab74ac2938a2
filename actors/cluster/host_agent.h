// One program for the nodes of a host: it starts them there, and tells on its standard output what
// they print and how they end. So one ssh, srun or mpirun serves a host, however many nodes it has.
//
//   coordinator ── ssh host penstock node --slots 2 --rank 4 ──► agent ──► nodes 4 and 5
//               ◄─ lines: what nodes print, exits ─────────────
//
// Lines that are no reports, such as a greeting of the host, are of the first rank.
//
// Thread rule: RunHostAgent blocks; the rest are pure functions.

#ifndef PENSTOCK_ACTORS_CLUSTER_HOST_AGENT_H_
#define PENSTOCK_ACTORS_CLUSTER_HOST_AGENT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

#include "actors/cluster/agent_tree.h"
#include "base/cpu_topology.h"

namespace penstock::actors {

struct AgentReport {
  enum class Kind : uint8_t {
    kLine,      // a node has printed `text`
    kExit,      // it has ended with `wait_status`; `text` is what else is known of its end
    kFinished,  // and all that it has printed was told
  };
  Kind kind = Kind::kLine;
  uint32_t rank = 0;
  int wait_status = 0;
  std::string text;
};

// Without a newline.
std::string ToLine(const AgentReport& report);
// A line that a node has printed: in several reports if it is too long for one, because whoever
// reads them cuts what is longer than LineSplitter::kMaxLineBytes.
std::vector<AgentReport> ReportsOfLine(uint32_t rank, std::string_view line);
// Nullopt: the line is no report.
std::optional<AgentReport> ParseReport(std::string_view line);

// How an agent distributes the cores of its host over its nodes, as the value of an option:
// "neighbours" or "round-robin".
std::string PinningName(CpuTopology::Sharing sharing);
// Nullopt: there is no such name.
std::optional<CpuTopology::Sharing> ParsePinningName(std::string_view name);

struct HostAgentOptions {
  // "--rank N --key-file -" is added; each node reads the key from its standard input.
  std::vector<std::string> node_command;
  std::string key;
  uint32_t first_rank = 0;
  uint32_t num_ranks = 1;
  // Pins each node to cores of its own, or to one that it shares so; nullopt: pins none.
  std::optional<CpuTopology::Sharing> pinning = {};
  // Hosts whose agents this one starts, with the ranks behind its own. TreeOptions::node_command is
  // that of their nodes.
  std::vector<TreeHost> below = {};
  TreeOptions tree = {};
};

// Returns when all nodes have ended, also those of the hosts below. Some seconds after the nodes of
// this host have ended, or the standard output was closed, it ends what is left: its nodes, and the
// programs that have started the agents below.
absl::Status RunHostAgent(const HostAgentOptions& options);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_HOST_AGENT_H_
