// All_gathers that neither a strategy nor a written sharding asks for: a sharding has propagated to
// a value, and an operator that reads it cannot run split in that way.
//
// An all_gather is asked for if
//   - it is written: as a reshard, or by the sharding of its result;
//   - a parameter that is kept in parts is gathered for its use, or a state is assigned;
//   - a node that reads its result is split over the same devices otherwise, as a product whose
//     other operand has the axis, or has a result with a written sharding;
//   - the graph returns its result.
//
// Example: on [a=4], x : f32[24] @[a] propagates to y = reshape(x) : f32[6, 4] as @[a:(1)2, _],
// because a row has four elements. The reshape runs on pairs of devices that do the same, for which
// x is gathered over a:(2)2. No other operand or result of the reshape has that piece of the axis.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_LOWER_UNASKED_GATHERS_H_
#define PENSTOCK_PLANNER_LOWER_UNASKED_GATHERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace penstock::planner {

struct UnaskedGather {
  std::string value;               // that is gathered
  std::string reader;              // the operator that reads the result
  graph::SourceLocation location;  // of the reader; of what code built, none
  std::string from;                // the shardings: "@[a]"
  std::string to;
  int64_t num_bytes = 0;  // that a device receives, at most, each time
};

// `written`: before any pass. `resharded`: after insert-reshards.
std::vector<UnaskedGather> FindUnaskedGathers(const graph::Graph& written,
                                              const graph::Graph& resharded);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_LOWER_UNASKED_GATHERS_H_
