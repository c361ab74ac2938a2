#include "planner/cluster/default_core.h"

#include "planner/cluster/cluster_file.h"
#include "planner/cluster/default_core_internal.h"

namespace penstock::planner {

const DeviceKind& DefaultCore() {
  // The text is part of the build and tested: it parses.
  static const auto* const core = [] {
    const absl::StatusOr<Cluster> cluster = ParseCluster(kDefaultCore, "default_core.toml");
    return new DeviceKind(cluster.ok() ? cluster->spec().kinds[0] : DeviceKind());
  }();
  return *core;
}

}  // namespace penstock::planner
