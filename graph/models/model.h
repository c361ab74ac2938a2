// Models by name. A model is a function that appends inputs, parameters and a loss to a graph; a
// preset is a model with its sizes filled in.
//
// Thread rule: a ModelRegistry is built by one thread and then read by any.

#ifndef PENSTOCK_GRAPH_MODELS_MODEL_H_
#define PENSTOCK_GRAPH_MODELS_MODEL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "graph/builder.h"
#include "graph/rotary_scaling.h"

namespace penstock::graph {

// Sizes. A model ignores what it has no use for.
struct ModelConfig {
  int64_t layers = 4;         // blocks
  int64_t width = 128;        // of a token, or channels of an image
  int64_t heads = 4;          // of attention
  int64_t context = 128;      // tokens a sequence
  int64_t vocabulary = 256;   // 256: bytes
  double dropout = 0.1;       // rate; in training only
  DType dtype = DType::kF32;  // of the whole model
  int64_t step_tokens = 1;    // of each sequence in a step of kGenerate
  // Of llama. 0 stands for what depends on other sizes: see llama.h.
  int64_t kv_heads = 0;               // heads of keys and values; 0: as many as of queries
  int64_t hidden = 0;                 // units of the feed-forward layer
  double rotary_base = 1e4;           // of the wavelengths of the position embedding
  RotaryScaling rotary_scaling = {};  // of its positions
  double norm_epsilon = 1e-5;         // of all norms, also those of gpt
  bool is_tied = false;               // whether the logits are products with the token embedding
  // Of mixture-of-experts layers.
  int64_t experts = 8;
  int64_t top_k = 2;              // experts a token
  double capacity_factor = 1.25;  // of an even share of the tokens; 0: no token is dropped
  double balance = 0.01;          // weight of the term that balances the experts' load
  int64_t expert_every = 1;       // every how many-th block has experts
  // Of classifiers of images, which are square.
  int64_t image = 8;     // pixels a side
  int64_t channels = 1;  // of the image
  int64_t classes = 10;  // of the labels
  // Whether all sizes are the same.
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// What a graph of the model is for.
enum class ModelUse : uint8_t {
  kTrain,     // dropout, labels, loss
  kEvaluate,  // labels and the loss of each sequence, no dropout
  kPredict,   // tokens to logits
  // The next tokens of sequences, whose keys and values are kept in states: see ModelOutputs.
  kGenerate,
};

// Where a model's graph begins and ends. Inputs are named "tokens" and "labels", i32[batch,
// context]; label [b, s] is the token that follows token [b, s]. Those of a classifier are
// "images", [batch, channels, image, image], and "labels", i32[batch].
//
// kGenerate: "tokens", i32[batch, step_tokens], are the tokens of each sequence from position
// "start", i32[batch], on; the logits, [batch, 1, vocabulary], are of what follows the last one.
// Tokens at positions from `context` on are dropped, so that start = context leaves a sequence as
// it is. The states NAME.attn.cache hold the keys and values of positions before.
struct ModelOutputs {
  ValueId tokens = kNoValue;   // see above
  ValueId images = kNoValue;   // of a classifier, which has no tokens
  ValueId labels = kNoValue;   // none for kPredict and kGenerate
  ValueId logits = kNoValue;   // [batch, context, vocabulary], or [batch, vocabulary] where the
                               // model predicts only what follows the sequence, or [batch,
                               // classes]
  ValueId loss = kNoValue;     // in nats, the mean over the batch (kTrain) or of each sequence,
                               // [batch] (kEvaluate); none for the others
  ValueId correct = kNoValue;  // of a classifier for kEvaluate: 1 for each image whose label has
                               // the largest logit, else 0; [batch]
};

// Tensor and expert parallelism as data: parameters whose name matches `pattern` have their
// dimension `dim` split over the axis tp or ep. In a pattern "*" stands for any characters.
//
// Sequence parallelism (Korthikanti et al., "Reducing activation recomputation in large transformer
// models", 2022) likewise: with is_sequence, the hint is for values that are no parameters. They
// are split only if a strategy asks for it, and after the parameters' splits have reached all that
// they reach.
//
// Context parallelism: hints with the axis "cp" are for inputs, whose dimension `dim` runs over a
// sequence; those with the axis "ulysses" for results of attention, whose dimension `dim` counts
// heads (strategy.h).
//
// A user may state the whole sharding of a value instead, which a strategy then keeps
// (stated_shardings.h): such a hint has `pattern` and `sharding` alone.
struct SplitHint {
  std::string pattern;       // see above
  int dim = 0;               // see above
  std::string what;          // what the dimension counts, for messages: "heads"
  bool must_divide = false;  // uneven parts are an error rather than a nuisance
  // Whether there may be fewer parts than devices along the axis, in a number that divides theirs:
  // then neighbours hold the same part. For heads of keys that several heads of queries share.
  bool is_shared = false;
  std::string axis = "tp";    // or "ep", "cp", "ulysses"
  bool is_sequence = false;   // see above
  std::string sharding = {};  // as the text format has it: "@[_, tp]"

  // Whether it says what the axis splits.
  bool IsFor(std::string_view name) const;
  // Whether it names parameters, and not sequences or heads.
  bool is_for_parameters() const { return !is_sequence && axis != "cp" && axis != "ulysses"; }
};

// A function that builds graphs of any size, and what is to know of it.
struct Model {
  std::string name;      // that jobs call it by
  std::string summary;   // one line
  ModelConfig defaults;  // of sizes that are not given
  // An error that a user can act on when the sizes make no sense together.
  std::function<absl::Status(const ModelConfig&)> check;
  // Appends the model. REQUIRES: check passed and batch > 0. Errors are the builder's.
  std::function<ModelOutputs(GraphBuilder&, const ModelConfig&, ModelUse, int64_t batch)> build;
  // The members of ModelConfig that `check` and `build` read besides dtype, step_tokens and
  // rotary_scaling, under their names in jobs: "width". Others say nothing of the model. Empty:
  // not known.
  std::vector<std::string_view> sizes = {};
  std::vector<SplitHint> tensor_splits;  // what strategies split
  bool can_generate = false;             // whether `build` knows kGenerate
  bool takes_any_context = false;        // whether no parameter depends on config.context
  bool reads_images = false;             // whether it is a classifier
  // Whether states that are no parameters decide what the trained model computes, such as the
  // running means of batch normalization.
  bool has_statistics = false;
};

// A model of certain sizes, by a name of its own.
struct Preset {
  std::string name;    // that jobs call it by
  std::string model;   // that it is of
  ModelConfig config;  // its sizes
};

// Models and presets by name.
class ModelRegistry {
 public:
  // An error if the name is taken, or the preset's model is unknown.
  absl::Status AddModel(Model model);
  // Likewise.
  absl::Status AddPreset(Preset preset);

  const Model* FindModel(std::string_view name) const;    // null when unknown
  const Preset* FindPreset(std::string_view name) const;  // null when unknown
  std::vector<std::string_view> ModelNames() const;       // sorted
  std::vector<std::string_view> PresetNames() const;      // sorted

 private:
  // Not absl::btree_map: its layout is another one where a sanitizer instruments what includes it.
  std::map<std::string, Model, std::less<>> models_;
  std::map<std::string, Preset, std::less<>> presets_;
};

// gpt, llama, mlp, moe, convnet and resnet, and the presets of gpt, llama and resnet.
ModelRegistry BuiltinModels();

// The graph of a model for one use: its inputs, and one returned value, the loss or (kPredict) the
// logits; a classifier for kEvaluate returns ModelOutputs::correct, too.
absl::StatusOr<Graph> BuildModelGraph(const OpRegistry& ops, const Model& model,
                                      const ModelConfig& config, ModelUse use, int64_t batch);

// Whether `name` matches a pattern, in which "*" stands for any characters and "{3-11}" for a
// number from 3 to 11, with all its digits.
bool MatchesPattern(std::string_view pattern, std::string_view name);

// Elements of all parameters of the graph.
int64_t NumParameters(const Graph& graph);

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_MODELS_MODEL_H_
