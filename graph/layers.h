// Layers: the pieces that models are written with. Each appends its parameters and operators to a
// graph; how they are split over devices is not said here (see SplitHint in models/model.h).
//
// Names. A layer called "mlp" in the scope "h3." declares the parameters "h3.mlp.w1", "h3.mlp.b1",
// ...: traces, checkpoints and split hints refer to them, so they are part of a model's contract.
//
// Random streams. Every normal initialisation and every dropout takes the next stream id, whether
// it is used or not: a model built without dropout initialises its parameters as with it.
//
// Thread rule: one thread.

#ifndef PENSTOCK_GRAPH_LAYERS_H_
#define PENSTOCK_GRAPH_LAYERS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/shape.h"
#include "graph/builder.h"
#include "graph/rotary_scaling.h"

namespace penstock::graph {

// Adds layers with their parameters to a graph.
class LayerBuilder {
 public:
  // `dtype` is that of every parameter. `dropout` in [0, 1) is the rate of Dropout, 0 for
  // inference. The builder outlives this object.
  LayerBuilder(GraphBuilder& builder, DType dtype, double dropout)
      : builder_(builder), dtype_(dtype), dropout_(dropout) {}

  // What nodes are added with.
  GraphBuilder& builder() { return builder_; }
  // That of every parameter.
  DType dtype() const { return dtype_; }

  // Parameters.
  ValueId Normal(std::string_view name, Shape shape, double std);
  ValueId Zeros(std::string_view name, Shape shape);  // likewise, all 0
  ValueId Ones(std::string_view name, Shape shape);   // likewise, all 1

  // Zeroes elements at the layer's rate; the identity (no node) at rate 0.
  ValueId Dropout(ValueId x, std::string_view name);

  // x[..., n] -> x . w[n, width] + b[width], w ~ N(0, std^2). Parameters NAME.w, NAME.b.
  ValueId Linear(ValueId x, std::string_view name, int64_t width, double std);

  // Normalises the last dimension. Parameters NAME.scale (ones), NAME.bias (zeros).
  ValueId LayerNorm(ValueId x, std::string_view name, double epsilon = 1e-5);

  // Divides the last dimension by its root mean square. Parameter NAME.scale (ones).
  ValueId RmsNorm(ValueId x, std::string_view name, double epsilon);

  // x[n, c, h, w] -> its convolution with NAME.w[channels, c, kernel, kernel], whose deviation
  // keeps that of the activations behind a relu (He et al., arXiv:1502.01852). The padding is half
  // of the kernel: at stride 1 and with an odd kernel the image keeps its size.
  ValueId Conv2d(ValueId x, std::string_view name, int64_t channels, int64_t kernel,
                 int64_t stride);

  // Normalises each channel of x[n, c, ...]. Parameters NAME.scale (ones), NAME.bias (zeros). In
  // training with the statistics of the batch; those seen so far, each step with a weight of 0.1,
  // are the states NAME.mean and NAME.variance, which are used otherwise. As in PyTorch, the
  // variance that is kept is the unbiased one.
  ValueId BatchNorm(ValueId x, std::string_view name, bool trains);

  // Rows of table[v, d] by ids i[...] -> [..., d].
  ValueId Embedding(ValueId table, ValueId ids, std::string_view name);

  // x[..., n] -> dropout(gelu(x . w1[n, hidden] + b1) . w2[hidden, n] + b2); w1 ~ N(0, std^2),
  // w2 ~ N(0, output_std^2).
  ValueId Mlp(ValueId x, std::string_view name, int64_t hidden, double std, double output_std);

  // x[..., n] -> dropout((silu(x . gate[n, hidden]) * (x . up[n, hidden])) . down[hidden, n])
  // (Shazeer 2020, "GLU Variants Improve Transformer"), without biases.
  ValueId SwiGlu(ValueId x, std::string_view name, int64_t hidden, double std, double output_std);

  // A mixture of experts over x[b, s, d]: a router sends every token to `top_k` experts.
  //   p = softmax(x . router[d, experts])
  //   the result = dropout(sum over the top_k largest p of weight * gelu(x . w1[e]) . w2[e])
  // The weight is p divided by the sum of the top_k largest (Shazeer et al. 2017, as in GShard and
  // Mixtral). With top_k 1 it is p itself (Fedus et al., "Switch Transformers", 2021): otherwise
  // the router would have no gradient.
  //
  // An expert takes at most `capacity` tokens of each sequence; further choices are dropped
  // (graph/ops/expert_slots.cc). Parameters NAME.router, NAME.w1[experts, d, hidden],
  // NAME.w2[experts, hidden, d]; the experts have no biases.
  //
  // *balance, unless null, becomes a scalar to add to the loss: balance_weight times the mean over
  // sequences of experts * (the sum over experts of f P), with f the share of the sequence's
  // choices that went to the expert and P the mean of its p (Switch Transformers, equation 4, for
  // each group as in GShard). It is balance_weight where all experts are chosen equally.
  struct Experts {
    int64_t experts = 1;        // in all
    int64_t top_k = 1;          // that a token goes to
    int64_t capacity = 1;       // tokens that an expert takes of a sequence
    int64_t hidden = 1;         // units of an expert
    double balance_weight = 1;  // see above
  };
  // The layer.
  ValueId MixtureOfExperts(ValueId x, std::string_view name, const Experts& sizes, double std,
                           double output_std, ValueId* balance);

  // Where keys and values of earlier tokens are kept: `start` i[b] is the position of the first
  // token of each sequence, and `context` the number of positions (graph/ops/cached_attention.cc).
  struct AttentionCache {
    ValueId start = kNoValue;  // see above
    int64_t context = 0;       // see above
  };

  // Causal self-attention of x[b, s, d] with `heads` heads of d / heads, and its output projection:
  //   qkv[b, s, 3, h, k] = x . qkv_w[d, 3, h, k] + qkv_b[3, h, k]
  //   dropout(qkv_attention(qkv)[b, s, h, k] . proj_w[h, k, d] + proj_b[d])
  // The heads are a dimension of their own in every weight, so that splitting them is a plain
  // sharding. With `cache`, x holds the next tokens of each sequence, and the state NAME.cache[b,
  // context, 2, h, k] the keys and values; null: x holds whole sequences. REQUIRES: heads divides
  // d.
  ValueId CausalSelfAttention(ValueId x, std::string_view name, int64_t heads, double std,
                              double output_std, const AttentionCache* cache = nullptr);

  // Causal self-attention with rotary position embeddings and without biases, whose keys and values
  // have fewer heads than its queries (graph/ops/rotary.cc, attention.cc):
  //   q[b, s, h, k] = rotary(x . q_w[d, h, k]),  k, v = rotary(x . k_w[d, g, k]), x . v_w[d, g, k]
  //   dropout(attention(q, k, v)[b, s, h, k] . proj_w[h, k, d])
  // The state with `cache` is NAME.cache[b, context, 2, g, k]. REQUIRES: h divides d, and g h.
  struct GroupedHeads {
    int64_t heads = 1;                  // h
    int64_t key_heads = 1;              // g
    double rotary_base = 1e4;           // of the wavelengths
    RotaryScaling rotary_scaling = {};  // of the positions
  };
  // The layer. `cache` as of CausalSelfAttention.
  ValueId RotarySelfAttention(ValueId x, std::string_view name, const GroupedHeads& sizes,
                              double std, double output_std, const AttentionCache* cache = nullptr);

 private:
  uint32_t NextStream() { return next_stream_++; }

  GraphBuilder& builder_;
  DType dtype_;
  double dropout_;
  uint32_t next_stream_ = 0;
};

// Adds "NAME." to the builder's scope while it lives.
class NameScope {
 public:
  // The builder outlives it.
  NameScope(GraphBuilder& builder, std::string_view name);
  ~NameScope() { builder_.set_scope(std::move(outer_)); }
  NameScope(const NameScope&) = delete;
  NameScope& operator=(const NameScope&) = delete;

 private:
  GraphBuilder& builder_;
  std::string outer_;
};

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_LAYERS_H_
