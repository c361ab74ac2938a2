// The text of default_collectives.toml, which the build puts into the library.
//
// Thread rule: a constant.

#ifndef PENSTOCK_PLANNER_COST_DEFAULT_COLLECTIVES_INTERNAL_H_
#define PENSTOCK_PLANNER_COST_DEFAULT_COLLECTIVES_INTERNAL_H_

namespace penstock::planner {

extern const char kDefaultCollectives[];

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_COST_DEFAULT_COLLECTIVES_INTERNAL_H_
