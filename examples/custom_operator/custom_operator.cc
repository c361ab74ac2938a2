// A program that uses the operator of squared_distance.cc. It runs the operator on one device and
// split over two, from C++ and from the text format, and holds its gradient against central
// differences. The exit status is 1 if any of them differ.
//
// The program has the operator linked in and calls the function that the library exports; one that
// loads it at run time calls penstock::LoadPlugin.

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

#include "penstock/penstock.h"
#include "penstock/plugin.h"

namespace {

namespace actors = penstock::actors;
namespace graph = penstock::graph;
using graph::AttrValue;
using graph::ValueId;
using penstock::DType;
using penstock::Registries;
using penstock::Tensor;

// Programs that use it.

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
  ASSIGN_OR_RETURN(penstock::planner::Plan plan,
                   penstock::CompileModel(registries, std::move(program)));
  return penstock::StartSession(registries, std::move(plan));
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

// Checks.

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
  Registries registries = penstock::BuiltinRegistries();
  RETURN_IF_ERROR(penstock_plugin()->add(registries));
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
