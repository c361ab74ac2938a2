#include "planner/search/explain_candidate.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "base/format.h"
#include "base/strings.h"
#include "planner/policy/stage_layouts.h"
#include "planner/strategy/zero.h"

namespace penstock::planner {
namespace {

// Runners-up that are shown.
constexpr size_t kMaxRunnersUp = 8;

// "12.3 GiB parameters and 4.5 GiB activations": the two largest parts.
std::string LargestParts(const MemoryEstimate& memory) {
  std::vector<std::pair<double, std::string_view>> parts = {
      {memory.parameters, "of parameters"}, {memory.optimizer, "of optimizer states"},
      {memory.gradients, "of gradients"},   {memory.activations, "of activations"},
      {memory.transfers, "between stages"}, {memory.workspace, "of workspace"}};
  std::sort(parts.rbegin(), parts.rend());
  return StrCat(FormatBytes(static_cast<uint64_t>(parts[0].first)), " ", parts[0].second, " and ",
                FormatBytes(static_cast<uint64_t>(parts[1].first)), " ", parts[1].second);
}

}  // namespace

absl::Status CheckFits(const SearchResult& result) {
  if (result.best.estimate.fits()) return absl::OkStatus();
  return absl::ResourceExhaustedError(StrCat(
      "no strategy for ", Counted(result.best.strategy.num_devices(), "device"),
      " fits into memory; ", Describe(result.best), " comes nearest: ", WhatLimits(result.best)));
}

std::vector<const Candidate*> RunnersUp(const SearchResult& result) {
  std::vector<const Candidate*> runners_up;
  size_t num_fitting = 0;
  for (const Candidate& other : result.others) {
    if (other.strategy == result.best.strategy) continue;
    const bool fits = other.estimate.fits();
    if (fits ? num_fitting++ >= kMaxRunnersUp / 2
             : other.estimate.step_s >= result.best.estimate.step_s) {
      continue;
    }
    runners_up.push_back(&other);
    if (runners_up.size() == kMaxRunnersUp) break;
  }
  return runners_up;
}

std::string Describe(const Candidate& candidate) {
  const bool has_schedule = candidate.policy != nullptr && candidate.strategy.pp > 1;
  return StrCat(ToString(candidate.strategy), ", ",
                Counted(candidate.microbatches, "micro-batch", "es"), has_schedule ? ", " : "",
                has_schedule ? ScheduleName(*candidate.policy) : "");
}

std::string WhyNot(const Candidate& other, const Candidate& best) {
  const StepEstimate& a = other.estimate;
  const StepEstimate& b = best.estimate;
  if (!a.fits()) {
    const GroupEstimate& group = a.groups[a.fullest_group()];
    if (!group.fits_on_host()) {
      return StrCat("needs ", FormatBytes(static_cast<uint64_t>(group.memory.host)), " of ",
                    FormatBytes(static_cast<uint64_t>(group.host_limit_bytes)),
                    " a device on its host");
    }
    return StrCat("needs ", FormatBytes(static_cast<uint64_t>(group.used_bytes())), " of ",
                  FormatBytes(static_cast<uint64_t>(group.memory_limit_bytes)), " a device");
  }
  if (a.step_s <= b.step_s * (1 + kTieTolerance)) return "as fast; the chosen one is simpler";
  const std::pair<double, std::string_view> parts[] = {
      {a.compute_s - b.compute_s, "computation"},
      {a.communication_s - b.communication_s, "communication"},
      {a.bubble_s - b.bubble_s, "bubble"}};
  const auto& most = *std::max_element(std::begin(parts), std::end(parts));
  return StrCat(FormatSeconds(most.first), " more ", most.second);
}

std::string WhatLimits(const Candidate& candidate) {
  const StepEstimate& estimate = candidate.estimate;
  const GroupEstimate& group = estimate.groups[estimate.fullest_group()];
  const MemoryEstimate& memory = group.memory;
  const auto limit = static_cast<double>(group.memory_limit_bytes);
  if (!group.fits_on_host()) {
    return StrCat("a device needs ", FormatBytes(static_cast<uint64_t>(memory.host)), " of ",
                  FormatBytes(static_cast<uint64_t>(group.host_limit_bytes)),
                  " of its host's memory; more devices would each put less there, ",
                  "or use hosts with that memory");
  }
  if (!estimate.fits()) {
    const double states = memory.parameters + memory.optimizer + memory.gradients;
    const Offload offload = candidate.strategy.offload;
    const std::string states_on_host =
        group.has_host_link && !OffloadsStates(offload)
            ? StrCat("offload=states would keep ",
                     FormatBytes(static_cast<uint64_t>(memory.optimizer)), " on the host, ")
            : "";
    const std::string activations_on_host =
        group.has_host_link && !OffloadsActivations(offload)
            ? StrCat("offload=", OffloadsStates(offload) ? "all" : "activations",
                     " would keep them on the host; ")
            : "";
    std::string remedy;
    if (states > limit) {
      const auto factor = static_cast<int64_t>(std::ceil(states / (0.9 * limit)));
      remedy = StrCat("parameters, states and gradients alone take ",
                      FormatBytes(static_cast<uint64_t>(states)), ": ", states_on_host,
                      candidate.strategy.num_replicas() > 1 && candidate.strategy.zero < kMaxZero
                          ? StrCat("zero=", candidate.strategy.zero + 1, " to ", kMaxZero,
                                   " would divide more of them over the ",
                                   candidate.strategy.num_replicas(), " replicas, and ")
                          : "",
                      "about ", factor, " times as many devices for tp or pp would hold them");
    } else {
      remedy = StrCat(candidate.strategy.recompute == Recompute::kFull
                          ? ""
                          : "recompute=full would keep fewer activations; ",
                      activations_on_host,
                      "a smaller batch, or more micro-batches where they divide it, would leave ",
                      "activations at most ",
                      FormatBytes(static_cast<uint64_t>(
                          std::max(limit - memory.total() + memory.activations, 0.0))));
    }
    return StrCat("a device needs ", FormatBytes(static_cast<uint64_t>(group.used_bytes())), " of ",
                  FormatBytes(static_cast<uint64_t>(limit)), ", with ", LargestParts(memory), "; ",
                  remedy, "; or devices with that memory");
  }
  const double others = estimate.communication_s + estimate.bubble_s;
  const bool recomputes = candidate.strategy.recompute != Recompute::kNone;
  const bool offloads = candidate.strategy.offload != Offload::kNone;
  std::string how;
  if (candidate.strategy.zero > 0) {
    how = StrCat("zero=", candidate.strategy.zero, " divides ",
                 candidate.strategy.zero == 1   ? "states"
                 : candidate.strategy.zero == 2 ? "states and gradients"
                                                : "states, gradients and parameters",
                 " over ", candidate.strategy.num_replicas(), " replicas; ");
  }
  if (recomputes || offloads) {
    how = StrCat(how, "it fits into memory with ",
                 recomputes ? StrCat("recompute=", Name(candidate.strategy.recompute),
                                     ", which takes computation", offloads ? ", and " : "")
                            : "",
                 offloads ? StrCat("offload=", Name(candidate.strategy.offload),
                                   ", which takes copies to and from the host")
                          : "",
                 "; ");
  }
  if (estimate.compute_s >= others) {
    return StrCat(how, "computation takes ", FormatSeconds(estimate.compute_s), " of ",
                  FormatSeconds(estimate.step_s), ": faster or more devices would help most");
  }
  if (estimate.communication_s >= estimate.bubble_s) {
    const std::string_view which = estimate.inline_communication_s >= estimate.communication_s / 2
                                       ? offloads ? "copies to and from the host and collectives "
                                                    "that computation waits for"
                                                  : "collectives that computation waits for"
                                   : estimate.transfer_s >= estimate.communication_s / 2
                                       ? "transfers between stages"
                                       : "reductions of gradients";
    return StrCat(how, "exposed communication takes ", FormatSeconds(estimate.communication_s),
                  " of ", FormatSeconds(estimate.step_s), ", most of it ", which,
                  ": faster links would help most");
  }
  return StrCat(how, "the bubble takes ", FormatSeconds(estimate.bubble_s), " of ",
                FormatSeconds(estimate.step_s), ": more micro-batches would help most");
}

}  // namespace penstock::planner
