// A lowered graph as a picture: the boxes of drawn_graph.h, coloured by stage, with what is
// communicated on the edges between them, the wider the more bytes. Tooltips show statements with
// types and shardings.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_DRAW_DRAW_GRAPH_H_
#define PENSTOCK_PLANNER_DRAW_DRAW_GRAPH_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "graph/graph.h"

namespace penstock::planner {

// An SVG document. `title` stands at its top. REQUIRES: the graph has been through lower-reshards.
absl::StatusOr<std::string> DrawGraph(const graph::Graph& graph, std::string_view title);

// The colour of a stage, "#rrggbb": stages up to `num_stages` have different ones.
std::string StageColour(int stage, int num_stages);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_DRAW_DRAW_GRAPH_H_
