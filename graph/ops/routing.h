// What expert_slots, dispatch, combine and combine_weight_grad share.
//
// Tokens x[..., s, d] come in groups, the leading dimensions. Each of e experts has c places for
// the tokens of a group: [e, ..., c, d], so that all places of an expert are one matrix. slots[...,
// s, k] says which k places a token goes to, each as the number expert * c + place. A number
// outside [0, e * c) means none.
//
// Sharding. Every extent is a factor. A place takes its tokens from its own group, so e and c split
// without communication, and where s or k is split the places hold sums. When tokens are split over
// groups and experts over the same axis, a redistribution of [e, ..., c, d] from one split to the
// other lies between them: an all_to_all.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_GRAPH_OPS_ROUTING_H_
#define PENSTOCK_GRAPH_OPS_ROUTING_H_

#include "graph/ops/common.h"

namespace penstock::graph::ops {

// The attributes `experts` (e) and `capacity` (c).
std::vector<AttrSpec> PlaceAttributes();
absl::Status CheckPlaceAttributes(const Attributes& attributes);
inline int64_t NumExperts(const Attributes& attributes) { return attributes.GetInt("experts", 1); }
inline int64_t Capacity(const Attributes& attributes) { return attributes.GetInt("capacity", 1); }

// Checks of operands by their role. A check refers to operands that were checked before.
absl::Status CheckTokens(const OpContext& context, int tokens);                // [..., s, d]
absl::Status CheckPlaces(const OpContext& context, int places);                // [e, ..., c, d]
absl::Status CheckPlacesOf(const OpContext& context, int places, int tokens);  // of these tokens
absl::Status CheckSlotsOfTokens(const OpContext& context, int slots, int tokens);  // [..., s, k]
absl::Status CheckSlotsOfPlaces(const OpContext& context, int slots, int places);
absl::Status CheckWeights(const OpContext& context, int weights, int slots, int dtype_of);

// The extents of the leading dimensions, and s, k, d, e, c.
struct RoutingExtents {
  Shape groups;
  int64_t s = 1;
  int64_t k = 1;
  int64_t d = 1;
  int64_t e = 1;
  int64_t c = 1;
};

struct RoutingFactors {
  TensorFactors tokens;  // [..., s, d]
  TensorFactors slots;   // [..., s, k]
  TensorFactors places;  // [e, ..., c, d]
};

// Adds the factors. `reduced` holds the letters that the result lacks and that leave sums: "sk" for
// dispatch. The others pass through.
RoutingFactors AddRoutingFactors(ShardingRule& rule, const RoutingExtents& extents,
                                 std::string_view reduced);

}  // namespace penstock::graph::ops

#endif  // PENSTOCK_GRAPH_OPS_ROUTING_H_
