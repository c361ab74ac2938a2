// Descriptions of well-known machines, by name and size: "dgx-a100:16" has 16 nodes. The comments
// in presets.cc name the public source of each figure.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_CLUSTER_PRESETS_H_
#define PENSTOCK_PLANNER_CLUSTER_PRESETS_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "planner/cluster/cluster_model.h"

namespace penstock::planner {

struct ClusterPreset {
  std::string_view name;
  std::string_view size;  // what follows the colon: "NODES", or "XxYxZ" for a torus
  std::string_view help;
};

const std::vector<ClusterPreset>& ClusterPresets();

// "NAME" has the preset's default size. Errors list the presets, or say what size was expected.
absl::StatusOr<Cluster> FindClusterPreset(std::string_view text);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_CLUSTER_PRESETS_H_
