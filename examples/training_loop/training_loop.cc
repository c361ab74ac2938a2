// A training loop in C++: a classifier of points on two spirals, built with layers, trained under a
// strategy from the command line and tried on points that it has not seen.
//
//     training_loop                       two ways data parallel, two ways tensor parallel
//     training_loop dp=1                  one device
//     training_loop dp=2,pp=2 4           a pipeline of two stages, four micro-batches
//
// The losses do not depend on the strategy, up to rounding.

#include <cmath>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"

#include "penstock/penstock.h"

namespace {

namespace actors = penstock::actors;
namespace graph = penstock::graph;
namespace planner = penstock::planner;
using penstock::DType;
using penstock::Registries;
using penstock::Tensor;

constexpr int64_t kBatch = 128;
constexpr int64_t kTestPoints = 256;
constexpr int kSteps = 200;
constexpr int kStepsBetweenReports = 20;
constexpr int64_t kWidth = 64;

// What is split over tp: the hidden units of the block, by columns of w1 and rows of w2.
const graph::SplitHint kSplits[] = {
    {.pattern = "mlp.w1", .dim = 1, .what = "hidden units"},
    {.pattern = "mlp.w2", .dim = 0, .what = "hidden units"},
};

// points f32[n, 2] -> logits f32[n, 2]; with labels i32[n] the graph returns the mean loss, without
// them the logits. Parameters have the same names either way.
absl::StatusOr<graph::Graph> BuildModel(const graph::OpRegistry& ops, int64_t n, bool has_labels) {
  graph::Graph result("spirals");
  graph::GraphBuilder builder(ops, result);
  graph::LayerBuilder layers(builder, DType::kF32, /*dropout=*/0);
  const graph::ValueId points = builder.Declare("input", "points", {DType::kF32, {n, 2}});
  graph::ValueId x = builder.Add("tanh", {layers.Linear(points, "in", kWidth, /*std=*/1)});
  const graph::ValueId block = layers.Mlp(x, "mlp", 2 * kWidth, /*std=*/0.1, /*output_std=*/0.1);
  x = layers.LayerNorm(builder.Add("add", {x, block}), "norm");
  graph::ValueId output = layers.Linear(x, "out", 2, /*std=*/0.1);
  if (has_labels) {
    const graph::ValueId labels = builder.Declare("input", "labels", {DType::kI32, {n}});
    output = builder.Add("reduce_mean", {builder.Add("cross_entropy", {output, labels})},
                         {{"axes", graph::AttrValue::Ints({0})}}, "loss");
  }
  RETURN_IF_ERROR(builder.status());
  result.mutable_returns().push_back({.value = output, .sharding = std::nullopt});
  return result;
}

// Compiles the graph for a strategy and starts its devices.
absl::StatusOr<std::unique_ptr<actors::Session>> Start(const Registries& registries,
                                                       graph::Graph program,
                                                       const std::string& strategy,
                                                       int64_t microbatches) {
  penstock::ModelOptions options;
  options.strategy = strategy;
  options.microbatches = microbatches;
  options.splits.assign(std::begin(kSplits), std::end(kSplits));
  ASSIGN_OR_RETURN(planner::Plan plan,
                   penstock::CompileModel(registries, std::move(program), options));
  return penstock::StartSession(registries, std::move(plan));
}

// `n` points of the two arms with their labels; those of one step are the same in every run.
actors::Feeds DrawPoints(int64_t n, uint32_t step) {
  Tensor points({DType::kF32, {n, 2}});
  Tensor labels({DType::kI32, {n}});
  const penstock::RandomKey key = {.seed = 1, .stream = 0, .step = step};
  for (int64_t i = 0; i < n; ++i) {
    const auto radius = static_cast<float>(penstock::RandomUniform(key, i));
    const int arm = static_cast<int>(i % 2);
    const float angle = 6 * radius + 3.14159265f * static_cast<float>(arm);
    points.As<float>()[2 * i] = radius * std::cos(angle);
    points.As<float>()[2 * i + 1] = radius * std::sin(angle);
    labels.As<int32_t>()[i] = arm;
  }
  return {{"points", points}, {"labels", labels}};
}

// The share of points for which the larger logit is that of the label, by the parameters of a
// training session.
absl::StatusOr<double> Accuracy(const Registries& registries, const actors::Session& trained) {
  ASSIGN_OR_RETURN(graph::Graph model, BuildModel(registries.ops, kTestPoints, false));
  ASSIGN_OR_RETURN(const std::unique_ptr<actors::Session> session,
                   Start(registries, std::move(model), "dp=1", /*microbatches=*/1));
  for (const planner::StatePlan& state : session->plan().states) {
    ASSIGN_OR_RETURN(const Tensor value, trained.Fetch(state.name));
    RETURN_IF_ERROR(session->SetState(state.name, value));
  }
  actors::Feeds feeds = DrawPoints(kTestPoints, /*step=*/kSteps);
  const Tensor labels = feeds.at("labels");
  feeds.erase("labels");
  ASSIGN_OR_RETURN(const actors::StepResult result, session->Run(feeds));
  const auto* logits = result.fetches[0].second.As<float>();
  int64_t num_right = 0;
  for (int64_t i = 0; i < kTestPoints; ++i) {
    num_right += (logits[2 * i + 1] > logits[2 * i]) == (labels.As<int32_t>()[i] == 1);
  }
  return static_cast<double>(num_right) / static_cast<double>(kTestPoints);
}

absl::Status Run(const std::string& strategy, int64_t microbatches) {
  const Registries registries = penstock::BuiltinRegistries();
  ASSIGN_OR_RETURN(graph::Graph forward, BuildModel(registries.ops, kBatch, true));
  graph::TrainingOptions training;
  training.learning_rate = 2e-3;
  training.schedule = graph::LearningRateSchedule::kCosine;
  training.total_steps = kSteps;
  ASSIGN_OR_RETURN(graph::Graph step,
                   graph::BuildTrainingGraph(registries.ops, std::move(forward), training));
  ASSIGN_OR_RETURN(const std::unique_ptr<actors::Session> session,
                   Start(registries, std::move(step), strategy, microbatches));
  std::cout << session->plan().strategy << " on " << session->plan().devices.size() << " devices\n";
  for (int i = 0; i < kSteps; ++i) {
    ASSIGN_OR_RETURN(const actors::StepResult result, session->Run(DrawPoints(kBatch, i)));
    if (i % kStepsBetweenReports != 0 && i + 1 != kSteps) continue;
    std::cout << "step " << i + 1 << " loss " << *result.Find("loss")->As<float>() << "\n";
  }
  ASSIGN_OR_RETURN(const double accuracy, Accuracy(registries, *session));
  std::cout << "accuracy " << accuracy << "\n";
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  int64_t microbatches = 1;
  if (argc > 3 || (argc > 2 && !absl::SimpleAtoi(argv[2], &microbatches))) {
    std::cerr << "usage: training_loop [STRATEGY [MICROBATCHES]]\n";
    return 2;
  }
  const absl::Status status = Run(argc > 1 ? argv[1] : "dp=2,tp=2", microbatches);
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}
