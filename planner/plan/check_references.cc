#include "planner/plan/check_references.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "base/shape.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/invalid_plan_internal.h"
#include "planner/plan/show_plan.h"

namespace penstock::planner {

using internal::Invalid;

namespace {

constexpr int64_t kMaxElements = int64_t{1} << 48;  // CheckShape's limit

template <typename... Owner>
absl::Status CheckIndex(uint64_t index, uint64_t size, std::string_view what,
                        const Owner&... owner) {
  if (index < size) return absl::OkStatus();
  return Invalid(owner..., ": ", what, " ", index, " does not exist; there are ", size);
}

template <typename... Owner>
absl::Status CheckedShape(absl::Span<const int64_t> shape, const Owner&... owner) {
  const absl::Status status = CheckShape(shape);
  return status.ok() ? status : Invalid(owner..., ": ", ToStd(status.message()));
}

template <typename... Owner>
absl::Status CheckSeconds(double seconds, const Owner&... owner) {
  if (std::isfinite(seconds) && seconds >= 0) return absl::OkStatus();
  return Invalid(owner..., ": the predicted time is ", seconds, " s");
}

template <typename... Owner>
absl::Status CheckTile(const TilePlan& tile, const Owner&... owner) {
  const absl::Status status = CheckTileShapes(tile);
  return status.ok() ? status : Invalid(owner..., ": ", ToStd(status.message()));
}

absl::Status CheckPhaseRanges(const DevicePlan& device, size_t d) {
  uint64_t next = 0;
  for (size_t p = 0; p < device.phases.size(); ++p) {
    const PhasePlan& phase = device.phases[p];
    if (phase.first_actor != next) {
      return Invalid("device ", d, " phase ", phase.name, " begins at actor ", phase.first_actor,
                     "; the phase before it ends at ", next);
    }
    next += phase.num_actors;
    if (next > device.actors.size()) break;
    RETURN_IF_ERROR(CheckSeconds(phase.predicted_s, "device ", d, " phase ", phase.name));
  }
  if (next != device.actors.size()) {
    return Invalid("device ", d, ": the phases cover ", next, " actors of ", device.actors.size());
  }
  return absl::OkStatus();
}

absl::Status CheckDeviceReferences(const Plan& plan, uint32_t d) {
  const DevicePlan& device = plan.devices[d];
  // An index must stay below kNone.
  for (const size_t size : {device.actors.size(), device.registers.size(), device.phases.size(),
                            device.channels.size()}) {
    if (size >= kNone) return Invalid("device ", d, " has ", size, " parts of one kind");
  }
  RETURN_IF_ERROR(CheckPhaseRanges(device, d));
  for (uint32_t a = 0; a < device.actors.size(); ++a) {
    const ActorPlan& actor = device.actors[a];
    const bool has_kernel = !IsCommunication(actor.kind);
    if (has_kernel && actor.kernel >= plan.kernels.size()) {
      return Invalid(DescribeActor(plan, d, a), ": kernel ", actor.kernel,
                     " does not exist; there are ", plan.kernels.size());
    }
    size_t num_targets = 0;
    switch (actor.kind) {
      case ActorKind::kKernel:
        break;
      case ActorKind::kFeed:
        num_targets = plan.feeds.size();
        break;
      case ActorKind::kFetch:
        num_targets = plan.fetches.size();
        break;
      case ActorKind::kCollective:
        num_targets = plan.collectives.size();
        break;
      case ActorKind::kSend:
      case ActorKind::kRecv:
        num_targets = plan.transfers.size();
        break;
      case ActorKind::kCopy:
        break;
    }
    const bool has_target = actor.kind != ActorKind::kKernel && actor.kind != ActorKind::kCopy;
    if (has_target && actor.target >= num_targets) {
      return Invalid(DescribeActor(plan, d, a), ": the target ", actor.target, " of a ",
                     Name(actor.kind), " does not exist; there are ", num_targets);
    }
    for (const auto* operands : {&actor.inputs, &actor.outputs}) {
      for (const OperandPlan& operand : *operands) {
        if (operand.reg == kNone || operand.reg < device.registers.size()) continue;
        return Invalid(DescribeActor(plan, d, a), ": register ", operand.reg,
                       " does not exist; there are ", device.registers.size());
      }
    }
  }
  for (size_t c = 0; c < device.channels.size(); ++c) {
    const ChannelPlan& channel = device.channels[c];
    for (const uint32_t actor : {channel.producer, channel.consumer}) {
      if (actor < device.actors.size()) continue;
      return Invalid("device ", d, " channel ", c, ": actor ", actor, " does not exist; there are ",
                     device.actors.size());
    }
    if (channel.reg != kNone && channel.reg >= device.registers.size()) {
      return Invalid("device ", d, " channel ", c, ": register ", channel.reg,
                     " does not exist; there are ", device.registers.size());
    }
  }
  return absl::OkStatus();
}

absl::Status CheckStageReferences(const Plan& plan) {
  std::vector<uint32_t> stage_of(plan.devices.size(), kNone);
  for (uint32_t s = 0; s < plan.stages.size(); ++s) {
    for (const uint32_t d : plan.stages[s].devices) {
      RETURN_IF_ERROR(CheckIndex(d, plan.devices.size(), "device", "stage ", s));
      if (stage_of[d] != kNone) {
        return Invalid("stage ", s, ": device ", d, " is also in stage ", stage_of[d]);
      }
      stage_of[d] = s;
    }
  }
  for (uint32_t d = 0; d < plan.devices.size(); ++d) {
    if (stage_of[d] == kNone) return Invalid("device ", d, " is in no stage's list of devices");
    if (stage_of[d] != plan.devices[d].stage) {
      return Invalid("device ", d, " says that it is in stage ", plan.devices[d].stage,
                     " but stage ", stage_of[d], " lists it");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCollectiveReferences(const Plan& plan, uint32_t c) {
  const CollectiveSpec& spec = plan.collectives[c];
  const size_t n = spec.devices.size();
  if (n == 0) return Invalid("collective ", c, " has no devices");
  std::vector<uint32_t> sorted = spec.devices;
  std::sort(sorted.begin(), sorted.end());
  RETURN_IF_ERROR(CheckIndex(sorted.back(), plan.devices.size(), "device", "collective ", c));
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return Invalid("collective ", c, " lists a device twice");
  }
  const uint64_t num_counts = spec.kind == CollectiveKind::kBroadcast  ? 1
                              : spec.kind == CollectiveKind::kAllToAll ? uint64_t{n} * n
                                                                       : n;
  if (spec.counts.size() != num_counts) {
    return Invalid("collective ", c, " (", Name(spec.kind), " of ", n, " devices) has ",
                   spec.counts.size(), " counts, expected ", num_counts);
  }
  int64_t total = 0;
  for (const int64_t count : spec.counts) {
    if (count < 0 || count > kMaxElements - total) {
      return Invalid("collective ", c, ": its counts hold ", count,
                     "; they must be at least 0 and together at most 2^48");
    }
    total += count;
  }
  if (!TensorsAddUp(spec)) {
    return Invalid("collective ", c, " (", Name(spec.kind), ") cannot move ", spec.tensors.size(),
                   " tensors whose counts do not add up to its own");
  }
  if (spec.kind == CollectiveKind::kPermute) {
    std::vector<uint32_t> peers = spec.peers;
    std::sort(peers.begin(), peers.end());
    for (uint32_t r = 0; r < n; ++r) {
      if (peers.size() != n || peers[r] != r) {
        return Invalid("collective ", c, ": its peers are not a permutation of ", n, " ranks");
      }
    }
  } else if (!spec.peers.empty()) {
    return Invalid("collective ", c, " (", Name(spec.kind), ") has peers");
  }
  const size_t num_hosts = spec.algorithm == CollectiveAlgorithm::kHierarchical ? n : 0;
  if (spec.hosts.size() != num_hosts) {
    return Invalid("collective ", c, " (", Name(spec.algorithm), ") has the hosts of ",
                   spec.hosts.size(), " ranks, expected ", num_hosts);
  }
  RETURN_IF_ERROR(CheckIndex(spec.root, n, "root rank", "collective ", c));
  if (spec.chunk_bytes <= 0) {
    return Invalid("collective ", c, " travels in chunks of ", spec.chunk_bytes, " bytes");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTileShapes(const TilePlan& tile) {
  RETURN_IF_ERROR(CheckShape(tile.shape));
  RETURN_IF_ERROR(CheckShape(tile.global));
  for (const Shape* shape : {&tile.offset, &tile.microbatch_stride}) {
    for (const int64_t value : *shape) {
      if (value > kMaxElements || value < -kMaxElements) {
        return Invalid("the offset or stride ", value, " is above the limit of 2^48");
      }
    }
  }
  const size_t rank = tile.shape.size();
  if (tile.global.size() != rank || tile.offset.size() != rank ||
      tile.microbatch_stride.size() != rank) {
    return Invalid("a tile's shape has rank ", rank, ", its tensor ", tile.global.size(),
                   ", its offset ", tile.offset.size(), " and its micro-batch stride ",
                   tile.microbatch_stride.size());
  }
  return absl::OkStatus();
}

absl::Status CheckReferences(const Plan& plan) {
  if (plan.threads_per_device < 1 || plan.threads_per_device > kMaxThreadsPerDevice) {
    return Invalid("the plan has ", plan.threads_per_device, " threads a device, expected 1 to ",
                   kMaxThreadsPerDevice);
  }
  if (plan.num_microbatches < 1 || plan.num_microbatches > kMaxMicrobatches) {
    return Invalid("the plan has ", plan.num_microbatches, " micro-batches a step, expected 1 to ",
                   kMaxMicrobatches);
  }
  if (plan.devices.empty()) return Invalid("the plan has no devices");
  if (uint64_t{plan.collectives.size()} + plan.transfers.size() >= kNone) {
    return Invalid("the plan has too many collectives and transfers");
  }
  if (plan.collective_per_microbatch.size() != plan.collectives.size()) {
    return Invalid("the plan has ", plan.collectives.size(), " collectives, but the rates of ",
                   plan.collective_per_microbatch.size());
  }
  if (!plan.predicted_peak_bytes.empty() &&
      plan.predicted_peak_bytes.size() != plan.devices.size()) {
    return Invalid("the plan has ", plan.devices.size(), " devices, but predicted peaks of ",
                   plan.predicted_peak_bytes.size());
  }
  RETURN_IF_ERROR(CheckSeconds(plan.predicted_step_s, "the plan's step"));
  RETURN_IF_ERROR(CheckStageReferences(plan));
  for (uint32_t d = 0; d < plan.devices.size(); ++d) {
    RETURN_IF_ERROR(CheckDeviceReferences(plan, d));
  }
  for (size_t k = 0; k < plan.kernels.size(); ++k) {
    for (const auto* tiles : {&plan.kernels[k].inputs, &plan.kernels[k].outputs}) {
      for (const TilePlan& tile : *tiles) {
        RETURN_IF_ERROR(CheckTile(tile, "kernel ", k, " '", plan.kernels[k].op, "'"));
      }
    }
  }
  for (uint32_t c = 0; c < plan.collectives.size(); ++c) {
    RETURN_IF_ERROR(CheckCollectiveReferences(plan, c));
  }
  for (size_t t = 0; t < plan.transfers.size(); ++t) {
    for (const uint32_t device : {plan.transfers[t].source, plan.transfers[t].destination}) {
      RETURN_IF_ERROR(CheckIndex(device, plan.devices.size(), "device", "transfer ", t));
    }
  }
  for (const FeedPlan& feed : plan.feeds) {
    RETURN_IF_ERROR(CheckedShape(feed.type.shape, "feed '", feed.name, "'"));
  }
  for (const FetchPlan& fetch : plan.fetches) {
    RETURN_IF_ERROR(CheckedShape(fetch.type.shape, "fetch '", fetch.name, "'"));
  }
  for (const StatePlan& state : plan.states) {
    RETURN_IF_ERROR(CheckedShape(state.type.shape, "state '", state.name, "'"));
    if (!std::isfinite(state.std) || state.std < 0) {
      return Invalid("state '", state.name, "': the standard deviation is ", state.std);
    }
    for (const StatePlacement& placement : state.placements) {
      RETURN_IF_ERROR(
          CheckIndex(placement.device, plan.devices.size(), "device", "state '", state.name, "'"));
      RETURN_IF_ERROR(CheckIndex(placement.reg, plan.devices[placement.device].registers.size(),
                                 "register", "state '", state.name, "' on device ",
                                 placement.device));
      RETURN_IF_ERROR(
          CheckTile(placement.tile, "state '", state.name, "' on device ", placement.device));
    }
  }
  return absl::OkStatus();
}

}  // namespace penstock::planner
