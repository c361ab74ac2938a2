// The planned graph as lists in columns, for a page (report_page.h).
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_REPORT_BLOCKS_H_
#define PENSTOCK_CLI_REPORT_BLOCKS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "planner/draw/graph_blocks.h"

namespace penstock::cli {

// The colour of a stage, "#rrggbb".
std::string StageStyle(size_t stage, size_t num_stages);

// A card for each kind of stage, in its colour: what it computes forward, and, folded, backward,
// for weight gradients and in the update, each operator with its sharding and what is communicated
// of its result. At most `max_steps` operators are listed in all; a note tells of the others.
std::string BlocksHtml(const std::vector<planner::StageBlocks>& stages, int num_stages,
                       size_t max_steps);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_REPORT_BLOCKS_H_
