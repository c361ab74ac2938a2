// penstock bench: runs a group of measurements and prints their numbers.

#include <memory>
#include <regex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "benchmark/benchmark.h"
#include "cli/bench_groups.h"
#include "cli/environment.h"
#include "cli/json.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "base/strings.h"
#include "bench/kernels_bench.h"
#include "bench/launch_bench.h"
#include "bench/planner_bench.h"
#include "bench/search_bench.h"
#include "bench/simulator_bench.h"

namespace penstock::cli {
namespace {

// A group measures what matches `filter`, a regular expression over the names of its metrics.
struct Group {
  std::string_view name;
  std::string_view summary;
  absl::StatusOr<BenchReport> (*run)(const BenchOptions& options);
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

  const std::vector<BenchMetric>& metrics() const { return metrics_; }
  const std::vector<std::string>& errors() const { return errors_; }

 private:
  std::vector<BenchMetric> metrics_;
  std::vector<std::string> errors_;
};

// Benchmarks that were registered with names under "GROUP/".
absl::StatusOr<BenchReport> RunRegistered(std::string_view group, const std::string& filter) {
  Collector collector;
  const size_t matched =
      benchmark::RunSpecifiedBenchmarks(&collector, StrCat("^", group, "/.*", filter));
  if (!collector.errors().empty()) return absl::InternalError(collector.errors()[0]);
  if (matched == 0) {
    return absl::InvalidArgumentError(StrCat("--filter ", filter, ": nothing matches"));
  }
  return BenchReport{collector.metrics(), ""};
}

absl::StatusOr<BenchReport> RunKernels(const BenchOptions& options) {
  bench::RegisterKernelBenchmarks();
  return RunRegistered("kernels", options.filter);
}

absl::StatusOr<BenchReport> RunSearch(const BenchOptions& options) {
  bench::RegisterSearchBenchmarks();
  return RunRegistered("search", options.filter);
}

// How fast a job comes together.
absl::StatusOr<BenchReport> RunLaunch(const BenchOptions& asked) {
  const std::regex pattern(asked.filter);
  BenchReport report;
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
  for (const auto& [kind, listen] : {std::pair("", ""), std::pair("tls/", "127.0.0.1:0")}) {
    for (const uint32_t count : {1u, 8u, 64u}) {
      const std::string name = StrCat("launch/nodes/", kind, count);
      if (!std::regex_search(name, pattern)) continue;
      ASSIGN_OR_RETURN(const double seconds,
                       bench::MeasureNodes(count, {"/proc/self/exe", "node", "--quiet"}, listen));
      report.metrics.push_back({name, seconds, "s"});
    }
  }
  if (report.metrics.empty()) {
    return absl::InvalidArgumentError(StrCat("--filter ", asked.filter, ": nothing matches"));
  }
  return report;
}

absl::StatusOr<BenchReport> RunPlanner(const BenchOptions& options) {
  constexpr int64_t kNodes = 100000;
  const std::regex pattern(options.filter);
  BenchReport report;
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
      {"resnet18", {64, 1, 1}, 4096, 1},
      {"resnet18", {8, 2, 2}, 1024, 8},
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

absl::StatusOr<BenchReport> RunSimulator(const BenchOptions& options) {
  const std::regex pattern(options.filter);
  std::vector<bench::SimulatorCase> cases;
  std::vector<bench::SimulatorFigures> figures;
  BenchReport report;
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
     BenchActors},
    {"collectives", "collectives between 2 and 4 processes", BenchCollectives},
    {"kernels", "CPU kernels at the sizes of a small GPT", RunKernels},
    {"launch", "time for many agents, and for nodes of this host, to join a job", RunLaunch},
    {"messages", "one-way latency between actors on different devices", BenchMessages},
    {"planner", "time to plan, and sizes of plans", RunPlanner},
    {"search", "search and estimates for large models on many devices", RunSearch},
    {"simulator", "firings a second and memory, from 8 to 100,000 devices", RunSimulator},
    {"transport", "messages between two processes, compared with ucx_perftest", BenchTransport},
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
  communication        of the busy time of a step, what starting and completing its communication
                       takes: 4 receives, an all_reduce and a send
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

absl::Status Bench(const Environment& environment, const BenchOptions& options) {
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
  ASSIGN_OR_RETURN(const BenchReport report, chosen->run(options));
  const std::vector<BenchMetric>& metrics = report.metrics;
  if (!options.is_json && !report.table.empty()) {
    environment.out << report.table;
    return absl::OkStatus();
  }
  if (!options.is_json) {
    for (const BenchMetric& metric : metrics) {
      environment.out << fmt::format("{:60} {:12.6g} {}\n", metric.name, metric.value, metric.unit);
    }
    return absl::OkStatus();
  }
  nlohmann::json values = nlohmann::json::object();
  nlohmann::json units = nlohmann::json::object();
  for (const BenchMetric& metric : metrics) {
    values[metric.name] = metric.value;
    units[metric.name] = metric.unit;
  }
  environment.out << DumpJson({{"name", options.name}, {"metrics", values}, {"unit", units}})
                  << "\n";
  return absl::OkStatus();
}

}  // namespace

void AddBenchCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<BenchOptions>();
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
