// penstock simulate: a step of a plan in virtual time, on machines that need not be at hand.

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/environment.h"
#include "cli/files.h"
#include "cli/job.h"
#include "cli/job_graph.h"
#include "cli/job_machine.h"
#include "cli/job_policy.h"
#include "cli/option_checks.h"
#include "cli/trace_file.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "actors/trace/trace.h"
#include "base/counted.h"
#include "base/format.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/plan_io.h"
#include "planner/simulator/simulate_plan.h"

namespace penstock::cli {
namespace {

struct Options {
  std::string file;
  std::vector<std::string> overrides;
  std::string strategy;
  std::string policy;
  std::optional<int64_t> devices;
  std::string cluster;
  std::string trace;
  std::string svg;
  bool is_json = false;
};

struct Simulated {
  planner::Plan plan;
  planner::Machine machine;
};

absl::StatusOr<Simulated> ReadPlanFile(const Options& options) {
  for (const auto& [option, value] :
       {std::pair("--strategy", options.strategy), std::pair("--policy", options.policy)}) {
    if (value.empty()) continue;
    return absl::InvalidArgumentError(
        StrCat(option, " ", value, ": a plan is simulated as it was compiled"));
  }
  if (!options.overrides.empty() || options.devices.has_value()) {
    return absl::InvalidArgumentError("--set and --devices go with a job, not with a plan");
  }
  ASSIGN_OR_RETURN(planner::Plan plan, planner::ReadPlan(options.file));
  Job job;
  job.cluster.file = options.cluster;
  job.locations["cluster.file"] = StrCat("--cluster ", options.cluster);
  ASSIGN_OR_RETURN(planner::Machine machine,
                   MachineOf(job, static_cast<int64_t>(plan.devices.size())));
  return Simulated{std::move(plan), std::move(machine)};
}

absl::StatusOr<Simulated> CompileJob(const Environment& environment, const Options& options) {
  ASSIGN_OR_RETURN(Job job, ReadJob(options.file, options.overrides, options.cluster));
  if (!options.strategy.empty()) {
    job.parallel.strategy = options.strategy;
    job.locations["parallel.strategy"] = StrCat("--strategy ", options.strategy);
  }
  OverridePolicy(options.policy, &job);
  if (options.devices.has_value()) {
    job.cluster.devices = *options.devices;
    job.locations["cluster.devices"] = StrCat("--devices ", *options.devices);
  }
  ASSIGN_OR_RETURN(JobGraph graph, BuildJobGraph(environment.registries, job));
  environment.err << graph.notes;
  const CompileSettings settings = SettingsOf(job, graph);
  ASSIGN_OR_RETURN(planner::Plan plan,
                   CompileGraph(environment.registries, std::move(graph.graph), settings));
  ASSIGN_OR_RETURN(planner::Machine machine, MachineOf(job, graph.num_devices));
  return Simulated{std::move(plan), std::move(machine)};
}

// As executors record them.
std::vector<actors::TraceEvent> TraceOf(const planner::Simulation& simulation) {
  const auto to_ns = [](double seconds) { return std::llround(1e9 * seconds); };
  std::vector<actors::TraceEvent> events;
  events.reserve(simulation.events.size());
  for (const planner::SimulatedEvent& event : simulation.events) {
    actors::TraceEvent& to = events.emplace_back();
    to.device = event.device;
    to.actor = event.actor;
    to.phase = event.phase;
    to.microbatch = event.microbatch;
    to.step = event.step;
    to.begin_ns = to_ns(event.begin_s);
    to.end_ns = to_ns(event.end_s);
  }
  return events;
}

absl::Status WritePictures(const Options& options, const Simulated& simulated,
                           const planner::Simulation& simulation) {
  const std::vector<actors::TraceEvent> events = TraceOf(simulation);
  if (!options.trace.empty()) {
    RETURN_IF_ERROR(WriteTraceFile(options.trace, simulated.plan, events, {}));
  }
  if (!options.svg.empty()) {
    std::ostringstream text;
    const int64_t begin_ns = std::llround(1e9 * simulation.begin_s);
    const int64_t end_ns = std::llround(1e9 * (simulation.begin_s + simulation.step_s));
    actors::WriteTimelineSvg(simulated.plan, events, {simulation.step, begin_ns, end_ns}, text);
    RETURN_IF_ERROR(WriteTextFile(options.svg, text.str()));
  }
  return absl::OkStatus();
}

absl::Status Simulate(const Environment& environment, const Options& options) {
  RETURN_IF_ERROR(CheckWritable(options.trace));
  RETURN_IF_ERROR(CheckWritable(options.svg));
  absl::StatusOr<Simulated> made =
      HasSuffix(options.file, ".plan") ? ReadPlanFile(options) : CompileJob(environment, options);
  ASSIGN_OR_RETURN(const Simulated simulated, std::move(made));
  const SteadyClock clock;
  const int64_t begin_ns = clock.NowNs();
  planner::SimulationOptions simulation_options;
  simulation_options.keeps_events = !options.trace.empty() || !options.svg.empty();
  ASSIGN_OR_RETURN(const planner::Simulation simulation,
                   planner::SimulatePlan(simulated.plan, environment.registries.ops,
                                         environment.registries.policies, simulated.machine,
                                         simulation_options));
  const double wall_s = 1e-9 * static_cast<double>(clock.NowNs() - begin_ns);
  RETURN_IF_ERROR(WritePictures(options, simulated, simulation));
  if (options.is_json) {
    std::vector<uint64_t> memory;
    for (const planner::DevicePlan& device : simulated.plan.devices) {
      memory.push_back(device.arena_bytes);
    }
    environment.out << nlohmann::json{{"strategy", simulated.plan.strategy},
                                      {"step_time_s", simulation.step_s},
                                      {"mfu", simulation.mfu},
                                      {"bubble", simulation.bubble()},
                                      {"exposed_comm_s", simulation.exposed_comm_s()},
                                      {"peak_memory_bytes", memory},
                                      {"events", simulation.firings},
                                      {"wall_s", wall_s}}
                           .dump()
                    << "\n";
    return absl::OkStatus();
  }
  uint64_t most_memory = 0;
  for (const planner::DevicePlan& device : simulated.plan.devices) {
    most_memory = std::max(most_memory, device.arena_bytes);
  }
  environment.out << fmt::format(
      "{}, {} on {}: step {} ({:.1f} % of the peak rate)\n"
      "exposed communication {}, bubble {:.1f} %, up to {} a device\n"
      "simulated {} in {} ({:.3g} a second)\n",
      simulated.plan.name, simulated.plan.strategy,
      Counted(static_cast<int64_t>(simulated.plan.devices.size()), "device"),
      FormatSeconds(simulation.step_s), 100 * simulation.mfu,
      FormatSeconds(simulation.exposed_comm_s()), 100 * simulation.bubble(),
      FormatBytes(most_memory), Counted(static_cast<int64_t>(simulation.firings), "firing"),
      FormatSeconds(wall_s), static_cast<double>(simulation.firings) / wall_s);
  return absl::OkStatus();
}

}  // namespace

void AddSimulateCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "simulate", "Simulate a step of a job or plan on this machine or a cluster.");
  command->add_option("FILE", options->file, "Job (.toml) or plan (.plan)")->required();
  command
      ->add_option("--set", options->overrides,
                   "Override a key of the job; VALUE is in TOML syntax. May be repeated")
      ->option_text("KEY=VALUE")
      ->allow_extra_args(false);
  command
      ->add_option("--strategy", options->strategy,
                   "Override parallel.strategy: auto, or axis sizes such as dp=2,tp=2,pp=1")
      ->option_text("STRATEGY");
  command
      ->add_option("--policy", options->policy,
                   "Override parallel.schedule: a policy of `penstock list policies`, a file with "
                   "orders (.csv), or a plug-in library (.so)")
      ->option_text("NAME|FILE");
  command->add_option("--devices", options->devices, "Override cluster.devices")
      ->option_text("N")
      ->check(AtLeast(1));
  command
      ->add_option("--cluster", options->cluster,
                   "Cluster to simulate: a preset (`penstock list clusters`) or a file that "
                   "describes one (this machine)")
      ->option_text("PRESET|FILE");
  command
      ->add_option("--trace", options->trace,
                   "Write a Perfetto trace of the simulated steps (F.json: a Chrome trace)")
      ->option_text("FILE");
  command->add_option("--svg", options->svg, "Draw the described step")->option_text("FILE");
  command->add_flag("--json", options->is_json, "Print the figures as one JSON object");
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return Simulate(environment, *options); };
  });
}

}  // namespace penstock::cli
