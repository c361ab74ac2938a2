#include "cli/fewer_devices.h"

#include "absl/status/statusor.h"
#include "cli/job_machine.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "base/counted.h"
#include "base/format.h"
#include "base/strings.h"
#include "planner/search/explain_candidate.h"
#include "planner/search/search.h"

namespace penstock::cli {
namespace {

// Predictions are not more exact.
constexpr double kTolerance = 0.02;
// More devices are only tried where they may be as fast.
constexpr int64_t kFewDevices = 64;

// ", with 2 threads a device instead of 1": fewer devices of this machine have more of its cores.
std::string ThreadsText(const Job& job, int64_t num_devices, int64_t num_threads) {
  const int64_t of_all = ThreadsOf(job, num_devices);
  if (!job.cluster.file.empty() || num_threads == of_all) return "";
  return StrCat(", with ", Counted(num_threads, "thread"), " a device instead of ", of_all);
}

}  // namespace

bool IsAsFast(const FewerDevices& fewer, const JobGraph& found) {
  return found.search.has_value() &&
         fewer.step_s <= (1 + kTolerance) * found.search->best.estimate.step_s;
}

std::vector<FewerDevices> TryFewerDevices(const Registries& registries, const Job& job,
                                          const JobGraph& found) {
  std::vector<FewerDevices> tried;
  if (!found.search.has_value()) return tried;
  const planner::StepEstimate& best = found.search->best.estimate;
  if (found.num_devices > kFewDevices && 2 * best.compute_s > best.step_s) return tried;
  for (int64_t count = found.num_devices / 2; count >= 1; count /= 2) {
    Job smaller = job;
    smaller.cluster.devices = count;
    const absl::StatusOr<JobGraph> graph = BuildJobGraph(registries, smaller);
    if (!graph.ok() || !graph->search.has_value() || !graph->search->best.estimate.fits()) break;
    const planner::Candidate& candidate = graph->search->best;
    tried.push_back({count, planner::Describe(candidate), candidate.estimate.step_s,
                     ThreadsText(job, found.num_devices, ThreadsOf(smaller, count))});
    if (!IsAsFast(tried.back(), found)) break;
  }
  return tried;
}

std::string FewerDevicesText(const std::vector<FewerDevices>& tried, const JobGraph& found) {
  const FewerDevices* fewest = nullptr;  // that are as fast
  for (const FewerDevices& fewer : tried) {
    if (IsAsFast(fewer, found)) fewest = &fewer;
  }
  std::string text;
  if (fewest != nullptr) {
    StrAppend(&text, "fewer devices: ", Counted(fewest->num_devices, "device"),
              fewest->num_devices == 1 ? " is" : " are", " as fast: ", fewest->strategy,
              ", estimated step ", FormatSeconds(fewest->step_s), fewest->threads, "\n");
  }
  if (!tried.empty() && &tried.back() != fewest) {
    const FewerDevices& slower = tried.back();
    text += fmt::format("{}: {} would take {:.2f} times as long ({}, estimated step {})\n",
                        fewest == nullptr ? "fewer devices" : "still fewer",
                        Counted(slower.num_devices, "device"),
                        slower.step_s / found.search->best.estimate.step_s, slower.strategy,
                        FormatSeconds(slower.step_s));
  }
  return text;
}

nlohmann::json FewerDevicesJson(const std::vector<FewerDevices>& tried, const JobGraph& found) {
  nlohmann::json rows = nlohmann::json::array();
  for (const FewerDevices& fewer : tried) {
    rows.push_back({{"devices", fewer.num_devices},
                    {"strategy", fewer.strategy},
                    {"step_s", fewer.step_s},
                    {"as_fast", IsAsFast(fewer, found)}});
  }
  return rows;
}

}  // namespace penstock::cli
