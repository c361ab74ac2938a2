// An operator that Penstock does not have, defined outside of its tree:
//
//     squared_distance(x[n, d], c[k, d]) -> [n, k]: element [i, j] is |x[i] - c[j]|^2
//
// It takes two things: a graph::Op says what the operator means (types, sharding rule, gradient,
// cost) and a kernels::Kernel computes it. main() adds both to the registries, runs the operator on
// one device and split over two, from C++ and from the text format, and holds its gradient against
// central differences. The exit status is 1 if any of them differ.

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "actors/session/session.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/builder.h"
#include "graph/gradients.h"
#include "graph/op.h"
#include "graph/ops/common.h"
#include "graph/text.h"
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/kernel.h"
#include "planner/compile.h"
#include "planner/policy/policy.h"

namespace {

namespace actors = penstock::actors;
namespace graph = penstock::graph;
namespace kernels = penstock::kernels;
namespace ops = penstock::graph::ops;
namespace planner = penstock::planner;
using graph::AttrValue;
using graph::ValueId;
using penstock::DType;
using penstock::Tensor;

// --- The operator
// ---------------------------------------------------------------------------------

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

// --- Its kernel on the CPU
// ------------------------------------------------------------------------

// The shapes are those of the tiles that the device holds.
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

// --- Programs that use it
// -------------------------------------------------------------------------

struct Registries {
  graph::OpRegistry ops = graph::BuiltinOps();
  kernels::KernelRegistry kernels = kernels::CpuKernels();
  planner::PolicyRegistry policies = planner::BuiltinPolicies();
};

constexpr int64_t kPoints = 8;
constexpr int64_t kCentres = 3;
constexpr int64_t kDepth = 6;

// The sum of the distances, each times its weight.
absl::StatusOr<graph::Graph> BuildInCpp(const graph::OpRegistry& ops) {
  graph::Graph result("distances");
  graph::GraphBuilder builder(ops, result);
  const ValueId x = builder.Declare("parameter", "x", {DType::kF64, {kPoints, kDepth}});
  const ValueId c = builder.Declare("parameter", "c", {DType::kF64, {kCentres, kDepth}});
  const ValueId weights = builder.Declare("input", "weights", {DType::kF64, {kPoints, kCentres}});
  const ValueId distance = builder.Add("squared_distance", {x, c});
  const ValueId loss = builder.Add("reduce_sum", {builder.Add("mul", {distance, weights})},
                                   {{"axes", AttrValue::Ints({0, 1})}}, "loss");
  RETURN_IF_ERROR(builder.status());
  result.mutable_returns().push_back({.value = loss, .sharding = std::nullopt});
  return result;
}

// The same in the text format. %x is split over two devices as `sharding` says; the shardings of
// all else follow by propagation.
absl::StatusOr<graph::Graph> ReadFromText(const graph::OpRegistry& ops, std::string_view sharding) {
  const std::string text = penstock::StrCat(R"(
mesh m = [devices=2]
graph distances {
  %x = parameter : f64[8, 6] )",
                                            sharding, R"(
  %c = parameter : f64[3, 6]
  %weights = input : f64[8, 3]
  %distance = squared_distance(%x, %c) : f64[8, 3]
  %weighted = mul(%distance, %weights) : f64[8, 3]
  %loss = reduce_sum(%weighted) {axes=[0, 1]} : f64[]
  return %loss
}
)");
  return graph::ParseGraph(text, "distances.pst", ops);
}

Tensor Draw(penstock::Shape shape, uint32_t stream) {
  Tensor tensor({DType::kF64, std::move(shape)});
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    tensor.As<double>()[i] = penstock::RandomNormal({.seed = 1, .stream = stream, .step = 0}, i);
  }
  return tensor;
}

struct Values {
  Tensor x = Draw({kPoints, kDepth}, 0);
  Tensor c = Draw({kCentres, kDepth}, 1);
  Tensor weights = Draw({kPoints, kCentres}, 2);
};

absl::StatusOr<std::unique_ptr<actors::Session>> Start(const Registries& registries,
                                                       graph::Graph program) {
  planner::CompileOptions compile;
  compile.policies = &registries.policies;
  compile.kernels = kernels::TraitsOf(registries.kernels, /*num_threads=*/1);
  ASSIGN_OR_RETURN(planner::Plan plan,
                   planner::Compile(registries.ops, std::move(program), compile));
  actors::SessionOptions options;
  options.kernels = &registries.kernels;
  return actors::Session::Start(std::move(plan), options);
}

// What the program of the session returns, in order.
absl::StatusOr<std::vector<Tensor>> Evaluate(actors::Session& session, const Values& values) {
  RETURN_IF_ERROR(session.SetState("x", values.x));
  RETURN_IF_ERROR(session.SetState("c", values.c));
  ASSIGN_OR_RETURN(const actors::StepResult result, session.Run({{"weights", values.weights}}));
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : result.fetches) tensors.push_back(tensor);
  return tensors;
}

// --- Checks
// ---------------------------------------------------------------------------------------

constexpr double kTolerance = 1e-7;  // of central differences; layouts differ by much less

double LargestDifference(const Tensor& a, const Tensor& b) {
  if (a.type() != b.type()) return INFINITY;
  double largest = 0;
  for (int64_t i = 0; i < a.num_elements(); ++i) {
    largest = std::max(largest, std::abs(a.As<double>()[i] - b.As<double>()[i]));
  }
  return largest;
}

absl::Status Report(std::string_view what, double difference) {
  std::cout << what << ": largest difference " << difference << "\n";
  if (difference <= kTolerance) return absl::OkStatus();
  return absl::InternalError(penstock::StrCat(what, ": expected a difference below ", kTolerance));
}

// The gradient of the loss for `operand`, which is one of `values`, by central differences.
absl::StatusOr<Tensor> NumericGradient(actors::Session& forward, const Values& values,
                                       Tensor operand) {
  constexpr double kStep = 1e-4;
  Tensor gradient(operand.type());
  for (int64_t i = 0; i < operand.num_elements(); ++i) {
    double* element = operand.As<double>() + i;
    const double before = *element;
    *element = before + kStep;
    ASSIGN_OR_RETURN(const std::vector<Tensor> above, Evaluate(forward, values));
    *element = before - kStep;
    ASSIGN_OR_RETURN(const std::vector<Tensor> below, Evaluate(forward, values));
    *element = before;
    gradient.As<double>()[i] = (*above[0].As<double>() - *below[0].As<double>()) / (2 * kStep);
  }
  return gradient;
}

absl::Status Run() {
  Registries registries;
  RETURN_IF_ERROR(registries.ops.Add(std::make_unique<SquaredDistanceOp>()));
  RETURN_IF_ERROR(registries.kernels.Add("squared_distance", SquaredDistanceKernel()));
  const Values values;

  // One device: the loss and the gradients of x and c.
  ASSIGN_OR_RETURN(const graph::Graph forward, BuildInCpp(registries.ops));
  ASSIGN_OR_RETURN(graph::Graph with_gradients, graph::AddGradients(registries.ops, forward));
  ASSIGN_OR_RETURN(auto session, Start(registries, std::move(with_gradients)));
  ASSIGN_OR_RETURN(const std::vector<Tensor> expected, Evaluate(*session, values));
  std::cout << "loss " << *expected[0].As<double>() << "\n";

  ASSIGN_OR_RETURN(session, Start(registries, forward));
  ASSIGN_OR_RETURN(const Tensor dx, NumericGradient(*session, values, values.x));
  RETURN_IF_ERROR(Report("gradient of x", LargestDifference(expected[1], dx)));
  ASSIGN_OR_RETURN(const Tensor dc, NumericGradient(*session, values, values.c));
  RETURN_IF_ERROR(Report("gradient of c", LargestDifference(expected[2], dc)));

  // Two devices: by points, and by the dimension that is summed over.
  for (const std::string_view sharding : {"@[devices, _]", "@[_, devices]"}) {
    ASSIGN_OR_RETURN(graph::Graph program, ReadFromText(registries.ops, sharding));
    ASSIGN_OR_RETURN(program, graph::AddGradients(registries.ops, program));
    ASSIGN_OR_RETURN(session, Start(registries, std::move(program)));
    ASSIGN_OR_RETURN(const std::vector<Tensor> results, Evaluate(*session, values));
    double difference = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      difference = std::max(difference, LargestDifference(expected[i], results[i]));
    }
    RETURN_IF_ERROR(
        Report(penstock::StrCat("x ", sharding, " on ", session->plan().devices.size(), " devices"),
               difference));
  }
  return absl::OkStatus();
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}
