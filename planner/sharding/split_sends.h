// Pass split-sends: what passes from one pipeline stage to another is split over the devices that
// hold the same bytes of it, so that each byte leaves its stage once (send_sharding.h).
//
// The sending stage slices the value, which moves nothing; the reading stages redistribute the
// part: a `reshard` there begins with the part instead of the whole, and for nodes that read the
// value as it was, one reshard a stage puts it together again, for forward and backward alike.
//
// If a value is made only to be sent, the slice moves up through the nodes that make it, as long as
// a part of their result needs only that part of their operands, and if that ends at a reduction:
// the all_reduce becomes a reduce_scatter.
//
//   stage 0   %y = reshard(%y.local) @[_]           reduce_scatter to @[tp]
//             %z = add(%x, %y)                ->    the same, on parts; %x is sliced
//   stage 1   %u = norm(%z)                         %z_1 = reshard(%z) @[_], %u = norm(%z_1)
//
// Gradients of a weight that stages share are terms of one sum. They are scattered in their stages
// and added in parts, if that is cheaper than to send whole terms.
//
// Inputs, constants and iotas are made in every stage that reads them, so they are not sent.
// Values that stages of one group of devices pass to each other stay as they are.
//
// A graph whose stages have different numbers of devices is left as it is: what passes between
// meshes is split already (arrival.h).
//
// REQUIRES: reshards inserted and not lowered yet.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_SHARDING_SPLIT_SENDS_H_
#define PENSTOCK_PLANNER_SHARDING_SPLIT_SENDS_H_

#include <optional>
#include <vector>

#include "absl/status/status.h"

#include "graph/graph.h"
#include "graph/op.h"
#include "planner/policy/placement.h"
#include "planner/sharding/send_sharding.h"

namespace penstock::planner {

// How split-sends weighs what is sent.
struct SendOptions {
  // The groups of devices that run the stages. None: each has one of its own.
  std::optional<StagePlacement> placement = {};
  SendCosts costs;  // by which shardings are chosen
};

// What a node of one result reads of its operands if it makes `part` of what it makes now; nothing
// if its elements depend on others along the dimensions that `part` splits further. All are closed.
// REQUIRES: reshards inserted.
std::optional<std::vector<graph::Sharding>> OperandsForPart(const graph::Graph& graph,
                                                            const graph::Node& node,
                                                            const graph::Sharding& part);

// The pass split-sends. No change where there is one device, or meshes of different sizes.
// REQUIRES: reshards inserted and not lowered yet.
absl::Status SplitSends(const graph::OpRegistry& ops, const SendOptions& options,
                        graph::Graph& graph);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_SPLIT_SENDS_H_
