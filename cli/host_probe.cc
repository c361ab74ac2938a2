#include "cli/host_probe.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/cord.h"
#include "cli/interruptible_start.h"
#include "cli/line_printer.h"
#include "cli/processes.h"
#include "cli/slow_hosts.h"
#include "fmt/format.h"

#include "actors/cluster/cluster.h"
#include "actors/cluster/socket_address.h"
#include "base/format.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/cluster/probed_hosts.h"

namespace penstock::cli {
namespace {

// Of the measurements, for as many hosts as there may be.
constexpr absl::Duration kProbeTimeout = absl::Seconds(30);

// "rack 9.41 Gbit/s, 31 us (a b | c d); network 0.48 Gbit/s, 210 us (a b c d)".
std::string Describe(const std::vector<std::string>& hosts, const planner::HostTopology& topology) {
  std::string text;
  std::vector<size_t> sizes(hosts.size(), 1);  // in hosts, of the groups of the level below
  for (const planner::NetworkLevel& level : topology.levels) {
    StrAppend(&text, text.empty() ? "" : "; ", level.name,
              fmt::format(" {:.3g} Gbit/s, ", level.bytes_per_s * 8e-9),
              FormatSeconds(level.latency_s), " (");
    std::vector<size_t> groups;
    size_t child = 0;
    size_t host = 0;
    for (const int64_t fan_out : level.fan_out) {
      if (!groups.empty()) StrAppend(&text, " | ");
      size_t& size = groups.emplace_back(0);
      for (int64_t i = 0; i < fan_out; ++i) size += sizes[child++];
      for (size_t i = 0; i < size; ++i) {
        StrAppend(&text, i == 0 ? "" : " ", hosts[static_cast<size_t>(topology.order[host++])]);
      }
    }
    StrAppend(&text, ")");
    sizes = std::move(groups);
  }
  return text;
}

// That nodes have joined is told when those of the job do.
std::shared_ptr<NodeOutput> PrintWhatIsWrong(const Environment& environment) {
  const auto printer = std::make_shared<LinePrinter>(environment.err);
  return std::make_shared<NodeOutput>([printer](const std::string& text) {
    if (!std::string_view(text).starts_with("joined: ")) printer->Print(text);
  });
}

// What the planner takes.
planner::HostLink LinkOf(const actors::ClusterFigures::Link& link) {
  return {std::clamp(link.bytes_per_s, planner::kMinBytesPerS, planner::kMaxBytesPerS),
          std::min(link.latency_s, planner::kMaxLatencyS)};
}

bool AreMembers(const std::vector<actors::NodePlace>& places) {
  return std::any_of(places.begin(), places.end(),
                     [](const actors::NodePlace& place) { return place.is_awaited; });
}

// The hosts of members, of which each has `slots` neighbouring ranks; an error where the ranks lie
// otherwise.
absl::StatusOr<std::vector<std::string>> HostsOfMembers(
    const std::vector<actors::NodeDescription>& nodes, size_t slots) {
  std::vector<std::string> hosts;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    const actors::NodeDescription& first = nodes[rank - rank % slots];
    if (nodes[rank].host != first.host) {
      return absl::FailedPreconditionError("the ranks of a host are not contiguous");
    }
    if (rank % slots == 0) hosts.push_back(actors::ShownHost(first));
  }
  return hosts;
}

// Those of the first node of each host.
actors::ClusterFigures OfFirstNodes(const actors::ClusterFigures& all, size_t slots) {
  actors::ClusterFigures figures;
  for (size_t rank = 0; rank < all.flops_per_s.size(); rank += slots) {
    figures.flops_per_s.push_back(all.flops_per_s[rank]);
  }
  for (actors::ClusterFigures::Link link : all.links) {
    if (link.a % slots != 0 || link.b % slots != 0) continue;
    link.a /= static_cast<uint32_t>(slots);
    link.b /= static_cast<uint32_t>(slots);
    figures.links.push_back(link);
  }
  return figures;
}

// Whether hosts of one network are neighbours as they are.
bool IsInOrder(const std::vector<int64_t>& order) {
  return std::is_sorted(order.begin(), order.end());
}

}  // namespace

size_t NumProbedNodes(const std::vector<actors::NodePlace>& places, size_t num_hosts) {
  return AreMembers(places) ? places.size() : num_hosts;
}

absl::StatusOr<HostProbe> ProbeLaunch(Environment* environment_of_job, const Job& job) {
  LaunchPlan& launch = environment_of_job->launch;
  const std::vector<actors::NodePlace>& places = launch.places;
  const auto num_hosts = static_cast<size_t>(job.cluster.hosts);
  const size_t slots = places.size() / num_hosts;
  const bool are_members = AreMembers(places);
  const size_t nodes_of_host = are_members ? slots : 1;
  const Environment environment = *environment_of_job;
  Environment there = environment;
  std::vector<std::string> hosts;
  if (are_members) {
    there.launch.on_listening = [&launch, tell_others = launch.on_listening](
                                    const std::string& address, const std::string& key) {
      const std::string port = actors::SplitAddress(address).port;
      launch.listen = actors::JoinAddress(actors::SplitAddress(launch.listen).host,
                                          static_cast<unsigned>(std::stoul(port)));
      launch.key = key;
      launch.on_listening = nullptr;
      if (tell_others) tell_others(address, key);
    };
  } else {
    there.launch.on_listening = nullptr;
    there.launch.places.clear();
    for (size_t i = 0; i < num_hosts; ++i) {
      there.launch.places.push_back(places[i * slots]);
      hosts.push_back(places[i * slots].host);
    }
  }
  constexpr char kWhere[] = "while the hosts were probed";
  std::unique_ptr<actors::Cluster> cluster;  // outlives what may end it
  InterruptibleStart start(*environment.interrupts, kWhere, places,
                           static_cast<uint32_t>(are_members ? 1 : slots));
  absl::StatusOr<std::unique_ptr<actors::Cluster>> started =
      StartProcesses(there, {.count = static_cast<int64_t>(there.launch.places.size()),
                             .pin = false,
                             .node_timeout_s = job.cluster.node_timeout,
                             .output = PrintWhatIsWrong(environment),
                             .start = start.cluster_start()});
  if (absl::IsDeadlineExceeded(started.status())) {
    absl::Status late(started.status().code(),
                      StrCat(kWhere, ": ", ToStd(started.status().message())));
    late.SetPayload(actors::kShellStatusPayload, absl::Cord(StrCat(kNoRendezvousStatus)));
    return late;
  }
  if (!started.ok()) return start.WithInterrupt(started.status());
  cluster = *std::move(started);
  start.SetCluster(*cluster);
  absl::StatusOr<actors::ClusterFigures> figures = cluster->Probe(kProbeTimeout);
  if (are_members && figures.ok()) {
    absl::StatusOr<std::vector<std::string>> names = HostsOfMembers(cluster->nodes(), slots);
    if (names.ok()) {
      hosts = *std::move(names);
      *figures = OfFirstNodes(*figures, slots);
    } else {
      figures = names.status();
    }
  }
  std::vector<planner::SlowHost> slow_hosts;
  if (figures.ok()) {
    slow_hosts =
        ConfirmSlowHosts(figures->flops_per_s, [&]() -> absl::StatusOr<std::vector<double>> {
          ASSIGN_OR_RETURN(const std::vector<double> all, cluster->MeasureCompute(kProbeTimeout));
          return OfFirstNodes({.flops_per_s = all, .links = {}}, nodes_of_host).flops_per_s;
        });
  }
  if (environment.interrupts->count() > 0) {
    const absl::Status interrupted = environment.interrupts->ToStatus(kWhere);
    (void)cluster->Stop(interrupted);
    return interrupted;
  }
  const absl::Status ended = cluster->StopToRejoin();
  // Nobody starts a member again.
  if (are_members) RETURN_IF_ERROR(start.WithInterrupt(ended));
  if (!figures.ok()) {
    environment.err << "note: the links between the hosts could not be measured: "
                    << ToStd(figures.status().message()) << std::endl;
    return HostProbe();
  }
  planner::HostLinks links(static_cast<int64_t>(num_hosts));
  for (const actors::ClusterFigures::Link& link : figures->links) {
    links.Set(link.a, link.b, LinkOf(link));
  }
  const planner::HostTopology topology = planner::GroupHosts(links);
  environment.err << "launch: networks: " << Describe(hosts, topology) << std::endl;
  std::vector<double> speeds(num_hosts, 1);
  for (const planner::SlowHost& slow : slow_hosts) {
    speeds[static_cast<size_t>(slow.host)] = slow.part;
    environment.err << SlowHostNote(hosts[static_cast<size_t>(slow.host)], slow) << std::flush;
  }
  HostProbe probe;
  probe.networks = topology.levels;
  if (are_members && !IsInOrder(topology.order)) {
    std::vector<std::string> ordered;
    for (const int64_t host : topology.order) ordered.push_back(hosts[static_cast<size_t>(host)]);
    environment.err << "note: hosts of one network have no neighbouring ranks, so the plan is made "
                       "as if all links were the same; start the processes on the hosts in this "
                       "order: "
                    << StrJoin(ordered, ", ") << std::endl;
    probe.networks.clear();
    probe.speeds = speeds;
    probe.places = places;
    return probe;
  }
  for (const int64_t host : topology.order) {
    probe.speeds.push_back(speeds[static_cast<size_t>(host)]);
    const auto begin = places.begin() + static_cast<std::ptrdiff_t>(host * slots);
    probe.places.insert(probe.places.end(), begin, begin + static_cast<std::ptrdiff_t>(slots));
  }
  return probe;
}

void NameSlowHosts(const Environment& environment, actors::Cluster& cluster) {
  const std::vector<actors::NodeDescription>& nodes = cluster.nodes();
  const bool are_several = std::any_of(nodes.begin(), nodes.end(), [&nodes](const auto& node) {
    return node.host != nodes[0].host;
  });
  if (!are_several || !environment.launch.probes_links.value_or(true)) return;
  const auto measure = [&]() -> absl::StatusOr<CoreRates> {
    ASSIGN_OR_RETURN(const std::vector<double> rates, cluster.MeasureCompute(kProbeTimeout));
    return CoreRatesOf(nodes, rates);
  };
  const absl::StatusOr<CoreRates> first = measure();
  if (!first.ok()) return;  // a node that is gone ends the job
  const std::vector<planner::SlowHost> slow_hosts =
      ConfirmSlowHosts(first->rates, [&measure]() -> absl::StatusOr<std::vector<double>> {
        ASSIGN_OR_RETURN(const CoreRates again, measure());
        return again.rates;
      });
  for (const planner::SlowHost& slow : slow_hosts) {
    const uint32_t rank = first->first_ranks[static_cast<size_t>(slow.host)];
    environment.err << SlowHostNote(actors::ShownHost(nodes[rank]), slow) << std::flush;
  }
}

}  // namespace penstock::cli
