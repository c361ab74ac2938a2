// penstock bench: runs a group of measurements and prints their numbers.

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_split.h"
#include "benchmark/benchmark.h"
#include "cli/environment.h"
#include "cli/json.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "base/strings.h"
#include "bench/actors_bench.h"
#include "bench/collectives_bench.h"
#include "bench/count_allocations.h"
#include "bench/kernels_bench.h"
#include "bench/launch_bench.h"
#include "bench/messages_bench.h"
#include "bench/planner_bench.h"
#include "bench/search_bench.h"
#include "bench/simulator_bench.h"
#include "bench/transport_bench.h"
#include "kernels/kernel.h"
#include "planner/cost/collective_choice.h"

namespace penstock::cli {
namespace {

struct Options {
  std::string name;
  std::string filter;
  std::string hosts;
  bool is_list = false;
  bool is_json = false;
};

struct Metric {
  std::string name;
  double value = 0;
  std::string unit;
};

struct Report {
  std::vector<Metric> metrics;
  std::string table;  // for people; empty: a line a metric
};

// A group measures what matches `filter`, a regular expression over the names of its metrics.
struct Group {
  std::string_view name;
  std::string_view summary;
  absl::StatusOr<Report> (*run)(const Options& options);
};

// Collects the time and the counters of every run.
class Collector : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }

  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      const std::string name = run.benchmark_name();
      if (run.error_occurred) {
        errors_.push_back(StrCat(name, ": ", run.error_message));
        continue;
      }
      metrics_.push_back(
          {name, run.GetAdjustedRealTime(), benchmark::GetTimeUnitString(run.time_unit)});
      for (const auto& [counter, value] : run.counters) {
        metrics_.push_back({StrCat(name, ":", counter), value.value, counter});
      }
    }
  }

  const std::vector<Metric>& metrics() const { return metrics_; }
  const std::vector<std::string>& errors() const { return errors_; }

 private:
  std::vector<Metric> metrics_;
  std::vector<std::string> errors_;
};

// Benchmarks that were registered with names under "GROUP/".
absl::StatusOr<Report> RunRegistered(std::string_view group, const std::string& filter) {
  Collector collector;
  const size_t matched =
      benchmark::RunSpecifiedBenchmarks(&collector, StrCat("^", group, "/.*", filter));
  if (!collector.errors().empty()) return absl::InternalError(collector.errors()[0]);
  if (matched == 0) {
    return absl::InvalidArgumentError(StrCat("--filter ", filter, ": nothing matches"));
  }
  return Report{collector.metrics(), ""};
}

absl::StatusOr<Report> RunKernels(const Options& options) {
  bench::RegisterKernelBenchmarks();
  return RunRegistered("kernels", options.filter);
}

absl::StatusOr<Report> RunSearch(const Options& options) {
  bench::RegisterSearchBenchmarks();
  return RunRegistered("search", options.filter);
}

// Metrics of one shape and number of actors; the names alone where it was not measured.
std::vector<Metric> ActsMetrics(bench::ActsShape shape, uint32_t num_actors,
                                const bench::ActsBenchResult& acts, double allocations_per_act) {
  const std::string prefix = StrCat("actors/", Name(shape), "/", num_actors, "/");
  std::vector<Metric> metrics = {{prefix + "act", acts.ns_per_act, "ns"},
                                 {prefix + "step", acts.step_us, "us"}};
  if (shape == bench::ActsShape::kCommunication) {
    metrics.push_back({prefix + "communication", acts.communication_us, "us"});
  }
  if (bench::CountsAllocations()) {
    metrics.push_back({prefix + "allocations_per_act", allocations_per_act, "1"});
  }
  return metrics;
}

absl::StatusOr<Report> RunActors(const Options& asked) {
  constexpr int kWakeRounds = 1000;
  constexpr uint32_t kFewest = 10;  // what a step allocates whatever its size
  const std::regex pattern(asked.filter);
  const auto is_wanted = [&](const Metric& metric) {
    return std::regex_search(metric.name, pattern);
  };
  const auto measure = [](bench::ActsShape shape, uint32_t num_actors, double seconds) {
    bench::ActsBenchOptions options;
    options.shape = shape;
    options.num_actors = num_actors;
    options.seconds = seconds;
    if (bench::CountsAllocations()) options.count_allocations = bench::NumAllocations;
    return bench::MeasureActs(options);
  };
  constexpr const char* kRow = "{:14} {:>9} {:>8} {:>12} {:>17} {:>16}\n";
  Report report;
  std::string rows;
  for (const bench::ActsShape shape : bench::kActsShapes) {
    std::optional<double> allocations_per_step;
    for (const uint32_t num_actors : {100u, 1000u, 10000u, 100000u, 1000000u}) {
      const std::vector<Metric> names = ActsMetrics(shape, num_actors, {}, 0);
      if (std::none_of(names.begin(), names.end(), is_wanted)) continue;
      if (!allocations_per_step) {
        ASSIGN_OR_RETURN(const bench::ActsBenchResult fewest, measure(shape, kFewest, 0.1));
        allocations_per_step = fewest.allocations_per_step;
      }
      // A long step is seldom left undisturbed by other programs: there have to be more of them.
      const double seconds = num_actors < 100'000 ? 0.5 : 2;
      ASSIGN_OR_RETURN(const bench::ActsBenchResult acts, measure(shape, num_actors, seconds));
      const double allocations_per_act = (acts.allocations_per_step - *allocations_per_step) /
                                         static_cast<double>(acts.acts_per_step);
      const std::vector<Metric> metrics = ActsMetrics(shape, num_actors, acts, allocations_per_act);
      rows += fmt::format(
          fmt::runtime(kRow), Name(shape), num_actors, fmt::format("{:.1f}", acts.ns_per_act),
          fmt::format("{:.1f}", acts.step_us),
          acts.communication_us > 0 ? fmt::format("{:.2f}", acts.communication_us) : "-",
          bench::CountsAllocations() ? fmt::format("{:.5f}", allocations_per_act) : "-");
      std::copy_if(metrics.begin(), metrics.end(), std::back_inserter(report.metrics), is_wanted);
    }
  }
  if (!rows.empty()) {
    report.table = fmt::format(fmt::runtime(kRow), "shape", "actors", "ns/act", "step us",
                               "communication us", "allocations/act") +
                   rows;
  }
  const auto wake_metrics = [](const bench::WakeLatency& wake) {
    return std::vector<Metric>{{"actors/wake/polling", wake.polling.median_us, "us"},
                               {"actors/wake/polling_fastest", wake.polling.fastest_us, "us"},
                               {"actors/wake/sleeping", wake.sleeping.median_us, "us"},
                               {"actors/wake/sleeping_fastest", wake.sleeping.fastest_us, "us"}};
  };
  const std::vector<Metric> names = wake_metrics({});
  if (std::any_of(names.begin(), names.end(), is_wanted)) {
    ASSIGN_OR_RETURN(const bench::WakeLatency wake, bench::MeasureWakeLatency(kWakeRounds));
    for (Metric& metric : wake_metrics(wake)) {
      if (!is_wanted(metric)) continue;
      report.table += fmt::format("{:35} {:9.3g} us\n", metric.name, metric.value);
      report.metrics.push_back(std::move(metric));
    }
  }
  if (report.metrics.empty()) {
    return absl::InvalidArgumentError(StrCat("--filter ", asked.filter, ": nothing matches"));
  }
  return report;
}

std::string Size(size_t num_bytes) {
  if (num_bytes >= 1 << 20) return StrCat(num_bytes >> 20, " MiB");
  if (num_bytes >= 1 << 10) return StrCat(num_bytes >> 10, " KiB");
  return StrCat(num_bytes, " B");
}

// Between two processes of this host, and beside it what ucx_perftest reaches; the ratios say how
// many times its time is taken, and what part of its bandwidth is reached.
absl::StatusOr<Report> RunTransport(const Options& asked) {
  const std::string& filter = asked.filter;
  struct Kind {
    const char* name;
    const char* transports;
  };
  constexpr Kind kKinds[] = {{"shared_memory", "posix"}, {"tcp", "tcp"}};
  constexpr const char* kRow = "{:14} {:>8} {:>10} {:>8} {:>6} {:>8} {:>10} {:>8} {:>6} {:>8}\n";
  const std::regex pattern(filter);
  const bool has_perftest = bench::HasPerftest();
  Report report;
  std::string idle_costs;
  report.table = fmt::format(fmt::runtime(kRow), "transport", "message", "one way us", "ucx -e",
                             "ratio", "ucx", "GB/s", "ucx -e", "ratio", "ucx");
  for (const Kind& kind : kKinds) {
    const auto metrics_of = [&](const bench::TransportBenchRow& row) {
      const std::string prefix = StrCat("transport/", kind.name, "/", row.num_bytes, "/");
      std::vector<Metric> metrics = {{prefix + "one_way", row.ours.one_way_us, "us"},
                                     {prefix + "bandwidth", row.ours.bytes_per_s / 1e9, "GB/s"}};
      const auto add = [&](const std::string& name, const bench::MessageSpeed& speed) {
        metrics.push_back({prefix + name + "_one_way", speed.one_way_us, "us"});
        metrics.push_back({prefix + name + "_bandwidth", speed.bytes_per_s / 1e9, "GB/s"});
      };
      if (row.perftest.one_way_us <= 0 || row.perftest.bytes_per_s <= 0) return metrics;
      add("perftest", row.perftest);
      metrics.push_back(
          {prefix + "one_way_ratio", row.ours.one_way_us / row.perftest.one_way_us, "1"});
      metrics.push_back(
          {prefix + "bandwidth_ratio", row.ours.bytes_per_s / row.perftest.bytes_per_s, "1"});
      if (row.plain_perftest.one_way_us > 0 && row.plain_perftest.bytes_per_s > 0) {
        add("plain_perftest", row.plain_perftest);
      }
      return metrics;
    };
    const auto is_wanted = [&](const Metric& metric) {
      return std::regex_search(metric.name, pattern);
    };
    bench::TransportBenchOptions options;
    options.transports = kind.transports;
    const auto add_size = [&](size_t num_bytes) {
      const double perftest = has_perftest ? 1 : 0;  // any number: the names count
      const bench::TransportBenchRow all = {
          num_bytes, {1, 1}, {perftest, perftest}, {perftest, perftest}};
      const std::vector<Metric> names = metrics_of(all);
      if (std::any_of(names.begin(), names.end(), is_wanted)) options.sizes.push_back(num_bytes);
    };
    for (const size_t num_bytes : bench::kMessageSizes) add_size(num_bytes);
    std::vector<bench::TransportBenchRow> rows;
    if (!options.sizes.empty()) {
      ASSIGN_OR_RETURN(rows, bench::MeasureTransport(options));
    }
    for (const bench::TransportBenchRow& row : rows) {
      std::vector<Metric> metrics = metrics_of(row);
      const auto column = [&](size_t i) {
        return i < metrics.size() ? fmt::format("{:.3g}", metrics[i].value) : std::string("-");
      };
      report.table +=
          fmt::format(fmt::runtime(kRow), kind.name, Size(row.num_bytes), column(0), column(2),
                      column(4), column(6), column(1), column(3), column(5), column(7));
      std::copy_if(metrics.begin(), metrics.end(), std::back_inserter(report.metrics), is_wanted);
    }
    Metric idle = {StrCat("transport/", kind.name, "/idle"), 0, "%"};
    if (!is_wanted(idle)) continue;
    ASSIGN_OR_RETURN(const double share, bench::MeasureIdleTransport(options));
    idle.value = 100 * share;
    idle_costs +=
        fmt::format("{}: a process that waits takes {:.2g} % of a core\n", kind.name, idle.value);
    report.metrics.push_back(std::move(idle));
  }
  if (report.metrics.empty()) {
    return absl::InvalidArgumentError(StrCat("--filter ", filter, ": nothing matches"));
  }
  report.table += idle_costs;
  if (has_perftest) {
    report.table +=
        "ucx: ucx_perftest; ucx -e: with error handling, as Penstock uses it; ratio: to ucx -e\n";
  } else {
    report.table += "ucx_perftest is not installed; install the package ucx-utils to compare.\n";
  }
  return report;
}

struct CollectiveMetric {
  std::string name;
  bench::CollectiveCase measured;
};

// The planner's choice, the memory's bound, and every algorithm in every size of chunks that
// differs.
std::vector<CollectiveMetric> CollectiveMetricsOf(CollectiveKind kind, int num_processes,
                                                  int num_hosts, size_t num_bytes) {
  const std::string prefix =
      StrCat("collectives/", Name(kind), "/", num_processes, "/", num_bytes, "/");
  std::vector<CollectiveMetric> metrics;
  const auto add = [&](const std::string& name, CollectiveAlgorithm algorithm, int64_t chunk_bytes,
                       bool is_copy) {
    metrics.push_back({prefix + name, {kind, num_bytes, algorithm, chunk_bytes, is_copy}});
  };
  const planner::CollectiveVariant choice =
      planner::ChooseCollective(kind, num_processes, num_hosts, static_cast<int64_t>(num_bytes));
  add("planned", choice.algorithm, choice.chunk_bytes, false);
  add("bound", CollectiveAlgorithm::kDirect, 0, true);
  const bool is_split = kind != CollectiveKind::kAllGather;
  const auto piece_bytes = static_cast<int64_t>(is_split ? num_bytes / num_processes : num_bytes);
  std::vector<CollectiveAlgorithm> algorithms = {CollectiveAlgorithm::kDirect};
  if (kind != CollectiveKind::kAllToAll) {
    algorithms.push_back(CollectiveAlgorithm::kRing);
    if (num_hosts > 1) algorithms.push_back(CollectiveAlgorithm::kHierarchical);
  }
  for (const auto algorithm : algorithms) {
    for (int64_t chunk_bytes = 64 << 10; chunk_bytes <= 4 << 20; chunk_bytes *= 4) {
      add(StrCat(Name(algorithm), "/", chunk_bytes), algorithm, chunk_bytes, false);
      if (chunk_bytes >= piece_bytes) break;
    }
  }
  return metrics;
}

constexpr const char* kCollectiveRow =
    "{:15} {:>5} {:>8} {:>11} {:>16} {:>11} {:>16} {:>11} {:>6}\n";

// A line of the table: what was measured of one kind, size and number of processes.
std::string CollectiveLine(const std::vector<CollectiveMetric>& measured,
                           const std::vector<double>& times, size_t begin, size_t end,
                           int num_processes) {
  std::optional<size_t> planned, best, bound;
  for (size_t i = begin; i < end; ++i) {
    if (measured[i].measured.is_copy) {
      bound = i;
    } else if (measured[i].name.ends_with("/planned")) {
      planned = i;
    } else if (!best || times[i] < times[*best]) {
      best = i;
    }
  }
  const auto time = [&](std::optional<size_t> i) {
    return i ? fmt::format("{:.4g}", times[*i]) : std::string("-");
  };
  const auto describe = [&](std::optional<size_t> i) {
    if (!i) return std::string("-");
    const bench::CollectiveCase& found = measured[*i].measured;
    return StrCat(Name(found.algorithm), " ", Size(static_cast<size_t>(found.chunk_bytes)));
  };
  const std::optional<size_t> ours = planned ? planned : best;
  const bench::CollectiveCase& first = measured[begin].measured;
  return fmt::format(
      fmt::runtime(kCollectiveRow), Name(first.kind), num_processes, Size(first.num_bytes),
      time(planned), describe(planned), time(best), describe(best), time(bound),
      ours && bound ? fmt::format("{:.3g}", times[*ours] / times[*bound]) : std::string("-"));
}

// Between processes of this host, or of the network namespaces `hosts`, beside the time that the
// memory needs for what every process has to read and write at least, at the speed of copies that
// all make at once.
absl::StatusOr<Report> RunCollectives(const Options& asked) {
  const std::string& filter = asked.filter;
  constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                                       CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll};
  const std::regex pattern(filter);
  Report report;
  report.table = fmt::format(fmt::runtime(kCollectiveRow), "collective", "procs", "size",
                             "planned us", "by", "best us", "by", "bound us", "ratio");
  std::vector<std::string> hosts;
  if (!asked.hosts.empty()) hosts = absl::StrSplit(ToAbsl(asked.hosts), ',');
  const int num_hosts = std::max<int>(1, static_cast<int>(hosts.size()));
  if (num_hosts != 1 && num_hosts != 2 && num_hosts != 4) {
    return absl::InvalidArgumentError(
        StrCat("--hosts ", asked.hosts, ": expected 1, 2 or 4 names"));
  }
  for (const int num_processes : {2, 4}) {
    if (num_processes % num_hosts != 0) continue;
    std::vector<CollectiveMetric> wanted;
    std::vector<size_t> line_ends;
    for (const CollectiveKind kind : kKinds) {
      for (size_t num_bytes = 1 << 10; num_bytes <= 64 << 20; num_bytes *= 4) {
        for (CollectiveMetric& metric :
             CollectiveMetricsOf(kind, num_processes, num_hosts, num_bytes)) {
          if (std::regex_search(metric.name, pattern)) wanted.push_back(std::move(metric));
        }
        if (wanted.size() > (line_ends.empty() ? 0 : line_ends.back())) {
          line_ends.push_back(wanted.size());
        }
      }
    }
    if (wanted.empty()) continue;
    bench::CollectivesBenchOptions options;
    options.num_processes = num_processes;
    options.hosts = hosts;
    for (const CollectiveMetric& metric : wanted) options.cases.push_back(metric.measured);
    ASSIGN_OR_RETURN(std::vector<double> times, bench::MeasureCollectives(options));
    for (size_t i = 0; i < wanted.size(); ++i) {
      const bench::CollectiveCase& measured = wanted[i].measured;
      if (measured.is_copy) times[i] *= bench::LeastTraffic(measured.kind, num_processes) / 2;
      report.metrics.push_back({wanted[i].name, times[i], "us"});
    }
    size_t begin = 0;
    for (const size_t end : line_ends) {
      report.table += CollectiveLine(wanted, times, begin, end, num_processes);
      begin = end;
    }
  }
  if (report.metrics.empty()) {
    return absl::InvalidArgumentError(StrCat("--filter ", filter, ": nothing matches"));
  }
  report.table +=
      "size: bytes per rank; bound: time to copy the bytes that a process must read and write at\n"
      "least, with all processes copying; ratio: planned time, or else best, over the bound\n";
  return report;
}

// From a kernel to a kernel on another device.
absl::StatusOr<Report> RunMessages(const Options& asked) {
  const std::string& filter = asked.filter;
  struct Kind {
    const char* name;
    bench::Placement placement;
    int64_t round_trips;
    bool is_asleep = false;
  };
  constexpr Kind kKinds[] = {{"threads", bench::Placement::kThreads, 10000},
                             {"processes", bench::Placement::kProcesses, 10000},
                             {"processes_one_core", bench::Placement::kProcessesOneCore, 500},
                             {"threads_asleep", bench::Placement::kThreads, 200, true},
                             {"processes_asleep", bench::Placement::kProcesses, 200, true}};
  const std::regex pattern(filter);
  const kernels::KernelRegistry kernels = kernels::CpuKernels();
  Report report;
  for (const Kind& kind : kKinds) {
    for (const uint64_t num_bytes : {uint64_t{8}, uint64_t{64} << 10, uint64_t{1} << 20}) {
      const std::string name = StrCat("messages/", kind.name, "/", num_bytes);
      if (!std::regex_search(name, pattern)) continue;
      bench::MessagesBenchOptions options;
      options.placement = kind.placement;
      options.is_asleep = kind.is_asleep;
      options.num_bytes = num_bytes;
      const bool is_fewer = num_bytes > 8 && !kind.is_asleep;
      options.round_trips = is_fewer ? kind.round_trips / 20 : kind.round_trips;
      options.kernels = &kernels;
      ASSIGN_OR_RETURN(const double us, bench::MeasureMessages(options));
      report.metrics.push_back({name, us, "us"});
    }
  }
  if (report.metrics.empty()) {
    return absl::InvalidArgumentError(StrCat("--filter ", filter, ": nothing matches"));
  }
  return report;
}

// How fast a job comes together.
absl::StatusOr<Report> RunLaunch(const Options& asked) {
  const std::regex pattern(asked.filter);
  Report report;
  for (const auto& [kind, listen] : {std::pair("tls", "127.0.0.1:0"), std::pair("unix", "")}) {
    for (const uint32_t num_agents : {256u, 4096u}) {
      const std::string name = StrCat("launch/", kind, "/", num_agents);
      if (!std::regex_search(name, pattern)) continue;
      bench::LaunchBenchOptions options;
      options.num_agents = num_agents;
      options.listen = listen;
      ASSIGN_OR_RETURN(const bench::LaunchFigures figures, bench::MeasureAgents(options));
      report.metrics.push_back({name + "/join", figures.join_s, "s"});
      report.metrics.push_back({name + "/stop", figures.stop_s, "s"});
      report.metrics.push_back({name + "/coordinator", figures.coordinator_cpu_us, "us/agent"});
      report.metrics.push_back({name + "/memory", figures.memory_bytes / 1024, "KiB/agent"});
    }
  }
  for (const uint32_t count : {1u, 8u, 64u}) {
    const std::string name = StrCat("launch/nodes/", count);
    if (!std::regex_search(name, pattern)) continue;
    ASSIGN_OR_RETURN(const double seconds,
                     bench::MeasureNodes(count, {"/proc/self/exe", "node", "--quiet"}));
    report.metrics.push_back({name, seconds, "s"});
  }
  if (report.metrics.empty()) {
    return absl::InvalidArgumentError(StrCat("--filter ", asked.filter, ": nothing matches"));
  }
  return report;
}

absl::StatusOr<Report> RunPlanner(const Options& options) {
  constexpr int64_t kNodes = 100000;
  const std::regex pattern(options.filter);
  Report report;
  const std::string propagation = StrCat("planner/propagate/", kNodes);
  if (std::regex_search(propagation, pattern)) {
    ASSIGN_OR_RETURN(const double seconds, bench::MeasurePropagation(kNodes));
    report.metrics.push_back({propagation, seconds, "s"});
  }
  const bench::PlanningCase cases[] = {
      {},
      {"gpt3-175b", {128, 8, 1}, 1536, 1},
      {"gpt3-125m", {2, 2, 2}, 64, 4},
      {"gpt3-125m", {128, 4, 2}, 4096, 4},
  };
  for (const bench::PlanningCase& planning : cases) {
    const std::string name = StrCat("planner/", planning.preset, "/", ToString(planning.strategy));
    if (!std::regex_search(name, pattern)) continue;
    ASSIGN_OR_RETURN(const bench::PlanningFigures figures, bench::MeasurePlanning(planning));
    report.metrics.push_back({name + "/build", figures.build_s, "s"});
    report.metrics.push_back({name + "/compile", figures.compile_s, "s"});
    report.metrics.push_back({name + "/file", static_cast<double>(figures.file_bytes), "B"});
    report.metrics.push_back({name + "/actors", static_cast<double>(figures.actors), "actors"});
    report.metrics.push_back({name + "/arena_over_live", figures.arena_over_live, "ratio"});
  }
  if (report.metrics.empty()) {
    return absl::InvalidArgumentError(StrCat("--filter ", options.filter, ": nothing matches"));
  }
  return report;
}

absl::StatusOr<Report> RunSimulator(const Options& options) {
  const std::regex pattern(options.filter);
  std::vector<bench::SimulatorCase> cases;
  std::vector<bench::SimulatorFigures> figures;
  Report report;
  for (const bench::SimulatorCase& simulated : bench::SimulatorCases()) {
    const std::string name = simulated.name();
    if (!std::regex_search(name, pattern)) continue;
    ASSIGN_OR_RETURN(const bench::SimulatorFigures measured, bench::MeasureSimulator(simulated));
    cases.push_back(simulated);
    figures.push_back(measured);
    report.metrics.push_back({name + "/devices", static_cast<double>(measured.devices), "1"});
    report.metrics.push_back(
        {name + "/fired_devices", static_cast<double>(measured.fired_devices), "1"});
    report.metrics.push_back({name + "/firings", static_cast<double>(measured.firings), "1"});
    report.metrics.push_back({name + "/simulate", measured.simulate_s, "s"});
    report.metrics.push_back({name + "/firing_rate", measured.firings_per_s(), "1/s"});
    report.metrics.push_back({name + "/actor_memory", measured.bytes_per_actor, "B"});
    report.metrics.push_back({name + "/step", measured.step_s, "s"});
  }
  if (figures.empty()) {
    return absl::InvalidArgumentError(StrCat("--filter ", options.filter, ": nothing matches"));
  }
  report.table = bench::SimulatorTable(cases, figures);
  return report;
}

constexpr Group kGroups[] = {
    {"actors", "engine overhead of acts in several shapes, and the wake-up of an executor",
     RunActors},
    {"collectives", "collectives between 2 and 4 processes", RunCollectives},
    {"kernels", "CPU kernels at the sizes of a small GPT", RunKernels},
    {"launch", "time for many agents, and for nodes of this host, to join a job", RunLaunch},
    {"messages", "one-way latency between actors on different devices", RunMessages},
    {"planner", "time to plan, and sizes of plans", RunPlanner},
    {"search", "search and estimates for large models on many devices", RunSearch},
    {"simulator", "firings a second and memory, from 8 to 100,000 devices", RunSimulator},
    {"transport", "messages between two processes, compared with ucx_perftest", RunTransport},
};

constexpr char kActorsHelp[] =
    R"(The shapes of `actors`, whose kernels do nothing; each from 100 to 1,000,000 actors:
  phase           one phase; actor i reads what i - 1 and i - 2 wrote
  communication   the same, while 4 receives and an all_reduce are under way
  stream          the same, launched on a device whose streams are asynchronous
  credits         a phase F and a phase B, 4 micro-batches; each F actor has a channel to a B actor
  chain           a phase for every actor, joined to the next by one register; 2 micro-batches

Metrics of each shape; an act is one firing of an actor:
  act                  busy time of the executor per act, in the fastest step
  step                 time from submission to the result, in the fastest step
  communication        busy time for starting and completing a step's communication, without which
                       `act` of that shape is
  allocations_per_act  allocations, without those of a step of 10 actors
Metrics of the wake-up of an executor, from the submission of a step of one act to its completion:
  wake/polling           median while the executor polls
  wake/polling_fastest   minimum while the executor polls
  wake/sleeping          median while the executor sleeps
  wake/sleeping_fastest  minimum while the executor sleeps
)";

std::string DescribeGroups() {
  std::string text;
  for (const Group& group : kGroups) {
    text += fmt::format("  {:16}{}\n", group.name, group.summary);
  }
  return text;
}

void List(const Environment& environment, bool is_json) {
  nlohmann::json names = nlohmann::json::array();
  for (const Group& group : kGroups) {
    if (is_json) {
      names.push_back(std::string(group.name));
    } else {
      environment.out << fmt::format("{:14}{}\n", group.name, group.summary);
    }
  }
  if (is_json) environment.out << DumpJson({{"items", names}}) << "\n";
}

absl::Status Bench(const Environment& environment, const Options& options) {
  if (options.is_list) {
    List(environment, options.is_json);
    return absl::OkStatus();
  }
  const Group* chosen = nullptr;
  std::vector<std::string_view> names;
  for (const Group& group : kGroups) {
    names.push_back(group.name);
    if (group.name == options.name) chosen = &group;
  }
  if (chosen == nullptr) {
    std::string message = options.name.empty() ? std::string("bench needs a NAME")
                                               : StrCat("unknown benchmark '", options.name, "'");
    return absl::InvalidArgumentError(StrCat(message, "; known: ", penstock::StrJoin(names, ", ")));
  }
  try {
    const std::regex checked(options.filter);
  } catch (const std::regex_error&) {
    return absl::InvalidArgumentError(
        StrCat("--filter ", options.filter, ": not a regular expression"));
  }
  if (!options.hosts.empty() && chosen->name != "collectives") {
    return absl::InvalidArgumentError(StrCat("--hosts goes with collectives, not ", chosen->name));
  }
  ASSIGN_OR_RETURN(const Report report, chosen->run(options));
  const std::vector<Metric>& metrics = report.metrics;
  if (!options.is_json && !report.table.empty()) {
    environment.out << report.table;
    return absl::OkStatus();
  }
  if (!options.is_json) {
    for (const Metric& metric : metrics) {
      environment.out << fmt::format("{:60} {:12.6g} {}\n", metric.name, metric.value, metric.unit);
    }
    return absl::OkStatus();
  }
  nlohmann::json values = nlohmann::json::object();
  nlohmann::json units = nlohmann::json::object();
  for (const Metric& metric : metrics) {
    values[metric.name] = metric.value;
    units[metric.name] = metric.unit;
  }
  environment.out << DumpJson({{"name", options.name}, {"metrics", values}, {"unit", units}})
                  << "\n";
  return absl::OkStatus();
}

}  // namespace

void AddBenchCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("bench", "Run benchmarks of Penstock on this machine.");
  std::string names;
  for (const Group& group : kGroups) names += StrCat(names.empty() ? "" : ", ", group.name);
  command->add_option("NAME", options->name, StrCat("Group of benchmarks: ", names));
  command
      ->add_option("--filter", options->filter,
                   "Run only benchmarks whose name matches this regular expression")
      ->option_text("REGEX");
  command
      ->add_option("--hosts", options->hosts,
                   "Network namespaces to spread the processes of `collectives` over, separated "
                   "by commas; bench/hosts creates them")
      ->option_text("NAMES");
  command->add_flag("--list", options->is_list, "List the groups");
  command->add_flag("--json", options->is_json,
                    "Print {name, metrics, unit}; with --list, {\"items\": [names]}");
  command->footer(StrCat("Groups:\n", DescribeGroups(), "\n", kActorsHelp));
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return Bench(environment, *options); };
  });
}

}  // namespace penstock::cli
