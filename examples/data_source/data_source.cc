// An application that makes its own batches. A source reads a sensor ahead of the training, and a
// sink prints what each step has computed: both have a thread of their own, so that the devices do
// not wait for data.
//
//     data_source [STEPS]
//
// The records come from a simulated sensor: y is a linear function of x with noise. The weights
// that training finds are printed beside those of the sensor.

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"

#include "penstock/penstock.h"

namespace {

namespace actors = penstock::actors;
namespace graph = penstock::graph;
using penstock::DType;
using penstock::Tensor;

constexpr int64_t kBatch = 64;
constexpr int64_t kFeatures = 4;
constexpr int64_t kStepsAhead = 4;
constexpr float kWeights[kFeatures] = {1.5f, -2.0f, 0.5f, 3.0f};

constexpr std::string_view kModel = R"(
graph sensor {
  %x = input : f32[64, 4]
  %y = input : f32[64, 1]
  %w = parameter {init="zeros"} : f32[4, 1]
  %predicted = matmul(%x, %w) : f32[64, 1]
  %error = sub(%predicted, %y) : f32[64, 1]
  %squares = square(%error) : f32[64, 1]
  %loss = reduce_mean(%squares) {axes=[0, 1]} : f32[]
  return %loss
}
)";

// Batch `index` of the sensor. Every batch has memory of its own: a session reads the feeds of a
// step until the step is done.
actors::Feeds ReadSensor(uint32_t index) {
  Tensor x({DType::kF32, {kBatch, kFeatures}});
  Tensor y({DType::kF32, {kBatch, 1}});
  for (int64_t i = 0; i < kBatch; ++i) {
    float sum = 0.01f * static_cast<float>(
                            penstock::RandomNormal({.seed = 1, .stream = 1, .step = index}, i));
    for (int64_t j = 0; j < kFeatures; ++j) {
      const auto value = static_cast<float>(
          penstock::RandomNormal({.seed = 1, .stream = 0, .step = index}, i * kFeatures + j));
      x.As<float>()[i * kFeatures + j] = value;
      sum += kWeights[j] * value;
    }
    y.As<float>()[i] = sum;
  }
  return {{"x", std::move(x)}, {"y", std::move(y)}};
}

// Is asked for the batch of a step while earlier steps run. It may block, as reading a file or a
// socket does.
class Sensor final : public actors::Source {
 public:
  absl::StatusOr<actors::Feeds> Get(int64_t step) override {
    return ReadSensor(static_cast<uint32_t>(step));
  }
};

class Printer final : public actors::Sink {
 public:
  explicit Printer(int64_t steps) : steps_(steps) {}
  absl::Status Take(int64_t step, const actors::StepResult& result) override {
    if (step % 20 == 0 || step + 1 == steps_) {
      std::cout << "step " << step + 1 << " loss " << *result.Find("loss")->As<float>() << "\n";
    }
    return absl::OkStatus();
  }

 private:
  const int64_t steps_;
};

absl::Status Run(int64_t steps) {
  const penstock::Registries registries = penstock::BuiltinRegistries();
  ASSIGN_OR_RETURN(graph::Graph model, graph::ParseGraph(kModel, "sensor.pst", registries.ops));
  graph::TrainingOptions training;
  training.learning_rate = 0.05;
  training.weight_decay = 0;
  ASSIGN_OR_RETURN(graph::Graph step,
                   graph::BuildTrainingGraph(registries.ops, std::move(model), training));
  ASSIGN_OR_RETURN(penstock::planner::Plan plan,
                   penstock::CompileModel(registries, std::move(step), {.strategy = "dp=2"}));
  ASSIGN_OR_RETURN(const std::unique_ptr<actors::Session> session,
                   penstock::StartSession(registries, std::move(plan)));

  Sensor sensor;
  Printer printer(steps);
  RETURN_IF_ERROR(actors::RunSteps(*session, steps, kStepsAhead, sensor, printer));

  ASSIGN_OR_RETURN(const Tensor weights, session->Fetch("w"));
  float largest = 0;
  for (int64_t j = 0; j < kFeatures; ++j) {
    std::cout << "weight " << weights.As<float>()[j] << " of " << kWeights[j] << "\n";
    largest = std::max(largest, std::abs(weights.As<float>()[j] - kWeights[j]));
  }
  std::cout << "largest difference " << largest << "\n";
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  int64_t steps = 200;
  if (argc > 2 || (argc == 2 && (!absl::SimpleAtoi(argv[1], &steps) || steps < 1))) {
    std::cerr << "usage: data_source [STEPS]\n";
    return 2;
  }
  const absl::Status status = Run(steps);
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}
