#include "planner/search/split_by_cost.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/search/alike_nodes.h"
#include "planner/search/choose_shardings.h"
#include "planner/sharding/execution_sharding.h"
#include "planner/sharding/propagate.h"
#include "planner/strategy/offload.h"
#include "planner/strategy/recompute.h"
#include "planner/strategy/stated_shardings.h"
#include "planner/strategy/zero.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::Graph;
using graph::Mesh;
using graph::NodeId;
using graph::Sharding;
using graph::ValueId;

// What is left of a device's memory for workspaces and communication.
constexpr double kForOtherUses = 0.1;
// The copy of a layer that stands for those that are left out.
constexpr int kMiddleCopy = 1;

// The axes that are kept, with their new numbers.
std::vector<AxisRef> Renumber(const std::vector<AxisRef>& axes, const std::vector<int>& numbers) {
  std::vector<AxisRef> kept;
  for (AxisRef axis : axes) {
    axis.axis = numbers[static_cast<size_t>(axis.axis)];
    if (axis.axis >= 0) kept.push_back(axis);
  }
  return kept;
}

// The graph as all of its micro-batches at once. `numbers`: by axis, its number afterwards; -1 if
// it is temporal.
Graph WithoutMicrobatches(Graph graph, std::vector<int>* numbers) {
  const Mesh mesh = graph.meshes()[0];
  Mesh& spatial = graph.mutable_meshes()[0];
  spatial.axes.clear();
  for (const graph::MeshAxis& axis : mesh.axes) {
    numbers->push_back(axis.is_temporal ? -1 : static_cast<int>(spatial.axes.size()));
    if (!axis.is_temporal) spatial.axes.push_back(axis);
  }
  for (ValueId value = 0; value < graph.num_values(); ++value) {
    Sharding sharding = ClosedSharding(mesh, graph.value(value));
    for (graph::DimSharding& dim : sharding.dims) dim.axes = Renumber(dim.axes, *numbers);
    std::vector<graph::PartialSpec> partials = std::move(sharding.partials);
    sharding.partials.clear();
    for (graph::PartialSpec& partial : partials) {
      partial.axes = Renumber(partial.axes, *numbers);
      if (!partial.axes.empty()) sharding.partials.push_back(std::move(partial));
    }
    graph.mutable_value(value).sharding = std::move(sharding);
  }
  return graph;
}

double PartsOf(const Sharding& sharding) {
  double parts = 1;
  for (const graph::DimSharding& dim : sharding.dims) {
    parts *= static_cast<double>(graph::NumParts(dim));
  }
  return parts;
}

// Whether each device has memory of its own, beside that of its host.
bool HasHostLinks(const Machine& machine) {
  const std::vector<DeviceKind>& kinds = machine.cluster.spec().kinds;
  return std::all_of(kinds.begin(), kinds.end(), HasHostLink);
}

// By value, the share of its tile that a device keeps: what zero divides over replicas is not split
// yet, and what goes to the host takes nothing of a device with memory of its own.
absl::StatusOr<std::vector<double>> KeptShares(int zero, const Machine& machine, const Graph& graph,
                                               const Graph& propagated) {
  const Mesh& mesh = graph.meshes()[0];
  std::vector<double> shares(static_cast<size_t>(graph.num_values()), 1);
  Graph divided = graph;
  if (zero > 0) RETURN_IF_ERROR(SplitOverReplicas(zero, divided));
  const bool has_host_links = HasHostLinks(machine);
  for (ValueId value = 0; value < graph.num_values(); ++value) {
    double& share = shares[static_cast<size_t>(value)];
    if (has_host_links && GoesToHost(graph, value)) share = 0;
    const std::optional<Sharding>& sharding = divided.value(value).sharding;
    if (zero == 0 || !sharding.has_value()) continue;
    // Sums over micro-batches are scattered at the end of the step.
    const bool is_state = graph.node(graph.value(value).producer).op->has_declared_type();
    if (!is_state && zero == 1 && mesh.num_microbatches() > 1) continue;
    const double before = PartsOf(ClosedSharding(mesh, propagated.value(value)));
    share *= std::min(1.0, before / PartsOf(*sharding));
  }
  return shares;
}

// Of each copy of a layer, over all runs, the layers of the model that it stands for.
std::vector<int> TimesOfCopies(const SplitOptions& options) {
  std::vector<int> times;
  for (size_t r = 0; r < options.runs.size(); ++r) {
    const int num_copies = options.runs[r].num_copies;
    const int num_layers = r < options.num_layers.size() ? options.num_layers[r] : num_copies;
    for (int copy = 0; copy < num_copies; ++copy) {
      times.push_back(copy == kMiddleCopy ? 1 + std::max(num_layers - num_copies, 0) : 1);
    }
  }
  return times;
}

// What a device of each group has, in all: of each group, that of the least.
double MemoryOf(const Machine& machine, int num_groups, int64_t devices_per_group) {
  double bytes = 0;
  for (int64_t group = 0; group < num_groups; ++group) {
    int64_t least = std::numeric_limits<int64_t>::max();
    for (int64_t d = 0; d < devices_per_group; ++d) {
      const int64_t device = group * devices_per_group + d;
      least = std::min(least, machine.cluster.KindOf(device).memory_bytes);
    }
    bytes += static_cast<double>(least);
  }
  return bytes;
}

}  // namespace

absl::Status SplitByCost(const Strategy& strategy, const SplitOptions& options, Graph& graph) {
  Graph propagated = graph;
  RETURN_IF_ERROR(Propagate(PropagationLevel::kUserPriority, &propagated));
  const Mesh mesh = graph.meshes()[0];
  std::vector<int> numbers;
  const Graph whole_batch = WithoutMicrobatches(propagated, &numbers);
  const int tp = mesh.FindAxis("tp");
  const AxisRef spatial_axis =
      graph::WholeAxis(whole_batch.meshes()[0], numbers[static_cast<size_t>(tp)]);

  ShardingProblem problem;
  problem.graph = &whole_batch;
  problem.free_axes = {spatial_axis.axis};
  problem.machine = options.machine;
  problem.num_groups = options.num_groups;
  const std::vector<bool> is_stated = HaveStatedShardings(options.hints, graph);
  for (ValueId value = 0; value < graph.num_values(); ++value) {
    const graph::Node& producer = graph.node(graph.value(value).producer);
    problem.is_fixed.push_back(producer.op->role() == graph::OpRole::kInput ||
                               is_stated[static_cast<size_t>(value)]);
    // What dp and cp split is theirs, and parts of a micro-batch may be single sequences.
    std::vector<bool>& dims = problem.fixed_dims.emplace_back();
    for (const graph::DimSharding& dim : propagated.value(value).sharding->dims) {
      dims.push_back(!dim.axes.empty());
    }
  }
  const std::vector<int> times = TimesOfCopies(options);
  for (const AlikeNode& node : FindAlikeNodes(graph, options.runs)) {
    problem.alike.push_back(node.first);
    problem.times.push_back(node.copy < 0 ? 1 : times[static_cast<size_t>(node.copy)]);
  }
  // All stages together; each keeps at most as many micro-batches as there are stages.
  const double device_bytes =
      MemoryOf(*options.machine, options.num_groups, mesh.num_devices()) / options.num_groups;
  problem.memory_bytes = device_bytes * (1 - kForOtherUses) * options.num_groups;
  problem.is_read_backward = ReadAsMade(propagated);
  ASSIGN_OR_RETURN(problem.kept_share,
                   KeptShares(strategy.zero, *options.machine, graph, propagated));
  const int64_t microbatches = mesh.num_microbatches();
  problem.part_of_activations =
      static_cast<double>(std::min<int64_t>(options.num_groups, microbatches)) /
      static_cast<double>(microbatches);
  ASSIGN_OR_RETURN(const std::optional<ShardingChoice> choice, ChooseShardings(problem, kSplitGap));
  if (!choice.has_value()) {
    return absl::ResourceExhaustedError(
        StrCat("splits=cost: whatever is split over tp = ", strategy.tp,
               ", a device needs more than ", FormatBytes(static_cast<uint64_t>(device_bytes)),
               " for what it keeps; zero, recompute, offload or more stages need less"));
  }

  const AxisRef axis = graph::WholeAxis(mesh, tp);
  for (ValueId value = 0; value < graph.num_values(); ++value) {
    Sharding sharding = ClosedSharding(mesh, propagated.value(value));
    const Sharding& chosen = choice->shardings[static_cast<size_t>(value)];
    for (size_t d = 0; d < sharding.dims.size(); ++d) {
      const std::vector<AxisRef>& axes = chosen.dims[d].axes;
      std::vector<AxisRef>& split = sharding.dims[d].axes;
      const bool is_stated = std::find(split.begin(), split.end(), axis) != split.end();
      if (!is_stated && std::find(axes.begin(), axes.end(), spatial_axis) != axes.end()) {
        split.push_back(axis);
      }
    }
    graph.mutable_value(value).sharding = std::move(sharding);
  }
  if (strategy.zero == 0) return absl::OkStatus();
  RETURN_IF_ERROR(SplitOverReplicas(strategy.zero, graph));
  return ApplyStatedShardings(options.hints, graph);
}

}  // namespace penstock::planner
