// The work of a model with many layers, measured on one with three of them.
//
// The forward operators are cut into *segments* where least crosses, at least between the layers.
// Each segment of the short model is measured as a stage; those of the middle layer are repeated.
// Stages are made of whole segments.
//
// Thread rule: the methods are const; a FoldedModel may be shared by readers.

#ifndef PENSTOCK_PLANNER_SEARCH_FOLDED_WORK_H_
#define PENSTOCK_PLANNER_SEARCH_FOLDED_WORK_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "graph/graph.h"
#include "graph/models/model.h"
#include "graph/op.h"
#include "graph/training.h"
#include "planner/search/stage_work.h"
#include "planner/strategy/repeated_layers.h"

namespace penstock::planner {

class FoldedModel {
 public:
  // Errors are those of BuildTrainingGraph. `keeps_layers`: nothing is cut inside the segments of
  // recompute=full, which stages would keep apart.
  static absl::StatusOr<FoldedModel> Create(const graph::OpRegistry& ops,
                                            const graph::Graph& forward,
                                            absl::Span<const graph::SplitHint> hints,
                                            const graph::TrainingOptions& training,
                                            bool keeps_layers = false);

  // The whole model as one segment.
  static absl::StatusOr<FoldedModel> CreateUncut(const graph::OpRegistry& ops,
                                                 const graph::Graph& forward,
                                                 const graph::TrainingOptions& training);

  // The training step of the short model, its segments being its stages; no shardings.
  const graph::Graph& graph() const { return graph_; }
  const RepeatedLayers& layers() const { return layers_; }
  // Those that graph() has of them.
  RepeatedLayers kept_layers() const;

  int num_segments() const { return static_cast<int>(starts_.size()); }
  // Of each segment of the whole model, its first operator in ForwardSequenceOf(whole model).
  const std::vector<int>& starts() const { return starts_; }

  // The work of the whole model's segments from that of the short one's.
  ModelWork Unfold(const ModelWork& work) const;

 private:
  static absl::StatusOr<FoldedModel> CreateFrom(const graph::OpRegistry& ops,
                                                const graph::Graph& forward,
                                                const RepeatedLayers& layers,
                                                const graph::TrainingOptions& training,
                                                bool keeps_layers);

  graph::Graph graph_;
  RepeatedLayers layers_;
  std::vector<int> starts_;
  // Segments of the short model: those of the middle layer, which stand for `repeats_` layers.
  int first_repeated_ = 0;
  int num_repeated_ = 0;
  int repeats_ = 1;
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_FOLDED_WORK_H_
