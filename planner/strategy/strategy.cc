#include "planner/strategy/strategy.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "base/counted.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/op.h"
#include "planner/plan/plan.h"
#include "planner/policy/policy.h"
#include "planner/strategy/stated_shardings.h"
#include "planner/strategy/zero.h"

namespace penstock::planner {
namespace {

using graph::Graph;
using graph::Node;
using graph::SplitHint;
using graph::ValueId;

constexpr int64_t kMicrobatchesPerStage = 4;
constexpr int64_t kMaxSubBatches = 64;

// Splits of weights reach all that they reach before those of sequences do.
constexpr int kAfterTheWeights = 1;

// The input that tells the batch; null where no input has dimensions.
const graph::Value* FindBatchInput(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    if (node.op->role() != graph::OpRole::kInput) continue;
    const graph::Value& value = graph.value(node.results[0]);
    if (!value.type.shape.empty()) return &value;
  }
  return nullptr;
}

// Forward operators that do work: those with operands.
int64_t CountWorkers(const Graph& graph) {
  return std::count_if(graph.nodes().begin(), graph.nodes().end(), [](const Node& node) {
    return node.phase == graph::Phase::kForward && !node.operands.empty();
  });
}

// The axis of hints for values of attention whose heads Ulysses splits.
constexpr std::string_view kUlysses = "ulysses";

// The hint for a value and an axis, or null.
const SplitHint* FindHint(absl::Span<const SplitHint> hints, const Graph& graph, ValueId id,
                          std::string_view axis) {
  const graph::Value& value = graph.value(id);
  const Node& producer = graph.node(value.producer);
  // What a model names are values of its forward pass.
  if (producer.phase != graph::Phase::kForward) return nullptr;
  const bool is_parameter = producer.op->role() == graph::OpRole::kParameter;
  for (const SplitHint& hint : hints) {
    if (hint.sharding.empty() && hint.axis == axis && hint.is_for_parameters() == is_parameter &&
        graph::MatchesPattern(hint.pattern, value.name) &&
        hint.dim < static_cast<int>(value.type.shape.size())) {
      return &hint;
    }
  }
  return nullptr;
}

// Whether each of the `extent` parts of what a hint splits goes to several of `size` devices.
bool IsShared(const SplitHint& hint, int64_t extent, int64_t size) {
  return hint.is_shared && extent > 0 && extent < size && size % extent == 0;
}

// Whether `size` parts, called `name`, fit what the hints split over the axis, sequences only if
// asked for; `nothing` is what to say when there is nothing to split.
absl::Status CheckSplits(std::string_view axis, std::string_view name, int64_t size,
                         bool with_sequences, absl::Span<const SplitHint> hints, const Graph& graph,
                         std::string_view nothing) {
  if (size == 1) return absl::OkStatus();
  bool has_split = std::any_of(hints.begin(), hints.end(), [&](const SplitHint& hint) {
    return !hint.sharding.empty() && hint.IsFor(axis);
  });
  bool has_sequence = false;
  for (ValueId id = 0; id < graph.num_values(); ++id) {
    const graph::Value& value = graph.value(id);
    const SplitHint* hint = FindHint(hints, graph, id, axis);
    if (hint == nullptr || (hint->is_sequence && !with_sequences)) continue;
    (hint->is_sequence ? has_sequence : has_split) = true;
    const int64_t extent = value.type.shape[hint->dim];
    if (IsShared(*hint, extent, size)) continue;
    if (hint->must_divide && extent % size != 0) {
      return absl::InvalidArgumentError(StrCat(name, " = ", size, " does not divide the ", extent,
                                               " ", hint->what, " of ", value.name));
    }
    if (extent < size) {
      return absl::InvalidArgumentError(StrCat(name, " = ", size, " is more than the ", extent, " ",
                                               hint->what, " of ", value.name));
    }
  }
  if (!has_split) return absl::InvalidArgumentError(StrCat(name, " = ", size, ": ", nothing));
  if (with_sequences && !has_sequence) {
    return absl::InvalidArgumentError(
        "sp = true: the model does not say which of its values run over a sequence");
  }
  return absl::OkStatus();
}

// Attention runs by heads where its log-sum-exp goes by heads, which nothing but attention and its
// gradient reads; all else keeps its part of the sequence. (Attention without a gradient has none,
// and is a ring.) Settled after the weights, so that it splits nothing else.
void SplitHeads(const Strategy& strategy, absl::Span<const SplitHint> hints, Graph& graph) {
  const graph::Mesh& mesh = graph.meshes()[0];
  for (const Node& node : graph.nodes()) {
    const SplitHint* hint =
        node.results.empty() ? nullptr : FindHint(hints, graph, node.results[0], kUlysses);
    if (hint == nullptr) continue;
    const std::vector<TensorType> results = graph.ResultTypes(node);
    const graph::ShardingRule rule =
        node.op->Rule({node.attributes, graph.OperandTypes(node), results});
    for (size_t r = 1; r < node.results.size(); ++r) {
      graph::Sharding sharding =
          graph::Sharding::Replicated(static_cast<int>(results[r].shape.size()));
      for (size_t d = 0; d < sharding.dims.size(); ++d) {
        graph::DimSharding& dim = sharding.dims[d];
        dim.is_open = d == 0;  // the batch
        if (d > 0) dim.priority = kAfterTheWeights;
        if (rule.results[r][d] != rule.results[0][hint->dim]) continue;
        if (strategy.tp > 1) dim.axes.push_back(WholeAxis(mesh, mesh.FindAxis("tp")));
        dim.axes.push_back(WholeAxis(mesh, mesh.FindAxis("cp")));
      }
      graph.mutable_value(node.results[r]).sharding = std::move(sharding);
    }
  }
}

}  // namespace

std::string ToString(const Strategy& strategy) {
  std::string text = StrCat("dp=", strategy.dp, ",tp=", strategy.tp, ",pp=", strategy.pp);
  if (strategy.vpp > 1) StrAppend(&text, ",vpp=", strategy.vpp);
  if (strategy.ep > 1) StrAppend(&text, ",ep=", strategy.ep);
  if (strategy.cp > 1) StrAppend(&text, ",cp=", strategy.cp);
  if (strategy.ulysses) StrAppend(&text, ",ulysses=true");
  if (strategy.zero > 0) StrAppend(&text, ",zero=", strategy.zero);
  if (strategy.sp) StrAppend(&text, ",sp=true");
  if (strategy.splits_by_cost) StrAppend(&text, ",splits=cost");
  if (strategy.recompute != Recompute::kNone) {
    StrAppend(&text, ",recompute=", Name(strategy.recompute));
  }
  if (strategy.offload != Offload::kNone) StrAppend(&text, ",offload=", Name(strategy.offload));
  if (strategy.sub_batches > 1) StrAppend(&text, ",subbatches=", strategy.sub_batches);
  if (strategy.optimizer_on_host) StrAppend(&text, ",optimizer=host");
  return text;
}

absl::StatusOr<std::optional<Strategy>> ParseStrategy(std::string_view text) {
  if (text == "auto") return std::optional<Strategy>();
  const auto refuse = [](std::string_view why) {
    return absl::InvalidArgumentError(
        StrCat(why, "; expected \"auto\" or axis sizes such as \"dp=2,tp=2,pp=1\""));
  };
  Strategy strategy;
  int64_t zero = 0;
  std::vector<std::string_view> seen;
  for (const absl::string_view field : absl::StrSplit(ToAbsl(text), ',')) {
    const std::string_view part = ToStd(absl::StripAsciiWhitespace(field));
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos) {
      return refuse(part.empty() ? std::string("an axis is missing")
                                 : StrCat("'", part, "' is not of the form AXIS=SIZE"));
    }
    const std::string_view axis = part.substr(0, equals);
    const std::string_view digits = part.substr(equals + 1);
    int64_t* size = axis == "dp"           ? &strategy.dp
                    : axis == "tp"         ? &strategy.tp
                    : axis == "pp"         ? &strategy.pp
                    : axis == "vpp"        ? &strategy.vpp
                    : axis == "ep"         ? &strategy.ep
                    : axis == "cp"         ? &strategy.cp
                    : axis == "zero"       ? &zero
                    : axis == "subbatches" ? &strategy.sub_batches
                                           : nullptr;
    bool* option = axis == "sp" ? &strategy.sp : axis == kUlysses ? &strategy.ulysses : nullptr;
    if (size == nullptr && option == nullptr && axis != "splits" && axis != "recompute" &&
        axis != "offload" && axis != "optimizer") {
      return refuse(StrCat("unknown axis '", axis, "'"));
    }
    if (std::find(seen.begin(), seen.end(), axis) != seen.end()) {
      return refuse(StrCat("axis '", axis, "' is given twice"));
    }
    seen.push_back(axis);
    if (axis == "recompute") {
      const std::optional<Recompute> level = FindRecompute(digits);
      if (!level.has_value()) {
        return refuse(StrCat("recompute is '", digits, "', not none, selective or full"));
      }
      strategy.recompute = *level;
      continue;
    }
    if (axis == "offload") {
      const std::optional<Offload> offload = FindOffload(digits);
      if (!offload.has_value()) {
        return refuse(StrCat("offload is '", digits, "', not none, states, activations or all"));
      }
      strategy.offload = *offload;
      continue;
    }
    if (axis == "optimizer") {
      if (digits != "host" && digits != "device") {
        return refuse(StrCat("optimizer is '", digits, "', not host (a CPU device of its own) or ",
                             "device (the devices that compute the gradients)"));
      }
      strategy.optimizer_on_host = digits == "host";
      continue;
    }
    if (option != nullptr) {
      if (digits != "true" && digits != "false") {
        return refuse(StrCat(axis, " is '", digits, "', not true or false"));
      }
      *option = digits == "true";
      continue;
    }
    if (axis == "splits") {
      if (digits != "cost" && digits != "model") {
        return refuse(StrCat("splits is '", digits, "', not cost (what tp splits is chosen by ",
                             "cost) or model (what the model names)"));
      }
      strategy.splits_by_cost = digits == "cost";
      continue;
    }
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *size);
    const bool is_number = error == std::errc() && end == digits.data() + digits.size();
    if (axis == "zero") {
      if (is_number && zero >= 0 && zero <= kMaxZero) continue;
      return refuse(StrCat("zero is '", digits, "', not a number from 1 (optimiser state) to ",
                           kMaxZero, " (parameters too), or 0 for none"));
    }
    if (!is_number || *size < 1 || *size > kMaxDevices) {
      return refuse(StrCat("the size of '", axis, "' is '", digits, "', not a number from 1 to ",
                           kMaxDevices));
    }
  }
  strategy.zero = static_cast<int>(zero);
  // Each factor is at most 2^16: the product of three fits, and after this check that of all.
  if (strategy.dp * strategy.tp * strategy.pp > kMaxDevices ||
      strategy.num_devices() > kMaxDevices) {
    return refuse(StrCat("it needs more than ", kMaxDevices, " devices"));
  }
  if (strategy.vpp > 1 && strategy.pp == 1) {
    return refuse(StrCat("vpp=", strategy.vpp, " without pipeline stages: set pp to 2 or more"));
  }
  if (strategy.dp % strategy.ep != 0) {
    return refuse(StrCat("ep=", strategy.ep, " does not divide dp=", strategy.dp,
                         ": experts are split over a part of the data-parallel devices"));
  }
  if (strategy.sub_batches > kMaxSubBatches) {
    return refuse(StrCat("subbatches=", strategy.sub_batches, " is more than ", kMaxSubBatches));
  }
  if (strategy.vpp > kMaxChunks) {
    return refuse(StrCat("vpp=", strategy.vpp, " is more than ", kMaxChunks));
  }
  if (strategy.zero > 0 && strategy.num_replicas() == 1) {
    return refuse(StrCat("zero=", strategy.zero,
                         " splits over the data-parallel devices: set dp to 2 or more"));
  }
  if (strategy.sp && strategy.tp == 1) {
    return refuse("sp=true splits over the tensor-parallel devices: set tp to 2 or more");
  }
  if (strategy.splits_by_cost && strategy.tp == 1) {
    return refuse("splits=cost says what tensor-parallel devices split: set tp to 2 or more");
  }
  if (strategy.splits_by_cost && (strategy.sp || strategy.ulysses)) {
    return refuse(StrCat("splits=cost chooses what is split over sequences and heads too: leave ",
                         "out ", strategy.sp ? "sp" : "ulysses"));
  }
  if (strategy.ulysses && strategy.cp == 1) {
    return refuse("ulysses=true is a form of context parallelism: set cp to 2 or more");
  }
  if (strategy.optimizer_on_host) {
    const auto leave_out = [&](std::string_view option, std::string_view why) {
      return refuse(StrCat("optimizer=host with ", option, ": ", why, "; leave out either"));
    };
    if (strategy.vpp > 1) {
      return leave_out(StrCat("vpp=", strategy.vpp),
                       "the device of the optimiser runs one stage, so the others do, too");
    }
    if (strategy.zero > 0) {
      return leave_out(StrCat("zero=", strategy.zero),
                       "the optimiser's states lie whole on one device");
    }
    if (strategy.splits_by_cost) {
      return leave_out("splits=cost", "costs are known for stages with equally many devices alone");
    }
    if (OffloadsStates(strategy.offload)) {
      return leave_out(StrCat("offload=", Name(strategy.offload)),
                       "the optimiser's states are on the host already");
    }
  }
  return std::optional<Strategy>(strategy);
}

absl::Status CheckStrategy(const Strategy& strategy, int64_t microbatches,
                           absl::Span<const SplitHint> hints, const Graph& graph) {
  if (microbatches < 1) {
    return absl::InvalidArgumentError(
        StrCat("microbatches = ", microbatches, ": must be at least 1"));
  }
  if (microbatches > kMaxMicrobatches) {
    return absl::InvalidArgumentError(
        StrCat("microbatches = ", microbatches, ": a step has at most ", kMaxMicrobatches));
  }
  const int64_t parts = strategy.dp * microbatches * strategy.sub_batches;
  if (parts > 1) {
    const graph::Value* input = FindBatchInput(graph);
    if (input == nullptr) {
      return absl::InvalidArgumentError(
          StrCat("dp = ", strategy.dp, " with ", Counted(microbatches, "micro-batch", "es"),
                 strategy.sub_batches > 1 ? StrCat(" of ", strategy.sub_batches, " sub-batches")
                                          : std::string(),
                 " needs an input with a batch dimension; the graph has none"));
    }
    const int64_t batch = input->type.shape[0];
    if (batch % parts != 0) {
      std::vector<std::string> factors;
      for (const auto& [name, factor] :
           {std::pair("dp", strategy.dp), std::pair("microbatches", microbatches),
            std::pair("subbatches", strategy.sub_batches)}) {
        if (factor > 1) factors.push_back(StrCat(name, " = ", factor));
      }
      return absl::InvalidArgumentError(StrCat(StrJoin(factors, " times "),
                                               " does not divide batch = ", batch,
                                               "; a batch that is a multiple of ", parts, " fits"));
    }
  }
  if (!strategy.splits_by_cost) {
    RETURN_IF_ERROR(
        CheckSplits("tp", "tp", strategy.tp, strategy.sp, hints, graph,
                    "the model says of no weight how to split it; splits=cost chooses"));
  }
  RETURN_IF_ERROR(CheckSplits("ep", "ep", strategy.ep, /*with_sequences=*/false, hints, graph,
                              "the model has no experts; leave ep out, or train the model moe"));
  RETURN_IF_ERROR(CheckSplits("cp", "cp", strategy.cp, /*with_sequences=*/false, hints, graph,
                              "the model says of no input that it runs over a sequence; leave cp "
                              "out, or train the model gpt"));
  if (strategy.ulysses) {
    RETURN_IF_ERROR(CheckSplits(kUlysses, strategy.tp > 1 ? "cp times tp" : "cp",
                                strategy.cp * strategy.tp, /*with_sequences=*/false, hints, graph,
                                "the model says of no value that it has the heads of attention"));
  }
  const int64_t workers = CountWorkers(graph);
  if (strategy.pp > 1 && strategy.pp * strategy.vpp > workers) {
    return absl::InvalidArgumentError(StrCat(strategy.vpp > 1 ? "pp times vpp" : "pp", " = ",
                                             strategy.pp * strategy.vpp, " is more than the ",
                                             workers, " operators of the model"));
  }
  return absl::OkStatus();
}

int64_t BatchOf(const Graph& graph) {
  const graph::Value* input = FindBatchInput(graph);
  return input == nullptr ? 0 : input->type.shape[0];
}

int64_t LargestContext(absl::Span<const SplitHint> hints, const Graph& graph) {
  int64_t largest = 0;
  for (ValueId id = 0; id < graph.num_values(); ++id) {
    const SplitHint* hint = FindHint(hints, graph, id, "cp");
    if (hint != nullptr) largest = std::gcd(largest, graph.value(id).type.shape[hint->dim]);
  }
  return std::max<int64_t>(largest, 1);
}

int64_t ChooseMicrobatches(const Strategy& strategy, const Graph& graph) {
  const graph::Value* input = FindBatchInput(graph);
  if (strategy.pp == 1 || input == nullptr) return 1;
  const int64_t batch = input->type.shape[0];
  for (int64_t count = kMicrobatchesPerStage * strategy.pp; count > 1; --count) {
    if (batch % (strategy.dp * count) == 0) return count;
  }
  return 1;
}

absl::Status ApplyStrategy(const Strategy& strategy, int64_t microbatches,
                           absl::Span<const SplitHint> hints, Graph& graph) {
  RETURN_IF_ERROR(CheckStrategy(strategy, microbatches, hints, graph));
  if (!graph.meshes().empty()) {
    return absl::InvalidArgumentError(StrCat("the graph has the mesh '", graph.meshes()[0].name,
                                             "' already; a strategy would lay it out anew"));
  }
  MarkRecompute(strategy.recompute, graph);
  MarkOffload(strategy.offload, graph);
  graph::Mesh mesh;
  mesh.name = "m";
  if (microbatches > 1) mesh.axes.push_back({"mb", microbatches, true});
  mesh.axes.push_back({"dp", strategy.dp / strategy.ep, false});
  if (strategy.ep > 1) mesh.axes.push_back({"ep", strategy.ep, false});
  if (strategy.cp > 1) mesh.axes.push_back({"cp", strategy.cp, false});
  mesh.axes.push_back({"tp", strategy.tp, false});

  graph::DimSharding batch_split;
  for (const char* name : {"mb", "dp", "ep"}) {
    const int axis = mesh.FindAxis(name);
    if (axis >= 0 && mesh.axes[static_cast<size_t>(axis)].size > 1) {
      batch_split.axes.push_back(WholeAxis(mesh, axis));
    }
  }
  if (strategy.ep > 1) batch_split.priority = 1;

  const graph::Value* batch_input = FindBatchInput(graph);
  const int64_t batch = batch_input == nullptr ? 0 : batch_input->type.shape[0];
  std::vector<graph::NodeId> sub_batched;
  for (const Node& node : graph.nodes()) {
    if (node.op->role() == graph::OpRole::kInput) {
      graph::Value& value = graph.mutable_value(node.results[0]);
      const int rank = static_cast<int>(value.type.shape.size());
      graph::Sharding sharding = graph::Sharding::Replicated(rank);
      // An input of another leading extent is no batch: every device has all of it.
      if (rank > 0 && value.type.shape[0] == batch) {
        sharding.dims[0] = batch_split;
        if (strategy.sub_batches > 1) sub_batched.push_back(value.producer);
      }
      value.sharding = std::move(sharding);
    }
    for (const ValueId id : node.results) {
      for (const auto& [name, size] :
           {std::pair("tp", strategy.splits_by_cost ? 1 : strategy.tp),
            std::pair("ep", strategy.ep), std::pair("cp", strategy.cp)}) {
        const SplitHint* hint = size > 1 ? FindHint(hints, graph, id, name) : nullptr;
        if (hint == nullptr || (hint->is_sequence && !strategy.sp)) continue;
        graph::Value& value = graph.mutable_value(id);
        const int rank = static_cast<int>(value.type.shape.size());
        if (!value.sharding.has_value()) {
          value.sharding =
              hint->is_sequence ? graph::Sharding::Open(rank) : graph::Sharding::Replicated(rank);
        }
        graph::DimSharding& dim = value.sharding->dims[hint->dim];
        dim.axes = {WholeAxis(mesh, mesh.FindAxis(name))};
        const int64_t extent = value.type.shape[hint->dim];
        if (IsShared(*hint, extent, size)) dim.axes[0].size = extent;  // the major part of the axis
        if (dim.axes[0].size == 1) dim.axes.clear();
        if (!hint->is_sequence) continue;
        dim.priority = kAfterTheWeights;
        if (strategy.cp > 1)
          dim.axes.insert(dim.axes.begin(), WholeAxis(mesh, mesh.FindAxis("cp")));
      }
    }
  }
  for (const graph::NodeId input : sub_batched) {
    graph.mutable_node(input).attributes.Set("sub_batches", strategy.sub_batches);
  }
  // A scalar result is whole everywhere; without this it could stay a partial sum.
  for (graph::Return& result : graph.mutable_returns()) {
    if (graph.value(result.value).type.shape.empty() && !result.sharding.has_value()) {
      result.sharding = graph::Sharding::Replicated(0);
    }
  }
  graph.mutable_meshes().push_back(std::move(mesh));
  if (strategy.ulysses) SplitHeads(strategy, hints, graph);
  if (strategy.zero > 0 && !strategy.splits_by_cost) {
    RETURN_IF_ERROR(ApplyStatedShardings(hints, graph, /*only_forward=*/true));
    RETURN_IF_ERROR(SplitOverReplicas(strategy.zero, graph));
  }
  return ApplyStatedShardings(hints, graph);
}

}  // namespace penstock::planner
