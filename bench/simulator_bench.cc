#include "bench/simulator_bench.h"

#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "fmt/format.h"

#include "base/device.h"
#include "base/format.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/models/model.h"
#include "graph/training.h"
#include "kernels/kernel.h"
#include "planner/cluster/presets.h"
#include "planner/compile.h"
#include "planner/policy/policy.h"
#include "planner/simulator/simulate_plan.h"
#include "planner/strategy/stages.h"

namespace penstock::bench {
namespace {

// A field of /proc/self/status, which the kernel gives in KiB; 0 where there is none.
uint64_t StatusBytes(std::string_view field) {
  std::ifstream status("/proc/self/status");
  for (std::string name; status >> name;) {
    uint64_t kib = 0;
    if (name == field && status >> kib) return kib << 10;
    std::getline(status, name);
  }
  return 0;
}

// Peak of the resident memory since the last call of Begin.
class PeakMemory {
 public:
  void Begin() {
    malloc_trim(0);  // what was freed before would be used again unseen
    std::ofstream("/proc/self/clear_refs") << "5";
    begin_bytes_ = StatusBytes("VmRSS:");
  }
  uint64_t GrownBytes() const {
    const uint64_t peak = StatusBytes("VmHWM:");
    return peak > begin_bytes_ ? peak - begin_bytes_ : 0;
  }

 private:
  uint64_t begin_bytes_ = 0;
};

}  // namespace

std::string SimulatorCase::name() const {
  return StrCat("simulator/", preset, "/", planner::ToString(strategy), "/",
                aggregates ? "aggregated" : "exact");
}

std::vector<SimulatorCase> SimulatorCases() {
  std::vector<SimulatorCase> cases;
  for (const int64_t dp : {2, 16, 128, 1024}) cases.push_back({"gpt3-125m", {dp, 2, 2}, 4, false});
  for (const int64_t dp : {2, 16, 128, 1024, 25000}) {
    cases.push_back({"gpt3-125m", {dp, 2, 2}, 4, true});
  }
  for (const bool aggregates : {true, false}) {
    cases.push_back({"gpt3-175b", {64, 8, 8}, 24, aggregates});
  }
  return cases;
}

absl::StatusOr<SimulatorFigures> MeasureSimulator(const SimulatorCase& simulated) {
  constexpr int64_t kDevicesOfNode = 8;
  const graph::OpRegistry ops = graph::BuiltinOps();
  const graph::ModelRegistry models = graph::BuiltinModels();
  const graph::Preset* preset = models.FindPreset(simulated.preset);
  if (preset == nullptr) {
    return absl::NotFoundError(StrCat("no preset '", simulated.preset, "'"));
  }
  const graph::Model* model = models.FindModel(preset->model);
  ASSIGN_OR_RETURN(graph::Graph forward,
                   graph::BuildModelGraph(ops, *model, preset->config, graph::ModelUse::kTrain,
                                          simulated.strategy.dp * simulated.microbatches));
  ASSIGN_OR_RETURN(graph::Graph graph, graph::BuildTrainingGraph(ops, std::move(forward), {}));
  RETURN_IF_ERROR(planner::ApplyStrategy(simulated.strategy, simulated.microbatches,
                                         model->tensor_splits, graph));
  RETURN_IF_ERROR(planner::AssignStages(simulated.strategy.num_stages(), graph));
  const planner::PolicyRegistry policies = planner::BuiltinPolicies();
  const kernels::KernelRegistry kernels = kernels::CpuKernels();
  const int64_t num_devices = simulated.strategy.num_devices();
  ASSIGN_OR_RETURN(planner::Cluster cluster,
                   planner::FindClusterPreset(
                       StrCat("hgx-h100:", (num_devices + kDevicesOfNode - 1) / kDevicesOfNode)));
  const planner::Machine machine = {std::move(cluster)};
  planner::CompileOptions options;
  options.policies = &policies;
  options.kernels = kernels::TraitsOf(kernels, 1);
  options.chunks_per_group = static_cast<int>(simulated.strategy.vpp);
  ASSIGN_OR_RETURN(const planner::FoldedPlan plan,
                   planner::CompileFolded(ops, std::move(graph), options));

  PeakMemory memory;
  memory.Begin();
  const SteadyClock clock;
  const int64_t begin_ns = clock.NowNs();
  planner::SimulationOptions simulation_options;
  simulation_options.aggregates = simulated.aggregates;
  ASSIGN_OR_RETURN(const planner::Simulation simulation,
                   planner::SimulatePlan(plan, ops, policies, machine, simulation_options));
  SimulatorFigures figures;
  figures.simulate_s = 1e-9 * static_cast<double>(clock.NowNs() - begin_ns);
  figures.devices = plan.num_devices();
  figures.fired_devices = simulation.num_fired_devices;
  figures.fired_actors = simulation.num_fired_actors;
  figures.firings = simulation.firings;
  figures.bytes_per_actor =
      static_cast<double>(memory.GrownBytes()) / static_cast<double>(figures.fired_actors);
  figures.step_s = simulation.step_s;
  return figures;
}

std::string SimulatorTable(const std::vector<SimulatorCase>& cases,
                           const std::vector<SimulatorFigures>& figures) {
  std::string text =
      fmt::format("{:46} {:>8} {:>7} {:>12} {:>9} {:>11} {:>9} {:>9}\n", "", "devices", "fired",
                  "firings", "seconds", "firings/s", "B/actor", "step");
  for (size_t i = 0; i < figures.size(); ++i) {
    const SimulatorFigures& of_case = figures[i];
    text += fmt::format("{:46} {:>8} {:>7} {:>12} {:>9.3f} {:>11.3g} {:>9.0f} {:>9}\n",
                        cases[i].name().substr(std::string_view("simulator/").size()),
                        of_case.devices, of_case.fired_devices, of_case.firings, of_case.simulate_s,
                        of_case.firings_per_s(), of_case.bytes_per_actor,
                        FormatSeconds(of_case.step_s));
  }
  return text;
}

}  // namespace penstock::bench
