#include "planner/search/strategy_work.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/search/arrange_groups.h"
#include "planner/search/kernel_seconds.h"
#include "planner/search/split_by_cost.h"

namespace penstock::planner {

absl::StatusOr<StrategyWork> StrategyWork::Create(const SearchProblem& problem) {
  StrategyWork work(problem);
  ASSIGN_OR_RETURN(work.model_, FoldedModel::Create(*problem.ops, *problem.forward, problem.hints,
                                                    problem.training));
  if (!work.Of({}, 1).ok()) {
    // Its forwards and backwards cannot be cut there.
    ASSIGN_OR_RETURN(work.model_,
                     FoldedModel::CreateUncut(*problem.ops, *problem.forward, problem.training));
    work.whole_layers_ = work.model_;
    work.works_.clear();
  }
  return work;
}

absl::StatusOr<const FoldedModel*> StrategyWork::ModelOf(const Strategy& strategy) {
  if (strategy.recompute != Recompute::kFull) return &*model_;
  if (!whole_layers_.has_value()) {
    ASSIGN_OR_RETURN(whole_layers_,
                     FoldedModel::Create(*problem_->ops, *problem_->forward, problem_->hints,
                                         problem_->training, /*keeps_layers=*/true));
  }
  return &*whole_layers_;
}

absl::Status StrategyWork::CheckPlaces(const Strategy& strategy) {
  ASSIGN_OR_RETURN(const FoldedModel* model, ModelOf(strategy));
  if (strategy.num_stages() <= model->num_segments()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(ToString(strategy), ": the model has ", model->num_segments(), " places for stages"));
}

absl::StatusOr<graph::Graph> StrategyWork::Lower(const Strategy& strategy, int64_t microbatches,
                                                 int64_t num_groups) {
  const bool keeps = keeps_lowered_ && !strategy.splits_by_cost;
  const auto key = std::pair(ToString(strategy), microbatches);
  if (const auto it = lowered_.find(key); keeps && it != lowered_.end()) return it->second;
  ASSIGN_OR_RETURN(const FoldedModel* model, ModelOf(strategy));
  graph::Graph graph = model->graph();
  ++num_lowered_;
  num_lowered_nodes_ += graph.num_nodes();
  RETURN_IF_ERROR(ApplyStrategy(strategy, microbatches, problem_->hints, graph));
  if (strategy.splits_by_cost) {
    SplitOptions options;
    options.machine = machine_;
    options.hints = problem_->hints;
    options.num_groups = static_cast<int>(num_groups);
    options.runs = model->kept_runs();
    for (const RepeatedLayers& run : model->runs()) options.num_layers.push_back(run.num_copies);
    RETURN_IF_ERROR(SplitByCost(strategy, options, graph));
  }
  RETURN_IF_ERROR(problem_->lower(graph));
  if (keeps) lowered_.emplace(key, graph);
  return graph;
}

void StrategyWork::UseMachine(const Machine& machine) {
  machine_ = &machine;
  works_.clear();
  groups_ = GroupsCache();
  keeps_lowered_ = true;
}

absl::StatusOr<const ModelWork*> StrategyWork::Of(Strategy strategy, int64_t microbatches,
                                                  int group) {
  const int64_t num_groups = strategy.pp;
  strategy.pp = 1;
  strategy.vpp = 1;
  const auto key = std::tuple(ToString(strategy), num_groups, microbatches, group);
  if (const auto it = works_.find(key); it != works_.end()) return &it->second;
  ASSIGN_OR_RETURN(const graph::Graph graph, Lower(strategy, microbatches, num_groups));
  WorkOptions options;
  options.num_groups = static_cast<int>(num_groups);
  options.group = group;
  options.groups = &groups_;
  ASSIGN_OR_RETURN(ModelWork work, MeasureWork(graph, *machine_, options));
  return &works_.emplace(key, std::move(work)).first->second;
}

absl::StatusOr<StrategyWork::Cutting> StrategyWork::CuttingOf(const Strategy& strategy,
                                                              int64_t microbatches) {
  Cutting cutting;
  ASSIGN_OR_RETURN(cutting.model, ModelOf(strategy));
  const std::vector<int> alike = FirstAlikeGroups(
      machine_->cluster, strategy.num_devices() / strategy.pp, static_cast<int>(strategy.pp));
  for (const int group : alike) {
    if (cutting.works.contains(group)) continue;
    ASSIGN_OR_RETURN(const ModelWork* short_work, Of(strategy, microbatches, group));
    cutting.works.emplace(group, cutting.model->Unfold(*short_work));
  }
  for (const int group : alike) cutting.groups.push_back(&cutting.works.at(group));
  cutting.arrangements =
      ArrangeGroups(*machine_, strategy.num_devices() / strategy.pp, static_cast<int>(strategy.pp));
  return cutting;
}

absl::StatusOr<double> StrategyWork::LeastGroupSeconds(const Strategy& strategy,
                                                       int64_t microbatches) {
  ASSIGN_OR_RETURN(const Cutting cutting, CuttingOf(strategy, microbatches));
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [group, work] : cutting.works) {
    PhaseWork forward;
    PhaseWork backward;
    double most_saved_s = 0;
    for (const StageWork& segment : work.stages) {
      forward += segment.forward;
      backward += segment.overlapped_backward();
    }
    for (const StageTransfer& transfer : work.transfers) {
      most_saved_s = std::max(most_saved_s, transfer.saved_s);
    }
    // Each cut may save a reduction forward and one backward.
    const double saved_s = 2 * most_saved_s * (strategy.num_stages() - 1);
    least = std::min(least, forward.seconds() + backward.seconds() - saved_s);
  }
  return static_cast<double>(microbatches) * std::max(least, 0.0) /
         static_cast<double>(strategy.pp);
}

std::vector<const ModelWork*> StrategyWork::Cutting::InOrder(
    const std::vector<int>& arrangement) const {
  if (arrangement.empty()) return groups;
  std::vector<const ModelWork*> in_order;
  for (const int group : arrangement) in_order.push_back(groups[group]);
  return in_order;
}

std::vector<int> StrategyWork::Cutting::ToOperators(const std::vector<int>& segments) const {
  std::vector<int> operators;
  for (const int segment : segments) operators.push_back(model->starts()[segment]);
  return operators;
}

}  // namespace penstock::planner
