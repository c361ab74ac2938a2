#include "tests/support/random_graph.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include <xxhash.h>

#include "base/random.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/builder.h"
#include "graph/gradients.h"
#include "graph/training.h"
#include "planner/sharding/select_mesh.h"
#include "tests/support/random_graph_builder.h"
#include "tests/support/random_ops.h"
#include "tests/support/random_shardings.h"

namespace penstock::testing {
namespace {

using graph::AxisRef;
using graph::Graph;
using graph::kNoNode;
using graph::kNoValue;
using graph::Mesh;
using graph::Node;
using graph::NodeId;
using graph::Phase;
using graph::Sharding;
using graph::ValueId;

absl::Status AddTraining(const graph::OpRegistry& ops, Random& random, ValueId loss,
                         RandomCase& result) {
  const std::vector<graph::Return> others = result.graph.returns();
  std::vector<std::string> names;
  for (const graph::Return& ret : others) names.push_back(result.graph.value(ret.value).name);
  ASSIGN_OR_RETURN(graph::Differentiated made, graph::Differentiate(ops, result.graph, loss));
  result.graph = std::move(made.graph);
  std::vector<graph::Return>& returns = result.graph.mutable_returns();
  returns = {{made.loss, {}}};
  for (ValueId gradient : made.gradients) returns.push_back({gradient, {}});
  for (const std::string& name : names) returns.push_back({result.graph.FindValue(name), {}});

  if (made.parameters.empty() || random.Chance(0.6)) return absl::OkStatus();
  graph::TrainingOptions options;
  options.optimizer = random.Chance(0.5) ? graph::Optimizer::kAdamW : graph::Optimizer::kSgd;
  options.momentum = random.Chance(0.5) ? 0.9 : 0.0;
  options.epsilon = 1e-2;  // gradients that are zero but for rounding stay without effect
  options.clip_norm = random.Chance(0.5) ? 1.0 : 0.0;
  options.learning_rate = 0.05;
  options.warmup_steps = random.Chance(0.3) ? 3 : 0;
  graph::GraphBuilder builder(ops, result.graph);
  const DType dtype = builder.type(made.loss).dtype;
  ValueId norm = kNoValue;
  RETURN_IF_ERROR(graph::AddOptimizer(builder, made.parameters, made.gradients, options, dtype,
                                      random.Chance(0.5) ? &norm : nullptr));
  if (norm != kNoValue) returns.push_back({norm, {}});
  return absl::OkStatus();
}

// Leaves some dimensions open, gives priorities and keeps axes free.
void Loosen(Random& random, const Mesh& mesh, Sharding* sharding) {
  const bool has_priorities = random.Chance(0.15);
  for (graph::DimSharding& dim : sharding->dims) {
    dim.is_open = random.Chance(0.5);
    if (has_priorities && random.Chance(0.7)) dim.priority = static_cast<int>(random.Below(3));
  }
  if (!random.Chance(0.1)) return;
  const std::optional<AxisRef> axis = UnusedAxis(random, mesh, *sharding);
  if (axis) sharding->replicated.push_back(*axis);
}

void Annotate(Random& random, RandomCase& result) {
  Graph& graph = result.graph;
  const Mesh mesh = graph.meshes()[0];
  for (const Node& node : graph.nodes()) {
    const bool is_reshard = node.op->name() == "reshard";
    const bool is_leaf = node.op->has_declared_type();
    for (ValueId id : node.results) {
      if (!random.Chance(is_reshard ? 1 : is_leaf ? 0.5 : 0.12)) continue;
      graph::Value& value = graph.mutable_value(id);
      Sharding sharding = RandomSharding(random, mesh, value.type.shape);
      if (is_reshard) {
        const std::optional<Sharding>& from = graph.value(node.operands[0]).sharding;
        if (from && random.Chance(0.75)) {
          sharding = RearrangedSharding(random, mesh, value.type.shape, *from);
          sharding.replicated.clear();
        }
      } else {
        Loosen(random, mesh, &sharding);
      }
      const bool may_be_partial =
          value.type.dtype != DType::kBool && (is_reshard || node.op->name() == "input");
      if (may_be_partial && random.Chance(is_reshard ? 0.3 : 0.1)) {
        const auto reduction = static_cast<graph::Reduction>(random.Below(4));
        AddRandomPartial(random, mesh, reduction, /*allow_temporal=*/false, &sharding);
      }
      graph::Canonicalize(mesh, &sharding);
      value.sharding = std::move(sharding);
    }
  }
  for (graph::Return& ret : graph.mutable_returns()) {
    if (random.Chance(0.35)) {
      ret.sharding = RandomSharding(random, mesh, graph.value(ret.value).type.shape);
    }
  }
}

// Splits what optimizers work on over one more axis, in one of the ways that ZeRO does: the states,
// the gradients too (summed over devices once a micro-batch), the parameters too.
void SplitUpdates(Random& random, Graph& graph) {
  const Mesh mesh = graph.meshes()[0];
  const int64_t level = random.Between(1, 3);
  for (const Node& node : graph.nodes()) {
    if (node.op->name() != "adamw" && node.op->name() != "sgd") continue;
    const TensorType type = graph.value(node.operands[0]).type;
    const int rank = static_cast<int>(type.shape.size());
    if (rank == 0 || random.Chance(0.2)) continue;
    Sharding split = graph.value(node.operands[0]).sharding.value_or(Sharding::Open(rank));
    if (split.is_partial()) continue;
    const std::optional<AxisRef> axis = UnusedAxis(random, mesh, split);
    if (!axis || graph::IsTemporal(mesh, *axis)) continue;
    split.dims[random.Below(rank)].axes.push_back(*axis);
    if (random.Chance(0.7)) {
      for (graph::DimSharding& dim : split.dims) dim.priority = 1;
    }
    graph::Canonicalize(mesh, &split);
    if (!graph::CheckSharding(mesh, split, type.shape).ok()) continue;
    for (size_t o = 2; o < node.operands.size(); ++o) {
      graph::Value& state = graph.mutable_value(node.operands[o]);
      const bool is_state = graph.node(state.producer).op->name() == "state";
      if (is_state && state.type == type) state.sharding = split;
    }
    if (level == 3) {
      graph::Value& parameter = graph.mutable_value(node.operands[0]);
      parameter.sharding = split;
      if (graph.node(parameter.producer).op->name() == "parameter" && random.Chance(0.8)) {
        graph.mutable_node(parameter.producer).attributes.Set("per_use", true);
      }
    } else if (random.Chance(0.7)) {
      // The parameter stays whole.
      Sharding& whole =
          graph.mutable_value(node.operands[0])
              .sharding.emplace(
                  graph.value(node.operands[0]).sharding.value_or(Sharding::Open(rank)));
      whole.replicated.push_back(*axis);
      graph::Canonicalize(mesh, &whole);
    }
    if (level == 1) continue;
    for (int a = 0; a < static_cast<int>(mesh.axes.size()); ++a) {
      if (mesh.axes[a].is_temporal && mesh.axes[a].size > 1) {
        split.partials = {{graph::Reduction::kSum, {graph::WholeAxis(mesh, a)}}};
      }
    }
    if (graph::CheckSharding(mesh, split, type.shape).ok()) {
      graph.mutable_value(node.operands[1]).sharding = split;
    }
  }
}

// Marks forward nodes to be computed again in the backward pass, in segments and for all readers.
void MarkRandomSegments(Random& random, Graph& graph) {
  int64_t segment = random.Below(2);
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    Node& node = graph.mutable_node(id);
    if (node.op->has_declared_type() || node.phase != Phase::kForward) continue;
    if (random.Chance(0.2)) segment = random.Below(4);
    if (random.Chance(0.85)) node.attributes.Set("recompute", segment);
  }
}

// Marks what is to lie on the host: states and parameters, and what backward reads.
void MarkRandomOffload(Random& random, Graph& graph) {
  const double states = random.Unit();
  const double values = random.Unit();
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    Node& node = graph.mutable_node(id);
    if (node.op->name() == "state" || node.op->name() == "parameter") {
      if (random.Chance(states)) node.attributes.Set("memory", "host");
    } else if (!node.op->has_declared_type() && node.phase == Phase::kForward) {
      if (random.Chance(values)) node.attributes.Set("offload", int64_t{1});
    }
  }
}

// Cuts the forward nodes at random; everything else follows them: what is declared lies with its
// first reader, a backward node with its forward node, an update with its parameter.
void AssignRandomStages(Random& random, int num_stages, Graph& graph) {
  const std::vector<std::vector<NodeId>> users = graph.Users();
  std::vector<NodeId> forward;
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const Node& node = graph.node(id);
    if (!node.op->has_declared_type() && node.phase == Phase::kForward) forward.push_back(id);
  }
  std::vector<int64_t> cuts;
  for (int i = 1; i < num_stages; ++i) cuts.push_back(random.Below(forward.size() + 1));
  std::sort(cuts.begin(), cuts.end());
  for (size_t i = 0; i < forward.size(); ++i) {
    const auto stage = std::upper_bound(cuts.begin(), cuts.end(), static_cast<int64_t>(i));
    graph.mutable_node(forward[i]).stage = static_cast<int>(stage - cuts.begin());
  }
  const auto stage_of = [&](ValueId value) {
    return graph.node(graph.value(value).producer).stage;
  };
  const auto settle_leaf = [&](NodeId id) {
    int first = num_stages;
    for (NodeId user : users[graph.node(id).results[0]]) {
      const int stage = graph.node(user).stage;
      if (stage >= 0) first = std::min(first, stage);
    }
    if (first < num_stages) graph.mutable_node(id).stage = first;
  };
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    if (graph.node(id).op->has_declared_type()) settle_leaf(id);
  }
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    Node& node = graph.mutable_node(id);
    if (node.phase != Phase::kBackward && node.phase != Phase::kWeightBackward) continue;
    node.stage = node.forward == kNoNode ? num_stages - 1 : graph.node(node.forward).stage;
    for (ValueId operand : node.operands) {
      const Node& producer = graph.node(graph.value(operand).producer);
      const bool is_gradient =
          producer.phase == Phase::kBackward || producer.phase == Phase::kWeightBackward;
      if (is_gradient) node.stage = std::min(node.stage, producer.stage);
    }
  }
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    Node& node = graph.mutable_node(id);
    if (node.op->name() == "sgd" || node.op->name() == "adamw") {
      if (node.stage < 0) node.stage = std::max(stage_of(node.operands[0]), 0);
    } else if (node.stage < 0 && !node.op->has_declared_type() && node.op->name() != "assign") {
      node.stage = static_cast<int>(random.Below(num_stages));
    }
  }
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    Node& node = graph.mutable_node(id);
    if (node.op->has_declared_type() && node.stage < 0) settle_leaf(id);
    if (node.op->has_declared_type() && node.stage < 0) node.stage = 0;
    if (node.op->name() == "assign") node.stage = stage_of(node.operands[0]);
  }
}

// The same micro-batches as `mesh`, and as many devices or up to max_devices, in one axis or two.
Mesh WithOtherAxes(Random& random, const Mesh& mesh, int64_t max_devices) {
  Mesh other = {"n", {}};
  for (const graph::MeshAxis& axis : mesh.axes) {
    if (axis.is_temporal) other.axes.push_back(axis);
  }
  const int64_t count =
      max_devices == 0 || random.Chance(0.5) ? mesh.num_devices() : random.Between(1, max_devices);
  int64_t major = 1;
  for (const int64_t divisor : {2, 3, 4}) {
    if (count % divisor == 0 && divisor < count && random.Chance(0.5)) major = divisor;
  }
  if (major > 1) other.axes.push_back({"u", major});
  other.axes.push_back({"v", count / major});
  return other;
}

// What stages 1, 3 and so on write of shardings is drawn anew, on a mesh of their own, if both can
// be planned together.
void LayOddStagesOnAnotherMesh(Random& random, int64_t max_devices, Graph& graph) {
  Graph laid = graph;
  const Mesh other = WithOtherAxes(random, graph.meshes()[0], max_devices);
  laid.mutable_meshes().push_back(other);
  const auto redraw = [&](ValueId value, std::optional<Sharding>* sharding) {
    if (laid.node(laid.value(value).producer).mesh == 0 || !sharding->has_value()) return;
    *sharding = RandomSharding(random, other, laid.value(value).type.shape);
  };
  for (NodeId id = 0; id < laid.num_nodes(); ++id) {
    laid.mutable_node(id).mesh = laid.node(id).stage % 2 == 1 ? 1 : 0;
  }
  for (ValueId value = 0; value < laid.num_values(); ++value) {
    redraw(value, &laid.mutable_value(value).sharding);
  }
  for (graph::Return& ret : laid.mutable_returns()) redraw(ret.value, &ret.sharding);
  Graph selected = laid;
  if (planner::SelectMesh(selected).ok()) graph = std::move(laid);
}

// What has no batch has as many, too: passes have to find out.
void MarkSubBatches(int64_t count, Graph& graph) {
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    if (graph.node(id).op->name() != "input") continue;
    graph.mutable_node(id).attributes.Set("sub_batches", count);
  }
}

absl::StatusOr<RandomCase> MakeCase(const graph::OpRegistry& ops, uint64_t seed,
                                    bool may_be_empty) {
  Random random(seed * 0x9E3779B97F4A7C15 + 1);
  RandomCase result;
  result.seed = seed;
  result.may_be_empty = may_be_empty;
  result.graph.set_name(StrCat("case", seed));
  const int64_t num_microbatches = random.Chance(0.5)   ? random.Between(2, 4)
                                   : random.Chance(0.3) ? random.Between(5, 8)
                                                        : 1;
  const int64_t num_stages = random.Chance(0.5) ? 1 : random.Between(2, 4);
  const int64_t batch = num_microbatches * random.Between(1, num_microbatches < 4    ? 4
                                                             : num_microbatches == 4 ? 3
                                                                                     : 1);
  const DType dtype = random.Chance(0.85) ? DType::kF64 : DType::kF32;

  RandomGraphBuilder builder(ops, random, result, batch, dtype);
  const std::vector<Maker> makers = Makers(ops);
  const Maker& favourite = FavouriteMaker(makers, seed);
  favourite.make(builder, favourite.op);
  for (int64_t more = random.Between(3, 10); more > 0 && builder.ok(); --more) {
    const Maker& maker = makers[random.Below(makers.size())];
    maker.make(builder, maker.op);
    if (builder.ok() && random.Chance(0.12)) MakeReshard(builder, "reshard");
  }
  if (builder.ok()) favourite.make(builder, favourite.op);
  RETURN_IF_ERROR(builder.status());

  Values candidates = builder.floats();
  candidates.insert(candidates.end(), builder.others().begin(), builder.others().end());
  random.Shuffle(candidates);
  candidates.resize(std::min<size_t>(candidates.size(), random.Between(1, 5)));
  // The last value made depends on most of the others.
  if (!builder.floats().empty()) candidates.push_back(builder.floats().back());
  if (!builder.others().empty()) candidates.push_back(builder.others().back());
  std::sort(candidates.begin(), candidates.end());
  candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
  for (ValueId value : candidates) result.graph.mutable_returns().push_back({value, {}});

  const ValueId loss = random.Chance(0.55) ? MakeLoss(builder) : kNoValue;
  RETURN_IF_ERROR(builder.status());
  if (loss != kNoValue) RETURN_IF_ERROR(AddTraining(ops, random, loss, result));

  const bool has_state = std::any_of(result.graph.nodes().begin(), result.graph.nodes().end(),
                                     [](const Node& node) { return node.op->name() == "assign"; });
  result.num_steps = static_cast<int>(has_state ? random.Between(2, 4) : random.Between(1, 2));
  const int64_t max_devices = (seed % 12 == 5 ? 18 : 8) / num_stages;
  result.graph.mutable_meshes().push_back(RandomMesh(random, max_devices, num_microbatches));
  Annotate(random, result);
  if (num_stages > 1) AssignRandomStages(random, static_cast<int>(num_stages), result.graph);
  int last_stage = 0;
  for (const Node& node : result.graph.nodes()) last_stage = std::max(last_stage, node.stage);
  for (const int chunks : {2, 3, 4}) {
    if ((last_stage + 1) % chunks == 0 && random.Chance(0.4)) result.chunks_per_group = chunks;
  }
  result.policy = random.Chance(0.5) ? "gpipe" : "1f1b";
  result.split_weight_gradients = random.Chance(0.3);
  if (random.Chance(0.6)) SplitUpdates(random, result.graph);
  if (loss != kNoValue && random.Chance(0.5)) MarkRandomSegments(random, result.graph);
  if (random.Chance(0.4)) MarkRandomOffload(random, result.graph);
  if (last_stage > 0 && random.Chance(0.4)) {
    // All stages of a group of devices lie on one mesh.
    const int num_groups = (last_stage + 1) / result.chunks_per_group;
    const bool may_differ = result.chunks_per_group == 1 || num_groups % 2 == 0;
    LayOddStagesOnAnotherMesh(random, may_differ ? max_devices : 0, result.graph);
  }
  if (random.Chance(0.5)) MarkSubBatches(random.Chance(0.7) ? 2 : 3, result.graph);
  return result;
}

}  // namespace

absl::StatusOr<RandomCase> MakeRandomCase(const graph::OpRegistry& ops, uint64_t seed) {
  // Some operators refuse tensors without elements: an index needs something to index. Such a case
  // is made again without them, which hides an operator that refuses them by mistake.
  if (seed % 16 == 9) {
    absl::StatusOr<RandomCase> made = MakeCase(ops, seed, /*may_be_empty=*/true);
    if (made.ok()) return made;
  }
  return MakeCase(ops, seed, /*may_be_empty=*/false);
}

Tensor MakeInput(const TensorType& type, const InputRange& range, uint64_t seed,
                 std::string_view name, int step) {
  Tensor tensor(type);
  const RandomKey key = {XXH64(name.data(), name.size(), seed), 0, static_cast<uint32_t>(step)};
  for (int64_t i = 0; i < type.num_elements(); ++i) {
    const double real = range.low + (range.high - range.low) *
                                        (RandomWord(key, static_cast<uint64_t>(i)) + 0.5) * 0x1p-32;
    switch (type.dtype) {
      case DType::kF32:
        tensor.As<float>()[i] = static_cast<float>(real);
        break;
      case DType::kF64:
        tensor.As<double>()[i] = real;
        break;
      case DType::kI8:
        tensor.As<int8_t>()[i] = static_cast<int8_t>(std::floor(real));
        break;
      case DType::kU8:
        tensor.As<uint8_t>()[i] = static_cast<uint8_t>(std::floor(real));
        break;
      case DType::kI32:
        tensor.As<int32_t>()[i] = static_cast<int32_t>(std::floor(real));
        break;
      case DType::kI64:
        tensor.As<int64_t>()[i] = static_cast<int64_t>(std::floor(real));
        break;
      case DType::kBool:
        tensor.As<bool>()[i] = real > 0;
        break;
      default:
        break;
    }
  }
  return tensor;
}

}  // namespace penstock::testing
