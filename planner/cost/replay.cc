#include "planner/cost/replay.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"

#include "base/status_macros.h"
#include "planner/plan/fire_plan.h"
#include "planner/plan/rendezvous.h"

namespace penstock::planner {
namespace {

// Cores, links and copy streams, each with the time until which it is taken. As what asks for them
// comes in order of time, the first to ask is the first served.
class ReplayTimes : public FiringTimes {
 public:
  ReplayTimes(const Plan& plan, const ReplayOptions& options) : plan_(plan), options_(options) {}

  double ComputeSeconds(uint32_t device, uint32_t actor) const override {
    return options_.compute_s(device, actor);
  }

  double Compute(const FiredActor& fired, double now, double seconds) override {
    double& free = core_free_[Of(options_.core_of_device, fired.device)];
    return free = std::max(free, now) + seconds;
  }

  bool HasCopyStreams(uint32_t device) const override {
    return !options_.has_copy_streams.empty() && options_.has_copy_streams[device];
  }

  double Copy(const FiredActor& fired, bool is_to_host, double begin_s, double seconds) override {
    double& free = copy_free_[{fired.device, is_to_host}];
    return free = std::max(free, begin_s) + seconds;
  }

  double Communicate(uint32_t rendezvous, uint32_t /*number*/, double now) override {
    if (rendezvous >= plan_.collectives.size()) {
      const TransferPlan& transfer = plan_.transfers[rendezvous - plan_.collectives.size()];
      const LinkRates rates = RatesOf(transfer.source, transfer.destination);
      double& free = link_free_[LinkOf(transfer.source, transfer.destination)];
      const double end = std::max(free, now) + TransferSeconds(transfer.num_bytes, rates);
      free = end - rates.latency_s;  // the next message follows while this one is on its way
      return end;
    }
    const CollectiveSpec& spec = plan_.collectives[rendezvous];
    LinkRates slowest = {0, std::numeric_limits<double>::infinity()};
    double begin = now;
    ForEachLink(spec, [&](uint32_t from, uint32_t to) {
      const LinkRates rates = RatesOf(from, to);
      slowest.latency_s = std::max(slowest.latency_s, rates.latency_s);
      slowest.bytes_per_s = std::min(slowest.bytes_per_s, rates.bytes_per_s);
      begin = std::max(begin, link_free_[LinkOf(from, to)]);
    });
    const double end = begin + CollectiveSeconds(spec, slowest);
    ForEachLink(spec, [&](uint32_t from, uint32_t to) { link_free_[LinkOf(from, to)] = end; });
    return end;
  }

 private:
  static uint32_t Of(const std::vector<uint32_t>& map, uint32_t device) {
    return map.empty() ? device : map[device];
  }

  LinkRates RatesOf(uint32_t from, uint32_t to) const {
    if (options_.link == nullptr) return LinkRates();
    return options_.link(Of(options_.process_of_device, from), Of(options_.process_of_device, to));
  }

  // Devices of one process have links of their own.
  std::pair<uint64_t, uint64_t> LinkOf(uint32_t from, uint32_t to) const {
    const uint64_t from_process = Of(options_.process_of_device, from);
    const uint64_t to_process = Of(options_.process_of_device, to);
    if (from_process != to_process) return {from_process, to_process};
    constexpr uint64_t kWithinProcess = uint64_t{1} << 32;
    return {kWithinProcess + from, kWithinProcess + to};
  }

  // The directions in which the devices of a collective send.
  template <typename F>
  static void ForEachLink(const CollectiveSpec& spec, const F& function) {
    const size_t n = spec.devices.size();
    for (size_t i = 0; i < n; ++i) {
      if (spec.algorithm == CollectiveAlgorithm::kRing) {
        if (n > 1) function(spec.devices[i], spec.devices[(i + 1) % n]);
        continue;
      }
      for (size_t k = 0; k < n; ++k) {
        if (i != k) function(spec.devices[i], spec.devices[k]);
      }
    }
  }

  const Plan& plan_;
  const ReplayOptions& options_;
  absl::flat_hash_map<uint32_t, double> core_free_;
  absl::flat_hash_map<std::pair<uint32_t, bool>, double> copy_free_;  // by device and direction
  absl::flat_hash_map<std::pair<uint64_t, uint64_t>, double> link_free_;
};

}  // namespace

absl::StatusOr<double> ReplayStepSeconds(const Plan& plan, const PolicyRegistry& policies,
                                         const ReplayOptions& options) {
  PhaseWorkspaceBytes workspace_bytes;  // not asked for
  for (const DevicePlan& device : plan.devices) {
    workspace_bytes.emplace_back(device.phases.size(), 0);
  }
  ReplayTimes times(plan, options);
  ASSIGN_OR_RETURN(const FiringResult result,
                   FirePlan(plan, policies, FindRendezvous(plan), workspace_bytes, &times));
  const std::vector<double>& ends = result.step_ends_s;
  const size_t last = ends.size() - 2;  // the one after it had nothing behind it
  return (ends[last] - ends[0]) / static_cast<double>(last);
}

}  // namespace penstock::planner
