// penstock simulate: a step of a plan, or of Chakra traces, in virtual time, on machines that need
// not be at hand.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "cli/checkpoint_copy.h"
#include "cli/compile_job.h"
#include "cli/environment.h"
#include "cli/explain.h"
#include "cli/files.h"
#include "cli/job.h"
#include "cli/job_graph.h"
#include "cli/job_machine.h"
#include "cli/job_policy.h"
#include "cli/json.h"
#include "cli/option_checks.h"
#include "cli/simulated_trace.h"
#include "cli/trace_file.h"
#include "cli/verified_plan.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "actors/trace/trace.h"
#include "base/counted.h"
#include "base/format.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/chakra/read_chakra.h"
#include "planner/chakra/simulate_chakra.h"
#include "planner/chakra/write_chakra.h"
#include "planner/cluster/cluster_model.h"
#include "planner/cost/kernel_cost.h"
#include "planner/plan/check_folded_plan.h"
#include "planner/plan/folded_plan.h"
#include "planner/simulator/simulate_plan.h"

namespace penstock::cli {
namespace {

struct SimulateOptions {
  std::string file;
  std::vector<std::string> overrides;
  std::string strategy;
  std::string policy;
  std::optional<int64_t> devices;
  std::string cluster;
  std::string trace;
  std::string svg;
  std::string chakra;
  std::string chakra_ranks = "all";
  int64_t chakra_steps = 1;
  bool aggregates = false;
  bool is_json = false;
};

struct Simulated {
  planner::FoldedPlan plan;
  planner::Machine machine;
  planner::PolicyRegistry policies;
};

// What only a job can have.
absl::Status CheckNoJobOptions(const SimulateOptions& options, std::string_view file) {
  for (const auto& [option, value] :
       {std::pair<std::string, std::string>("--strategy", options.strategy),
        std::pair<std::string, std::string>("--policy", options.policy)}) {
    if (value.empty()) continue;
    return absl::InvalidArgumentError(
        StrCat(option, " ", value, ": ", file,
               " is simulated as it is; simulate its job with another ", option.substr(2)));
  }
  if (options.overrides.empty() && !options.devices.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("--set and --devices go with a job, not with ", file));
}

absl::StatusOr<planner::Machine> MachineOfFile(const SimulateOptions& options,
                                               int64_t num_devices) {
  Job job;
  job.cluster.file = options.cluster;
  job.locations["cluster.file"] = StrCat("--cluster ", options.cluster);
  return MachineOf(job, num_devices);
}

absl::StatusOr<Simulated> ReadPlanFile(const Environment& environment,
                                       const SimulateOptions& options) {
  RETURN_IF_ERROR(CheckNoJobOptions(options, "a plan"));
  ASSIGN_OR_RETURN(planner::FoldedPlan plan,
                   ReadVerifiedFoldedPlan(options.file, environment.registries.policies));
  RETURN_IF_ERROR(planner::CheckKernelTiles(environment.registries.ops,
                                            plan.is_folded() ? plan.kernels : plan.common.kernels));
  ASSIGN_OR_RETURN(planner::Machine machine, MachineOfFile(options, plan.num_devices()));
  environment.err << MemoryNote(machine, plan);
  return Simulated{std::move(plan), std::move(machine), environment.registries.policies};
}

absl::StatusOr<Simulated> CompileJob(const Environment& environment,
                                     const SimulateOptions& options) {
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
  ASSIGN_OR_RETURN(planner::FoldedPlan plan,
                   CompileFoldedGraph(environment.registries, std::move(graph.graph), settings));
  ASSIGN_OR_RETURN(planner::Machine machine, MachineOf(job, graph.num_devices));
  ASSIGN_OR_RETURN(const CheckpointCopies copies, CheckpointCopiesOf(job, plan));
  environment.err << MemoryNote(machine, plan, copies);
  return Simulated{std::move(plan), std::move(machine), std::move(graph.policies)};
}

absl::Status WritePictures(const SimulateOptions& options, const Simulated& simulated,
                           const planner::Simulation& simulation) {
  if (options.trace.empty() && options.svg.empty()) return absl::OkStatus();
  if (simulated.plan.is_folded()) RETURN_IF_ERROR(planner::CheckExpandedSize(simulated.plan));
  ASSIGN_OR_RETURN(const planner::Plan plan, planner::ExpandPlan(simulated.plan));
  const std::vector<actors::TraceEvent> events = TraceOf(simulation.events);
  if (!options.trace.empty()) RETURN_IF_ERROR(WriteTraceFile(options.trace, plan, events, {}));
  if (!options.svg.empty()) {
    std::ostringstream text;
    const int64_t begin_ns = std::llround(1e9 * simulation.begin_s);
    const int64_t end_ns = std::llround(1e9 * (simulation.begin_s + simulation.step_s));
    actors::WriteTimelineSvg(plan, events, {simulation.step, begin_ns, end_ns}, text);
    RETURN_IF_ERROR(WriteTextFile(options.svg, text.str()));
  }
  return absl::OkStatus();
}

// "all", "programs", or ranks such as "0,8".
absl::StatusOr<planner::ChakraOptions> ChakraOptionsOf(const SimulateOptions& options) {
  planner::ChakraOptions chakra;
  chakra.num_steps = static_cast<uint32_t>(options.chakra_steps);
  chakra.one_of_each_program = options.chakra_ranks == "programs";
  if (chakra.one_of_each_program || options.chakra_ranks == "all") return chakra;
  for (const auto& text : absl::StrSplit(options.chakra_ranks, ',')) {
    uint32_t rank = 0;
    if (!absl::SimpleAtoi(text, &rank)) {
      return absl::InvalidArgumentError(StrCat("--chakra-ranks ", options.chakra_ranks, ": '",
                                               ToStd(text),
                                               "' is no rank; expected all, programs, or ranks "
                                               "such as 0,8"));
    }
    chakra.ranks.push_back(rank);
  }
  return chakra;
}

absl::Status CheckRanks(const SimulateOptions& options, const planner::ChakraOptions& chakra,
                        const planner::FoldedPlan& plan) {
  for (const uint32_t rank : chakra.ranks) {
    if (rank < plan.num_devices()) continue;
    return absl::InvalidArgumentError(StrCat(
        "--chakra-ranks ", options.chakra_ranks, ": there is no rank ", rank, ": the plan has ",
        Counted(int64_t{plan.num_devices()}, "rank"), ", numbered from 0"));
  }
  return absl::OkStatus();
}

// Traces in a folder instead of a plan.
absl::Status SimulateTraces(const Environment& environment, const SimulateOptions& options) {
  const std::string what = StrCat(options.file, ", a folder of Chakra traces,");
  RETURN_IF_ERROR(CheckNoJobOptions(options, what));
  if (options.aggregates || !options.trace.empty() || !options.svg.empty() ||
      !options.chakra.empty()) {
    return absl::InvalidArgumentError(
        StrCat("--aggregate, --trace, --svg and --chakra go with a job or a plan, not with ", what,
               " whose step times alone are printed"));
  }
  const SteadyClock clock;
  const int64_t begin_ns = clock.NowNs();
  ASSIGN_OR_RETURN(const planner::ChakraTraces traces, planner::ReadChakra(options.file));
  ASSIGN_OR_RETURN(const planner::Machine machine, MachineOfFile(options, traces.num_ranks));
  ASSIGN_OR_RETURN(const planner::ChakraSimulation simulation,
                   planner::SimulateChakra(traces, machine));
  const double wall_s = 1e-9 * static_cast<double>(clock.NowNs() - begin_ns);
  if (options.is_json) {
    environment.out << DumpJson({{"step_time_s", simulation.step_s},
                                 {"total_time_s", simulation.total_s},
                                 {"steps", simulation.num_steps},
                                 {"bubble", simulation.bubble()},
                                 {"exposed_comm_s", simulation.exposed_comm_s()},
                                 {"ranks", traces.num_ranks},
                                 {"traces", traces.ranks.size()},
                                 {"events", traces.nodes.size()},
                                 {"wall_s", wall_s}})
                    << "\n";
    return absl::OkStatus();
  }
  environment.out << fmt::format(
      "{}: {}, {}: step {}\n"
      "exposed communication {}, bubble {:.1f} %\n"
      "simulated {} in {} ({:.3g} a second)\n",
      options.file, Counted(int64_t{traces.num_ranks}, "rank"),
      Counted(static_cast<int64_t>(traces.ranks.size()), "trace"), FormatSeconds(simulation.step_s),
      FormatSeconds(simulation.exposed_comm_s()), 100 * simulation.bubble(),
      Counted(static_cast<int64_t>(traces.nodes.size()), "node"), FormatSeconds(wall_s),
      static_cast<double>(traces.nodes.size()) / wall_s);
  return absl::OkStatus();
}

absl::Status Simulate(const Environment& environment, const SimulateOptions& options) {
  if (std::filesystem::is_directory(options.file)) return SimulateTraces(environment, options);
  RETURN_IF_ERROR(CheckWritable(options.trace));
  RETURN_IF_ERROR(CheckWritable(options.svg));
  RETURN_IF_ERROR(CheckCreatable(options.chakra));
  if (!options.trace.empty() && options.trace == options.svg) {
    return absl::InvalidArgumentError(
        StrCat("--trace and --svg both write ", options.trace, "; expected two files"));
  }
  if (options.aggregates && !(options.trace.empty() && options.svg.empty())) {
    return absl::InvalidArgumentError(
        "--aggregate goes without --trace and --svg, which show every device");
  }
  ASSIGN_OR_RETURN(const planner::ChakraOptions chakra_options, ChakraOptionsOf(options));
  absl::StatusOr<Simulated> made = HasSuffix(options.file, ".plan")
                                       ? ReadPlanFile(environment, options)
                                       : CompileJob(environment, options);
  ASSIGN_OR_RETURN(const Simulated simulated, std::move(made));
  const planner::FoldedPlan& plan = simulated.plan;
  RETURN_IF_ERROR(CheckRanks(options, chakra_options, plan));
  const SteadyClock clock;
  const int64_t begin_ns = clock.NowNs();
  planner::SimulationOptions simulation_options;
  simulation_options.keeps_events = !options.trace.empty() || !options.svg.empty();
  simulation_options.aggregates = options.aggregates;
  ASSIGN_OR_RETURN(const planner::Simulation simulation,
                   planner::SimulatePlan(plan, environment.registries.ops, simulated.policies,
                                         simulated.machine, simulation_options));
  const double wall_s = 1e-9 * static_cast<double>(clock.NowNs() - begin_ns);
  RETURN_IF_ERROR(WritePictures(options, simulated, simulation));
  planner::ChakraFiles chakra;
  if (!options.chakra.empty()) {
    RETURN_IF_ERROR(CreateFolder(options.chakra));
    ASSIGN_OR_RETURN(chakra,
                     planner::WriteChakra(plan, simulation.stage_orders, environment.registries.ops,
                                          simulated.machine, chakra_options, options.chakra));
  }
  if (options.is_json) {
    std::vector<uint64_t> memory;
    for (uint32_t d = 0; d < plan.num_devices(); ++d) {
      memory.push_back(plan.ProgramOnDevice(d).arena_bytes);
    }
    nlohmann::json json = {{"strategy", plan.common.strategy},
                           {"step_time_s", simulation.step_s},
                           {"mfu", simulation.mfu},
                           {"hfu", simulation.hfu},
                           {"bubble", simulation.bubble()},
                           {"exposed_comm_s", simulation.exposed_comm_s()},
                           {"peak_memory_bytes", memory},
                           {"events", simulation.firings},
                           {"simulated_devices", simulation.num_fired_devices},
                           {"wall_s", wall_s}};
    if (!options.chakra.empty()) {
      json["chakra"] = {{"traces", chakra.num_traces},
                        {"groups", chakra.num_groups},
                        {"nodes", chakra.num_nodes},
                        {"bytes", chakra.num_bytes}};
    }
    environment.out << DumpJson(json) << "\n";
    return absl::OkStatus();
  }
  uint64_t most_memory = 0;
  for (uint32_t d = 0; d < plan.num_devices(); ++d) {
    most_memory = std::max(most_memory, plan.ProgramOnDevice(d).arena_bytes);
  }
  environment.out << fmt::format(
      "{}, {} on {}: step {} ({:.1f} % of the peak rate)\n"
      "exposed communication {}, bubble {:.1f} %, up to {} a device\n"
      "simulated {}{} in {} ({:.3g} a second)\n",
      plan.common.name, plan.common.strategy,
      Counted(static_cast<int64_t>(plan.num_devices()), "device"), FormatSeconds(simulation.step_s),
      100 * simulation.mfu, FormatSeconds(simulation.exposed_comm_s()), 100 * simulation.bubble(),
      FormatBytes(most_memory), Counted(static_cast<int64_t>(simulation.firings), "firing"),
      options.aggregates ? StrCat(" of ", Counted(int64_t{simulation.num_fired_devices}, "device"),
                                  " that stand for all")
                         : std::string(),
      FormatSeconds(wall_s), static_cast<double>(simulation.firings) / wall_s);
  if (options.chakra.empty()) return absl::OkStatus();
  environment.out << fmt::format(
      "wrote {} of {} ({}) and {} to {}\n",
      Counted(static_cast<int64_t>(chakra.num_traces), "Chakra trace"),
      Counted(static_cast<int64_t>(chakra.num_nodes), "node"), FormatBytes(chakra.num_bytes),
      Counted(static_cast<int64_t>(chakra.num_groups), "communicator group"), options.chakra);
  return absl::OkStatus();
}

}  // namespace

void AddSimulateCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<SimulateOptions>();
  CLI::App* command = app.add_subcommand(
      "simulate", "Simulate a step of a job, a plan or Chakra traces on a cluster.");
  command
      ->add_option("FILE", options->file,
                   "Job (.toml), plan (.plan), or folder of Chakra traces, NAME.RANK.et")
      ->required();
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
      ->check(AtLeast(1))
      ->check(CLI::Range(int64_t{1}, planner::kMaxClusterDevices));
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
  command->add_flag("--aggregate", options->aggregates,
                    "Simulate one device of each class of identical devices");
  CLI::Option* chakra =
      command
          ->add_option(
              "--chakra", options->chakra,
              "Write Chakra execution traces and communicator groups of the plan here, which "
              "`simulate` and ASTRA-sim read")
          ->option_text("DIR");
  command
      ->add_option("--chakra-ranks", options->chakra_ranks,
                   "Ranks that get a trace: all, programs (the first of each program, and those "
                   "with which it exchanges messages), or ranks such as 0,8 (all)")
      ->option_text("RANKS")
      ->needs(chakra);
  command->add_option("--chakra-steps", options->chakra_steps, "Steps in a trace (1)")
      ->option_text("N")
      ->check(CLI::Range(1, 1000))
      ->needs(chakra);
  command->add_flag("--json", options->is_json, "Print the figures as one JSON object");
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return Simulate(environment, *options); };
  });
}

}  // namespace penstock::cli
