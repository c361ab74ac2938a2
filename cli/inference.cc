#include "cli/inference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/memory/memory.h"
#include "cli/compile_job.h"
#include "cli/device_kinds.h"
#include "cli/feeds.h"
#include "cli/npy.h"

#include "base/random.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {

absl::StatusOr<std::unique_ptr<actors::Session>> StartModel(
    const Registries& registries, const JobModel& model, graph::ModelUse use, int64_t batch,
    const ForwardLayout& layout, const Parameters& parameters, const actors::Session* memory_of) {
  ASSIGN_OR_RETURN(graph::Graph graph,
                   BuildForwardGraph(registries, model, use, batch, layout.strategy));
  ASSIGN_OR_RETURN(
      planner::Plan plan,
      CompileGraph(registries, std::move(graph),
                   {.policy = "gpipe",
                    .policies = registries.policies,
                    .strategy = ToString(layout.strategy),
                    .devices = layout.devices,
                    .num_threads = layout.num_threads,
                    .chunks_per_group = static_cast<int>(layout.strategy.vpp),
                    .placement = layout.placement,
                    .optimizer_on_host = layout.strategy.optimizer_on_host,
                    .host_devices = layout.host_devices,
                    // A step of a few tokens is bound by its weights, which stay f32.
                    .precision = use == graph::ModelUse::kGenerate ? DType::kF32 : model.precision,
                    .sums_in_f32 = model.sums_in_f32,
                    .residuals_in_f32 = model.residuals_in_f32}));
  actors::SessionOptions options;
  options.threads_per_device = static_cast<int>(layout.num_threads);
  options.kernels = &registries.kernels;
  ASSIGN_OR_RETURN(options.kernels_by_kind, KernelsOf(registries, layout.devices));
  if (layout.start_engine == nullptr) {
    ASSIGN_OR_RETURN(const DeviceSource devices, FindDevices(layout.devices, plan.devices.size()));
    options.create_device = devices.create;
    options.create_communicator = devices.create_communicator;
    options.max_memory_bytes = devices.max_memory_bytes;
  }
  options.policies = &registries.policies;
  options.start_engine = layout.start_engine;
  options.num_processes = layout.num_processes;
  options.memory_of = memory_of;
  const bool is_whole = parameters != nullptr && std::all_of(plan.states.begin(), plan.states.end(),
                                                             [&](const planner::StatePlan& state) {
                                                               return parameters->Has(state.name);
                                                             });
  if (is_whole) options.states = parameters;
  ASSIGN_OR_RETURN(std::unique_ptr<actors::Session> session,
                   actors::Session::Start(std::move(plan), options));
  if (parameters != nullptr && !is_whole) RETURN_IF_ERROR(session->TakeKeptStates(*parameters));
  return session;
}

namespace {

// Reports the session while it runs.
auto Announce(const ForwardLayout& layout, actors::Session& session) {
  actors::Session* const running[] = {&session};
  layout.on_sessions(running);
  return absl::MakeCleanup([&layout] { layout.on_sessions({}); });
}

}  // namespace

HeldOut HeldOutText(TokenSpan text, int64_t context, int64_t max_sequences) {
  std::vector<int64_t> starts = ValidationStarts(text.size(), context, max_sequences);
  HeldOut held_out;
  held_out.count = static_cast<int64_t>(starts.size());
  held_out.feeds = [text, context, starts = std::move(starts)](
                       absl::Span<const planner::FeedPlan> feeds, absl::Span<const int64_t> items) {
    std::vector<int64_t> chosen;
    for (const int64_t item : items) chosen.push_back(starts[static_cast<size_t>(item)]);
    return TextFeeds(feeds, MakeBatch(text, chosen, context));
  };
  return held_out;
}

HeldOut HeldOutExamples(const Examples& examples, int64_t most) {
  HeldOut held_out;
  held_out.count = std::min(static_cast<int64_t>(examples.held_out.size()), most);
  held_out.feeds = [&examples](absl::Span<const planner::FeedPlan> feeds,
                               absl::Span<const int64_t> items) {
    std::vector<int64_t> rows;
    for (const int64_t item : items) {
      rows.push_back(examples.held_out[static_cast<size_t>(item)]);
    }
    return ExampleFeeds(examples, feeds, rows);
  };
  return held_out;
}

Validator::Validator(const Environment& environment, const JobModel& model, HeldOut held_out,
                     ForwardLayout layout, uint64_t memory_bytes)
    : environment_(environment),
      model_(model),
      held_out_(std::move(held_out)),
      layout_(std::move(layout)),
      memory_bytes_(memory_bytes) {}

Validator::~Validator() = default;

absl::StatusOr<double> Validator::LossOf(const actors::Session& trained) {
  ASSIGN_OR_RETURN(const Parameters parameters, KeepParameters(trained));
  ASSIGN_OR_RETURN(const double loss, Loss(parameters));
  if (!stays_open_) {
    forward_ = nullptr;
  } else if (is_open() && !Fits(trained)) {
    Release();
  }
  return loss;
}

absl::StatusOr<double> Validator::Loss(const Parameters& parameters) {
  absl::StatusOr<double> loss = MeanLoss(parameters);
  if (!loss.ok()) forward_ = nullptr;
  return loss;
}

absl::StatusOr<Parameters> Validator::KeepParameters(const actors::Session& trained) {
  const auto selection = model_.model != nullptr && model_.model->has_statistics
                             ? actors::StateSelection::kAll
                             : actors::StateSelection::kParameters;
  absl::StatusOr<Parameters> parameters = trained.KeepStates(selection);
  if (absl::IsResourceExhausted(parameters.status()) && Release()) {
    parameters = trained.KeepStates(selection);
  }
  return parameters;
}

bool Validator::Release() {
  if (!is_open()) return false;
  forward_ = nullptr;
  if (stays_open_) {
    environment_.err << "note: there is no memory to keep the model for validation loaded beside "
                        "the training; each validation loads it again"
                     << std::endl;
  }
  stays_open_ = false;
  return true;
}

bool Validator::Fits(const actors::Session& trained) const {
  if (layout_.start_engine != nullptr) return true;  // its processes count
  uint64_t num_bytes = 0;
  for (const actors::Session* session : {&trained, &std::as_const(*forward_)}) {
    for (const planner::DevicePlan& device : session->plan().devices) {
      num_bytes += device.arena_bytes + device.host_bytes;
    }
  }
  // The parameters while they are copied, two snapshots while one replaces the other, and a
  // checkpoint.
  for (const planner::StatePlan& state : trained.plan().states) {
    num_bytes += 4 * state.type.num_bytes();
  }
  return num_bytes <= memory_bytes_;
}

absl::StatusOr<double> Validator::MeanLoss(const Parameters& parameters) {
  const int64_t count = held_out_.count;
  accuracy_ = std::numeric_limits<double>::quiet_NaN();
  if (count == 0) return std::numeric_limits<double>::quiet_NaN();
  const int64_t dp = layout_.strategy.dp;
  const int64_t batch =
      dp * std::clamp<int64_t>(layout_.sequences_per_step / dp, 1, (count + dp - 1) / dp);
  // The last step is filled up with items whose losses do not count.
  std::vector<int64_t> items(static_cast<size_t>(count));
  std::iota(items.begin(), items.end(), 0);
  items.resize(static_cast<size_t>((count + batch - 1) / batch * batch), 0);
  if (forward_ == nullptr) {
    ASSIGN_OR_RETURN(forward_, StartModel(environment_.registries, model_,
                                          graph::ModelUse::kEvaluate, batch, layout_, parameters));
  } else {
    RETURN_IF_ERROR(forward_->TakeStates(*parameters));
  }
  const auto end = Announce(layout_, *forward_);
  double total = 0;
  double num_correct = 0;
  for (int64_t first = 0; first < count; first += batch) {
    actors::Session& session = *forward_;
    ASSIGN_OR_RETURN(const actors::Feeds feeds,
                     held_out_.feeds(session.plan().feeds,
                                     absl::MakeConstSpan(items).subspan(
                                         static_cast<size_t>(first), static_cast<size_t>(batch))));
    ASSIGN_OR_RETURN(const actors::StepResult result, session.Run(feeds));
    for (int64_t i = 0; i < std::min(batch, count - first); ++i) {
      total += ElementAsDouble(result.fetches[0].second, i);
      if (model_.model->reads_images) num_correct += ElementAsDouble(result.fetches[1].second, i);
    }
  }
  if (model_.model->reads_images) accuracy_ = num_correct / static_cast<double>(count);
  return total / static_cast<double>(count);
}

int32_t PickToken(absl::Span<const double> logits, const SampleOptions& options, double u) {
  const absl::Span<const double> choices =
      logits.subspan(0, std::min(logits.size(), static_cast<size_t>(options.num_choices)));
  const auto likeliest = std::max_element(choices.begin(), choices.end());
  const auto best = static_cast<int32_t>(likeliest - choices.begin());
  if (options.temperature <= 0 || !std::isfinite(*likeliest)) return best;
  std::vector<size_t> order(choices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(order.size())) {
    std::stable_sort(order.begin(), order.end(),
                     [&choices](size_t a, size_t b) { return choices[a] > choices[b]; });
    order.resize(static_cast<size_t>(options.top_k));
  }
  std::vector<double> weights;
  double total = 0;
  for (const size_t token : order) {
    weights.push_back(std::exp((choices[token] - *likeliest) / options.temperature));
    total += weights.back();
  }
  double left = u * total;
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return static_cast<int32_t>(order[i]);
  }
  return best;
}

}  // namespace penstock::cli
