// Links that are always taken together, as one.
//
// What takes a link takes a whole route. Of links that lie on exactly the same routes, the slowest
// tells as much as all: the thousands of links inside a group of devices that only this group uses
// become one.
//
// Example: of the routes {0, 1, 2, 3} and {2, 3, 4}, where links of odd numbers are slower, {1, 3}
// and {3, 4} are left.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_SIMULATOR_LINK_CLASSES_H_
#define PENSTOCK_PLANNER_SIMULATOR_LINK_CLASSES_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace penstock::planner {

// Leaves one link of each set of links that lie on the same routes: the slowest, or of several the
// one with the least number. Each route is sorted. Takes time in proportion to the links of all
// routes, but for the sorting. `bytes_per_s`: of each link. REQUIRES: no link is twice on one
// route.
void MergeLinks(absl::Span<const double> bytes_per_s, absl::Span<std::vector<uint32_t>> routes);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SIMULATOR_LINK_CLASSES_H_
