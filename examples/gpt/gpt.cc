// Trains the built-in GPT on the bytes of a file and lets it continue a text. The training session
// may have any layout; the one that predicts has one device and takes the trained parameters.
//
//     gpt FILE [STRATEGY [STEPS]]         such as gpt /usr/share/common-licenses/GPL-3 dp=2,tp=2
//     200
//
// The losses do not depend on the strategy, up to rounding.

#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
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
using penstock::Registries;
using penstock::Tensor;

constexpr int64_t kBatch = 8;
constexpr int64_t kSampleBytes = 40;
constexpr graph::ModelConfig kConfig = {
    .layers = 2, .width = 64, .heads = 4, .context = 32, .dropout = 0.1};

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.good() && !file.eof()) {
    return absl::NotFoundError(penstock::StrCat(path, ": cannot be read"));
  }
  if (text.size() < kConfig.context + 2) {
    return absl::InvalidArgumentError(penstock::StrCat(
        path, ": has ", text.size(), " bytes, expected at least ", kConfig.context + 2));
  }
  return text;
}

// Sequences at random places in the text, and the bytes that follow each of theirs.
actors::Feeds DrawSequences(std::string_view text, int64_t step) {
  Tensor tokens({DType::kI32, {kBatch, kConfig.context}});
  Tensor labels({DType::kI32, {kBatch, kConfig.context}});
  const penstock::RandomKey key = {
      .seed = 1, .stream = 1u << 20, .step = static_cast<uint32_t>(step)};
  const auto num_starts = static_cast<double>(text.size() - kConfig.context - 1);
  for (int64_t b = 0; b < kBatch; ++b) {
    const auto start = static_cast<size_t>(penstock::RandomUniform(key, b) * num_starts);
    for (int64_t i = 0; i < kConfig.context; ++i) {
      const size_t at = start + static_cast<size_t>(i);
      tokens.As<int32_t>()[b * kConfig.context + i] = static_cast<unsigned char>(text[at]);
      labels.As<int32_t>()[b * kConfig.context + i] = static_cast<unsigned char>(text[at + 1]);
    }
  }
  return {{"tokens", std::move(tokens)}, {"labels", std::move(labels)}};
}

absl::StatusOr<std::unique_ptr<actors::Session>> StartTraining(const Registries& registries,
                                                               const graph::Model& model,
                                                               const std::string& strategy) {
  ASSIGN_OR_RETURN(graph::Graph forward, graph::BuildModelGraph(registries.ops, model, kConfig,
                                                                graph::ModelUse::kTrain, kBatch));
  graph::TrainingOptions training;
  training.learning_rate = 3e-3;
  training.warmup_steps = 5;
  ASSIGN_OR_RETURN(graph::Graph step,
                   graph::BuildTrainingGraph(registries.ops, std::move(forward), training));
  penstock::ModelOptions options;
  options.strategy = strategy;
  options.splits = model.tensor_splits;
  ASSIGN_OR_RETURN(penstock::planner::Plan plan,
                   penstock::CompileModel(registries, std::move(step), options));
  actors::SessionOptions session;
  session.seed = 1;
  return penstock::StartSession(registries, std::move(plan), session);
}

// The text that the model continues `prompt` with: the likeliest byte, again and again.
absl::StatusOr<std::string> Continue(const Registries& registries, const graph::Model& model,
                                     const actors::Session& trained, std::string prompt) {
  ASSIGN_OR_RETURN(graph::Graph graph,
                   graph::BuildModelGraph(registries.ops, model, kConfig, graph::ModelUse::kPredict,
                                          /*batch=*/1));
  ASSIGN_OR_RETURN(penstock::planner::Plan plan,
                   penstock::CompileModel(registries, std::move(graph)));
  actors::SessionOptions options;
  ASSIGN_OR_RETURN(options.states, trained.KeepStates(actors::StateSelection::kParameters));
  ASSIGN_OR_RETURN(const std::unique_ptr<actors::Session> session,
                   penstock::StartSession(registries, std::move(plan), options));
  for (int64_t n = 0; n < kSampleBytes; ++n) {
    const auto length = std::min<int64_t>(static_cast<int64_t>(prompt.size()), kConfig.context);
    const std::string_view last = std::string_view(prompt).substr(prompt.size() - length);
    Tensor tokens({DType::kI32, {1, kConfig.context}});
    for (int64_t i = 0; i < length; ++i) {
      tokens.As<int32_t>()[i] = static_cast<unsigned char>(last[i]);
    }
    ASSIGN_OR_RETURN(const actors::StepResult result, session->Run({{"tokens", tokens}}));
    const float* logits = result.fetches[0].second.As<float>() + (length - 1) * kConfig.vocabulary;
    prompt += static_cast<char>(std::max_element(logits, logits + kConfig.vocabulary) - logits);
  }
  return prompt;
}

absl::Status Run(const std::string& path, const std::string& strategy, int64_t steps) {
  ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  const Registries registries = penstock::BuiltinRegistries();
  const graph::Model& model = *registries.models.FindModel("gpt");
  ASSIGN_OR_RETURN(const std::unique_ptr<actors::Session> session,
                   StartTraining(registries, model, strategy));
  std::cout << session->plan().strategy << " on " << session->plan().devices.size() << " devices\n";
  for (int64_t step = 0; step < steps; ++step) {
    ASSIGN_OR_RETURN(const actors::StepResult result, session->Run(DrawSequences(text, step)));
    if (step % 10 != 0 && step + 1 != steps) continue;
    std::cout << "step " << step + 1 << " loss " << *result.Find("loss")->As<float>() << "\n";
  }
  ASSIGN_OR_RETURN(const std::string sample,
                   Continue(registries, model, *session, text.substr(0, 16)));
  std::cout << "sample: " << sample << "\n";
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  int64_t steps = 50;
  if (argc < 2 || argc > 4 || (argc == 4 && (!absl::SimpleAtoi(argv[3], &steps) || steps < 1))) {
    std::cerr << "usage: gpt FILE [STRATEGY [STEPS]]\n";
    return 2;
  }
  const absl::Status status = Run(argv[1], argc > 2 ? argv[2] : "dp=2,tp=2", steps);
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}
