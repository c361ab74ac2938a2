#include "graph/models/moe.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/models/config_check.h"
#include "graph/models/transformer.h"

namespace penstock::graph {
namespace {

constexpr int64_t kExpertRatio = 4;  // hidden units for one of the width

absl::Status CheckMoe(const ModelConfig& config) {
  RETURN_IF_ERROR(CheckTransformer(config));
  RETURN_IF_ERROR(CheckModelSize("experts", config.experts, kMaxExperts));
  RETURN_IF_ERROR(CheckModelSize("top_k", config.top_k, config.experts));
  RETURN_IF_ERROR(CheckModelSize("expert_every", config.expert_every, config.layers));
  if (!(config.capacity_factor >= 0 && std::isfinite(config.capacity_factor))) {
    return absl::InvalidArgumentError(
        StrCat("capacity_factor = ", config.capacity_factor, ": must be at least 0"));
  }
  if (!(config.balance >= 0 && std::isfinite(config.balance))) {
    return absl::InvalidArgumentError(StrCat("balance = ", config.balance, ": must be at least 0"));
  }
  return absl::OkStatus();
}

ModelOutputs BuildMoe(GraphBuilder& builder, const ModelConfig& config, ModelUse use,
                      int64_t batch) {
  const LayerBuilder::Experts sizes = {.experts = config.experts,
                                       .top_k = config.top_k,
                                       .capacity = ExpertCapacity(config, use),
                                       .hidden = kExpertRatio * config.width,
                                       .balance_weight = config.balance};
  const bool is_balanced = use == ModelUse::kTrain && config.balance > 0;
  const auto feed_forward = [&](LayerBuilder& layers, ValueId x, int64_t block,
                                const WeightScales& scales, ValueId* auxiliary) {
    if (block % config.expert_every != config.expert_every - 1) return AddMlp(layers, x, scales);
    ValueId balance = kNoValue;
    const ValueId mapped = layers.MixtureOfExperts(x, "moe", sizes, scales.std, scales.output_std,
                                                   is_balanced ? &balance : nullptr);
    if (balance != kNoValue && *auxiliary != kNoValue) {
      balance = builder.Add("add", {*auxiliary, balance}, {}, "balance");
    }
    if (balance != kNoValue) *auxiliary = balance;
    return mapped;
  };
  return BuildTransformer(builder, config, use, batch, feed_forward);
}

}  // namespace

int64_t ExpertCapacity(const ModelConfig& config, ModelUse use) {
  if (use == ModelUse::kGenerate) return config.step_tokens;
  if (use != ModelUse::kTrain || config.capacity_factor == 0) return config.context;
  const double even_share = static_cast<double>(config.top_k) *
                            static_cast<double>(config.context) /
                            static_cast<double>(config.experts);
  // A product that is whole but for rounding stays as it is.
  const double capacity = std::ceil(config.capacity_factor * even_share * (1 - 1e-12));
  return std::clamp<int64_t>(
      static_cast<int64_t>(std::min(capacity, static_cast<double>(config.context))), 1,
      config.context);
}

Model MoeModel() {
  Model model;
  model.name = "moe";
  model.summary =
      "gpt with mixture-of-experts layers: top-k routing, limited or unlimited capacity";
  model.check = CheckMoe;
  model.build = BuildMoe;
  model.sizes = TransformerSizes();
  for (const std::string_view size :
       {"experts", "top_k", "capacity_factor", "balance", "expert_every"}) {
    model.sizes.push_back(size);
  }
  model.can_generate = true;
  model.tensor_splits = TransformerSplits();
  for (SplitHint& hint : MlpSplits()) model.tensor_splits.push_back(std::move(hint));
  for (SplitHint& hint : std::vector<SplitHint>{
           {.pattern = "h*.moe.w1", .dim = 2, .what = "hidden units"},
           {.pattern = "h*.moe.w2", .dim = 1, .what = "hidden units"},
           {.pattern = "h*.moe.w1", .dim = 0, .what = "experts", .must_divide = true, .axis = "ep"},
           {.pattern = "h*.moe.w2", .dim = 0, .what = "experts", .must_divide = true, .axis = "ep"},
       }) {
    model.tensor_splits.push_back(std::move(hint));
  }
  return model;
}

}  // namespace penstock::graph
