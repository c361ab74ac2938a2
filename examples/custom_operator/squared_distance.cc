// An operator that Penstock does not have, and a model that uses it, as a plug-in library:
//
//     penstock list ops --plugin ./squared_distance.so
//     penstock run prototypes.toml --plugin ./squared_distance.so --strategy dp=2,tp=2
//
//     squared_distance(x[n, d], c[k, d]) -> [n, k]: element [i, j] is |x[i] - c[j]|^2
//
// An operator takes two things: a graph::Op says what it means (types, sharding rule, gradient,
// cost) and a kernels::Kernel computes it. custom_operator.cc uses the same file in a program.

#include <cmath>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "base/status_macros.h"
#include "graph/builder.h"
#include "graph/layers.h"
#include "graph/models/model.h"
#include "graph/op.h"
#include "graph/ops/common.h"
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/kernel.h"
#include "penstock/plugin.h"

namespace {

namespace graph = penstock::graph;
namespace kernels = penstock::kernels;
namespace ops = penstock::graph::ops;
using graph::AttrValue;
using graph::ValueId;

// The operator.

class SquaredDistanceOp : public graph::Op {
 public:
  std::string_view name() const override { return "squared_distance"; }
  int min_operands() const override { return 2; }

  absl::StatusOr<std::vector<penstock::TensorType>> InferTypes(
      const graph::OpContext& context) const override {
    for (int operand : {0, 1}) {
      RETURN_IF_ERROR(ops::CheckFloat(context, operand));
      RETURN_IF_ERROR(ops::CheckRank(context, operand, 2));
    }
    RETURN_IF_ERROR(ops::CheckSameDType(context, 1, 0));
    const penstock::TensorType& x = context.operands[0];
    const penstock::TensorType& c = context.operands[1];
    if (x.shape[1] != c.shape[1]) {
      return ops::Invalid("the last dimensions differ: ", ops::Describe(context, 0), ", ",
                          ops::Describe(context, 1));
    }
    return std::vector<penstock::TensorType>{{x.dtype, {x.shape[0], c.shape[0]}}};
  }

  // As the einsum "nd,kd->nk": parts of n or k are parts of the result, and a part of d gives one
  // term of a sum. The planner needs nothing else to split the operator in any way.
  graph::ShardingRule Rule(const graph::OpContext& context) const override {
    graph::ShardingRule rule;
    const int n = rule.AddFactor(context.operands[0].shape[0]);
    const int k = rule.AddFactor(context.operands[1].shape[0]);
    const int d = rule.AddFactor(context.operands[0].shape[1], graph::FactorKind::kReduction);
    rule.operands = {{{n}, {d}}, {{k}, {d}}};
    rule.results = {{{n}, {k}}};
    return rule;
  }

  bool is_differentiable() const override { return true; }

  // dx[i] = 2 (x[i] sum_j g[i, j] - sum_j g[i, j] c[j]), and the same for c with g transposed.
  absl::StatusOr<std::vector<ValueId>> Gradient(graph::GraphBuilder& builder,
                                                const graph::Node& node,
                                                absl::Span<const ValueId> grads) const override {
    const ValueId g = grads[0];
    const ValueId x = node.operands[0];
    const ValueId c = node.operands[1];
    auto gradient = [&](ValueId operand, int64_t summed_axis, ValueId product) {
      const ValueId sums =
          builder.Add("reduce_sum", {g}, {{"axes", AttrValue::Ints({summed_axis})}});
      const ValueId weighted =
          builder.Add("mul", {operand, ops::BroadcastLike(builder, sums, operand, {1})});
      return builder.Add(
          "mul", {builder.Add("sub", {weighted, product}), ops::ScalarLike(builder, operand, 2.0)});
    };
    return std::vector<ValueId>{
        gradient(x, 1, builder.Add("matmul", {g, c})),
        gradient(c, 0, builder.Add("matmul", {g, x}, {{"transpose_a", true}}))};
  }

  graph::OpCost Cost(const graph::OpContext& context) const override {
    const int64_t depth = context.operands[0].shape[1];
    return ops::CostOf(context, /*flops=*/3.0 * static_cast<double>(depth),
                       context.results[0].num_elements());
  }
};

// Its kernel on the CPU. The shapes are those of the tiles that the device holds.
template <typename T>
class SquaredDistance : public kernels::CpuKernel {
 public:
  using CpuKernel::CpuKernel;

  absl::Status Run(const kernels::KernelArgs& args) override {
    const T* x = kernels::Input<T>(args, 0);
    const T* c = kernels::Input<T>(args, 1);
    T* result = kernels::Output<T>(args, 0);
    const int64_t n = spec_.outputs[0].shape[0];
    const int64_t k = spec_.outputs[0].shape[1];
    const int64_t d = spec_.inputs[0].shape[1];
    pool_.ParallelFor(n, kernels::GrainRows(k * d), [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t j = 0; j < k; ++j) {
          T sum = 0;
          for (int64_t l = 0; l < d; ++l) {
            const T difference = x[i * d + l] - c[j * d + l];
            sum += difference * difference;
          }
          result[i * k + j] = sum;
        }
      }
    });
    return absl::OkStatus();
  }
};

kernels::KernelDef SquaredDistanceKernel() {
  return {.create = kernels::CreateKernel<SquaredDistance, kernels::Floats>};
}

// A model that reads it: the next byte is the one whose prototype is nearest to what the bytes
// before are mapped to. Inputs and outputs are those of ModelOutputs.
graph::ModelOutputs BuildPrototypes(graph::GraphBuilder& builder, const graph::ModelConfig& config,
                                    graph::ModelUse use, int64_t batch) {
  constexpr double kStd = 0.05;
  const int64_t embedding = 16;
  const int64_t n = config.context;
  const double dropout = use == graph::ModelUse::kTrain ? config.dropout : 0.0;
  graph::LayerBuilder layers(builder, config.dtype, dropout);
  graph::ModelOutputs outputs;
  outputs.tokens = builder.Declare("input", "tokens", {penstock::DType::kI32, {batch, n}});
  if (use != graph::ModelUse::kPredict) {
    outputs.labels = builder.Declare("input", "labels", {penstock::DType::kI32, {batch, n}});
  }
  const ValueId table = layers.Normal("wte", {config.vocabulary, embedding}, kStd);
  ValueId x = builder.Add("reshape", {layers.Embedding(table, outputs.tokens, "embedded")},
                          {{"shape", AttrValue::Ints({batch, n * embedding})}});
  x = layers.Dropout(builder.Add("tanh", {layers.Linear(x, "in", config.width, kStd)}), "drop");
  const ValueId prototypes = layers.Normal("prototypes", {config.vocabulary, config.width}, kStd);
  outputs.logits =
      builder.Add("neg", {builder.Add("squared_distance", {x, prototypes})}, {}, "logits");
  if (use == graph::ModelUse::kPredict) return outputs;
  const ValueId last = builder.Add("slice", {outputs.labels},
                                   {{"start", AttrValue::Ints({0, n - 1})},
                                    {"limit", AttrValue::Ints({batch, n})},
                                    {"stride", AttrValue::Ints({1, 1})}});
  const ValueId next = builder.Add("reshape", {last}, {{"shape", AttrValue::Ints({batch})}});
  outputs.loss = builder.Add("cross_entropy", {outputs.logits, next}, {}, "losses");
  if (use == graph::ModelUse::kTrain) {
    outputs.loss =
        builder.Add("reduce_mean", {outputs.loss}, {{"axes", AttrValue::Ints({0})}}, "loss");
  }
  return outputs;
}

graph::Model PrototypesModel() {
  graph::Model model;
  model.name = "prototypes";
  model.summary = "next-byte model that picks the nearest of learned prototypes";
  model.defaults.width = 64;
  model.defaults.context = 8;
  model.check = [](const graph::ModelConfig&) { return absl::OkStatus(); };
  model.build = BuildPrototypes;
  model.tensor_splits = {
      {.pattern = "in.w", .dim = 1, .what = "width"},
      {.pattern = "prototypes", .dim = 1, .what = "width"},
  };
  return model;
}

absl::Status Add(penstock::Registries& registries) {
  RETURN_IF_ERROR(registries.ops.Add(std::make_unique<SquaredDistanceOp>()));
  RETURN_IF_ERROR(registries.kernels.Add("squared_distance", SquaredDistanceKernel()));
  return registries.models.AddModel(PrototypesModel());
}

constexpr penstock::Plugin kPlugin = {.add = Add};

}  // namespace

extern "C" const penstock::Plugin* penstock_plugin() { return &kPlugin; }
