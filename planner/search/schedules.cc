#include "planner/search/schedules.h"

#include <algorithm>

namespace penstock::planner {

std::vector<const Policy*> SchedulesToTry(const PolicyRegistry& policies) {
  std::vector<const Policy*> found;
  // Of equally good ones, those that plan faster come first: zb-1p, zb-2p and zb-v construct many
  // orders.
  for (const char* name : {"1f1b", "gpipe", "eager-1f1b", "looped-bfs", "zb-h1", "zb-h2", "v-half",
                           "v-min", "dualpipev", "zb-1p", "zb-2p", "zb-v"}) {
    if (const Policy* policy = policies.Find(name); policy != nullptr) found.push_back(policy);
  }
  return found;
}

bool OrdersChunks(const Policy& policy, int64_t chunks) {
  const PolicyNeeds needs = policy.needs();
  return chunks >= needs.min_chunks && chunks <= needs.max_chunks;
}

std::vector<const Policy*> SchedulesOf(const SearchProblem& problem, const Strategy& strategy) {
  if (strategy.pp == 1) return {problem.policies[0]};
  std::vector<const Policy*> schedules;
  if (problem.chunks > 0 && strategy.vpp != problem.chunks) return schedules;
  for (const Policy* policy : problem.policies) {
    if (OrdersChunks(*policy, strategy.vpp)) schedules.push_back(policy);
  }
  if (schedules.empty() && problem.strategy.has_value()) return {problem.policies[0]};
  return schedules;
}

bool SplitsBackward(const SearchProblem& problem, const Policy& policy) {
  return problem.splits_weight_gradients || policy.needs().splits_backward;
}

SearchLimits LimitsOfSchedules(const SearchProblem& problem) {
  SearchLimits limits = problem.limits;
  int64_t least = kMaxChunks;
  int64_t most = 1;
  for (const Policy* policy : problem.policies) {
    least = std::min<int64_t>(least, policy->needs().min_chunks);
    most = std::max<int64_t>(most, policy->needs().max_chunks);
  }
  limits.least_vpp = std::max(limits.least_vpp, least);
  limits.vpp = std::min(std::max(limits.vpp, problem.chunks), most);
  return limits;
}

}  // namespace penstock::planner
