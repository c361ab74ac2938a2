// An application that makes its own batches. A thread of the application reads records ahead into a
// queue with a bound; the training loop feeds them and has two steps under way, so that the devices
// do not wait for data.
//
//     data_source [STEPS]
//
// The records come from a simulated sensor: y is a linear function of x with noise. The weights
// that training finds are printed beside those of the sensor.

#include <algorithm>
#include <cmath>
#include <deque>
#include <iostream>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/synchronization/mutex.h"

#include "penstock/penstock.h"

namespace {

namespace actors = penstock::actors;
namespace graph = penstock::graph;
using penstock::DType;
using penstock::Tensor;

constexpr int64_t kBatch = 64;
constexpr int64_t kFeatures = 4;
constexpr size_t kBatchesAhead = 4;
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

// Batches in the order in which they were made. Push waits while the queue is full, Pop while it is
// empty; after Close both return at once.
class BatchQueue {
 public:
  bool Push(actors::Feeds batch) {
    const absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &BatchQueue::CanPush));
    if (is_closed_) return false;
    batches_.push_back(std::move(batch));
    return true;
  }
  actors::Feeds Pop() {
    const absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &BatchQueue::CanPop));
    if (batches_.empty()) return {};
    actors::Feeds batch = std::move(batches_.front());
    batches_.pop_front();
    return batch;
  }
  void Close() {
    const absl::MutexLock lock(&mutex_);
    is_closed_ = true;
  }

 private:
  bool CanPush() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return is_closed_ || batches_.size() < kBatchesAhead;
  }
  bool CanPop() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return is_closed_ || !batches_.empty();
  }

  absl::Mutex mutex_;
  std::deque<actors::Feeds> batches_ ABSL_GUARDED_BY(mutex_);
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
};

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

absl::Status Train(actors::Session& session, BatchQueue& queue, int64_t steps) {
  RETURN_IF_ERROR(session.Submit(queue.Pop()).status());
  for (int64_t step = 0; step < steps; ++step) {
    // The next step is handed in before the result of this one is there.
    if (step + 1 < steps) RETURN_IF_ERROR(session.Submit(queue.Pop()).status());
    ASSIGN_OR_RETURN(const actors::StepResult result, session.Wait(step));
    if (step % 20 == 0 || step + 1 == steps) {
      std::cout << "step " << step + 1 << " loss " << *result.Find("loss")->As<float>() << "\n";
    }
  }
  return absl::OkStatus();
}

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

  BatchQueue queue;
  std::thread source([&queue] {
    for (uint32_t index = 0; queue.Push(ReadSensor(index)); ++index) {
    }
  });
  const absl::Status trained = Train(*session, queue, steps);
  queue.Close();
  source.join();
  RETURN_IF_ERROR(trained);

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
