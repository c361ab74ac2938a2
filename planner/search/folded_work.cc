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

// Layers of the short model: the first, one that stands for all between, the last.
constexpr int kKeptLayers = 3;
static_assert(kKeptLayers < kLeastLayers);
// Where a model does not repeat layers, stages are cut at as many points at least.
constexpr size_t kMinCuts = 32;
// Rounding is no difference between crossings.
constexpr double kSlack = 1 + 1e-9;

// Positions in the sequence of forward operators behind which to cut: where no more crosses than
// at the best place in the layer of [layers_begin, layers_end).
std::vector<int> FindCuts(const ForwardSequence& sequence, int layers_begin, int layers_end) {
  const int count = static_cast<int>(sequence.nodes.size());
  double most = 0;
  if (layers_end > layers_begin) {
    most = std::numeric_limits<double>::infinity();
    for (int i = layers_begin; i < layers_end && i + 1 < count; ++i) {
      most = std::min(most, sequence.crossing[i]);
    }
  } else if (count > 1) {
    std::vector<double> crossings(sequence.crossing.begin(), sequence.crossing.end() - 1);
    std::sort(crossings.begin(), crossings.end());
    most = crossings[std::min(kMinCuts, crossings.size()) - 1];
  }
  std::vector<int> cuts;
  for (int i = 0; i + 1 < count; ++i) {
    if (sequence.crossing[i] <= most * kSlack) cuts.push_back(i);
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
  RepeatedLayers layers = FindRepeatedLayers(forward, hints, kLeastLayers);
  const bool has_splits = std::any_of(
      hints.begin(), hints.end(), [](const graph::SplitHint& hint) { return hint.IsFor("tp"); });
  if (!has_splits) layers = InPairs(layers);
  if (layers.num_copies > 0) {
    ASSIGN_OR_RETURN(FoldedModel model, CreateFrom(ops, forward, layers, training, keeps_layers));
    if (model.num_repeated_ > 0) return model;
  }
  return CreateFrom(ops, forward, {}, training, keeps_layers);
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
                                                    const RepeatedLayers& layers,
                                                    const graph::TrainingOptions& training,
                                                    bool keeps_layers) {
  FoldedModel model;
  model.layers_ = layers;
  const bool is_short = layers.num_copies > 0;
  Graph kept = is_short ? WithCopies(forward, layers, kKeptLayers) : forward;
  // Positions of operators: of the middle layer, and how many a layer has.
  int per_copy = 0;
  int middle_begin = 0;
  if (is_short) {
    middle_begin = WorkersBefore(kept, layers.first_node + layers.nodes_per_copy);
    per_copy = middle_begin - WorkersBefore(kept, layers.first_node);
    model.repeats_ = layers.num_copies - kKeptLayers + 1;
  }
  const int middle_end = middle_begin + per_copy;
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
    for (const int cut : FindCuts(sequence, middle_begin, middle_end)) starts.push_back(cut + 1);
  }
  RETURN_IF_ERROR(AssignStagesAt(starts, model.graph_));

  const auto first = std::lower_bound(starts.begin(), starts.end(), middle_begin);
  const auto last = std::lower_bound(starts.begin(), starts.end(), middle_end);
  model.first_repeated_ = static_cast<int>(first - starts.begin());
  model.num_repeated_ = static_cast<int>(last - first);
  model.starts_.assign(starts.begin(), first);
  for (int copy = 0; copy < model.repeats_; ++copy) {
    for (auto it = first; it != last; ++it) model.starts_.push_back(*it + copy * per_copy);
  }
  for (auto it = last; it != starts.end(); ++it) {
    model.starts_.push_back(*it + (model.repeats_ - 1) * per_copy);
  }
  return model;
}

RepeatedLayers FoldedModel::kept_layers() const {
  RepeatedLayers kept = layers_;
  kept.num_copies = std::min(kept.num_copies, kKeptLayers);
  return kept;
}

ModelWork FoldedModel::Unfold(const ModelWork& work) const {
  if (repeats_ == 1) return work;
  const int end = first_repeated_ + num_repeated_;
  ModelWork whole;
  whole.reduction_groups = work.reduction_groups;
  whole.num_microbatches = work.num_microbatches;
  whole.devices_per_stage = work.devices_per_stage;
  const auto add = [&](int from, int to) {
    whole.stages.insert(whole.stages.end(), work.stages.begin() + from, work.stages.begin() + to);
  };
  add(0, first_repeated_);
  for (int copy = 0; copy < repeats_; ++copy) add(first_repeated_, end);
  add(end, static_cast<int>(work.stages.size()));

  const int shift = (repeats_ - 1) * num_repeated_;
  // The first and the last of the layers between stand at different places.
  const auto is_middle = [&](int s) { return s >= first_repeated_ && s < end; };
  const auto is_first = [&](int s) {
    return s >= first_repeated_ - num_repeated_ && s < end - num_repeated_;
  };
  const auto is_last = [&](int s) { return s >= end && s < end + num_repeated_; };
  const auto place = [&](int s, int copy) {
    if (is_middle(s)) return s + copy * num_repeated_;
    return s < first_repeated_ ? s : s + shift;
  };
  for (const StageTransfer& transfer : work.transfers) {
    const bool from_middle = is_middle(transfer.from);
    const bool to_middle = is_middle(transfer.to);
    const auto add_transfer = [&](int from, int to, int copy) {
      StageTransfer& made = whole.transfers.emplace_back(transfer);
      made.from = from;
      made.to = to;
      made.copy = copy;
    };
    if (!from_middle && !to_middle) {
      add_transfer(place(transfer.from, 0), place(transfer.to, 0), 0);
      continue;
    }
    for (int copy = 0; copy < repeats_; ++copy) {
      int from = place(transfer.from, copy);
      int to = place(transfer.to, copy);
      // Between neighbouring layers: what passes from the middle one to the last also passes
      // between those that the middle one stands for, and gradients likewise the other way.
      if (from_middle && is_last(transfer.to)) {
        to = transfer.to - num_repeated_ + (copy + 1) * num_repeated_;
      } else if (from_middle && is_first(transfer.to)) {
        to = transfer.to + copy * num_repeated_;
      } else if (to_middle && is_first(transfer.from)) {
        if (copy > 0) break;
      } else if (to_middle && is_last(transfer.from)) {
        if (copy + 1 < repeats_) continue;
      }
      add_transfer(from, to, copy);
    }
  }
  return whole;
}

}  // namespace penstock::planner
