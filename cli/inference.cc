#include "cli/inference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "cli/feeds.h"
#include "cli/npy.h"

#include "base/random.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

constexpr uint32_t kSampleStream = 0x5a3b0001;
constexpr size_t kNumBytes = 256;

// The model for `use`, with its parameters, in a session of its own.
class Forward {
 public:
  static absl::StatusOr<std::unique_ptr<Forward>> Start(const Registries& registries,
                                                        const JobModel& model,
                                                        const Parameters& parameters,
                                                        graph::ModelUse use, int64_t batch,
                                                        const ForwardLayout& layout) {
    ASSIGN_OR_RETURN(graph::Graph graph,
                     BuildForwardGraph(registries, model, use, batch, layout.strategy));
    ASSIGN_OR_RETURN(planner::Plan plan, CompileGraph(registries, std::move(graph),
                                                      {.policy = "gpipe",
                                                       .strategy = ToString(layout.strategy),
                                                       .num_threads = layout.num_threads,
                                                       .host_devices = layout.host_devices}));
    actors::SessionOptions options;
    options.threads_per_device = static_cast<int>(layout.num_threads);
    options.kernels = &registries.kernels;
    options.policies = &registries.policies;
    options.start_engine = layout.start_engine;
    options.num_processes = layout.num_processes;
    options.states = parameters;
    auto forward = absl::WrapUnique(new Forward(layout));
    ASSIGN_OR_RETURN(forward->session_, actors::Session::Start(std::move(plan), options));
    layout.on_session(forward->session_.get());
    return forward;
  }
  ~Forward() { layout_.on_session(nullptr); }
  Forward(const Forward&) = delete;
  Forward& operator=(const Forward&) = delete;

  // What the model returns.
  absl::StatusOr<Tensor> Run(const Batch& batch) {
    ASSIGN_OR_RETURN(const actors::Feeds feeds, TextFeeds(session_->plan().feeds, batch));
    ASSIGN_OR_RETURN(actors::StepResult result, session_->Run(feeds));
    return std::move(result.fetches[0].second);
  }

 private:
  explicit Forward(const ForwardLayout& layout) : layout_(layout) {}

  const ForwardLayout& layout_;
  std::unique_ptr<actors::Session> session_;
};

}  // namespace

absl::StatusOr<double> ValidationLoss(const Registries& registries, const JobModel& model,
                                      const Parameters& parameters, absl::Span<const uint8_t> text,
                                      int64_t max_sequences, const ForwardLayout& layout) {
  const int64_t context = model.config.context;
  std::vector<int64_t> starts =
      ValidationStarts(static_cast<int64_t>(text.size()), context, max_sequences);
  const auto count = static_cast<int64_t>(starts.size());
  if (count == 0) return std::numeric_limits<double>::quiet_NaN();
  const int64_t dp = layout.strategy.dp;
  const int64_t batch =
      dp * std::clamp<int64_t>(layout.sequences_per_step / dp, 1, (count + dp - 1) / dp);
  // The last step is filled up with windows whose losses do not count.
  starts.resize((count + batch - 1) / batch * batch, starts[0]);
  ASSIGN_OR_RETURN(
      const std::unique_ptr<Forward> forward,
      Forward::Start(registries, model, parameters, graph::ModelUse::kEvaluate, batch, layout));
  double total = 0;
  for (int64_t first = 0; first < count; first += batch) {
    ASSIGN_OR_RETURN(
        const Tensor losses,
        forward->Run(MakeBatch(text,
                               absl::MakeConstSpan(starts).subspan(static_cast<size_t>(first),
                                                                   static_cast<size_t>(batch)),
                               context)));
    for (int64_t i = 0; i < std::min(batch, count - first); ++i) {
      total += ElementAsDouble(losses, i);
    }
  }
  return total / static_cast<double>(count);
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
                                         const SampleOptions& options,
                                         const ForwardLayout& layout) {
  ForwardLayout used = layout;
  if (layout.strategy.tp * layout.strategy.pp == 1) {
    used.strategy = {};
    used.host_devices = {};
    used.num_processes = 1;
  }
  // Every part of the batch has the same window.
  const int64_t copies = used.strategy.dp;
  ASSIGN_OR_RETURN(
      const std::unique_ptr<Forward> forward,
      Forward::Start(registries, model, parameters, graph::ModelUse::kPredict, copies, used));
  const auto context = static_cast<size_t>(model.config.context);
  std::string text(prompt.substr(prompt.size() - context));
  Batch batch;
  batch.tokens = Tensor({DType::kI32, {copies, model.config.context}});
  std::vector<double> logits(static_cast<size_t>(model.config.vocabulary));
  for (int64_t i = 0; i < options.num_bytes; ++i) {
    const std::string_view window = std::string_view(text).substr(text.size() - context);
    for (size_t j = 0; j < static_cast<size_t>(copies) * context; ++j) {
      batch.tokens.As<int32_t>()[j] = static_cast<unsigned char>(window[j % context]);
    }
    ASSIGN_OR_RETURN(const Tensor all, forward->Run(batch));
    // Of the first copy the last row of [context, vocabulary], or all of [vocabulary].
    const int64_t first = all.num_elements() / copies - model.config.vocabulary;
    for (size_t j = 0; j < logits.size(); ++j) {
      logits[j] = ElementAsDouble(all, first + static_cast<int64_t>(j));
    }
    const double u = RandomUniform({options.seed, kSampleStream, 0}, static_cast<uint64_t>(i));
    text += static_cast<char>(PickByte(logits, options.temperature, u));
  }
  return text.substr(context);
}

}  // namespace penstock::cli
