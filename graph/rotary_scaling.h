// The angles of a rotary position embedding (Su et al., arXiv:2104.09864): pair i of a row of width
// d turns by base^(-2 i / d) radians a position, or by less, so that a model takes longer sequences
// than it was first trained on. The ways to scale are those of the package transformers
// (modeling_rope_utils.py), under their names.
//
// Thread rule: values and pure functions.

#ifndef PENSTOCK_GRAPH_ROTARY_SCALING_H_
#define PENSTOCK_GRAPH_ROTARY_SCALING_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

#include "graph/attributes.h"

namespace penstock::graph {

// How the angles of a model differ from those of its `base`. Fields that `type` does not name are
// ignored.
struct RotaryScaling {
  // "none";
  // "linear": all frequencies are divided by `factor` (Chen et al., arXiv:2306.15595);
  // "dynamic": sequences of more than `context` tokens have a larger base; these are refused here,
  //   and shorter ones are as with "none";
  // "llama3": frequencies of fewer than `low_factor` turns in `context` tokens are divided by
  //   `factor`, those of more than `high_factor` turns stay, and those between are blended.
  std::string type = "none";
  double factor = 1;       // at least 1
  double low_factor = 1;   // of "llama3": turns; positive
  double high_factor = 4;  // likewise; more than low_factor
  int64_t context = 8192;  // tokens of a sequence that the model was first trained on
  friend bool operator==(const RotaryScaling&, const RotaryScaling&) = default;
};

// An error names the field, with `prefix` in front of its name: an unknown type, numbers that make
// no sense, sequences of more tokens than "dynamic" takes.
absl::Status CheckRotaryScaling(const RotaryScaling& scaling, int64_t context,
                                std::string_view prefix);

// The attributes of the operator rotary: those that its scaling needs, and `base`.
Attributes RotaryAttributes(double base, const RotaryScaling& scaling);
// The other way; what the attributes do not have is as by default.
RotaryScaling RotaryScalingOf(const Attributes& attributes);

// In radians a position, of each pair of a row of `width` elements under the operator's attributes.
std::vector<double> RotaryFrequencies(const Attributes& attributes, int64_t width);

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_ROTARY_SCALING_H_
