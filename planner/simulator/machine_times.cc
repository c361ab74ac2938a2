#include "planner/simulator/machine_times.h"

#include "planner/plan/recomputed_mark.h"

namespace penstock::planner {
namespace {

bool IsRecomputed(const KernelPlan& kernel) {
  return kernel.attributes.GetBool(kRecomputedMark, false);
}

}  // namespace

MachineTimes::MachineTimes(const SimulatedNetwork& network, const graph::OpRegistry& ops,
                           const RendezvousTable& rendezvous, const Machine& machine,
                           SimulationObserver* observer)
    : network_(network),
      rendezvous_(rendezvous),
      machine_(machine),
      observer_(observer),
      kernels_(network.plan.kernels, ops, machine, network.devices),
      resources_(machine, static_cast<uint32_t>(network.class_of.size())) {
  resources_.SetLinkRates(network.link_bytes_per_s);
}

double MachineTimes::ComputeSeconds(uint32_t device, uint32_t actor) const {
  const uint32_t kernel = network_.plan.devices[device].actors[actor].kernel;
  return kernel == kNone ? 0 : kernels_.Seconds(kernel, device);
}

double MachineTimes::Compute(const FiredActor& fired, double now, double seconds) {
  const MachineResources::Interval interval =
      resources_.Compute(network_.devices[fired.device], now, seconds);
  if (observer_ != nullptr) observer_->OnComputed(fired, interval.begin_s, interval.end_s);
  return interval.end_s;
}

bool MachineTimes::HasCopyStreams(uint32_t device) const {
  return HasHostLink(machine_.cluster.KindOf(network_.devices[device]));
}

double MachineTimes::Copy(const FiredActor& fired, bool is_to_host, double begin_s,
                          double seconds) {
  const MachineResources::Interval interval =
      resources_.Copy(network_.devices[fired.device], is_to_host, begin_s, seconds);
  if (observer_ != nullptr) observer_->OnCopied(fired, interval.begin_s, interval.end_s);
  return interval.end_s;
}

double MachineTimes::Communicate(uint32_t rendezvous, uint32_t number, double now) {
  members_.clear();
  if (network_.routes[rendezvous].core_s > 0) {
    for (const ActorRef& member : rendezvous_.Of(rendezvous)) {
      members_.push_back(network_.devices[member.device]);
    }
  }
  const MachineResources::Interval interval =
      resources_.Communicate(network_.routes[rendezvous], members_, now);
  if (observer_ != nullptr) {
    observer_->OnCommunicated(rendezvous, number, interval.begin_s, interval.end_s);
  }
  return interval.end_s;
}

MachineTimes::ComputedShare MachineTimes::ComputedShareOfASecond() const {
  ComputedShare computed;
  uint64_t num_devices = 0;
  for (uint32_t d = 0; d < network_.plan.devices.size(); ++d) {
    const DevicePlan& device = network_.plan.devices[d];
    for (const PhasePlan& phase : device.phases) {
      const double firings = static_cast<double>(FiringsPerStep(network_.plan, phase)) *
                             static_cast<double>(network_.num_alike[d]);
      for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
        const ActorPlan& actor = device.actors[a];
        if (actor.kind != ActorKind::kKernel) continue;
        const double seconds = firings * kernels_.PeakSeconds(actor.kernel, d);
        computed.all += seconds;
        if (!IsRecomputed(network_.plan.kernels[actor.kernel])) computed.model += seconds;
      }
    }
    num_devices += network_.num_alike[d];
  }
  if (num_devices == 0) return {};
  computed.model /= static_cast<double>(num_devices);
  computed.all /= static_cast<double>(num_devices);
  return computed;
}

}  // namespace penstock::planner
