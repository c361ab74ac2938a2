#include "planner/search/folded_work.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "planner/strategy/recompute.h"
#include "planner/strategy/stages.h"

namespace penstock::planner {
namespace {

using graph::Graph;
using graph::NodeId;

// Layers of a run in the short model: the first, one that stands for all between, the last.
constexpr int kKeptLayers = 3;
static_assert(kKeptLayers < kLeastLayers);
// Where a model does not repeat layers, stages are cut at as many points at least.
constexpr size_t kMinCuts = 32;
// Rounding is no difference between crossings.
constexpr double kFoldSlack = 1 + 1e-9;

// Positions in the sequence of forward operators.
struct Positions {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
};

// Positions behind which to cut: where no more crosses than at the best place in the middle layer,
// of the run that the position is in, or of any. More may cross the layers of one run than those of
// another: those of a decoder, beside which an encoder's result is kept. `middles`: of each run.
std::vector<int> FindCuts(const ForwardSequence& sequence, absl::Span<const Positions> middles) {
  const int count = static_cast<int>(sequence.nodes.size());
  const std::vector<double>& crossing = sequence.crossing;
  double most = 0;
  std::vector<double> most_here(sequence.nodes.size(), -1);
  if (middles.empty() && count > 1) {
    std::vector<double> crossings(crossing.begin(), crossing.end() - 1);
    std::sort(crossings.begin(), crossings.end());
    most = crossings[std::min(kMinCuts, crossings.size()) - 1];
  }
  for (const Positions& middle : middles) {
    double least = std::numeric_limits<double>::infinity();
    for (int i = middle.begin; i < middle.end && i + 1 < count; ++i) {
      least = std::min(least, crossing[i]);
    }
    most = std::max(most, least);
    const int first = middle.begin - middle.size();
    const int end = std::min(middle.end + middle.size(), count);
    for (int i = first; i < end; ++i) most_here[i] = least;
  }
  std::vector<int> cuts;
  for (int i = 0; i + 1 < count; ++i) {
    const double limit = most_here[i] >= 0 ? most_here[i] : most;
    if (crossing[i] <= limit * kFoldSlack) cuts.push_back(i);
  }
  return cuts;
}

// Forward operators with operands before a node.
int WorkersBefore(const Graph& forward, NodeId end) {
  return static_cast<int>(
      std::count_if(forward.nodes().begin(), forward.nodes().begin() + end,
                    [](const graph::Node& node) { return !node.operands.empty(); }));
}

}  // namespace

absl::StatusOr<FoldedModel> FoldedModel::Create(const graph::OpRegistry& ops, const Graph& forward,
                                                absl::Span<const graph::SplitHint> hints,
                                                const graph::TrainingOptions& training,
                                                bool keeps_layers) {
  std::vector<RepeatedLayers> runs = FindRepeatedRuns(forward, hints, kLeastLayers);
  const bool has_splits = std::any_of(
      hints.begin(), hints.end(), [](const graph::SplitHint& hint) { return hint.IsFor("tp"); });
  if (!has_splits) runs = InPairs(runs);
  while (true) {
    ASSIGN_OR_RETURN(FoldedModel model, CreateFrom(ops, forward, runs, training, keeps_layers));
    // Runs whose middle layer has no place to cut are kept whole.
    std::vector<RepeatedLayers> cut;
    for (size_t r = 0; r < runs.size(); ++r) {
      if (model.repeated_[r].count > 0) cut.push_back(runs[r]);
    }
    if (cut.size() == runs.size()) return model;
    runs = std::move(cut);
  }
}

absl::StatusOr<FoldedModel> FoldedModel::CreateUncut(const graph::OpRegistry& ops,
                                                     const Graph& forward,
                                                     const graph::TrainingOptions& training) {
  FoldedModel model;
  ASSIGN_OR_RETURN(model.graph_, graph::BuildTrainingGraph(ops, forward, training));
  model.starts_ = {0};
  RETURN_IF_ERROR(AssignStagesAt(model.starts_, model.graph_));
  return model;
}

absl::StatusOr<FoldedModel> FoldedModel::CreateFrom(const graph::OpRegistry& ops,
                                                    const Graph& forward,
                                                    absl::Span<const RepeatedLayers> runs,
                                                    const graph::TrainingOptions& training,
                                                    bool keeps_layers) {
  FoldedModel model;
  model.runs_.assign(runs.begin(), runs.end());
  Graph kept = WithCopies(forward, runs, kKeptLayers);
  std::vector<Positions> middles;  // of each run, its middle layer
  for (const RepeatedLayers& run : model.kept_runs()) {
    const NodeId middle = run.first_node + run.nodes_per_copy;
    middles.push_back(
        {WorkersBefore(kept, middle), WorkersBefore(kept, middle + run.nodes_per_copy)});
  }
  ASSIGN_OR_RETURN(model.graph_, graph::BuildTrainingGraph(ops, std::move(kept), training));
  std::vector<int> starts = {0};
  const ForwardSequence sequence = ForwardSequenceOf(model.graph_);
  if (keeps_layers) {
    const std::vector<int> segments = RecomputeSegments(model.graph_);
    for (size_t i = 1; i < sequence.nodes.size(); ++i) {
      const bool begins = segments[sequence.nodes[i]] != segments[sequence.nodes[i - 1]];
      if (begins) starts.push_back(static_cast<int>(i));
    }
  } else {
    for (const int cut : FindCuts(sequence, middles)) starts.push_back(cut + 1);
  }
  RETURN_IF_ERROR(AssignStagesAt(starts, model.graph_));

  auto next = starts.begin();
  int shift = 0;  // of what comes behind the runs so far
  const auto add_until = [&](std::vector<int>::iterator end) {
    for (; next != end; ++next) model.starts_.push_back(*next + shift);
  };
  for (size_t r = 0; r < runs.size(); ++r) {
    const auto first = std::lower_bound(starts.begin(), starts.end(), middles[r].begin);
    const auto last = std::lower_bound(starts.begin(), starts.end(), middles[r].end);
    const int times = runs[r].num_copies - kKeptLayers + 1;
    model.repeated_.push_back(
        {static_cast<int>(first - starts.begin()), static_cast<int>(last - first), times});
    add_until(last);
    for (int copy = 1; copy < times; ++copy) {
      shift += middles[r].size();
      next = first;
      add_until(last);
    }
  }
  add_until(starts.end());
  return model;
}

std::vector<RepeatedLayers> FoldedModel::kept_runs() const {
  std::vector<RepeatedLayers> kept = runs_;
  int dropped = 0;  // nodes of the runs before
  for (RepeatedLayers& run : kept) {
    run.first_node -= dropped;
    dropped += (run.num_copies - kKeptLayers) * run.nodes_per_copy;
    run.num_copies = kKeptLayers;
  }
  return kept;
}

ModelWork FoldedModel::Unfold(const ModelWork& work) const {
  ModelWork whole = work;
  // Segments before those that are repeated stay where they are.
  for (auto repeated = repeated_.rbegin(); repeated != repeated_.rend(); ++repeated) {
    whole = Repeat(whole, *repeated);
  }
  return whole;
}

ModelWork FoldedModel::Repeat(const ModelWork& work, const Repeated& repeated) {
  const int first = repeated.first;
  const int count = repeated.count;
  const int times = repeated.times;
  const int end = first + count;
  ModelWork whole;
  whole.reduction_groups = work.reduction_groups;
  whole.num_microbatches = work.num_microbatches;
  whole.devices_per_stage = work.devices_per_stage;
  const auto add = [&](int from, int to) {
    whole.stages.insert(whole.stages.end(), work.stages.begin() + from, work.stages.begin() + to);
  };
  add(0, first);
  for (int copy = 0; copy < times; ++copy) add(first, end);
  add(end, static_cast<int>(work.stages.size()));

  const int shift = (times - 1) * count;
  // The first and the last of the layers between stand at different places.
  const auto is_middle = [&](int s) { return s >= first && s < end; };
  const auto is_first = [&](int s) { return s >= first - count && s < end - count; };
  const auto is_last = [&](int s) { return s >= end && s < end + count; };
  const auto place = [&](int s, int copy) {
    if (is_middle(s)) return s + copy * count;
    return s < first ? s : s + shift;
  };
  for (const StageTransfer& transfer : work.transfers) {
    const bool from_middle = is_middle(transfer.from);
    const bool to_middle = is_middle(transfer.to);
    const auto add_transfer = [&](int from, int to, int copy) {
      StageTransfer& made = whole.transfers.emplace_back(transfer);
      made.from = from;
      made.to = to;
      // What all layers read of one before them is one value.
      if (from_middle) made.copy = transfer.copy * times + copy;
    };
    if (!from_middle && !to_middle) {
      add_transfer(place(transfer.from, 0), place(transfer.to, 0), 0);
      continue;
    }
    for (int copy = 0; copy < times; ++copy) {
      int from = place(transfer.from, copy);
      int to = place(transfer.to, copy);
      // Between neighbouring layers: what passes from the middle one to the last also passes
      // between those that the middle one stands for, and gradients likewise the other way.
      if (from_middle && is_last(transfer.to)) {
        to = transfer.to - count + (copy + 1) * count;
      } else if (from_middle && is_first(transfer.to)) {
        to = transfer.to + copy * count;
      } else if (to_middle && is_first(transfer.from)) {
        if (copy > 0) break;
      } else if (to_middle && is_last(transfer.from)) {
        if (copy + 1 < times) continue;
      }
      add_transfer(from, to, copy);
    }
  }
  return whole;
}

}  // namespace penstock::planner
