#include "planner/search/choose_shardings.h"

#include <utility>

#include "base/status_macros.h"
#include "planner/search/cost_network.h"

namespace penstock::planner {

absl::StatusOr<std::optional<ShardingChoice>> ChooseShardings(const ShardingProblem& problem,
                                                              double max_gap) {
  const ShardingNetwork network = BuildShardingNetwork(problem);
  ASSIGN_OR_RETURN(const std::optional<CostAssignment> best, Minimize(network.costs, max_gap));
  if (!best.has_value()) return std::optional<ShardingChoice>();
  ShardingChoice choice;
  for (size_t value = 0; value < network.values.size(); ++value) {
    const auto variable = static_cast<size_t>(network.variables[value]);
    choice.shardings.push_back(network.values[value][static_cast<size_t>(best->options[variable])]);
  }
  choice.seconds = best->cost;
  choice.bound_s = best->bound;
  choice.kept_bytes = best->weight;
  choice.num_variables = static_cast<int>(network.costs.variables.size());
  choice.num_solved = best->num_solved;
  return std::optional<ShardingChoice>(std::move(choice));
}

}  // namespace penstock::planner
