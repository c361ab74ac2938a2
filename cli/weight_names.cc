#include "cli/weight_names.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "absl/types/span.h"

#include "base/strings.h"

namespace penstock::cli {
namespace {

constexpr int kVector = -1;  // Rule::in_dims: all dimensions are one

// "#" stands for the number of a block. A matrix has `in_dims` leading dimensions as its rows and
// the others as its columns; 0: the tensor is stored as the parameter is.
struct Rule {
  std::string_view parameter;
  std::string_view tensor;
  int in_dims = 0;
  bool is_transposed = false;
};

// Layers of GPT-2 that are called Conv1D there: [in, out].
constexpr std::array kGptRules = {
    Rule{"wte", "wte.weight"},
    Rule{"wpe", "wpe.weight"},
    Rule{"h#.ln1.scale", "h.#.ln_1.weight"},
    Rule{"h#.ln1.bias", "h.#.ln_1.bias"},
    Rule{"h#.attn.qkv_w", "h.#.attn.c_attn.weight", 1},
    Rule{"h#.attn.qkv_b", "h.#.attn.c_attn.bias", kVector},
    Rule{"h#.attn.proj_w", "h.#.attn.c_proj.weight", 2},
    Rule{"h#.attn.proj_b", "h.#.attn.c_proj.bias"},
    Rule{"h#.ln2.scale", "h.#.ln_2.weight"},
    Rule{"h#.ln2.bias", "h.#.ln_2.bias"},
    Rule{"h#.mlp.w1", "h.#.mlp.c_fc.weight", 1},
    Rule{"h#.mlp.b1", "h.#.mlp.c_fc.bias"},
    Rule{"h#.mlp.w2", "h.#.mlp.c_proj.weight", 1},
    Rule{"h#.mlp.b2", "h.#.mlp.c_proj.bias"},
    Rule{"ln_f.scale", "ln_f.weight"},
    Rule{"ln_f.bias", "ln_f.bias"},
};
constexpr std::array kLlamaRules = {
    Rule{"wte", "embed_tokens.weight"},
    Rule{"head", kLogitsWeight},
    Rule{"h#.ln1.scale", "layers.#.input_layernorm.weight"},
    Rule{"h#.attn.q_w", "layers.#.self_attn.q_proj.weight", 1, true},
    Rule{"h#.attn.k_w", "layers.#.self_attn.k_proj.weight", 1, true},
    Rule{"h#.attn.v_w", "layers.#.self_attn.v_proj.weight", 1, true},
    Rule{"h#.attn.proj_w", "layers.#.self_attn.o_proj.weight", 2, true},
    Rule{"h#.ln2.scale", "layers.#.post_attention_layernorm.weight"},
    Rule{"h#.mlp.gate", "layers.#.mlp.gate_proj.weight", 1, true},
    Rule{"h#.mlp.up", "layers.#.mlp.up_proj.weight", 1, true},
    Rule{"h#.mlp.down", "layers.#.mlp.down_proj.weight", 1, true},
    Rule{"ln_f.scale", "norm.weight"},
};

bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// Whether the name is the pattern with a number for "#"; if so, *number is its digits.
bool Matches(std::string_view pattern, std::string_view name, std::string_view* number) {
  const size_t at = pattern.find('#');
  if (at == std::string_view::npos) return pattern == name;
  const std::string_view tail = pattern.substr(at + 1);
  if (name.size() <= at + tail.size() || name.substr(0, at) != pattern.substr(0, at) ||
      name.substr(name.size() - tail.size()) != tail) {
    return false;
  }
  *number = name.substr(at, name.size() - at - tail.size());
  return std::all_of(number->begin(), number->end(), IsDigit);
}

std::string Fill(std::string_view pattern, std::string_view number) {
  const size_t at = pattern.find('#');
  if (at == std::string_view::npos) return std::string(pattern);
  return StrCat(pattern.substr(0, at), number, pattern.substr(at + 1));
}

absl::Span<const Rule> RulesOf(std::string_view model) {
  if (model == "gpt") return kGptRules;
  if (model == "llama") return kLlamaRules;
  return {};
}

}  // namespace

std::string_view WeightPrefix(std::string_view model) {
  return model == "gpt" ? "transformer." : model == "llama" ? "model." : "";
}

std::optional<WeightSource> FindWeight(std::string_view model, std::string_view parameter,
                                       const Shape& shape) {
  std::string_view number;
  for (const Rule& rule : RulesOf(model)) {
    if (!Matches(rule.parameter, parameter, &number)) continue;
    WeightSource source = {Fill(rule.tensor, number), shape, rule.is_transposed};
    if (rule.in_dims == kVector) source.shape = {NumElements(shape)};
    if (rule.in_dims > 0) {
      const auto middle = shape.begin() + rule.in_dims;
      const int64_t in = NumElements(Shape(shape.begin(), middle));
      const int64_t out = NumElements(Shape(middle, shape.end()));
      source.shape = rule.is_transposed ? Shape{out, in} : Shape{in, out};
    }
    return source;
  }
  return std::nullopt;
}

bool IsConstantTensor(std::string_view model, std::string_view name) {
  std::string_view number;
  if (model == "gpt") {
    return Matches("h.#.attn.bias", name, &number) ||
           Matches("h.#.attn.masked_bias", name, &number);
  }
  return model == "llama" && Matches("layers.#.self_attn.rotary_emb.inv_freq", name, &number);
}

}  // namespace penstock::cli
