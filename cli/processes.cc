#include "cli/processes.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "cli/line_printer.h"

#include "actors/cluster/core_groups.h"
#include "actors/cluster/node_place.h"
#include "base/counted.h"
#include "base/machine.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

// Nodes read the key from a file, so that it is in no command line, terminal or log.
std::string HowToJoin(int64_t count, const std::string& address, const std::string& key_file,
                      const std::string& more) {
  return StrCat("Waiting for ", Counted(count, "node"), ". The job's key is in ", key_file,
                ": copy that file to other hosts. Start each node with:\n  penstock node --join ",
                address, " --key-file ", key_file, more, "\n");
}

// Of a line of srun, or of Slurm in a process that it has started.
bool IsAboutCoreBinding(std::string_view line) {
  return line.starts_with("cpu-bind=") ||
         line.starts_with("srun: cluster configuration lacks support for cpu binding");
}

}  // namespace

std::shared_ptr<NodeOutput> PrintNodeOutput(const Environment& environment) {
  const auto printer = std::make_shared<LinePrinter>(environment.err);
  return std::make_shared<NodeOutput>(
      [printer](std::string text) { printer->Print(std::move(text)); });
}

absl::StatusOr<std::unique_ptr<actors::Cluster>> StartProcesses(const Environment& environment,
                                                                ProcessOptions processes) {
  actors::ClusterOptions options;
  options.process_devices = std::move(processes.devices);
  options.num_processes = static_cast<uint32_t>(processes.count);
  options.num_devices = static_cast<uint32_t>(processes.num_devices);
  options.insecure = environment.launch.insecure;
  options.hands_key_on_input = true;
  options.pin = processes.pin;
  options.core_sharing = processes.core_sharing;
  options.heartbeat_timeout = absl::Seconds(processes.node_timeout_s);
  options.status_answers = std::move(processes.status_answers);
  options.resume_hint = std::move(processes.resume_hint);
  options.on_collectives = std::move(processes.on_collectives);
  options.start = processes.start;
  options.on_starter = environment.launch.on_starter;
  if (processes.output == nullptr) processes.output = PrintNodeOutput(environment);
  options.on_output = [output = processes.output, hides = environment.launch.hides_core_binding](
                          uint32_t rank, std::string_view host, std::string_view line) {
    if (!hides || !IsAboutCoreBinding(line)) output->Add(rank, host, line);
  };
  options.on_join = [output = processes.output](const actors::NodeDescription& node) {
    output->Tell(StrCat("joined: ", ToString(node), "\n"));
  };
  std::vector<std::string> plugins = environment.plugins;
  if (!processes.policy_library.empty()) plugins.push_back(processes.policy_library);
  if (processes.listen.empty()) {
    options.node_command = {environment.program, "node", "--quiet"};
    if (!processes.device_list.IsAll("cpu")) {
      options.node_command.insert(options.node_command.end(),
                                  {"--device", processes.device_list.ToString()});
    }
    for (const std::string& plugin : plugins) {
      options.node_command.push_back("--plugin");
      options.node_command.push_back(plugin);
    }
    if (!processes.log_folder.empty()) {
      options.node_command.insert(
          options.node_command.end(),
          {"--log-dir", std::filesystem::absolute(processes.log_folder).string()});
    }
    if (const LaunchPlan& launch = environment.launch; !launch.places.empty()) {
      options.places = launch.places;
      options.fanout = launch.fanout;
      options.max_starts = launch.max_starts;
      options.listen = launch.listen;
      options.key = launch.key;
      options.seal_key = launch.seal_key;
      options.join_timeout = launch.join_timeout;
      options.on_listening = launch.on_listening;
      if (const std::string& file = launch.places[0].key_file;
          options.on_listening == nullptr && !file.empty()) {
        options.on_listening = [&err = environment.err, file](const std::string& address,
                                                              const std::string&) {
          err << "from other hosts: `penstock top " << address << " --key-file "
              << actors::QuoteForShell(file) << "`" << std::endl;
        };
      }
      // What has started the others has bound them to cores, and this process with its node.
      options.pin = options.pin && std::none_of(options.places.begin(), options.places.end(),
                                                [](const auto& place) { return place.is_awaited; });
    }
  } else {
    options.listen = processes.listen;
    options.key = processes.key_file->key();
    options.join_timeout = absl::Minutes(10);
    std::string more;  // that a node is told
    if (options.insecure) StrAppend(&more, " --insecure");
    if (!processes.device_list.IsAll("cpu")) {
      StrAppend(&more, " --device ", processes.device_list.ToString());
    }
    for (const std::string& plugin : plugins) StrAppend(&more, " --plugin ", plugin);
    options.on_listening = [&err = environment.err, count = processes.count, more,
                            key_file = processes.key_file->path(),
                            on_listening = std::move(processes.on_listening)](
                               const std::string& address, const std::string&) {
      if (on_listening) on_listening(address);
      err << HowToJoin(count, address, key_file, more) << std::flush;
    };
  }
  absl::StatusOr<std::unique_ptr<actors::Cluster>> cluster = actors::Cluster::Start(options);
  if (absl::IsDeadlineExceeded(cluster.status())) {
    absl::Status status = cluster.status();
    status.SetPayload(actors::kShellStatusPayload, absl::Cord(StrCat(kNoRendezvousStatus)));
    return status;
  }
  return cluster;
}

std::string OversubscriptionNote(const std::vector<actors::NodeDescription>& nodes,
                                 int64_t num_devices, int64_t threads_per_device) {
  std::vector<actors::CoreGroup> groups = actors::FindCoreGroups(nodes);
  if (nodes.empty()) {
    groups.push_back({.nodes = {}, .num_cores = UsableCores(), .num_devices = num_devices});
  }
  for (const actors::CoreGroup& group : groups) {
    const int64_t num_threads = group.num_devices * threads_per_device;
    if (num_threads <= group.num_cores) continue;
    std::string note = Counted(group.num_devices, "device");
    if (threads_per_device > 1) StrAppend(&note, " of ", threads_per_device, " threads each");
    return StrCat(note, group.num_devices == 1 ? " has " : " share ",
                  Counted(group.num_cores, "core"),
                  nodes.empty() ? "" : StrCat(" of ", actors::ShownHost(nodes[group.nodes[0]])),
                  ": expect longer steps than on ", Counted(num_threads, "core"));
  }
  return "";
}

actors::SharedCores CoresOfDevices(const std::vector<actors::NodeDescription>& nodes,
                                   int64_t num_devices, int64_t threads_per_device) {
  actors::SharedCores cores;
  const auto add_group = [&](int64_t num_cores) {
    cores.num_at_once.push_back(static_cast<uint32_t>(
        std::max<int64_t>(num_cores / std::max<int64_t>(threads_per_device, 1), 1)));
    return static_cast<uint32_t>(cores.num_at_once.size() - 1);
  };
  cores.groups.resize(static_cast<size_t>(num_devices));
  if (nodes.empty()) {
    add_group(UsableCores());
    return cores;
  }
  for (const actors::CoreGroup& core_group : actors::FindCoreGroups(nodes)) {
    const uint32_t group = add_group(core_group.num_cores);
    for (const size_t node : core_group.nodes) {
      for (uint32_t i = 0; i < nodes[node].num_devices; ++i) {
        const size_t device = size_t{nodes[node].first_device} + i;
        if (device < cores.groups.size()) cores.groups[device] = group;
      }
    }
  }
  return cores;
}

std::string PlacementNotes(const std::vector<actors::NodeDescription>& nodes,
                           const std::vector<uint32_t>& host_devices) {
  std::map<std::string_view, uint32_t> hosts;          // their devices
  std::vector<const actors::NodeDescription*> blocks;  // the first of ranks on one host, in order
  for (const actors::NodeDescription& node : nodes) {
    hosts[node.host] += node.num_devices;
    if (blocks.empty() || blocks.back()->host != node.host) blocks.push_back(&node);
  }
  std::string notes;
  if (blocks.size() > hosts.size()) {
    StrAppend(&notes, "note: the ranks of a host are not one after another, so neither are its ",
              "devices; penstock node --rank puts them in order\n");
  }
  if (host_devices.empty() || hosts.size() == 1) return notes;
  if (hosts.size() != host_devices.size()) {
    return StrCat("note: the nodes are on ", hosts.size(), " hosts; cluster.hosts = ", hosts.size(),
                  " plans collectives for them\n", notes);
  }
  for (size_t i = 0; i < blocks.size() && blocks.size() == hosts.size(); ++i) {
    const uint32_t num_devices = hosts[blocks[i]->host];
    if (num_devices == host_devices[i]) continue;
    StrAppend(&notes, "note: ", actors::ShownHost(*blocks[i]), " has ",
              Counted(num_devices, "device"), ", not ", host_devices[i],
              " as the job says of host ", i + 1, "; cluster.host describes each host\n");
  }
  return notes;
}

}  // namespace penstock::cli
