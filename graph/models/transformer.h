// What gpt and moe share: a pre-norm transformer (gpt.h) whose feed-forward layers the model gives;
// and pieces of it for llama.
//
// Thread rule: pure functions, but for the builder, which belongs to one thread.

#ifndef PENSTOCK_GRAPH_MODELS_TRANSFORMER_H_
#define PENSTOCK_GRAPH_MODELS_TRANSFORMER_H_

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

#include "graph/layers.h"
#include "graph/models/model.h"

namespace penstock::graph {

// How a model initialises weights, and those that write to the residual stream.
struct WeightScales {
  double std = 0;
  double output_std = 0;
};

// Appends the feed-forward layer of a block to the normalised x[b, s, d]. It may add a term to the
// loss of training: *auxiliary is the sum of the blocks before it, or kNoValue.
using FeedForward = std::function<ValueId(LayerBuilder& layers, ValueId x, int64_t block,
                                          const WeightScales& scales, ValueId* auxiliary)>;

// x -> x . w1 -> gelu -> w2 with four times the width in between, called "mlp".
ValueId AddMlp(LayerBuilder& layers, ValueId x, const WeightScales& scales);

absl::Status CheckTransformer(const ModelConfig& config);

ModelOutputs BuildTransformer(GraphBuilder& builder, const ModelConfig& config, ModelUse use,
                              int64_t batch, const FeedForward& feed_forward);

// x[b, 1, d] of the last tokens of x[b, s, d].
ValueId LastTokens(GraphBuilder& builder, ValueId x);

// Sets the loss of the logits, where there are labels. `auxiliary`, unless kNoValue, is added to
// that of training.
void AddLoss(GraphBuilder& builder, ModelUse use, ValueId auxiliary, ModelOutputs* outputs);

// Model::sizes of CheckTransformer and BuildTransformer.
std::vector<std::string_view> TransformerSizes();

// How tensor parallelism splits embedding and attention, with SequenceSplits; and that of AddMlp.
std::vector<SplitHint> TransformerSplits();
std::vector<SplitHint> MlpSplits();
// How sequence and context parallelism split a model with the inputs and the residuals of these.
std::vector<SplitHint> SequenceSplits();

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_MODELS_TRANSFORMER_H_
