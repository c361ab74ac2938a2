#include "planner/search/estimate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/policy/least_times.h"

namespace penstock::planner {
namespace {

constexpr double kLeastBubble = 1e-9;
constexpr double kRounding = 1e-9;
// Of a step: cores that work so much of it are what it waits for.
constexpr double kNearlyAll = 0.999;
// A small part of a step where links are slow, and a hundred times what starting a collective
// costs.
constexpr double kLongestBucketSeconds = 10e-3;
constexpr double kLeastBucketBytes = 256 << 10;

// The work with what is split on its way between groups charged to the stages that send and read
// it. A core spends `core_share` of the time on redistribution inside a stage.
ModelWork WithSplitSends(ModelWork work, const StagePlacement& placement, double core_share) {
  const auto add = [&](double seconds, PhaseWork* phase) {
    phase->communication_s += seconds;
    phase->core_s += core_share * seconds;
  };
  std::set<std::tuple<int, int, int>> reduced;  // what saves part of its reduction
  for (StageTransfer& transfer : work.transfers) {
    if (placement.GroupOf(transfer.from) == placement.GroupOf(transfer.to)) continue;
    if (transfer.sent_bytes == transfer.num_bytes) continue;
    StageWork& source = work.stages[transfer.from];
    StageWork& reader = work.stages[transfer.to];
    StageMemory& memory = reader.memory;
    const bool saves = reduced.insert({transfer.value, transfer.copy, transfer.from}).second;
    const double saved_s = saves ? transfer.saved_s : 0;
    switch (transfer.moment) {
      case StageTransfer::Moment::kForward: {
        add(-saved_s, &source.forward);
        const bool is_late = transfer.is_read_backward_only;
        add(transfer.gather_s, is_late ? &reader.backward : &reader.forward);
        if (is_late) {
          memory.backward_workspace += transfer.num_bytes;
        } else if (transfer.is_kept_by_reader) {
          memory.activations += transfer.num_bytes;
        } else {
          memory.forward_workspace += transfer.num_bytes;
        }
        break;
      }
      case StageTransfer::Moment::kBackward:
        add(-saved_s, &source.backward);
        add(transfer.gather_s, &reader.backward);
        memory.backward_workspace += transfer.num_bytes;
        break;
      case StageTransfer::Moment::kBeforeStep:
      case StageTransfer::Moment::kAfterStep:
        add(transfer.gather_s, &reader.update);
        memory.gradients += transfer.num_bytes;
        break;
    }
    transfer.num_bytes = transfer.sent_bytes;
    transfer.is_kept_by_source = false;
    transfer.is_kept_by_reader =
        transfer.moment == StageTransfer::Moment::kForward && transfer.is_read_backward_only;
  }
  return work;
}

// The work without what gradients of weights hide of the collectives beside them.
ModelWork WithHidden(ModelWork work) {
  for (StageWork& stage : work.stages) stage.backward = stage.overlapped_backward();
  return work;
}

// The work with what its phases wait for the host to launch counted as compute.
ModelWork WithLaunches(ModelWork work) {
  for (StageWork& stage : work.stages) {
    for (PhaseWork* phase : {&stage.forward, &stage.backward, &stage.weight, &stage.update}) {
      phase->compute_s = std::max(phase->compute_s, phase->launch_s - phase->communication_s);
    }
  }
  return work;
}

class Estimator {
 public:
  Estimator(ModelWork work, const Machine& machine, const EstimateOptions& options)
      : machine_(machine),
        options_(options),
        num_groups_(static_cast<int>(work.stages.size()) / options.chunks_per_group),
        placement_(options.placement.value_or(
            PlacementOf(*options.policy, num_groups_, options.chunks_per_group))),
        splits_(SplitsBackward(options)),
        work_(WithLaunches(Overlapped(SplitSends(std::move(work))))),
        microbatches_(static_cast<double>(work_.num_microbatches)) {}

  absl::StatusOr<StepEstimate> Run() {
    estimate_.groups.resize(num_groups_);
    PlaceGroups();
    Pipeline pipeline = DescribePipeline();
    MeasureGroups();
    const LeastTimes least = LeastTimesOf(pipeline);
    // Rounding is no difference.
    const double least_s =
        (1 - kRounding) * std::max(StepSeconds(least.end_s), least.makespan_s + update_s_) +
        HostStepSeconds();
    if (least_s >= options_.limit_s) {
      StepEstimate above;
      above.step_s = least_s;
      above.is_above_limit = true;
      return above;
    }
    ASSIGN_OR_RETURN(const PipelineOrders orders, PlanOrders(pipeline));
    absl::StatusOr<Timeline> run = RunPipeline(pipeline, orders, /*keeps_phases=*/false);
    if (!run.ok()) {
      return absl::Status(run.status().code(), StrCat("policy '", options_.policy->name(),
                                                      "': ", ToStd(run.status().message())));
    }
    const Timeline timeline = *std::move(run);
    AddMemory(timeline, MostBetweenBAndW(orders));
    estimate_.step_s = StepSeconds(timeline.end_s);
    AddSharedCores();
    estimate_.step_s += HostStepSeconds();
    estimate_.pipeline = pipeline;
    // What the transfers of micro-batches cost is what the schedule saves without them.
    if (num_groups_ > 1) {
      for (PipelineEdge& edge : pipeline.edges) edge.transfer_s = 0;
      for (VirtualStage& stage : pipeline.stages) stage.ready_s = 0;
      ASSIGN_OR_RETURN(const Timeline without,
                       RunPipeline(pipeline, orders, /*keeps_phases=*/false));
      estimate_.transfer_s = std::max(timeline.makespan_s - without.makespan_s, 0.0);
    }
    Divide();
    return std::move(estimate_);
  }

 private:
  ModelWork SplitSends(ModelWork work) const {
    const int level = machine_.cluster.MeetingLevel(0, work.devices_per_stage - 1);
    return WithSplitSends(std::move(work), placement_, machine_.CoreShare(level));
  }
  ModelWork Overlapped(ModelWork work) const {
    const bool hides = options_.overlaps_gradients && !splits_;
    return hides ? WithHidden(std::move(work)) : work;
  }

  int GroupOf(int stage) const { return placement_.GroupOf(stage); }

  // The first device of a group.
  int64_t FirstDevice(int group) const {
    return device_groups_[static_cast<size_t>(group)] * work_.devices_per_stage;
  }

  // The group that has a device; -1: none.
  int GroupWith(int64_t device) const {
    const auto block = static_cast<size_t>(device / work_.devices_per_stage);
    return block < group_on_.size() ? group_on_[block] : -1;
  }

  void PlaceGroups() {
    device_groups_ = options_.device_groups;
    if (device_groups_.empty()) {
      device_groups_.resize(static_cast<size_t>(num_groups_));
      std::iota(device_groups_.begin(), device_groups_.end(), 0);
    }
    group_on_.resize(device_groups_.size());
    for (int g = 0; g < num_groups_; ++g) group_on_[device_groups_[g]] = g;
  }

  // A policy that decides as it goes is represented by 1f1b.
  absl::StatusOr<PipelineOrders> PlanOrders(const Pipeline& pipeline) const {
    ASSIGN_OR_RETURN(PipelineOrders orders, PlanPipeline(*options_.policy, pipeline));
    if (std::none_of(orders.begin(), orders.end(),
                     [](const std::vector<PhaseChoice>& order) { return order.empty(); })) {
      return orders;
    }
    const PolicyRegistry builtin = BuiltinPolicies();
    return PlanPipeline(*builtin.Find("1f1b"), pipeline);
  }

  // Of a value from one group to another: device d of the one sends to device d of the other.
  double SendSeconds(int from, int to, double num_bytes) {
    if (from == to) return 0;
    const int64_t source = FirstDevice(from);
    const int64_t target = FirstDevice(to);
    LinkCache& links = options_.links != nullptr ? *options_.links : own_links_;
    const GroupLink& link = links.Find(machine_.cluster, work_.devices_per_stage, source, target);
    double slowest = 0;
    for (const int64_t d : link.senders) {
      slowest = std::max(slowest, PredictSendSeconds(machine_.cluster, source + d, target + d,
                                                     num_bytes, link.at_once));
    }
    return slowest;
  }

  // What a message of a group takes from the cores at both ends: a part of the time that its bytes
  // are on their way and, however short it is, the latency between devices of one host.
  double MessageCpuSeconds(int from, int to, double send_s) const {
    if (from == to) return 0;
    const Cluster& cluster = machine_.cluster;
    const double share =
        machine_.CoreShare(cluster.MeetingLevel(FirstDevice(from), FirstDevice(to)));
    if (share == 0) return 0;
    const double latency_s = cluster.PathLatencyS(FirstDevice(from), FirstDevice(to));
    return std::min(cluster.LatencyAcross(0), latency_s) + share * (send_s - latency_s);
  }

  std::vector<SharedCores> SharedCoresOf() const {
    std::vector<SharedCores> all;
    int64_t device = 0;
    for (const CoreGroup& cores : machine_.core_groups) {
      SharedCores shared;
      shared.devices_of_group.resize(static_cast<size_t>(num_groups_), 0);
      double num_devices = 0;
      for (int64_t i = 0; i < cores.num_devices; ++i, ++device) {
        const int g = GroupWith(device);
        if (g < 0) continue;
        ++shared.devices_of_group[static_cast<size_t>(g)];
        ++num_devices;
      }
      shared.at_once = static_cast<double>(std::max<int64_t>(cores.num_at_once, 1));
      if (num_devices > shared.at_once) all.push_back(std::move(shared));
    }
    return all;
  }

  // How many times as long as alone a group takes while all groups run.
  double OversubscriptionOf(int group) const {
    double most = 1;
    for (const SharedCores& cores : SharedCoresOf()) {
      if (cores.devices_of_group[static_cast<size_t>(group)] == 0) continue;
      const double all =
          std::accumulate(cores.devices_of_group.begin(), cores.devices_of_group.end(), 0.0);
      most = std::max(most, all / cores.at_once);
    }
    return most;
  }

  Pipeline DescribePipeline() {
    Pipeline pipeline;
    pipeline.num_groups = num_groups_;
    pipeline.num_microbatches = static_cast<int>(work_.num_microbatches);
    pipeline.placement = placement_;
    pipeline.effort = options_.effort;
    pipeline.overlaps_steps = false;
    const bool has_backward =
        std::any_of(work_.stages.begin(), work_.stages.end(),
                    [](const StageWork& stage) { return stage.backward.seconds() > 0; });
    std::vector<std::array<double, kNumPolicyKinds>> core_seconds;
    for (size_t v = 0; v < work_.stages.size(); ++v) {
      const StageWork& work = work_.stages[v];
      VirtualStage& stage = pipeline.stages.emplace_back();
      stage.group = placement_.GroupOf(static_cast<int>(v));
      stage.chunk = placement_.ChunkOf(static_cast<int>(v));
      stage.kinds = {true, has_backward, has_backward && splits_};
      const double weight_s = splits_ ? work.weight.seconds() : 0;
      stage.seconds = {work.forward.seconds(), work.backward.seconds() - weight_s, weight_s};
      const auto core_s = [](const PhaseWork& phase) { return phase.compute_s + phase.core_s; };
      const double weight_core_s = splits_ ? core_s(work.weight) : 0;
      core_seconds.push_back(
          {core_s(work.forward), core_s(work.backward) - weight_core_s, weight_core_s});
      stage.activation = std::max(work.memory.activations, 1.0);
    }
    pipeline.cores = SharedCoresOf();
    std::map<std::tuple<int, int, StageTransfer::Moment>, double> bytes;
    for (const StageTransfer& transfer : work_.transfers) {
      bytes[{transfer.from, transfer.to, transfer.moment}] += transfer.num_bytes;
    }
    for (const auto& [edge, num_bytes] : bytes) {
      const auto& [from, to, moment] = edge;
      const double seconds = SendSeconds(GroupOf(from), GroupOf(to), num_bytes);
      if (moment == StageTransfer::Moment::kForward || moment == StageTransfer::Moment::kBackward) {
        // A value of a forward phase may be read by a backward phase alone, which is later anyway.
        const bool is_forward = moment == StageTransfer::Moment::kForward;
        if (is_forward != (from < to)) continue;
        pipeline.edges.push_back({from, to, is_forward, 0, seconds});
        const size_t kind = is_forward ? 0 : 1;
        const double cpu_s = MessageCpuSeconds(GroupOf(from), GroupOf(to), seconds);
        for (const int stage : {from, to}) {
          if (!pipeline.stages[stage].kinds[kind]) continue;
          pipeline.stages[stage].seconds[kind] += cpu_s;
          core_seconds[stage][kind] += cpu_s;
        }
      } else if (moment == StageTransfer::Moment::kBeforeStep) {
        double& ready = pipeline.stages[to].ready_s;
        ready = std::max(ready, seconds);
      } else {
        after_step_.push_back({GroupOf(from), seconds});
      }
    }
    for (size_t v = 0; v < pipeline.stages.size(); ++v) {
      VirtualStage& stage = pipeline.stages[v];
      for (size_t kind = 0; kind < kNumPolicyKinds; ++kind) {
        if (stage.seconds[kind] <= 0) continue;
        stage.core_shares[kind] = std::clamp(core_seconds[v][kind] / stage.seconds[kind], 0.0, 1.0);
      }
    }
    pipeline.memory_limit = RoomForActivations();
    return pipeline;
  }

  // What the fullest group has left for activations, less what comes with each of them: what W
  // needs of B, and what the stage reads of others and keeps. 0, which is no limit, where some
  // group has no room for a single micro-batch: what such a step lacks is said of its plan.
  double RoomForActivations() const {
    if (num_groups_ == 1) return 0;
    std::vector<double> room(static_cast<size_t>(num_groups_));
    std::vector<double> workspace(room.size());
    std::vector<double> least(room.size());
    std::vector<double> with_each(work_.stages.size());
    for (int g = 0; g < num_groups_; ++g) room[g] = static_cast<double>(MemoryOfGroup(g));
    for (size_t s = 0; s < work_.stages.size(); ++s) {
      const StageMemory& memory = work_.stages[s].memory;
      const int g = GroupOf(static_cast<int>(s));
      room[g] -= memory.parameters + memory.optimizer + memory.gradients;
      const double in_phase = std::max(memory.forward_workspace, memory.backward_workspace);
      workspace[g] = std::max(workspace[g], in_phase + memory.update_workspace);
      least[g] += memory.activations;
      if (splits_) with_each[s] += memory.until_weight;
    }
    for (const StageTransfer& transfer : work_.transfers) {
      room[GroupOf(transfer.from)] -= transfer.num_bytes;
      room[GroupOf(transfer.to)] -= transfer.num_bytes;
      if (transfer.is_kept_by_reader) with_each[transfer.to] += transfer.num_bytes;
    }
    double limit = std::numeric_limits<double>::infinity();
    for (int g = 0; g < num_groups_; ++g) {
      if (room[g] - workspace[g] < least[g]) return 0;
      limit = std::min(limit, room[g] - workspace[g]);
    }
    double share = 1;
    for (size_t s = 0; s < work_.stages.size(); ++s) {
      const double activations = std::max(work_.stages[s].memory.activations, 1.0);
      share = std::min(share, activations / (activations + with_each[s]));
    }
    return limit * share;
  }

  // Of the device of the group that has least.
  int64_t MemoryOfGroup(int group) const {
    const std::vector<DeviceKind>& kinds = machine_.cluster.spec().kinds;
    if (kinds.size() == 1) return kinds[0].memory_bytes;
    int64_t least = std::numeric_limits<int64_t>::max();
    for (int64_t d = 0; d < work_.devices_per_stage; ++d) {
      const DeviceKind& kind = machine_.cluster.KindOf(FirstDevice(group) + d);
      least = std::min(least, kind.memory_bytes);
    }
    return least;
  }

  // Of each virtual stage, the most micro-batches whose B has run and whose W has not.
  std::vector<int> MostBetweenBAndW(const PipelineOrders& orders) const {
    std::vector<int> most(work_.stages.size(), 0);
    std::vector<int> now(work_.stages.size(), 0);
    for (int g = 0; g < num_groups_; ++g) {
      for (const PhaseChoice& phase : orders[g]) {
        const int stage = placement_.StageOf(g, phase.chunk);
        if (phase.kind == PhaseKind::kBackward) most[stage] = std::max(most[stage], ++now[stage]);
        if (phase.kind == PhaseKind::kWeight) --now[stage];
      }
    }
    return most;
  }

  void AddMemory(const Timeline& timeline, const std::vector<int>& most_between_b_and_w) {
    const std::vector<int>& most_in_flight = timeline.most_in_flight;
    const double double_buffered = std::min(microbatches_, 2.0);
    std::vector<double> forward_workspace(num_groups_);
    std::vector<double> backward_workspace(num_groups_);
    std::vector<double> update_workspace(num_groups_);
    for (size_t s = 0; s < work_.stages.size(); ++s) {
      const StageMemory& memory = work_.stages[s].memory;
      const int g = GroupOf(static_cast<int>(s));
      GroupEstimate& group = estimate_.groups[g];
      const int in_flight = std::max(most_in_flight[s], 1);
      if (static_cast<int>(s) == g) group.in_flight = in_flight;
      group.chunk_in_flight.push_back(in_flight);
      group.memory.parameters += memory.parameters;
      group.memory.optimizer += memory.optimizer;
      group.memory.gradients += memory.gradients;
      group.memory.activations += memory.activations * in_flight;
      if (splits_) group.memory.activations += memory.until_weight * most_between_b_and_w[s];
      group.memory.host += memory.host + memory.host_activations * in_flight;
      forward_workspace[g] = std::max(forward_workspace[g], memory.forward_workspace);
      backward_workspace[g] = std::max(backward_workspace[g], memory.backward_workspace);
      update_workspace[g] = std::max(update_workspace[g], memory.update_workspace);
    }
    for (const StageTransfer& transfer : work_.transfers) {
      MemoryEstimate& source = estimate_.groups[GroupOf(transfer.from)].memory;
      MemoryEstimate& reader = estimate_.groups[GroupOf(transfer.to)].memory;
      const bool is_often = transfer.moment == StageTransfer::Moment::kForward ||
                            transfer.moment == StageTransfer::Moment::kBackward;
      if (!is_often) {
        reader.transfers += transfer.num_bytes;
        continue;
      }
      if (!transfer.is_kept_by_source) source.transfers += double_buffered * transfer.num_bytes;
      // It arrives while the micro-batch before it is still at work.
      const double kept = std::min(microbatches_, most_in_flight[transfer.to] + 1.0);
      if (transfer.is_kept_by_reader) {
        reader.activations += kept * transfer.num_bytes;
      } else {
        reader.transfers += double_buffered * transfer.num_bytes;
      }
    }
    for (int g = 0; g < num_groups_; ++g) {
      GroupEstimate& group = estimate_.groups[g];
      group.memory.workspace =
          std::max(forward_workspace[g], backward_workspace[g]) + update_workspace[g];
      const int64_t first = FirstDevice(g);
      group.memory_limit_bytes = MemoryOfGroup(g);
      group.has_host_link = true;
      for (int64_t d = 0; d < work_.devices_per_stage; ++d) {
        const DeviceKind& kind = machine_.cluster.KindOf(first + d);
        group.has_host_link = group.has_host_link && HasHostLink(kind);
        const int64_t on_host = kind.host_memory_bytes;
        if (on_host > 0 && (group.host_limit_bytes == 0 || on_host < group.host_limit_bytes)) {
          group.host_limit_bytes = on_host;
        }
      }
    }
  }

  // Seconds of the reductions of all gradients of a stage, and of the last bucket.
  struct Reductions {
    double all_s = 0;
    double last_s = 0;
    double core_s = 0;  // that all take of the core on which the device computes
  };
  Reductions ReductionsOf(const StageWork& stage) const {
    Reductions reductions;
    for (const GradientReduction& reduction : stage.gradients) {
      const CommunicatingGroups& groups = work_.reduction_groups[reduction.group];
      double buckets = 1;
      if (options_.bucket_bytes > 0) {
        const double bytes = BestBucketBytes(machine_, groups, options_.bucket_bytes);
        buckets = std::max(std::ceil(reduction.num_bytes / bytes), 1.0);
      }
      const double bucket_s = PredictSeconds(machine_, groups, reduction.num_bytes / buckets);
      reductions.all_s += buckets * bucket_s;
      reductions.last_s = std::max(reductions.last_s, bucket_s);
      reductions.core_s += buckets * bucket_s * CoreShare(machine_, groups);
    }
    return reductions;
  }

  // Whether a core that computes nothing is left for the communication of a group.
  bool HasSpareCore(int group) const {
    int64_t device = 0;
    for (const CoreGroup& cores : machine_.core_groups) {
      for (int64_t i = 0; i < cores.num_devices; ++i, ++device) {
        if (GroupWith(device) == group && !cores.has_spare_core()) return false;
      }
    }
    return true;
  }

  // What reductions add to a step, of which backward phases could hide `window_s`: what is longer
  // than those, and at least the last bucket. Where no core is spare, what reductions take of the
  // core comes on top of what it computes.
  double ExposedSeconds(const Reductions& reductions, double window_s, bool has_spare_core) const {
    const double exposed_s = std::max(reductions.all_s - window_s, reductions.last_s);
    if (has_spare_core || reductions.all_s == 0) return exposed_s;
    const double share = reductions.core_s / reductions.all_s;
    return std::max(exposed_s, reductions.core_s + (1 - share) * reductions.last_s);
  }

  // What groups do in a step, whatever the order.
  void MeasureGroups() {
    reductions_.resize(num_groups_);
    per_microbatch_.resize(num_groups_);
    update_.resize(num_groups_);
    exposed_reduction_.resize(num_groups_);
    std::vector<double> window(num_groups_);
    for (size_t s = 0; s < work_.stages.size(); ++s) {
      const StageWork& stage = work_.stages[s];
      const int g = GroupOf(static_cast<int>(s));
      const Reductions reductions = ReductionsOf(stage);
      reductions_[g].all_s += reductions.all_s;
      reductions_[g].last_s = std::max(reductions_[g].last_s, reductions.last_s);
      reductions_[g].core_s += reductions.core_s;
      window[g] += stage.backward.compute_s;
      for (const PhaseWork* phase : {&stage.forward, &stage.backward}) {
        per_microbatch_[g].compute_s += phase->compute_s;
        per_microbatch_[g].communication_s += phase->communication_s;
        per_microbatch_[g].core_s += phase->core_s;
      }
      update_[g].compute_s += stage.update.compute_s;
      update_[g].communication_s += stage.update.communication_s;
      update_[g].core_s += stage.update.core_s;
    }
    for (int g = 0; g < num_groups_; ++g) {
      const double hidden = options_.overlaps_gradients ? window[g] : 0;
      exposed_reduction_[g] = ExposedSeconds(reductions_[g], hidden, HasSpareCore(g));
      GroupEstimate& group = estimate_.groups[g];
      group.compute_s = microbatches_ * per_microbatch_[g].compute_s + update_[g].compute_s;
      group.communication_s = microbatches_ * per_microbatch_[g].communication_s +
                              update_[g].communication_s + exposed_reduction_[g];
      estimate_.gradient_reduction_s =
          std::max(estimate_.gradient_reduction_s, reductions_[g].all_s);
      estimate_.inline_communication_s =
          std::max(estimate_.inline_communication_s,
                   microbatches_ * per_microbatch_[g].communication_s + update_[g].communication_s);
      const double oversubscribed_s =
          (OversubscriptionOf(g) - 1) * (update_[g].compute_s + update_[g].core_s);
      update_s_ = std::max(update_s_, update_[g].seconds() + oversubscribed_s);
    }
  }

  // Of a step in which the last phases of groups end then.
  double StepSeconds(const std::vector<double>& phases_end_s) const {
    double ready = 0;
    std::vector<double> end = phases_end_s;
    for (int g = 0; g < num_groups_; ++g) {
      end[g] += exposed_reduction_[g];
      ready = std::max(ready, end[g]);
    }
    // Norms go to one stage and come back; shared gradients follow the reductions of their stage.
    for (const auto& [from, seconds] : after_step_) ready = std::max(ready, end[from] + seconds);
    return ready + update_s_;
  }

  // The work of devices that share cores, and how it divides where there is most.
  void AddSharedCores() {
    int64_t device = 0;
    double busiest = 0;
    for (const CoreGroup& cores : machine_.core_groups) {
      double compute = 0;
      double communication = 0;
      for (int64_t i = 0; i < cores.num_devices; ++i, ++device) {
        const int g = GroupWith(device);
        if (g < 0) continue;
        compute += estimate_.groups[g].compute_s;
        communication +=
            microbatches_ * per_microbatch_[g].core_s + update_[g].core_s + reductions_[g].core_s;
      }
      const auto at_once = static_cast<double>(std::max<int64_t>(cores.num_at_once, 1));
      const double busy = (compute + communication) / at_once;
      if (cores.num_devices <= cores.num_at_once || busy <= busiest) continue;
      busiest = busy;
      estimate_.compute_s = compute / at_once;
      estimate_.communication_s = communication / at_once;
    }
    has_shared_cores_ = busiest > 0;
    if (busiest > kNearlyAll * estimate_.step_s) {
      estimate_.step_s = std::max(estimate_.step_s, busiest);
      estimate_.is_bound_by_cores = true;
    }
  }

  double HostStepSeconds() const {
    double longest = 0;
    for (const DeviceKind& kind : machine_.cluster.spec().kinds) {
      longest = std::max(longest, kind.step_s);
    }
    return longest;
  }

  // Divides the step into compute, exposed communication and bubble.
  void Divide() {
    if (!has_shared_cores_) {
      const auto slowest = std::max_element(estimate_.groups.begin(), estimate_.groups.end(),
                                            [](const GroupEstimate& a, const GroupEstimate& b) {
                                              return a.compute_s + a.communication_s <
                                                     b.compute_s + b.communication_s;
                                            });
      estimate_.compute_s = slowest->compute_s;
      estimate_.communication_s = std::min(slowest->communication_s + estimate_.transfer_s,
                                           std::max(estimate_.step_s - estimate_.compute_s, 0.0));
    }
    estimate_.bubble_s = estimate_.step_s - estimate_.compute_s - estimate_.communication_s;
    // Rounding is no bubble.
    if (estimate_.bubble_s < kLeastBubble * estimate_.step_s) estimate_.bubble_s = 0;
  }

  const Machine& machine_;
  const EstimateOptions& options_;
  const int num_groups_;
  const StagePlacement placement_;
  const bool splits_;  // backward phases
  const ModelWork work_;
  const double microbatches_;
  StepEstimate estimate_;
  std::vector<int> device_groups_;  // of each group, where it lies
  std::vector<int> group_on_;       // the other way round
  LinkCache own_links_;
  std::vector<std::pair<int, double>> after_step_;  // from a group, seconds
  // Of each group.
  std::vector<Reductions> reductions_;
  std::vector<double> exposed_reduction_;
  std::vector<PhaseWork> per_microbatch_;
  std::vector<PhaseWork> update_;
  double update_s_ = 0;  // of the slowest
  bool has_shared_cores_ = false;
};

}  // namespace

double BestBucketBytes(const Machine& machine, const CommunicatingGroups& groups, double largest) {
  double bytes = largest;
  while (bytes >= 2 * kLeastBucketBytes &&
         PredictSeconds(machine, groups, bytes) > kLongestBucketSeconds) {
    bytes /= 2;
  }
  return bytes;
}

bool StepEstimate::fits() const {
  return std::all_of(groups.begin(), groups.end(),
                     [](const GroupEstimate& group) { return group.fits(); });
}

double StepEstimate::excess_bytes() const {
  double excess = 0;
  for (const GroupEstimate& group : groups) {
    excess = std::max(excess, -group.spare_bytes());
    if (group.fits_on_host()) continue;
    excess = std::max(excess, group.memory.host - static_cast<double>(group.host_limit_bytes));
  }
  return excess;
}

int StepEstimate::fullest_group() const {
  const auto has_less = [](const GroupEstimate& a, const GroupEstimate& b) {
    return std::pair(a.fits_on_host(), a.spare_bytes()) <
           std::pair(b.fits_on_host(), b.spare_bytes());
  };
  return static_cast<int>(std::min_element(groups.begin(), groups.end(), has_less) -
                          groups.begin());
}

const GroupLink& LinkCache::Find(const Cluster& cluster, int64_t num_devices, int64_t source,
                                 int64_t target) {
  const auto [it, is_new] = links_.try_emplace({num_devices, source, target});
  GroupLink& link = it->second;
  if (!is_new) return link;
  std::vector<std::vector<int64_t>> pairs;
  std::map<int, int64_t> by_level;
  for (int64_t d = 0; d < num_devices; ++d) {
    pairs.push_back({source + d, target + d});
    by_level.try_emplace(cluster.MeetingLevel(source + d, target + d), d);
  }
  link.at_once = CountGroupsAtOnce(cluster, pairs);
  for (const auto& [level, d] : by_level) link.senders.push_back(d);
  return link;
}

bool SplitsBackward(const EstimateOptions& options) {
  return options.split_weight_gradients || options.policy->needs().splits_backward;
}

absl::StatusOr<StepEstimate> EstimateStep(ModelWork work, const Machine& machine,
                                          const EstimateOptions& options) {
  return Estimator(std::move(work), machine, options).Run();
}

}  // namespace penstock::planner
