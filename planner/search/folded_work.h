// The work of a model with many layers, measured on one with three of them.
//
// A model may repeat layers of several kinds, one kind after the other (FindRepeatedRuns): of each
// run of layers, three are kept.
//
// The forward operators are cut into *segments* where least crosses, at least between the layers.
// Each segment of the short model is measured as a stage; those of middle layers are repeated.
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
  // Of the whole model, in its order.
  const std::vector<RepeatedLayers>& runs() const { return runs_; }
  // What graph() has of them.
  std::vector<RepeatedLayers> kept_runs() const;

  int num_segments() const { return static_cast<int>(starts_.size()); }
  // Of each segment of the whole model, its first operator in ForwardSequenceOf(whole model).
  const std::vector<int>& starts() const { return starts_; }

  // The work of the whole model's segments from that of the short one's.
  ModelWork Unfold(const ModelWork& work) const;

 private:
  static absl::StatusOr<FoldedModel> CreateFrom(const graph::OpRegistry& ops,
                                                const graph::Graph& forward,
                                                absl::Span<const RepeatedLayers> runs,
                                                const graph::TrainingOptions& training,
                                                bool keeps_layers);

  // Segments of the short model: those of the middle layer of a run, which stand for `times`
  // layers.
  struct Repeated {
    int first = 0;
    int count = 0;
    int times = 1;
  };
  static ModelWork Repeat(const ModelWork& work, const Repeated& repeated);

  graph::Graph graph_;
  std::vector<RepeatedLayers> runs_;
  std::vector<int> starts_;
  std::vector<Repeated> repeated_;  // one a run
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_FOLDED_WORK_H_
