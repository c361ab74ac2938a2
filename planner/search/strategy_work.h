// The work of strategies, each lowered once for all schedules and cuts into stages.
//
// Thread rule: one thread.

#ifndef PENSTOCK_PLANNER_SEARCH_STRATEGY_WORK_H_
#define PENSTOCK_PLANNER_SEARCH_STRATEGY_WORK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "graph/graph.h"
#include "planner/search/folded_work.h"
#include "planner/search/machine.h"
#include "planner/search/search.h"
#include "planner/search/stage_work.h"
#include "planner/strategy/strategy.h"

namespace penstock::planner {

class StrategyWork {
 public:
  // The problem outlives the result. Errors are those of FoldedModel.
  static absl::StatusOr<StrategyWork> Create(const SearchProblem& problem);

  // Measures on another machine, which outlives this object, from now on; works that it has given
  // are no longer valid. What is lowered from then on is kept for the next machine, unless the
  // machine decides how it is split.
  void UseMachine(const Machine& machine);

  const FoldedModel& model() const { return *model_; }

  // The model whose segments the strategy's stages are made of.
  absl::StatusOr<const FoldedModel*> ModelOf(const Strategy& strategy);

  // Whether there are as many places to cut as the strategy has stages.
  absl::Status CheckPlaces(const Strategy& strategy);

  // The work of the short model's segments, on the devices of one of the groups that pp stages lie
  // on. Errors: the strategy cannot be lowered.
  absl::StatusOr<const ModelWork*> Of(Strategy strategy, int64_t microbatches, int group = 0);

  // The least time that the forward and backward phases of a step take each group of a pipeline, if
  // its groups divide the work evenly, with what they communicate in their phases.
  absl::StatusOr<double> LeastGroupSeconds(const Strategy& strategy, int64_t microbatches);

  // Graphs that were lowered and measured, and their nodes before that.
  int num_lowered() const { return num_lowered_; }
  int64_t num_lowered_nodes() const { return num_lowered_nodes_; }

  // What there is to cut into stages.
  struct Cutting {
    const FoldedModel* model = nullptr;
    std::map<int, ModelWork> works;  // on the devices of a group that differs from those before it
    std::vector<const ModelWork*> groups;        // of devices
    std::vector<std::vector<int>> arrangements;  // of these groups (arrange_groups.h)

    // Of the groups of the pipeline. Empty: in the order of the devices.
    std::vector<const ModelWork*> InOrder(const std::vector<int>& arrangement) const;
    // Of each segment that a stage begins with, its first operator.
    std::vector<int> ToOperators(const std::vector<int>& segments) const;
  };
  absl::StatusOr<Cutting> CuttingOf(const Strategy& strategy, int64_t microbatches);

 private:
  explicit StrategyWork(const SearchProblem& problem)
      : problem_(&problem), machine_(problem.machine) {}

  // The short model under a strategy of one stage, for as many groups of devices.
  absl::StatusOr<graph::Graph> Lower(const Strategy& strategy, int64_t microbatches,
                                     int64_t num_groups);

  const SearchProblem* problem_;
  const Machine* machine_;
  std::optional<FoldedModel> model_;
  GroupsCache groups_;
  std::optional<FoldedModel> whole_layers_;  // with stages of whole layers, for recompute=full
  // By strategy without stages, number of groups, micro-batches and group.
  std::map<std::tuple<std::string, int64_t, int64_t, int>, ModelWork> works_;
  int num_lowered_ = 0;
  int64_t num_lowered_nodes_ = 0;
  bool keeps_lowered_ = false;
  std::map<std::pair<std::string, int64_t>, graph::Graph> lowered_;  // by strategy, micro-batches
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_STRATEGY_WORK_H_
