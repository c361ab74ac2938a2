#include "planner/simulator/machine_times.h"

#include <algorithm>
#include <map>

#include "planner/cluster/collective_cost.h"
#include "planner/cluster/group_shape.h"
#include "planner/cost/kernel_cost.h"

namespace penstock::planner {
namespace {

// The type in which a kernel computes, from its tiles.
DType ComputeTypeOf(const KernelPlan& spec) {
  std::vector<TensorType> operands;
  std::vector<TensorType> results;
  for (const TilePlan& tile : spec.inputs) operands.push_back({tile.dtype, tile.shape});
  for (const TilePlan& tile : spec.outputs) results.push_back({tile.dtype, tile.shape});
  if (operands.empty() && results.empty()) return DType::kF32;
  if (results.empty()) return operands[0].dtype;
  return KernelTimes::ComputeType(operands, results);
}

// As PredictCollective wants them, of the member that has most.
double BytesOf(const CollectiveSpec& spec) {
  int64_t count = 0;
  for (int rank = 0; rank < static_cast<int>(spec.devices.size()); ++rank) {
    const int64_t of_rank =
        spec.kind == CollectiveKind::kAllGather ? OutputCount(spec, rank) : InputCount(spec, rank);
    count = std::max(count, of_rank);
  }
  return static_cast<double>(count) * static_cast<double>(ByteSize(spec.dtype));
}

double PeakOf(const DeviceKind& kind, DType dtype) {
  const double peak = kind.peak_flops_per_s[static_cast<size_t>(dtype)];
  return peak > 0 ? peak
                  : *std::max_element(kind.peak_flops_per_s.begin(), kind.peak_flops_per_s.end());
}

}  // namespace

MachineTimes::MachineTimes(const Plan& plan, const graph::OpRegistry& ops,
                           const RendezvousTable& rendezvous, const Machine& machine,
                           SimulationObserver* observer)
    : plan_(plan),
      ops_(ops),
      rendezvous_(rendezvous),
      machine_(machine),
      observer_(observer),
      routes_(rendezvous.size()) {
  std::map<const DeviceKind*, uint32_t> index;
  const auto num_devices = static_cast<uint32_t>(plan.devices.size());
  for (uint32_t d = 0; d < num_devices; ++d) {
    const auto [it, is_new] =
        index.try_emplace(&machine.cluster.KindOf(d), static_cast<uint32_t>(kernel_times_.size()));
    if (is_new) kernel_times_.emplace_back(machine, d, 1);
    kind_of_device_.push_back(it->second);
  }
  kernel_seconds_.assign(kernel_times_.size(), std::vector<double>(plan.kernels.size(), -1));
  cores_of_device_.assign(num_devices, kNone);
  uint32_t device = 0;
  for (const CoreGroup& cores : machine.core_groups) {
    const bool is_shared = cores.num_at_once > 0 && cores.num_at_once < cores.num_devices;
    for (int64_t i = 0; i < cores.num_devices && device < num_devices; ++i, ++device) {
      if (is_shared) cores_of_device_[device] = static_cast<uint32_t>(core_free_s_.size());
    }
    if (is_shared) core_free_s_.emplace_back(static_cast<size_t>(cores.num_at_once), 0.0);
  }
}

double MachineTimes::KernelSecondsOf(uint32_t kernel, uint32_t device) const {
  double& seconds = kernel_seconds_[kind_of_device_[device]][kernel];
  if (seconds >= 0) return seconds;
  const KernelPlan& spec = plan_.kernels[kernel];
  const graph::OpCost cost = KernelCost(ops_, spec);
  const KernelTimes& times = kernel_times_[kind_of_device_[device]];
  const bool is_host_copy = spec.op == "to_host" || spec.op == "to_device";
  seconds = is_host_copy ? times.HostCopySeconds(cost.bytes / 2)
                         : times.Seconds(spec.op, ComputeTypeOf(spec), cost);
  return seconds = std::max(seconds, times.LaunchSeconds());
}

double MachineTimes::ComputeSeconds(uint32_t device, uint32_t actor) const {
  const ActorPlan& plan = plan_.devices[device].actors[actor];
  return plan.kernel == kNone ? 0 : KernelSecondsOf(plan.kernel, device);
}

double* MachineTimes::EarliestCore(uint32_t device) {
  const uint32_t cores = cores_of_device_[device];
  if (cores == kNone) return nullptr;
  return &*std::min_element(core_free_s_[cores].begin(), core_free_s_[cores].end());
}

double MachineTimes::Compute(const FiredActor& fired, double now, double seconds) {
  double begin = now;
  if (double* core = EarliestCore(fired.device); core != nullptr) {
    begin = std::max(now, *core);
    *core = begin + seconds;
  }
  if (observer_ != nullptr) observer_->OnComputed(fired, begin, begin + seconds);
  return begin + seconds;
}

// The uplinks through which a device reaches the level at which it meets others.
void MachineTimes::AddUplinks(uint32_t device, int meeting_level, bool is_out,
                              std::vector<uint32_t>* links) {
  const Cluster& cluster = machine_.cluster;
  for (int l = 0; l <= meeting_level; ++l) {
    const int64_t uplinks = cluster.level(l).uplinks;
    const bool has_own = uplinks == kUplinkPerDevice || !cluster.level(l).torus.empty();
    const int64_t child = has_own ? device : cluster.GroupOf(device, l - 1);
    const int64_t first = l == 0 || has_own ? device : cluster.GroupBegin(l - 1, child);
    const int64_t index = has_own ? 0 : (device - first) % uplinks;
    const auto [it, is_new] =
        link_index_.try_emplace({static_cast<int32_t>(l), child, index, is_out},
                                static_cast<uint32_t>(link_free_s_.size()));
    if (is_new) link_free_s_.push_back(0);
    links->push_back(it->second);
  }
}

const MachineTimes::Route& MachineTimes::RouteOf(uint32_t rendezvous) {
  Route& route = routes_[rendezvous];
  if (route.is_known) return route;
  route.is_known = true;
  const Cluster& cluster = machine_.cluster;
  const auto num_collectives = static_cast<uint32_t>(plan_.collectives.size());
  if (rendezvous >= num_collectives) {
    const TransferPlan& transfer = plan_.transfers[rendezvous - num_collectives];
    const int level = cluster.MeetingLevel(transfer.source, transfer.destination);
    AddUplinks(transfer.source, level, true, &route.links);
    AddUplinks(transfer.destination, level, false, &route.links);
    route.latency_s = cluster.PathLatencyS(transfer.source, transfer.destination);
    route.seconds = PredictSendSeconds(cluster, transfer.source, transfer.destination,
                                       static_cast<double>(transfer.num_bytes));
    return route;
  }
  const CollectiveSpec& spec = plan_.collectives[rendezvous];
  const std::vector<int64_t> devices(spec.devices.begin(), spec.devices.end());
  const GroupShape shape = ShapeOf(cluster, devices);
  route.seconds =
      PredictCollective(cluster, shape, spec.kind, BytesOf(spec), {}, machine_.methods).seconds;
  int level = -1;
  for (const int64_t device : devices) {
    level = std::max(level, cluster.MeetingLevel(devices[0], device));
  }
  for (const uint32_t device : spec.devices) {
    for (const bool is_out : {true, false}) AddUplinks(device, level, is_out, &route.links);
  }
  std::sort(route.links.begin(), route.links.end());
  route.links.erase(std::unique(route.links.begin(), route.links.end()), route.links.end());
  return route;
}

double MachineTimes::Communicate(uint32_t rendezvous, uint32_t number, double now) {
  const Route& route = RouteOf(rendezvous);
  double begin = now;
  for (const uint32_t link : route.links) begin = std::max(begin, link_free_s_[link]);
  double end = begin + route.seconds;
  for (const uint32_t link : route.links) link_free_s_[link] = end - route.latency_s;
  if (machine_.communication_uses_cores) {
    for (const ActorRef& member : rendezvous_.Of(rendezvous)) {
      double* core = EarliestCore(member.device);
      if (core == nullptr) continue;
      *core = std::max(*core, begin) + route.seconds;
      end = std::max(end, *core);
    }
  }
  if (observer_ != nullptr) observer_->OnCommunicated(rendezvous, number, begin, end);
  return end;
}

double MachineTimes::ComputedShareOfASecond() const {
  double computed = 0;
  std::vector<double> of_kernel;
  for (uint32_t d = 0; d < plan_.devices.size(); ++d) {
    const DeviceKind& kind = machine_.cluster.KindOf(d);
    for (const PhasePlan& phase : plan_.devices[d].phases) {
      double seconds = 0;
      for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
        const ActorPlan& actor = plan_.devices[d].actors[a];
        if (actor.kind != ActorKind::kKernel) continue;
        const KernelPlan& spec = plan_.kernels[actor.kernel];
        seconds += KernelCost(ops_, spec).flops / PeakOf(kind, ComputeTypeOf(spec));
      }
      computed += seconds * FiringsPerStep(plan_, phase);
    }
  }
  return plan_.devices.empty() ? 0 : computed / static_cast<double>(plan_.devices.size());
}

}  // namespace penstock::planner
