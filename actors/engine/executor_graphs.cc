// What a device executor does to launch steady phases as graphs (phase_graph.h): a variant of a
// phase runs as usual the first time, is captured the second time, and launched from then on. An
// instance is launched as usual if its step is traced, as a trace has all acts, or poisoned.

#include <utility>

#include "actors/engine/executor.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {

using planner::ActorKind;

void DeviceExecutor::PlanGraphs() {
  graphs_.resize(phases_.size());
  GraphCounts counts;
  counts.num_phases = static_cast<uint32_t>(phases_.size());
  for (uint32_t p = 0; p < phases_.size(); ++p) {
    const Phase& phase = phases_[p];
    PhaseGraph& graph = graphs_[p];
    const absl::Span<const Actor> actors = absl::MakeConstSpan(actors_).subspan(
        phase.first_actor, phase.end_actor - phase.first_actor);
    const int64_t period =
        PeriodOf(phase, absl::MakeConstSpan(groups_).subspan(phase.first_group, phase.num_groups),
                 num_microbatches_);
    auto* const stream = dynamic_cast<CapturingStream*>(progress_[p].stream);
    std::string reason = WhyNotCaptured(phase, actors, period);
    if (!options_.captures_graphs) reason = "turned off";
    if (stream == nullptr) reason = "the device has no graphs";
    if (!reason.empty()) {
      counts.reasons.push_back(std::move(reason));
      continue;
    }
    graph.stream = stream;
    graph.variants.resize(static_cast<size_t>(period));
    for (uint32_t i = phase.first_actor; i < phase.end_actor; ++i) {
      if (actors_[i].kind == ActorKind::kFeed) graph.feeds.push_back(i);
      if (actors_[i].num_increments > 0) graph.senders.push_back(i);
    }
  }
  const absl::MutexLock lock(&graph_mutex_);
  graph_counts_ = std::move(counts);
}

// Launches the instance of the phase that has started as a graph, if that is possible. Returns
// whether it has; the phase then has nothing left to fire.
bool DeviceExecutor::LaunchGraph(uint32_t index) {
  PhaseGraph& graph = graphs_[index];
  Progress& progress = progress_[index];
  if (graph.stream == nullptr || IsTraced(progress.step) || RecordOf(progress.step).is_poisoned) {
    return false;
  }
  PhaseGraph::Variant& variant =
      graph.variants[static_cast<size_t>(progress.next_instance) % graph.variants.size()];
  if (variant.graph != nullptr) {
    for (const uint32_t actor : graph.feeds) FillFeed(actors_[actor], phases_[index], progress);
  } else {
    if (!std::exchange(variant.has_run, true)) return false;
    if (const absl::Status status = Capture(index, &variant); !status.ok()) {
      graph.stream = nullptr;  // launches of other variants may be under way
      const absl::MutexLock lock(&graph_mutex_);
      graph_counts_.reasons.push_back(StrCat("capturing ", device_plan_.phases[index].name,
                                             " failed: ", ToStd(status.message())));
      if (graph.is_captured) --graph_counts_.num_captured;
      return false;
    }
  }
  graph.stream->Launch(*variant.graph, {static_cast<uint64_t>(progress.step - variant.step),
                                        progress.first_launch - variant.first_launch});
  progress.remaining = 0;
  for (const uint32_t actor : graph.senders) AddTokens(actors_[actor]);
  return true;
}

// Nothing runs. The planned order is one in which all actors can fire.
absl::Status DeviceExecutor::Capture(uint32_t index, PhaseGraph::Variant* variant) {
  const Phase& phase = phases_[index];
  const Progress& progress = progress_[index];
  RETURN_IF_ERROR(graphs_[index].stream->BeginCapture());
  absl::Status status;
  for (uint32_t actor = phase.first_actor; actor < phase.end_actor && status.ok(); ++actor) {
    status = TryExecute(actor, index);
    if (!status.ok()) {
      status = absl::Status(status.code(),
                            StrCat("actor ", NameOf(actor), ": ", ToStd(status.message())));
    }
  }
  running_actor_.store(planner::kNone, std::memory_order_relaxed);
  absl::StatusOr<std::unique_ptr<StreamGraph>> graph = graphs_[index].stream->EndCapture();
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(graph.status());
  variant->graph = *std::move(graph);
  variant->step = progress.step;
  variant->first_launch = progress.first_launch;
  if (!std::exchange(graphs_[index].is_captured, true)) {
    const absl::MutexLock lock(&graph_mutex_);
    ++graph_counts_.num_captured;
  }
  return absl::OkStatus();
}

std::string DeviceExecutor::DescribeGraphs() const {
  if (is_synchronous_) return "";
  const absl::MutexLock lock(&graph_mutex_);
  return actors::DescribeGraphs(graph_counts_);
}

}  // namespace penstock::actors
