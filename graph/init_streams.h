// The random stream that each parameter and state is initialised from.
//
// A statement may name its stream (`parameter {stream=3}`). One that does not gets a stream of its
// own, derived from its name: adding, removing or reordering other values does not change its
// initial value, and no two values start out alike.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_GRAPH_INIT_STREAMS_H_
#define PENSTOCK_GRAPH_INIT_STREAMS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace penstock::graph {

// A stream in the upper half of the range, from a hash of `name`; `salt` gives further ones.
// Streams that people and models number by hand are in the lower half.
uint32_t StreamOfName(std::string_view name, uint64_t salt = 0);

// By node: the stream of every declared value, 0 for other nodes. Of two names whose streams
// collide the later statement takes its next one.
std::vector<uint32_t> InitStreams(const Graph& graph);

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_INIT_STREAMS_H_
