#include "graph/layers.h"

#include <cmath>
#include <utility>
#include <vector>

#include "base/strings.h"

namespace penstock::graph {
namespace {

// Of the newest batch in the running statistics of batch normalization.
constexpr double kStatisticsShare = 0.1;

}  // namespace

NameScope::NameScope(GraphBuilder& builder, std::string_view name)
    : builder_(builder), outer_(builder.scope()) {
  builder.set_scope(StrCat(outer_, name, "."));
}

ValueId LayerBuilder::Normal(std::string_view name, Shape shape, double std) {
  const int64_t stream = NextStream();
  return builder_.Declare("parameter", name, {dtype_, std::move(shape)},
                          {{"init", "normal"}, {"std", std}, {"stream", stream}});
}

ValueId LayerBuilder::Zeros(std::string_view name, Shape shape) {
  return builder_.Declare("parameter", name, {dtype_, std::move(shape)}, {{"init", "zeros"}});
}

ValueId LayerBuilder::Ones(std::string_view name, Shape shape) {
  return builder_.Declare("parameter", name, {dtype_, std::move(shape)}, {{"init", "ones"}});
}

ValueId LayerBuilder::Dropout(ValueId x, std::string_view name) {
  const int64_t stream = NextStream();
  if (dropout_ == 0) return x;
  return builder_.Add("dropout", {x}, {{"rate", dropout_}, {"stream", stream}}, name);
}

ValueId LayerBuilder::Linear(ValueId x, std::string_view name, int64_t width, double std) {
  if (!builder_.status().ok()) return kNoValue;
  const NameScope scope(builder_, name);
  const ValueId w = Normal("w", {builder_.type(x).shape.back(), width}, std);
  const ValueId b = Zeros("b", {width});
  return builder_.Add("bias_add", {builder_.Add("matmul", {x, w}, {}, "product"), b}, {}, "out");
}

ValueId LayerBuilder::LayerNorm(ValueId x, std::string_view name, double epsilon) {
  if (!builder_.status().ok()) return kNoValue;
  const NameScope scope(builder_, name);
  const int64_t width = builder_.type(x).shape.back();
  const ValueId scale = Ones("scale", {width});
  const ValueId bias = Zeros("bias", {width});
  Attributes attributes;
  if (epsilon != 1e-5) attributes.Set("epsilon", epsilon);
  return builder_.Add("layer_norm", {x, scale, bias}, attributes, "out");
}

ValueId LayerBuilder::RmsNorm(ValueId x, std::string_view name, double epsilon) {
  if (!builder_.status().ok()) return kNoValue;
  const NameScope scope(builder_, name);
  const ValueId scale = Ones("scale", {builder_.type(x).shape.back()});
  return builder_.Add("rms_norm", {x, scale}, {{"epsilon", epsilon}}, "out");
}

ValueId LayerBuilder::Conv2d(ValueId x, std::string_view name, int64_t channels, int64_t kernel,
                             int64_t stride) {
  if (!builder_.status().ok()) return kNoValue;
  const NameScope scope(builder_, name);
  const int64_t inputs = builder_.type(x).shape[1];
  const double std = std::sqrt(2.0 / static_cast<double>(inputs * kernel * kernel));
  const ValueId w = Normal("w", {channels, inputs, kernel, kernel}, std);
  return builder_.Add("conv2d", {x, w},
                      {{"strides", AttrValue::Ints({stride, stride})},
                       {"padding", AttrValue::Ints({kernel / 2, kernel / 2})}},
                      "out");
}

ValueId LayerBuilder::BatchNorm(ValueId x, std::string_view name, bool trains) {
  if (!builder_.status().ok()) return kNoValue;
  const NameScope scope(builder_, name);
  const TensorType type = builder_.type(x);
  const ValueId scale = Ones("scale", {type.shape[1]});
  const ValueId bias = Zeros("bias", {type.shape[1]});
  const TensorType statistics = {type.dtype == DType::kF64 ? DType::kF64 : DType::kF32,
                                 {type.shape[1]}};
  const ValueId mean = builder_.Declare("state", "mean", statistics, {{"init", "zeros"}});
  const ValueId variance = builder_.Declare("state", "variance", statistics, {{"init", "ones"}});
  if (!trains) {
    return builder_.Add("batch_norm_inference", {x, scale, bias, mean, variance}, {}, "out");
  }
  const std::vector<ValueId> results =
      builder_.AddMulti("batch_norm", {x, scale, bias}, {}, "out", /*num_results=*/3);
  if (results.size() != 3) return kNoValue;
  // state <- (1 - share) state + share * factor * value
  const auto update = [&](ValueId state, ValueId value, double factor) {
    const TensorType scalar = {statistics.dtype, {}};
    const ValueId old =
        builder_.Add("mul", {state, builder_.Constant(1 - kStatisticsShare, scalar)});
    const ValueId added =
        builder_.Add("mul", {value, builder_.Constant(kStatisticsShare * factor, scalar)});
    builder_.AddMulti("assign", {state, builder_.Add("add", {old, added})});
  };
  const auto count = static_cast<double>(type.num_elements()) / static_cast<double>(type.shape[1]);
  update(mean, results[1], 1);
  update(variance, results[2], count > 1 ? count / (count - 1) : 1);
  return results[0];
}

ValueId LayerBuilder::Embedding(ValueId table, ValueId ids, std::string_view name) {
  return builder_.Add("embedding", {table, ids}, {}, name);
}

ValueId LayerBuilder::Mlp(ValueId x, std::string_view name, int64_t hidden, double std,
                          double output_std) {
  if (!builder_.status().ok()) return kNoValue;
  const NameScope scope(builder_, name);
  const int64_t width = builder_.type(x).shape.back();
  const ValueId w1 = Normal("w1", {width, hidden}, std);
  const ValueId b1 = Zeros("b1", {hidden});
  const ValueId w2 = Normal("w2", {hidden, width}, output_std);
  const ValueId b2 = Zeros("b2", {width});
  const ValueId product = builder_.Add("matmul", {x, w1}, {}, "up");
  const ValueId active = builder_.Add("bias_gelu", {product, b1}, {}, "gelu");
  const ValueId down = builder_.Add("matmul", {active, w2}, {}, "down");
  return Dropout(builder_.Add("bias_add", {down, b2}, {}, "out"), "dropout");
}

ValueId LayerBuilder::SwiGlu(ValueId x, std::string_view name, int64_t hidden, double std,
                             double output_std) {
  if (!builder_.status().ok()) return kNoValue;
  const NameScope scope(builder_, name);
  const int64_t width = builder_.type(x).shape.back();
  const ValueId gate = Normal("gate", {width, hidden}, std);
  const ValueId up = Normal("up", {width, hidden}, std);
  const ValueId down = Normal("down", {hidden, width}, output_std);
  const ValueId gated =
      builder_.Add("silu", {builder_.Add("matmul", {x, gate}, {}, "gate_product")}, {}, "silu");
  const ValueId active =
      builder_.Add("mul", {gated, builder_.Add("matmul", {x, up}, {}, "up_product")}, {}, "active");
  return Dropout(builder_.Add("matmul", {active, down}, {}, "out"), "dropout");
}

ValueId LayerBuilder::MixtureOfExperts(ValueId x, std::string_view name, const Experts& sizes,
                                       double std, double output_std, ValueId* balance) {
  if (!builder_.status().ok()) return kNoValue;
  const NameScope scope(builder_, name);
  const Shape shape = builder_.type(x).shape;  // [b, s, d]
  const int64_t width = shape.back();
  const ValueId router = Normal("router", {width, sizes.experts}, std);
  const ValueId w1 = Normal("w1", {sizes.experts, width, sizes.hidden}, std);
  const ValueId w2 = Normal("w2", {sizes.experts, sizes.hidden, width}, output_std);
  const Attributes places = {{"experts", sizes.experts}, {"capacity", sizes.capacity}};

  const ValueId scores = builder_.Add("matmul", {x, router}, {}, "scores");
  const ValueId probabilities = builder_.Add("softmax", {scores}, {}, "probabilities");
  const std::vector<ValueId> chosen =
      builder_.AddMulti("top_k", {probabilities}, {{"k", sizes.top_k}}, "chosen");
  if (chosen.size() != 2) return kNoValue;
  ValueId weights = chosen[0];
  if (sizes.top_k > 1) {
    const ValueId sum =
        builder_.Add("reduce_sum", {weights}, {{"axes", AttrValue::Ints({2})}}, "chosen_sum");
    const Attributes repeated = {
        {"shape", AttrValue::Ints({shape[0], shape[1], sizes.top_k})},
        {"axes", AttrValue::Ints({0, 1})},
    };
    weights =
        builder_.Add("div", {weights, builder_.Add("broadcast", {sum}, repeated)}, {}, "weights");
  }
  const std::vector<ValueId> slots =
      builder_.AddMulti("expert_slots", {chosen[1]}, places, "slots", balance == nullptr ? 1 : 2);
  if (slots.empty()) return kNoValue;

  const ValueId dispatched = builder_.Add("dispatch", {x, slots[0]}, places, "dispatched");
  const ValueId up =
      builder_.Add("einsum", {dispatched, w1}, {{"equation", "ebcd,edh->ebch"}}, "up");
  const ValueId active = builder_.Add("gelu", {up}, {}, "gelu");
  const ValueId down =
      builder_.Add("einsum", {active, w2}, {{"equation", "ebch,ehd->ebcd"}}, "down");
  const ValueId combined = builder_.Add("combine", {down, slots[0], weights}, {}, "combined");

  if (balance != nullptr) {
    const Attributes tokens = {{"axes", AttrValue::Ints({1})}};
    const ValueId mean = builder_.Add("reduce_mean", {probabilities}, tokens, "mean_probability");
    const ValueId load = builder_.Add("cast", {slots[1]}, {{"dtype", dtype_}}, "load");
    const ValueId product = builder_.Add("mul", {load, mean}, {}, "balance.product");
    // Its mean over experts and sequences; f is load / (s k).
    const ValueId total =
        builder_.Add("reduce_mean", {product}, {{"axes", AttrValue::Ints({0, 1})}}, "balance.mean");
    const auto experts = static_cast<double>(sizes.experts);
    const auto choices = static_cast<double>(shape[1] * sizes.top_k);
    const ValueId scale =
        builder_.Constant(sizes.balance_weight * experts * experts / choices, {dtype_, {}});
    *balance = builder_.Add("mul", {total, scale}, {}, "balance");
  }
  return Dropout(combined, "dropout");
}

ValueId LayerBuilder::CausalSelfAttention(ValueId x, std::string_view name, int64_t heads,
                                          double std, double output_std,
                                          const AttentionCache* cache) {
  if (!builder_.status().ok()) return kNoValue;
  const NameScope scope(builder_, name);
  const int64_t width = builder_.type(x).shape.back();
  const int64_t head = width / heads;
  const ValueId qkv_w = Normal("qkv_w", {width, 3, heads, head}, std);
  const ValueId qkv_b = Zeros("qkv_b", {3, heads, head});
  const ValueId proj_w = Normal("proj_w", {heads, head, width}, output_std);
  const ValueId proj_b = Zeros("proj_b", {width});

  const ValueId product =
      builder_.Add("einsum", {x, qkv_w}, {{"equation", "bsd,dchk->bschk"}}, "qkv_product");
  const ValueId qkv = builder_.Add("bias_add", {product, qkv_b}, {}, "qkv");
  ValueId mixed = kNoValue;
  if (cache == nullptr) {
    mixed = builder_.Add("qkv_attention", {qkv}, {{"causal", true}}, "mixed");
  } else {
    const int64_t batch = builder_.type(x).shape[0];
    const ValueId state =
        builder_.Declare("state", "cache", {dtype_, {batch, cache->context, 2, heads, head}});
    const std::vector<ValueId> results =
        builder_.AddMulti("cached_attention", {qkv, state, cache->start}, {}, "mixed");
    if (results.empty()) return kNoValue;
    builder_.AddMulti("assign", {state, results[0]});
    mixed = results[1];
  }
  const ValueId projected =
      builder_.Add("einsum", {mixed, proj_w}, {{"equation", "bshk,hkd->bsd"}}, "projected");
  return Dropout(builder_.Add("bias_add", {projected, proj_b}, {}, "out"), "dropout");
}

ValueId LayerBuilder::RotarySelfAttention(ValueId x, std::string_view name,
                                          const GroupedHeads& sizes, double std, double output_std,
                                          const AttentionCache* cache) {
  if (!builder_.status().ok()) return kNoValue;
  const NameScope scope(builder_, name);
  const int64_t batch = builder_.type(x).shape[0];
  const int64_t width = builder_.type(x).shape.back();
  const int64_t head = width / sizes.heads;
  const ValueId q_w = Normal("q_w", {width, sizes.heads, head}, std);
  const ValueId k_w = Normal("k_w", {width, sizes.key_heads, head}, std);
  const ValueId v_w = Normal("v_w", {width, sizes.key_heads, head}, std);
  const ValueId proj_w = Normal("proj_w", {sizes.heads, head, width}, output_std);

  const auto product = [&](ValueId w, std::string_view result) {
    return builder_.Add("einsum", {x, w}, {{"equation", "bsd,dhk->bshk"}}, result);
  };
  const auto rotate = [&](ValueId heads, std::string_view result) {
    std::vector<ValueId> operands = {heads};
    if (cache != nullptr) operands.push_back(cache->start);
    return builder_.Add("rotary", operands,
                        RotaryAttributes(sizes.rotary_base, sizes.rotary_scaling), result);
  };
  const auto swap = [&](ValueId heads) {  // [b, s, h, k] to [b, h, s, k], or back
    return builder_.Add("transpose", {heads}, {{"permutation", AttrValue::Ints({0, 2, 1, 3})}});
  };
  const ValueId q = rotate(product(q_w, "q_product"), "q");
  const ValueId k = rotate(product(k_w, "k_product"), "k");
  const ValueId v = product(v_w, "v");
  ValueId rows = kNoValue;
  if (cache == nullptr) {
    const ValueId mixed =
        builder_.Add("attention", {swap(q), swap(k), swap(v)}, {{"causal", true}}, "mixed");
    rows = swap(mixed);
  } else {
    const ValueId state = builder_.Declare(
        "state", "cache", {dtype_, {batch, cache->context, 2, sizes.key_heads, head}});
    const std::vector<ValueId> results =
        builder_.AddMulti("cached_attention", {q, state, cache->start, k, v}, {}, "mixed");
    if (results.empty()) return kNoValue;
    builder_.AddMulti("assign", {state, results[0]});
    rows = results[1];
  }
  return Dropout(
      builder_.Add("einsum", {rows, proj_w}, {{"equation", "bshk,hkd->bsd"}}, "projected"),
      "dropout");
}

}  // namespace penstock::graph
