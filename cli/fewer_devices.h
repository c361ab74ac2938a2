// Whether a job whose strategy was searched for would be as fast on fewer devices: small models on
// many devices communicate more than they gain.
//
// Thread rule: as job_graph.h.

#ifndef PENSTOCK_CLI_FEWER_DEVICES_H_
#define PENSTOCK_CLI_FEWER_DEVICES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cli/environment.h"
#include "cli/job.h"
#include "cli/job_graph.h"
#include "nlohmann/json_fwd.hpp"

namespace penstock::cli {

// The best strategy for a number of devices, as the search predicts it.
struct FewerDevices {
  int64_t num_devices = 0;
  std::string strategy;  // as planner::Describe has it
  double step_s = 0;
  std::string threads;  // ", with 2 threads a device instead of 1"; empty where they are as many
};

// Half as many devices as `found` uses, and half as many again as long as those are as fast. The
// last one is slower than `found`, or has a single device. Empty where nothing was searched for,
// where the devices cannot be halved (the job's hosts have to have as many each, or the model does
// not fit into fewer), or where `found` has more than 64 devices that compute for most of the time:
// then the search, which takes seconds for so many, would tell what is known.
std::vector<FewerDevices> TryFewerDevices(const Registries& registries, const Job& job,
                                          const JobGraph& found);

// Whether fewer devices take no longer, up to a few percent.
bool IsAsFast(const FewerDevices& fewer, const JobGraph& found);

// "fewer devices: ...\n", or nothing for none.
std::string FewerDevicesText(const std::vector<FewerDevices>& tried, const JobGraph& found);

// [{"devices", "strategy", "step_s", "as_fast"}].
nlohmann::json FewerDevicesJson(const std::vector<FewerDevices>& tried, const JobGraph& found);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_FEWER_DEVICES_H_
