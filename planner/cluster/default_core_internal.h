// The text of default_core.toml, which the build puts into the library.
//
// Thread rule: a constant.

#ifndef PENSTOCK_PLANNER_CLUSTER_DEFAULT_CORE_INTERNAL_H_
#define PENSTOCK_PLANNER_CLUSTER_DEFAULT_CORE_INTERNAL_H_

namespace penstock::planner {

extern const char kDefaultCore[];

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_CLUSTER_DEFAULT_CORE_INTERNAL_H_
