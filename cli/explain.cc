#include "cli/explain.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "base/counted.h"
#include "base/format.h"
#include "base/strings.h"
#include "planner/fit.h"
#include "planner/policy/stage_layouts.h"
#include "planner/search/explain_candidate.h"
#include "planner/search/search.h"

namespace penstock::cli {
namespace {

using planner::Candidate;
using planner::GroupEstimate;
using planner::MemoryEstimate;
using planner::StepEstimate;
using planner::WinningChange;

// On which group of devices a group of the pipeline lies.
int64_t DeviceGroupOf(const JobGraph& job, size_t group) {
  return job.device_groups.empty() ? static_cast<int64_t>(group) : job.device_groups[group];
}

std::string BytesText(double num_bytes) { return FormatBytes(static_cast<uint64_t>(num_bytes)); }

// Columns as wide as their widest cell: the first one and the last `num_text` flush left, the
// others flush right.
std::string Table(const std::vector<std::vector<std::string>>& rows, size_t num_text = 1) {
  std::vector<size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line = "  ";
    for (size_t c = 0; c < row.size(); ++c) {
      const bool is_text = c == 0 || c + num_text >= widths.size();
      if (c > 0) line += "  ";
      line += is_text ? fmt::format("{:<{}}", row[c], widths[c])
                      : fmt::format("{:>{}}", row[c], widths[c]);
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    StrAppend(&text, line, "\n");
  }
  return text;
}

// The devices of groups [begin, end) of the pipeline, which follow each other: "4 to 7", and of
// what kinds, where there are several.
std::string DevicesText(const JobGraph& job, size_t num_groups, size_t begin, size_t end) {
  const int64_t n = job.num_devices / static_cast<int64_t>(num_groups);
  const int64_t first = DeviceGroupOf(job, begin) * n;
  const int64_t last = (DeviceGroupOf(job, end - 1) + 1) * n - 1;
  std::string text = first == last ? StrCat(first) : StrCat(first, " to ", last);
  if (!job.machine.has_value() || job.machine->cluster.spec().kinds.size() == 1) return text;
  std::vector<std::string> kinds;
  for (int64_t device = first; device <= last; ++device) {
    const std::string& kind = job.machine->cluster.KindOf(device).name;
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
  }
  return StrCat(text, ", ", StrJoin(kinds, " and "));
}

// Stages whose rows would be the same are one row.
bool IsAlike(const GroupEstimate& a, const GroupEstimate& b) {
  const auto close = [](double x, double y) { return std::abs(x - y) <= 1e-6 * std::max(x, y); };
  return close(a.compute_s, b.compute_s) && close(a.communication_s, b.communication_s) &&
         close(a.memory.total(), b.memory.total()) && a.in_flight == b.in_flight;
}

std::string StageTable(const JobGraph& job, const StepEstimate& estimate) {
  std::vector<std::vector<std::string>> rows = {
      {"stage", "devices", "compute", "communication", "in flight", "memory", "of", "parameters",
       "optimizer", "gradients", "activations", "transfers", "workspace", ""}};
  const std::vector<GroupEstimate>& groups = estimate.groups;
  for (size_t begin = 0; begin < groups.size();) {
    size_t end = begin + 1;
    while (end < groups.size() && IsAlike(groups[begin], groups[end]) &&
           DeviceGroupOf(job, end) == DeviceGroupOf(job, end - 1) + 1) {
      ++end;
    }
    const GroupEstimate& group = groups[begin];
    const MemoryEstimate& memory = group.memory;
    rows.push_back(
        {end == begin + 1 ? StrCat(begin) : StrCat(begin, " to ", end - 1),
         DevicesText(job, groups.size(), begin, end), FormatSeconds(group.compute_s),
         FormatSeconds(group.communication_s), StrCat(group.in_flight), BytesText(memory.total()),
         BytesText(static_cast<double>(group.memory_limit_bytes)), BytesText(memory.parameters),
         BytesText(memory.optimizer), BytesText(memory.gradients), BytesText(memory.activations),
         BytesText(memory.transfers), BytesText(memory.workspace),
         !group.fits()     ? "does not fit"
         : memory.host > 0 ? StrCat(BytesText(memory.host), " more on the host")
                           : ""});
    begin = end;
  }
  return Table(rows);
}

// As printed; the default where a graph file is laid out by its own mesh.
planner::Strategy StrategyOf(const JobGraph& job) {
  const auto strategy = planner::ParseStrategy(job.strategy);
  return strategy.ok() ? strategy->value_or(planner::Strategy()) : planner::Strategy();
}

Candidate CandidateOf(const JobGraph& job, const StepEstimate& estimate) {
  Candidate candidate;
  candidate.strategy = StrategyOf(job);
  candidate.microbatches = job.microbatches;
  candidate.estimate = estimate;
  return candidate;
}

// What an axis splits.
std::string AxisTable(const JobGraph& job) {
  std::vector<std::vector<std::string>> rows = {{"axis", "size", "splits"}};
  const planner::Strategy options = StrategyOf(job);
  const std::string_view replicas = options.zero == 0   ? "the batch"
                                    : options.zero == 1 ? "the batch; optimizer states (zero=1)"
                                    : options.zero == 2
                                        ? "the batch; optimizer states and gradients (zero=2)"
                                        : "the batch; optimizer states, gradients and parameters "
                                          "(zero=3)";
  const std::string_view sequences = options.ulysses ? "sequences; heads in attention (ulysses)"
                                                     : "sequences; attention passes keys round";
  const bool has_meshes = job.graph.meshes().size() > 1;  // one a stage
  for (const graph::Mesh& mesh : job.graph.meshes()) {
    for (const graph::MeshAxis& axis : mesh.axes) {
      const std::string_view what = axis.is_temporal    ? "the batch, in time (micro-batches)"
                                    : axis.name == "dp" ? replicas
                                    : axis.name == "ep" ? "experts; the batch beside dp"
                                    : axis.name == "cp" ? sequences
                                    : axis.name != "tp" ? ""
                                    : options.sp        ? "weights, and sequences between them"
                                                        : "weights";
      rows.push_back({has_meshes ? StrCat(mesh.name, ".", axis.name) : axis.name, StrCat(axis.size),
                      std::string(what)});
    }
  }
  int num_stages = 1;
  for (const graph::Node& node : job.graph.nodes())
    num_stages = std::max(num_stages, node.stage + 1);
  const int groups = num_stages / job.chunks_per_group;
  rows.push_back({"pp", StrCat(groups),
                  job.chunks_per_group == 1
                      ? "layers"
                      : StrCat("layers, in ", job.chunks_per_group, " virtual stages each")});
  std::string table = Table(rows);
  if (options.recompute != planner::Recompute::kNone) {
    StrAppend(&table, "recompute=", planner::Name(options.recompute),
              ": the backward pass computes ",
              options.recompute == planner::Recompute::kFull ? "each layer" : "cheap operators",
              " again instead of keeping activations\n");
  }
  if (options.offload != planner::Offload::kNone) {
    StrAppend(&table, "offload=", planner::Name(options.offload), ": ",
              planner::OffloadsStates(options.offload) ? "optimizer states" : "",
              options.offload == planner::Offload::kAll ? " and " : "",
              planner::OffloadsActivations(options.offload) ? "activations" : "",
              " are kept in the memory of the hosts and copied to the devices that use them\n");
  }
  if (options.optimizer_on_host) {
    table +=
        "optimizer=host: device 0 keeps the parameters and updates them; in each step the others "
        "get the parameters and return the gradients\n";
  }
  return table;
}

std::string TimeTable(const StepEstimate& estimate, bool offloads) {
  const auto row = [&](std::string_view name, double seconds, std::string remark) {
    return std::vector<std::string>{std::string(name), FormatSeconds(seconds),
                                    fmt::format("{:.1f} %", 100 * seconds / estimate.step_s),
                                    std::move(remark)};
  };
  std::string parts;
  if (estimate.communication_s > 0) {
    parts =
        StrCat(offloads ? "copies to and from hosts and " : "", "collectives that phases wait for ",
               FormatSeconds(estimate.inline_communication_s), ", reductions of gradients ",
               FormatSeconds(estimate.gradient_reduction_s), " (hidden or not)");
    if (estimate.transfer_s > 0) {
      StrAppend(&parts, ", transfers between stages ", FormatSeconds(estimate.transfer_s));
    }
  }
  return Table(
      {row("compute", estimate.compute_s,
           estimate.is_bound_by_cores ? "of all devices, on the cores that they share" : ""),
       row("exposed communication", estimate.communication_s, parts),
       row("bubble", estimate.bubble_s, ""), row("step", estimate.step_s, "")});
}

double LargestMemory(const StepEstimate& estimate) {
  return estimate.groups[estimate.fullest_group()].used_bytes();
}

nlohmann::json StepJson(const StepEstimate& estimate) {
  return {{"step_s", estimate.step_s},
          {"compute_s", estimate.compute_s},
          {"exposed_communication_s", estimate.communication_s},
          {"bubble_s", estimate.bubble_s}};
}

// `changes`: of each of the others, what would make it win; empty where that was not looked for.
std::string RunnersUpTable(const Candidate& best, const std::vector<const Candidate*>& others,
                           absl::Span<const WinningChange> changes) {
  std::vector<std::vector<std::string>> rows = {{"strategy", "step", "compute", "communication",
                                                 "bubble", "memory", "why it is not chosen",
                                                 "would be chosen if"}};
  const auto add = [&](const Candidate& candidate, std::string reason, std::string condition) {
    const StepEstimate& estimate = candidate.estimate;
    rows.push_back({planner::Describe(candidate), FormatSeconds(estimate.step_s),
                    FormatSeconds(estimate.compute_s), FormatSeconds(estimate.communication_s),
                    FormatSeconds(estimate.bubble_s), BytesText(LargestMemory(estimate)),
                    std::move(reason), std::move(condition)});
  };
  add(best, "(chosen)", "");
  for (size_t i = 0; i < others.size(); ++i) {
    add(*others[i], planner::WhyNot(*others[i], best),
        changes.empty() ? "" : planner::Describe(changes[i]));
  }
  return Table(rows, 2);
}

// The schedules of the best strategy.
std::string ScheduleTable(const planner::SearchResult& search) {
  std::vector<std::vector<std::string>> rows = {
      {"schedule", "step", "bubble", "in flight", "memory", "why it is not chosen"}};
  const auto add = [&](const Candidate& candidate, std::string remark) {
    const StepEstimate& estimate = candidate.estimate;
    int in_flight = 0;
    for (const GroupEstimate& group : estimate.groups) {
      in_flight = std::max(in_flight, group.in_flight);
    }
    rows.push_back({planner::ScheduleName(*candidate.policy), FormatSeconds(estimate.step_s),
                    FormatSeconds(estimate.bubble_s), StrCat(in_flight),
                    BytesText(LargestMemory(estimate)), std::move(remark)});
  };
  add(search.best, "chosen");
  for (const Candidate& other : search.other_schedules) {
    add(other, planner::WhyNot(other, search.best));
  }
  return Table(rows);
}

nlohmann::json RunnersUpJson(const Candidate& best, const std::vector<const Candidate*>& others,
                             absl::Span<const WinningChange> changes) {
  nlohmann::json rows = nlohmann::json::array();
  for (size_t i = 0; i < others.size(); ++i) {
    const Candidate& other = *others[i];
    nlohmann::json row = StepJson(other.estimate);
    row["strategy"] = planner::ToString(other.strategy);
    row["microbatches"] = other.microbatches;
    row["schedule"] = std::string(other.policy->name());
    row["memory_bytes"] = LargestMemory(other.estimate);
    row["fits"] = other.estimate.fits();
    row["reason"] = planner::WhyNot(other, best);
    if (!changes.empty()) row["wins_if"] = planner::Describe(changes[i]);
    rows.push_back(std::move(row));
  }
  return rows;
}

nlohmann::json MemoryJson(const MemoryEstimate& memory) {
  return {{"total_bytes", memory.total()},           {"parameters_bytes", memory.parameters},
          {"optimizer_bytes", memory.optimizer},     {"gradients_bytes", memory.gradients},
          {"activations_bytes", memory.activations}, {"transfers_bytes", memory.transfers},
          {"workspace_bytes", memory.workspace},     {"host_bytes", memory.host}};
}

}  // namespace

std::string ExplainPlan(const JobGraph& job, const StepEstimate& estimate,
                        absl::Span<const WinningChange> changes) {
  std::string text;
  if (job.machine.has_value()) {
    const planner::Cluster& cluster = job.machine->cluster;
    StrAppend(&text, "cluster: ", cluster.spec().name, ", ",
              Counted(cluster.num_devices(), "device"), ", of which the plan uses ",
              job.num_devices, "\n");
  }
  StrAppend(&text, "axes:\n", AxisTable(job));
  if (estimate.groups.empty()) {
    StrAppend(&text,
              job.graph.meshes().size() > 1 ? "stages with different numbers of devices"
                                            : "stages that lie on two groups of devices",
              ": their parts of a step are not estimated\n");
    return text;
  }
  StrAppend(&text, "predicted step, of the compiled plan:\n",
            TimeTable(estimate, StrategyOf(job).offload != planner::Offload::kNone));
  StrAppend(&text, "stages (seconds a step, memory a device):\n", StageTable(job, estimate));
  const Candidate chosen = CandidateOf(job, estimate);
  StrAppend(&text, "limit: ", planner::WhatLimits(chosen), "\n");
  if (!job.search.has_value()) return text;
  const planner::SearchResult& search = *job.search;
  StrAppend(&text, "search: ", Counted(search.num_estimated, "estimate"), "; ", search.num_refused,
            " do not divide the model or the batch, ", search.num_too_large,
            " do not fit into memory, ", search.num_bounded, " cannot be faster\n");
  if (!search.other_schedules.empty()) {
    StrAppend(&text, "schedules of this strategy, as the search estimates them:\n",
              ScheduleTable(search));
  }
  StrAppend(&text, "runners-up, as the search estimates them before it compiles the best:\n",
            RunnersUpTable(search.best, planner::RunnersUp(search), changes));
  return text;
}

nlohmann::json ExplainPlanJson(const JobGraph& job, const StepEstimate& estimate,
                               absl::Span<const WinningChange> changes) {
  nlohmann::json json;
  if (job.machine.has_value()) json["cluster"] = job.machine->cluster.spec().name;
  if (estimate.groups.empty()) return json;  // stages with different numbers of devices
  nlohmann::json prediction = StepJson(estimate);
  prediction["gradient_reduction_s"] = estimate.gradient_reduction_s;
  prediction["inline_communication_s"] = estimate.inline_communication_s;
  prediction["transfer_s"] = estimate.transfer_s;
  prediction["fits"] = estimate.fits();
  prediction["stages"] = nlohmann::json::array();
  for (size_t g = 0; g < estimate.groups.size(); ++g) {
    const GroupEstimate& group = estimate.groups[g];
    prediction["stages"].push_back({{"devices", DevicesText(job, estimate.groups.size(), g, g + 1)},
                                    {"compute_s", group.compute_s},
                                    {"exposed_communication_s", group.communication_s},
                                    {"microbatches_in_flight", group.in_flight},
                                    {"memory_limit_bytes", group.memory_limit_bytes},
                                    {"host_limit_bytes", group.host_limit_bytes},
                                    {"memory", MemoryJson(group.memory)}});
  }
  json["prediction"] = std::move(prediction);
  if (!job.search.has_value()) return json;
  const planner::SearchResult& search = *job.search;
  json["search"] = {{"estimated", search.num_estimated},
                    {"refused", search.num_refused},
                    {"too_large", search.num_too_large},
                    {"bounded", search.num_bounded},
                    {"repeated_layers", search.num_layers}};
  std::vector<const Candidate*> schedules;
  for (const Candidate& other : search.other_schedules) schedules.push_back(&other);
  json["other_schedules"] = RunnersUpJson(search.best, schedules, {});
  json["runners_up"] = RunnersUpJson(search.best, planner::RunnersUp(search), changes);
  return json;
}

std::string MemoryNote(const JobGraph& job, const StepEstimate& estimate) {
  if (estimate.groups.empty() || estimate.fits()) return "";
  const Candidate candidate = CandidateOf(job, estimate);
  return StrCat("note: predicted not to fit into memory: ", planner::WhatLimits(candidate), "\n");
}

std::string MemoryNote(const planner::Machine& machine, const planner::FoldedPlan& plan,
                       const CheckpointCopies& copies) {
  if (plan.num_devices() > machine.cluster.num_devices()) return "";
  std::vector<uint64_t> memory_bytes;
  for (uint32_t device = 0; device < plan.num_devices(); ++device) {
    const auto memory = static_cast<uint64_t>(machine.cluster.KindOf(device).memory_bytes);
    const uint64_t copied = copies.device_bytes.empty() ? 0 : copies.device_bytes[device];
    memory_bytes.push_back(memory - std::min(memory, copied));
  }
  const absl::Status fits = planner::CheckFits(plan, memory_bytes);
  if (fits.ok()) return "";
  return StrCat("note: the plan does not fit into memory",
                copies.device_bytes.empty() ? "" : " beside the copies for checkpoints", ": ",
                ToStd(fits.message()), "\n");
}

}  // namespace penstock::cli
