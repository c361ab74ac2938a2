// The links between a run's processes, for the replayed bound (planner/cost/replay.h).
//
// What is set for the job comes first (cluster.link_gbit_per_s, cluster.link_latency_us), then what
// the cluster of cluster.file has, then what `penstock launch` has measured of the networks between
// hosts. Without any of these, all links have the default rate, and the latency that the run shows.
//
// Thread rule: a pure function but for the file that a job names.

#ifndef PENSTOCK_CLI_REPLAYED_LINKS_H_
#define PENSTOCK_CLI_REPLAYED_LINKS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "cli/job.h"

#include "planner/cost/communication_cost.h"

namespace penstock::cli {

using ReplayedLinks = std::function<planner::LinkRates(uint32_t from, uint32_t to)>;

// ReplayOptions::link, by processes. `measure_latency` gives the latency that the run shows, in
// seconds, over links of `bytes_per_s`; it is called at most once. REQUIRES: `process_of_device`
// has an entry for each device of the job's plan, which is not empty.
ReplayedLinks LinksOfProcesses(
    const Job& job, const std::vector<uint32_t>& process_of_device,
    const std::function<std::optional<double>(double bytes_per_s)>& measure_latency);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_REPLAYED_LINKS_H_
