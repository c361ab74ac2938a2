#include "cli/inference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "cli/feeds.h"
#include "cli/npy.h"

#include "base/random.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

constexpr uint32_t kSampleStream = 0x5a3b0001;
constexpr int64_t kSequencesPerStep = 16;
constexpr size_t kNumBytes = 256;

// A session of the model for `use` that holds the parameters.
absl::StatusOr<std::unique_ptr<actors::Session>> StartForward(
    const Registries& registries, const JobModel& model, const Parameters& parameters,
    graph::ModelUse use, int64_t batch, int64_t num_devices, int64_t num_threads) {
  ASSIGN_OR_RETURN(graph::Graph graph,
                   BuildForwardGraph(registries, model, use, batch, num_devices));
  ASSIGN_OR_RETURN(planner::Plan plan, CompileGraph(registries, std::move(graph),
                                                    {.policy = "gpipe",
                                                     .strategy = StrCat("dp=", num_devices),
                                                     .num_threads = num_threads}));
  actors::SessionOptions options;
  options.threads_per_device = static_cast<int>(num_threads);
  options.kernels = &registries.kernels;
  options.policies = &registries.policies;
  ASSIGN_OR_RETURN(std::unique_ptr<actors::Session> session,
                   actors::Session::Start(std::move(plan), options));
  for (const planner::StatePlan& state : session->plan().states) {
    const auto found = parameters.find(state.name);
    if (found == parameters.end()) {
      return absl::InternalError(StrCat("the trained plan has no parameter ", state.name));
    }
    RETURN_IF_ERROR(session->SetState(state.name, found->second));
  }
  return session;
}

}  // namespace

absl::StatusOr<Parameters> FetchParameters(const actors::Session& session) {
  Parameters parameters;
  for (const planner::StatePlan& state : session.plan().states) {
    if (!state.is_parameter) continue;
    ASSIGN_OR_RETURN(parameters[state.name], session.Fetch(state.name));
  }
  return parameters;
}

absl::StatusOr<double> ValidationLoss(const Registries& registries, const JobModel& model,
                                      const Parameters& parameters, absl::Span<const uint8_t> text,
                                      int64_t max_sequences, int64_t num_devices,
                                      int64_t num_threads) {
  const int64_t context = model.config.context;
  std::vector<int64_t> starts =
      ValidationStarts(static_cast<int64_t>(text.size()), context, max_sequences);
  const auto count = static_cast<int64_t>(starts.size());
  if (count == 0) return std::numeric_limits<double>::quiet_NaN();
  // Whole steps of equal size, so that the mean of their losses is that of the sequences.
  const int64_t devices = std::min(num_devices, count);
  const int64_t batch =
      std::min(count / devices, std::max<int64_t>(1, kSequencesPerStep / devices)) * devices;
  const int64_t steps = count / batch;
  ASSIGN_OR_RETURN(const std::unique_ptr<actors::Session> session,
                   StartForward(registries, model, parameters, graph::ModelUse::kEvaluate, batch,
                                devices, num_threads));
  double total = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const Batch windows =
        MakeBatch(text,
                  absl::MakeConstSpan(starts).subspan(static_cast<size_t>(step * batch),
                                                      static_cast<size_t>(batch)),
                  context);
    ASSIGN_OR_RETURN(const actors::Feeds feeds, TextFeeds(session->plan(), windows));
    ASSIGN_OR_RETURN(const actors::StepResult result, session->Run(feeds));
    total += ElementAsDouble(result.fetches[0].second, 0);
  }
  return total / static_cast<double>(steps);
}

uint8_t PickByte(absl::Span<const double> logits, double temperature, double u) {
  const absl::Span<const double> bytes = logits.subspan(0, std::min(logits.size(), kNumBytes));
  const auto likeliest = std::max_element(bytes.begin(), bytes.end());
  const auto best = static_cast<uint8_t>(likeliest - bytes.begin());
  if (temperature <= 0 || !std::isfinite(*likeliest)) return best;
  std::vector<double> weights;
  double total = 0;
  for (const double logit : bytes) {
    weights.push_back(std::exp((logit - *likeliest) / temperature));
    total += weights.back();
  }
  double left = u * total;
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return static_cast<uint8_t>(i);
  }
  return best;
}

absl::StatusOr<std::string> GenerateText(const Registries& registries, const JobModel& model,
                                         const Parameters& parameters, std::string_view prompt,
                                         const SampleOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<actors::Session> session,
                   StartForward(registries, model, parameters, graph::ModelUse::kPredict, 1, 1,
                                options.num_threads));
  const auto context = static_cast<size_t>(model.config.context);
  std::string text(prompt.substr(prompt.size() - context));
  Batch batch;
  batch.tokens = Tensor({DType::kI32, {1, model.config.context}});
  std::vector<double> logits(static_cast<size_t>(model.config.vocabulary));
  for (int64_t i = 0; i < options.num_bytes; ++i) {
    const std::string_view window = std::string_view(text).substr(text.size() - context);
    for (size_t j = 0; j < context; ++j) {
      batch.tokens.As<int32_t>()[j] = static_cast<unsigned char>(window[j]);
    }
    ASSIGN_OR_RETURN(const actors::Feeds feeds, TextFeeds(session->plan(), batch));
    ASSIGN_OR_RETURN(const actors::StepResult result, session->Run(feeds));
    // The last row of [1, context, vocabulary], or all of [1, vocabulary].
    const Tensor& all = result.fetches[0].second;
    const int64_t first = all.num_elements() - model.config.vocabulary;
    for (size_t j = 0; j < logits.size(); ++j) {
      logits[j] = ElementAsDouble(all, first + static_cast<int64_t>(j));
    }
    const double u = RandomUniform({options.seed, kSampleStream, 0}, static_cast<uint64_t>(i));
    text += static_cast<char>(PickByte(logits, options.temperature, u));
  }
  return text.substr(context);
}

}  // namespace penstock::cli
