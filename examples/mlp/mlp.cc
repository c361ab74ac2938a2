// Trains a small network with dropout, writes a checkpoint in the middle, and trains on from it in
// a new session. The second half has the losses of a run that was never interrupted, bit for bit:
// the checkpoint has the parameters and the optimiser's state, and SessionOptions::first_step says
// which step comes next, so that dropout draws what it would have drawn and the data go on.
//
//     mlp [STRATEGY [FOLDER]]             such as dp=2,tp=2; checkpoints go to FOLDER

#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "penstock/penstock.h"

namespace {

namespace actors = penstock::actors;
namespace graph = penstock::graph;
namespace planner = penstock::planner;
using penstock::DType;
using penstock::Registries;
using penstock::Tensor;

constexpr int64_t kBatch = 32;
constexpr int64_t kWidth = 32;
constexpr int64_t kSteps = 40;  // half of them before the checkpoint
constexpr uint64_t kSeed = 1;

// y = mlp(x), fitted to sin(x) in the mean square.
absl::StatusOr<graph::Graph> BuildModel(const Registries& registries) {
  graph::Graph result("sine");
  graph::GraphBuilder builder(registries.ops, result);
  graph::LayerBuilder layers(builder, DType::kF32, /*dropout=*/0.05);
  const graph::ValueId x = builder.Declare("input", "x", {DType::kF32, {kBatch, 1}});
  const graph::ValueId y = builder.Declare("input", "y", {DType::kF32, {kBatch, 1}});
  graph::ValueId hidden = builder.Add("tanh", {layers.Linear(x, "in", kWidth, /*std=*/1)});
  hidden = layers.Mlp(hidden, "mlp", 2 * kWidth, /*std=*/0.2, /*output_std=*/0.2);
  const graph::ValueId output = layers.Linear(hidden, "out", 1, /*std=*/0.2);
  const graph::ValueId error = builder.Add("sub", {output, y});
  const graph::ValueId loss = builder.Add("reduce_mean", {builder.Add("square", {error})},
                                          {{"axes", graph::AttrValue::Ints({0, 1})}}, "loss");
  RETURN_IF_ERROR(builder.status());
  result.mutable_returns().push_back({.value = loss, .sharding = {}});
  return result;
}

absl::StatusOr<planner::Plan> Compile(const Registries& registries, const std::string& strategy) {
  ASSIGN_OR_RETURN(graph::Graph model, BuildModel(registries));
  graph::TrainingOptions training;
  training.learning_rate = 1e-2;
  ASSIGN_OR_RETURN(graph::Graph step,
                   graph::BuildTrainingGraph(registries.ops, std::move(model), training));
  penstock::ModelOptions options;
  options.strategy = strategy;
  options.splits = {{.pattern = "mlp.w1", .dim = 1, .what = "hidden units"},
                    {.pattern = "mlp.w2", .dim = 0, .what = "hidden units"}};
  return penstock::CompileModel(registries, std::move(step), options);
}

// The data of a step are a function of its number.
actors::Feeds DrawBatch(int64_t step) {
  Tensor x({DType::kF32, {kBatch, 1}});
  Tensor y({DType::kF32, {kBatch, 1}});
  const penstock::RandomKey key = {
      .seed = kSeed, .stream = 1u << 20, .step = static_cast<uint32_t>(step)};
  for (int64_t i = 0; i < kBatch; ++i) {
    x.As<float>()[i] = static_cast<float>(6 * penstock::RandomUniform(key, i) - 3);
    y.As<float>()[i] = std::sin(x.As<float>()[i]);
  }
  return {{"x", std::move(x)}, {"y", std::move(y)}};
}

// The losses of the next `count` steps.
absl::StatusOr<std::vector<float>> Train(actors::Session& session, int64_t first, int64_t count) {
  std::vector<float> losses;
  for (int64_t step = first; step < first + count; ++step) {
    ASSIGN_OR_RETURN(const actors::StepResult result, session.Run(DrawBatch(step)));
    losses.push_back(*result.Find("loss")->As<float>());
    if (step % 10 == 0 || step + 1 == first + count) {
      std::cout << "step " << step + 1 << " loss " << losses.back() << "\n";
    }
  }
  return losses;
}

// Writes the states of the session, before step `step`, and waits until they are on the disk.
absl::Status WriteCheckpoint(const actors::Session& session, int64_t step,
                             const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<actors::CheckpointFolder> folder,
                   actors::CheckpointFolder::Open(path, /*keep=*/1));
  absl::Status written;
  actors::CheckpointWriter writer(
      session, std::move(folder),
      [&written](const actors::CheckpointResult& result) { written = result.status; });
  ASSIGN_OR_RETURN(std::shared_ptr<const actors::KeptStates> states,
                   session.KeepStates(actors::StateSelection::kAll));
  actors::CheckpointInfo info;
  info.step = step;
  info.seed = kSeed;
  info.strategy = session.plan().strategy;
  writer.Write(std::move(info), std::move(states));
  RETURN_IF_ERROR(writer.Wait(absl::Minutes(1)));
  return written;
}

// A session that goes on where the newest checkpoint ends.
absl::StatusOr<std::unique_ptr<actors::Session>> Resume(const Registries& registries,
                                                        planner::Plan plan, const std::string& path,
                                                        int64_t* step) {
  ASSIGN_OR_RETURN(actors::Checkpoint checkpoint,
                   actors::Checkpoint::Open(actors::CheckpointFolder::NewestOr(path)));
  ASSIGN_OR_RETURN(const actors::CheckpointInfo info,
                   actors::InfoFromMetadata(checkpoint.metadata()));
  actors::SessionOptions options;
  options.seed = static_cast<uint64_t>(info.seed);
  options.first_step = info.step;
  ASSIGN_OR_RETURN(options.states,
                   actors::CheckpointStates::Create(std::move(checkpoint), plan.states));
  *step = info.step;
  return penstock::StartSession(registries, std::move(plan), options);
}

absl::Status Run(const std::string& strategy, const std::string& folder) {
  const Registries registries = penstock::BuiltinRegistries();
  ASSIGN_OR_RETURN(const planner::Plan plan, Compile(registries, strategy));
  actors::SessionOptions options;
  options.seed = kSeed;
  ASSIGN_OR_RETURN(auto session, penstock::StartSession(registries, plan, options));
  RETURN_IF_ERROR(Train(*session, 0, kSteps / 2).status());
  RETURN_IF_ERROR(WriteCheckpoint(*session, kSteps / 2, folder));
  ASSIGN_OR_RETURN(const auto uninterrupted, Train(*session, kSteps / 2, kSteps / 2));

  int64_t step = 0;
  ASSIGN_OR_RETURN(session, Resume(registries, plan, folder, &step));
  std::cout << "resumed at step " << step + 1 << "\n";
  ASSIGN_OR_RETURN(const auto resumed, Train(*session, step, kSteps - step));
  if (resumed != uninterrupted) return absl::InternalError("the losses after the resume differ");
  std::cout << "the same losses as without interruption\n";
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 3) {
    std::cerr << "usage: mlp [STRATEGY [FOLDER]]\n";
    return 2;
  }
  const std::string folder =
      argc > 2 ? argv[2] : (std::filesystem::current_path() / "mlp-checkpoints").string();
  const absl::Status status = Run(argc > 1 ? argv[1] : "dp=2,tp=2", folder);
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}
