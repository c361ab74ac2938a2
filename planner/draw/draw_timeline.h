// The timeline of a pipeline as a picture: a row of phases for each group, and below it what the
// group keeps of activations over time.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_DRAW_DRAW_TIMELINE_H_
#define PENSTOCK_PLANNER_DRAW_DRAW_TIMELINE_H_

#include <string>
#include <string_view>

#include "planner/policy/pipeline.h"

namespace penstock::planner {

// An SVG document. `title` stands at its top. Tooltips show phases with their times.
// REQUIRES: the timeline is RunPipeline's.
std::string DrawTimeline(const Pipeline& pipeline, const Timeline& timeline,
                         std::string_view title);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_DRAW_DRAW_TIMELINE_H_
