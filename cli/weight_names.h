// Where the parameters of built-in models are in files of weights that other programs write: what
// the tensors are called, and how they are laid out. The names are those of the library
// transformers for GPT-2 and Llama.
//
// A linear layer with the weights w[in, out] is stored in one of two ways: Llama's as [out, in],
// GPT-2's as [in, out]. Dimensions of a parameter that belong together are one dimension there:
// h0.attn.q_w[width, heads, head] is [heads * head, width].
//
// Example: h3.attn.proj_w f32[4, 8, 32] of llama is model.layers.3.self_attn.o_proj.weight, [32,
// 32], transposed.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_WEIGHT_NAMES_H_
#define PENSTOCK_CLI_WEIGHT_NAMES_H_

#include <optional>
#include <string>
#include <string_view>

#include "base/shape.h"

namespace penstock::cli {

// The tensor of a parameter.
struct WeightSource {
  std::string name;
  Shape shape;
  bool is_transposed = false;  // the matrix that is stored is the transpose of the parameter's
};

// What programs may put in front of all names but that of the matrix of the logits: "transformer."
// for gpt, "model." for llama. Empty: no weights are known for the model.
std::string_view WeightPrefix(std::string_view model);

// Of a parameter of the model gpt or llama, without the prefix. Nothing: the parameter has no
// tensor.
std::optional<WeightSource> FindWeight(std::string_view model, std::string_view parameter,
                                       const Shape& shape);

// The name of the matrix that makes logits, which has no prefix. Where it is tied to the token
// embedding, a file may hold it nevertheless.
inline constexpr std::string_view kLogitsWeight = "lm_head.weight";
inline constexpr std::string_view kTokenEmbedding = "wte";  // the parameter

// Whether a tensor, without the prefix, is none that was trained: masks of GPT-2 and wavelengths of
// Llama, which older versions of transformers store.
bool IsConstantTensor(std::string_view model, std::string_view name);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_WEIGHT_NAMES_H_
