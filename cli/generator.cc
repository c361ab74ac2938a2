#include "cli/generator.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "cli/npy.h"

#include "base/device.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

// Tokens of a prompt in one step, at most: more fill the processor no better.
constexpr int64_t kMaxChunk = 256;
constexpr uint32_t kGeneratorStream = 0x5a3b0002;

double SecondsSince(int64_t begin_ns) {
  return 1e-9 * static_cast<double>(SteadyClock().NowNs() - begin_ns);
}

}  // namespace

Generator::Generator(const JobModel& model, int64_t slots)
    : context_(model.config.context),
      vocabulary_(model.config.vocabulary),
      slots_(static_cast<size_t>(slots)) {}

absl::StatusOr<std::unique_ptr<Generator>> Generator::Start(const Registries& registries,
                                                            const JobModel& model, int64_t slots,
                                                            int64_t prompt_tokens,
                                                            const ForwardLayout& layout,
                                                            const GetParameters& get_parameters) {
  // A step has too few tokens to split them; the devices take sequences of their own.
  ForwardLayout used = layout;
  used.strategy.dp *= used.strategy.cp;
  used.strategy.cp = 1;
  used.strategy.ulysses = false;
  used.strategy.sp = false;
  const int64_t dp = used.strategy.dp;
  slots = (std::max<int64_t>(slots, 1) + dp - 1) / dp * dp;
  auto generator = absl::WrapUnique(new Generator(model, slots));
  // All but the last token of a prompt, in steps of one size.
  const int64_t most = std::clamp<int64_t>(prompt_tokens - 1, 1, model.config.context);
  const int64_t num_steps = (most + kMaxChunk - 1) / kMaxChunk;
  generator->chunk_ = (most + num_steps - 1) / num_steps;
  JobModel sized = model;
  // Prefill first: it needs more memory than decode, which uses the same.
  for (auto* const session : {&generator->prefill_, &generator->decode_}) {
    sized.config.step_tokens = session == &generator->decode_ ? 1 : generator->chunk_;
    ASSIGN_OR_RETURN(*session, StartModel(registries, sized, graph::ModelUse::kGenerate, slots,
                                          used, nullptr, generator->prefill_.get()));
    if ((*session)->shares_memory()) continue;
    std::vector<planner::StatePlan> parameters;
    for (const planner::StatePlan& state : (*session)->plan().states) {
      if (state.is_parameter) parameters.push_back(state);
    }
    ASSIGN_OR_RETURN(const Parameters kept, get_parameters(parameters));
    RETURN_IF_ERROR((*session)->TakeKeptStates(*kept));
  }
  return generator;
}

absl::StatusOr<Tensor> Generator::RunStep(actors::Session& session, Tensor tokens, Tensor start) {
  actors::Feeds feeds;
  feeds["tokens"] = std::move(tokens);
  feeds["start"] = std::move(start);
  ASSIGN_OR_RETURN(actors::StepResult result, session.Run(feeds));
  return std::move(result.fetches[0].second);
}

absl::Status Generator::MoveCache(const actors::Session& from, actors::Session& to) const {
  if (decode_->shares_memory()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto kept, from.KeepStates(actors::StateSelection::kOthers));
  return to.TakeKeptStates(*kept);
}

// Reads all but the last token of the texts that decode has not seen.
absl::Status Generator::Prefill() {
  const int64_t begin_ns = SteadyClock().NowNs();
  int64_t longest = 0;
  bool has_cache = false;  // of sequences that go on
  for (const Slot& slot : slots_) {
    const auto size = static_cast<int64_t>(slot.text.size());
    if (slot.is_free) continue;
    if (slot.num_cached + 1 == size) {
      has_cache |= slot.num_cached > 0;
    } else {
      longest = std::max(longest, size - 1);
    }
  }
  if (longest == 0) return absl::OkStatus();
  if (has_cache) RETURN_IF_ERROR(MoveCache(*decode_, *prefill_));
  const auto num_slots = static_cast<int64_t>(slots_.size());
  for (int64_t first = 0; first < longest; first += chunk_) {
    Tensor tokens({DType::kI32, {num_slots, chunk_}});
    Tensor start({DType::kI32, {num_slots}});
    for (int64_t b = 0; b < num_slots; ++b) {
      const Slot& slot = slots_[static_cast<size_t>(b)];
      const auto end = static_cast<int64_t>(slot.text.size()) - 1;
      const bool is_read = !slot.is_free && slot.num_cached != end && first < end;
      start.As<int32_t>()[b] = static_cast<int32_t>(is_read ? first : context_);
      for (int64_t i = 0; i < chunk_; ++i) {
        // Behind the end: its keys are overwritten before a token sees them.
        const bool is_token = is_read && first + i < end;
        tokens.As<int32_t>()[b * chunk_ + i] =
            is_token ? slot.text[static_cast<size_t>(first + i)] : 0;
      }
    }
    RETURN_IF_ERROR(RunStep(*prefill_, std::move(tokens), std::move(start)).status());
  }
  for (Slot& slot : slots_) {
    if (slot.is_free) continue;
    const auto end = static_cast<int64_t>(slot.text.size()) - 1;
    if (slot.num_cached != end) {
      times_.prefill_tokens += end;
      if (slot.num_made > 0) times_.reread_tokens += end;
    }
    slot.num_cached = end;
  }
  RETURN_IF_ERROR(MoveCache(*prefill_, *decode_));
  times_.prefill_s += SecondsSince(begin_ns);
  return absl::OkStatus();
}

// The logits of what follows each sequence.
absl::StatusOr<Tensor> Generator::Decode() {
  const auto num_slots = static_cast<int64_t>(slots_.size());
  Tensor tokens({DType::kI32, {num_slots, 1}});
  Tensor start({DType::kI32, {num_slots}});
  for (int64_t b = 0; b < num_slots; ++b) {
    const Slot& slot = slots_[static_cast<size_t>(b)];
    const bool is_read = !slot.is_free;
    tokens.As<int32_t>()[b] = is_read ? slot.text.back() : 0;
    start.As<int32_t>()[b] = static_cast<int32_t>(is_read ? slot.num_cached : context_);
  }
  return RunStep(*decode_, std::move(tokens), std::move(start));
}

absl::Status Generator::CheckPrompts(absl::Span<const Tokens> prompts) const {
  for (const Tokens& prompt : prompts) {
    if (prompt.empty()) {
      return absl::InvalidArgumentError("a prompt is empty; it needs at least one token");
    }
    for (const int32_t token : prompt) {
      if (token < 0 || token >= vocabulary_) {
        return absl::InvalidArgumentError(
            StrCat("a prompt has the token ", token, ", but the model knows ", vocabulary_));
      }
    }
  }
  return absl::OkStatus();
}

// Gives free slots to prompts from *next on, and makes room in those that are full.
void Generator::FillSlots(absl::Span<const Tokens> prompts, size_t* next) {
  const auto context = static_cast<size_t>(context_);
  for (Slot& slot : slots_) {
    if (slot.is_free && *next < prompts.size()) {
      const Tokens& prompt = prompts[*next];
      slot = Slot();
      slot.is_free = false;
      slot.prompt = (*next)++;
      slot.text.assign(prompt.end() - static_cast<int64_t>(std::min(prompt.size(), context)),
                       prompt.end());
      times_.prompt_tokens += static_cast<int64_t>(slot.text.size());
    }
    if (slot.text.size() > context) {
      slot.text.erase(slot.text.begin(),
                      slot.text.end() - static_cast<int64_t>(std::max<size_t>(context / 2, 1)));
      slot.num_cached = 0;
    }
  }
}

absl::StatusOr<std::vector<Generator::Tokens>> Generator::Generate(absl::Span<const Tokens> prompts,
                                                                   const SampleOptions& options,
                                                                   const OnToken& on_token) {
  RETURN_IF_ERROR(CheckPrompts(prompts));
  std::vector<Tokens> texts(prompts.size());
  if (options.num_tokens == 0) return texts;
  size_t next = 0;  // prompt
  size_t num_done = 0;
  std::vector<double> logits(static_cast<size_t>(vocabulary_));
  while (num_done < prompts.size()) {
    FillSlots(prompts, &next);
    RETURN_IF_ERROR(Prefill());
    const int64_t begin_ns = SteadyClock().NowNs();
    ASSIGN_OR_RETURN(const Tensor all, Decode());
    for (size_t b = 0; b < slots_.size(); ++b) {
      Slot& slot = slots_[b];
      if (slot.is_free) continue;
      for (size_t i = 0; i < logits.size(); ++i) {
        logits[i] = ElementAsDouble(all, static_cast<int64_t>(b * logits.size() + i));
      }
      const double u =
          RandomUniform({options.seed, kGeneratorStream, static_cast<uint32_t>(slot.prompt)},
                        static_cast<uint64_t>(slot.num_made));
      const int32_t token = PickToken(logits, options, u);
      ++times_.tokens;
      bool is_done = std::find(options.end_tokens.begin(), options.end_tokens.end(), token) !=
                     options.end_tokens.end();
      if (!is_done) {
        texts[slot.prompt].push_back(token);
        slot.text.push_back(token);
        ++slot.num_cached;
        is_done = ++slot.num_made == options.num_tokens;
        if (on_token != nullptr && !on_token(slot.prompt, token)) is_done = true;
      }
      if (is_done) {
        slot = Slot();
        ++num_done;
      }
    }
    ++times_.steps;
    times_.decode_s += SecondsSince(begin_ns);
  }
  return texts;
}

}  // namespace penstock::cli
