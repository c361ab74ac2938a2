#include "cli/sample_text.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "cli/feeds.h"
#include "cli/generator.h"
#include "cli/npy.h"

#include "actors/session/session.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace penstock::cli {
namespace {

constexpr uint32_t kSampleStream = 0x5a3b0001;

// The text as it grows.
class GrowingText {
 public:
  GrowingText(const Tokenizer* tokenizer, int64_t num_bytes)
      : tokenizer_(tokenizer), num_bytes_(num_bytes) {}

  // Whether it is to go on.
  bool Add(int32_t token) {
    if (tokenizer_ != nullptr) {
      text_ += tokenizer_->BytesOf(token);
    } else {
      text_ += static_cast<char>(token);
    }
    return static_cast<int64_t>(text_.size()) < num_bytes_;
  }

  std::string Take() { return std::move(text_); }

 private:
  const Tokenizer* const tokenizer_;
  const int64_t num_bytes_;
  std::string text_;
};

absl::Status Continue(const Registries& registries, const JobModel& model,
                      const Parameters& parameters, const Generator::Tokens& prompt,
                      const SampleOptions& options, const ForwardLayout& layout,
                      GrowingText* text) {
  ASSIGN_OR_RETURN(
      const std::unique_ptr<Generator> generator,
      Generator::Start(registries, model, /*slots=*/1, static_cast<int64_t>(prompt.size()), layout,
                       [&](const std::vector<planner::StatePlan>&) { return parameters; }));
  layout.on_sessions(generator->sessions());
  const auto end = absl::MakeCleanup([&layout] { layout.on_sessions({}); });
  return generator
      ->Generate({&prompt, 1}, options, [text](size_t, int32_t token) { return text->Add(token); })
      .status();
}

absl::Status ContinueByWindows(const Registries& registries, const JobModel& model,
                               const Parameters& parameters, Generator::Tokens window,
                               const SampleOptions& options, const ForwardLayout& layout,
                               GrowingText* text) {
  // Every part of the batch has the same window.
  const int64_t copies = layout.strategy.dp;
  ASSIGN_OR_RETURN(
      const std::unique_ptr<actors::Session> session,
      StartModel(registries, model, graph::ModelUse::kPredict, copies, layout, parameters));
  actors::Session* const running[] = {session.get()};
  layout.on_sessions(running);
  const auto end = absl::MakeCleanup([&layout] { layout.on_sessions({}); });
  const auto context = static_cast<size_t>(model.config.context);
  Batch batch;
  batch.tokens = Tensor({DType::kI32, {copies, model.config.context}});
  std::vector<double> logits(static_cast<size_t>(model.config.vocabulary));
  for (int64_t i = 0; i < options.num_tokens; ++i) {
    for (size_t j = 0; j < static_cast<size_t>(copies) * context; ++j) {
      batch.tokens.As<int32_t>()[j] = window[j % context];
    }
    ASSIGN_OR_RETURN(const actors::Feeds feeds, TextFeeds(session->plan().feeds, batch));
    ASSIGN_OR_RETURN(const actors::StepResult result, session->Run(feeds));
    const Tensor& all = result.fetches[0].second;
    // Of the first copy the last row of [context, vocabulary], or all of [vocabulary].
    const int64_t first = all.num_elements() / copies - model.config.vocabulary;
    for (size_t j = 0; j < logits.size(); ++j) {
      logits[j] = ElementAsDouble(all, first + static_cast<int64_t>(j));
    }
    const double u = RandomUniform({options.seed, kSampleStream, 0}, static_cast<uint64_t>(i));
    const int32_t token = PickToken(logits, options, u);
    if (!text->Add(token)) break;
    window.erase(window.begin());
    window.push_back(token);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> SampleText(const Registries& registries, const JobModel& model,
                                       const Parameters& parameters, TokenSpan prompt,
                                       const Tokenizer* tokenizer, int64_t num_bytes,
                                       SampleOptions options, const ForwardLayout& layout) {
  ForwardLayout used = layout;
  // All parameters are on device 0.
  if (layout.strategy.tp * layout.strategy.pp * layout.strategy.ep == 1 ||
      layout.strategy.optimizer_on_host) {
    used.strategy = {};
    used.host_devices = {};
    used.num_processes = 1;
  }
  options.num_tokens = num_bytes;  // special ones add none
  options.num_choices = tokenizer != nullptr ? tokenizer->num_tokens() : 256;
  Generator::Tokens tokens;
  for (int64_t i = prompt.size() - model.config.context; i < prompt.size(); ++i) {
    tokens.push_back(static_cast<int32_t>(prompt[i]));
  }
  GrowingText text(tokenizer, num_bytes);
  if (model.model->can_generate) {
    RETURN_IF_ERROR(Continue(registries, model, parameters, tokens, options, used, &text));
  } else {
    RETURN_IF_ERROR(
        ContinueByWindows(registries, model, parameters, std::move(tokens), options, used, &text));
  }
  return text.Take();
}

}  // namespace penstock::cli
