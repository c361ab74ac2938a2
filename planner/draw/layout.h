// Where the boxes of a drawing stand.
//
// The four columns are the parts of a training step, from left to right: forward, backward, weight
// gradients and update. In a column, boxes stand in levels. Forward goes down: the level of a box
// is the longest path to it. Backward goes up from the bottom, so that what belongs to a layer is
// about level with it; a weight gradient is level with the backward box that it reads. Within a
// level, boxes are ordered by the mean position of what they are joined with (the barycentre method
// of Sugiyama, Tagawa and Toda, 1981), in a few sweeps.
//
// Worked example. a -> b -> c forward and g -> h backward, where g reads c and h reads b: a, b and
// c are on the levels 0, 1 and 2, g on 2 beside c and h on 1 beside b.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_DRAW_LAYOUT_H_
#define PENSTOCK_PLANNER_DRAW_LAYOUT_H_

#include <vector>

#include "planner/draw/drawn_graph.h"

namespace penstock::planner {

struct BoxPosition {
  int level = 0;    // from the top
  double slot = 0;  // from the left, in widths of a box; of the middle of the box
};

struct Layout {
  std::vector<BoxPosition> boxes;
  int num_levels = 0;
  double num_slots = 0;  // of all columns together
  // Where each column begins and ends; equal for an empty one.
  double column_begin[kNumDrawnColumns] = {};
  double column_end[kNumDrawnColumns] = {};
};

Layout LayOut(const DrawnGraph& graph);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_DRAW_LAYOUT_H_
