// penstock node: one process of a job over several.

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/environment.h"
#include "cli/job_key_option.h"
#include "cli/join_job.h"
#include "cli/launch_member.h"
#include "cli/option_checks.h"
#include "cli/termination_grace.h"

#include "actors/cluster/agent_tree.h"
#include "actors/cluster/host_agent.h"
#include "actors/cluster/node.h"
#include "actors/cluster/process_tree.h"
#include "actors/cluster/socket_address.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

// Of a node that Slurm ends, to name a coordinator that is gone. An end of the connection shows at
// once.
constexpr absl::Duration kTerminationGrace = absl::Seconds(1);

struct NodeCommandOptions {
  actors::NodeOptions node;
  std::string key_file;
  std::string device = "cpu";
  std::string log_folder;
  bool is_quiet = false;
  int64_t slots = 0;    // of an agent; 0: this is the node
  std::string pinning;  // of an agent; empty: none
  // Of an agent that starts those of other hosts, as actors/cluster/agent_tree.h writes them.
  std::string below;
  std::vector<std::string> through;
  uint32_t fanout = 1;
};

// The command of a node with the options of this one.
std::vector<std::string> NodeCommand(const Environment& environment,
                                     const NodeCommandOptions& options) {
  // As this process was started, through a script perhaps.
  const std::string_view name = program_invocation_name;
  const bool is_path = name.find('/') != std::string_view::npos;
  std::vector<std::string> command = {is_path ? std::string(name) : environment.program,
                                      "node",
                                      "--join",
                                      options.node.coordinator,
                                      "--device",
                                      options.device};
  const auto add = [&command](const char* option, const std::string& value) {
    if (!value.empty()) command.insert(command.end(), {option, value});
  };
  add("--interface", options.node.interfaces);
  add("--log-dir", options.log_folder);
  for (const std::string& plugin : environment.plugins) add("--plugin", plugin);
  if (options.node.insecure) command.emplace_back("--insecure");
  if (options.is_quiet) command.emplace_back("--quiet");
  return command;
}

// `launch` has had an mpirun start this agent alone, through a daemon on this host, which ends with
// it. But where the host is cut off, the daemon waits for minutes until TCP gives up. So it has a
// moment, and is then killed, by a process that keeps none of the daemon's pipes open.
void EndDaemonOfMpirun() {
  constexpr int kDaemonGraceMs = 2000;
  pid_t daemon = getppid();
  while (true) {
    // "4711 (orted) S 4710 ..."
    std::ifstream file(StrCat("/proc/", daemon, "/stat"));
    std::string number;
    std::string name;
    std::string state;
    pid_t parent = 0;
    file >> number >> name >> state >> parent;
    // Of Open MPI 4, Open MPI 5 and MPICH. The kernel keeps 15 characters of a name.
    if (name == "(orted)" || name == "(prted)" || name == "(hydra_pmi_proxy)") break;
    // Between them is a shell at most: what a user's own mpirun has started is not ended.
    const bool is_shell = name == "(sh)" || name == "(bash)" || name == "(dash)";
    if (!file || !is_shell) return;
    daemon = parent;
  }
  const auto daemon_fd = static_cast<int>(syscall(SYS_pidfd_open, daemon, 0));
  if (daemon_fd < 0) return;
  if (fork() != 0) {
    close(daemon_fd);
    return;
  }
  // In the child: only what a signal handler may call.
  setsid();
  const auto kept = static_cast<unsigned>(daemon_fd);
  if (kept > 0) close_range(0, kept - 1, 0);
  close_range(kept + 1, ~0u, 0);
  pollfd watched = {daemon_fd, POLLIN, 0};
  if (poll(&watched, 1, kDaemonGraceMs) == 0) {
    actors::SendSignal(daemon_fd, SIGKILL);
  }
  _exit(0);
}

absl::Status RunAgent(const Environment& environment, const NodeCommandOptions& options) {
  // As for its nodes: the coordinator heeds an interrupt of all processes of a job.
  (void)signal(SIGINT, SIG_IGN);
  actors::HostAgentOptions agent = {
      .node_command = NodeCommand(environment, options),
      .key = options.node.key,
      .first_rank = static_cast<uint32_t>(std::max(options.node.rank, 0)),
      .num_ranks = static_cast<uint32_t>(options.slots),
      .pinning = actors::ParsePinningName(options.pinning)};
  ASSIGN_OR_RETURN(agent.below, actors::ParseTreeHosts(options.below));
  actors::TreeOptions& tree = agent.tree;
  tree.node_command = agent.node_command;
  tree.node_command[0] = program_invocation_name;  // that is how another host finds it as well
  tree.through = options.through;
  tree.fanout = options.fanout;
  tree.pinning = options.pinning;
  tree.key = options.node.key;
  if (options.key_file != "-") tree.key_file = options.key_file;
  if (!agent.below.empty() && tree.through.empty()) {
    return absl::InvalidArgumentError("--below needs --through");
  }
  const absl::Status status = actors::RunHostAgent(agent);
  EndDaemonOfMpirun();
  return status;
}

absl::Status RunNodeCommand(const Environment& environment, NodeCommandOptions options) {
  const absl::Status address = actors::CheckJoinAddress(options.node.coordinator);
  if (!address.ok()) {
    return absl::InvalidArgumentError(
        StrCat("--join ", ToStd(address.message()),
               "; use the address that `penstock run --listen` prints"));
  }
  if (options.node.insecure) {
    RETURN_IF_ERROR(actors::CheckIsInsecureAddress(options.node.coordinator));
  }
  ASSIGN_OR_RETURN(options.node.key, ReadJobKey(options.key_file));
  std::optional<TerminationGrace> grace;
  if (!EnvironmentVariable("SLURM_STEP_ID").empty()) {
    grace.emplace(kTerminationGrace, [&err = environment.err, is_agent = options.slots > 0] {
      if (!is_agent) err << "penstock: asked to end (SIGTERM)\n" << std::flush;
    });
  }
  if (options.slots > 0) return RunAgent(environment, options);
  return JoinJob(environment, std::move(options.node), options.device, options.is_quiet,
                 options.log_folder);
}

}  // namespace

void AddNodeCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<NodeCommandOptions>();
  CLI::App* command = app.add_subcommand("node", "Join a job as one of its processes.");
  command->footer(
      "`penstock run --procs N` starts its own nodes. `penstock run --listen ADDRESS` prints the\n"
      "`penstock node` command that starts one of them, with the job's key.");
  command
      ->add_option("--join", options->node.coordinator,
                   "Address of the coordinator: HOST:PORT, unix:PATH or unix-abstract:NAME "
                   "(required)")
      ->option_text("ADDRESS")
      ->required();
  command->add_option("--rank", options->node.rank, "Rank of this node (lowest free rank)")
      ->option_text("N")
      ->check(AtLeast(0));
  command
      ->add_option("--interface", options->node.interfaces,
                   "Network interfaces for tensor data, separated by commas (that of the route to "
                   "the coordinator)")
      ->option_text("NAMES");
  command
      ->add_option("--key-file", options->key_file,
                   "Read the job's key from this file; -: from the first line of the standard "
                   "input (the environment variable PENSTOCK_KEY)")
      ->option_text("FILE");
  command
      ->add_option("--device", options->device,
                   "Kind of the node's devices, cpu or cuda, or the kinds of all devices of the "
                   "job in order, such as cpu:2,cuda:6 (cpu)")
      ->option_text("KINDS");
  command
      ->add_option("--log-dir", options->log_folder,
                   "Keep what this node prints in a file of this folder: HOST.RANK.log")
      ->option_text("DIR");
  command
      ->add_option(
          "--slots", options->slots,
          "Start N nodes with consecutive ranks from --rank and report them to `penstock launch`")
      ->option_text("N")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
  command
      ->add_option(
          "--pin", options->pinning,
          "With --slots: keep each node on cores of its own; where there are fewer, a "
          "core is shared by consecutive ranks (neighbours), or by ranks dealt out in turn")
      ->option_text("neighbours|round-robin")
      ->check(CLI::IsMember({"neighbours", "round-robin"}));
  command
      ->add_option("--below", options->below,
                   "With --slots: start the agents of these hosts, too, for the ranks that follow")
      ->option_text("HOST/N,...");
  command
      ->add_option("--fanout", options->fanout,
                   "With --below: start at most N agents from here (1)")
      ->option_text("N")
      ->check(CLI::Range(uint32_t{1}, uint32_t{4096}));
  command
      ->add_option(
          "--through", options->through,
          "With --below: one word of the command that starts agents; repeated for each word, as in "
          "--through=ssh --through=-T. The host name is appended")
      ->option_text("WORD")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_flag("--insecure", options->node.insecure,
                    "Join without TLS, as `penstock run --insecure` demands on loopback");
  command->add_flag("--quiet", options->is_quiet,
                    "Do not report that this node has joined, and that the job is done");
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return RunNodeCommand(environment, *options); };
  });
}

}  // namespace penstock::cli
