// The pieces of axes that two shardings of a tensor distinguish. In terms of pieces, axes never
// overlap in part: each is used as a whole or not at all.
//
// Example: "a" of size 8 in one sharding and "a:(2)2" in the other have the pieces "a:(1)2",
// "a:(2)2" and "a:(4)2".
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_SHARDING_AXIS_PIECES_H_
#define PENSTOCK_PLANNER_SHARDING_AXIS_PIECES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "graph/sharding.h"

namespace penstock::planner {

using Pieces = std::vector<graph::AxisRef>;

// Points at which axes, by number, are cut: products of parts, from 1 to the size.
using Cuts = std::map<int, std::set<int64_t>>;

// Nothing if the pieces cannot exist side by side, as "(1)2" and "(1)3" of an axis of 6.
std::optional<Cuts> CommonCuts(const graph::Sharding& a, const graph::Sharding& b);

// Cuts spatial axes further, into pieces of prime size.
Cuts PrimeCuts(const graph::Mesh& mesh, Cuts cuts);

// How many pieces there are.
int NumPieces(const Cuts& cuts);

// The sharding in terms of the pieces. REQUIRES: `cuts` has those of the sharding.
graph::Sharding InPieces(const graph::Sharding& sharding, const Cuts& cuts);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_AXIS_PIECES_H_
