#include "planner/search/rank_candidates.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "planner/search/cut_stages.h"
#include "planner/search/enumerate_strategies.h"
#include "planner/search/schedules.h"

namespace penstock::planner {
namespace {

EstimateOptions OptionsOf(const SearchProblem& problem, const Strategy& strategy,
                          const Policy* policy, LinkCache* links) {
  EstimateOptions options;
  options.policy = policy;
  options.chunks_per_group = static_cast<int>(strategy.vpp);
  options.split_weight_gradients = problem.splits_weight_gradients;
  options.links = links;
  return options;
}

}  // namespace

absl::StatusOr<Candidate> EstimateCandidate(const SearchProblem& problem, const Machine& machine,
                                            const StrategyWork::Cutting& cutting,
                                            const CandidateKey& key, LinkCache* links,
                                            double limit_s, std::optional<double>* too_large_s) {
  EstimateOptions options = OptionsOf(problem, key.strategy, key.policy, links);
  options.limit_s = limit_s;
  absl::Span<const std::vector<int>> arrangements = cutting.arrangements;
  if (problem.keeps_group_order) arrangements = arrangements.first(1);
  ASSIGN_OR_RETURN(ArrangedCut arranged,
                   CutOnGroups(cutting.groups, arrangements, machine, options));
  if (too_large_s != nullptr && arranged.cut.is_limited) *too_large_s = arranged.cut.fastest_s;
  Candidate candidate;
  candidate.strategy = key.strategy;
  candidate.microbatches = key.microbatches;
  candidate.policy = key.policy;
  candidate.device_groups = std::move(arranged.device_groups);
  candidate.stage_starts = cutting.ToOperators(arranged.cut.starts);
  candidate.estimate = std::move(arranged.cut.estimate);
  return candidate;
}

absl::StatusOr<bool> RefineCandidate(const SearchProblem& problem, const Machine& machine,
                                     const StrategyWork::Cutting& cutting, LinkCache* links,
                                     Candidate* candidate) {
  EstimateOptions options = OptionsOf(problem, candidate->strategy, candidate->policy, links);
  options.device_groups = candidate->device_groups;
  const std::vector<const ModelWork*> works = cutting.InOrder(candidate->device_groups);
  ASSIGN_OR_RETURN(StageCut cut, CutStages(works, machine, options));
  if (!cut.is_limited) return false;
  RETURN_IF_ERROR(RefineStages(works, machine, options, &cut));
  candidate->stage_starts = cutting.ToOperators(cut.starts);
  candidate->estimate = std::move(cut.estimate);
  return true;
}

int64_t CandidateOrder::PlaceOf(const Policy* policy) const {
  return std::find(problem_->policies.begin(), problem_->policies.end(), policy) -
         problem_->policies.begin();
}

double CandidateOrder::Seconds(const Candidate& candidate) const {
  const bool is_first = candidate.policy == problem_->policies[0];
  return candidate.estimate.step_s * (is_first ? 1 : 1 + kLeastScheduleGain);
}

std::array<int64_t, 13> CandidateOrder::SimplicityOf(const Candidate& candidate) const {
  return Simplicity(candidate.strategy, candidate.microbatches, PlaceOf(candidate.policy));
}

bool CandidateOrder::IsSimpler(const Candidate& a, const Candidate& b) const {
  return SimplicityOf(a) < SimplicityOf(b);
}

bool CandidateOrder::IsBetter(const Candidate& a, const Candidate& b) const {
  const double excess_a = a.estimate.excess_bytes();
  const double excess_b = b.estimate.excess_bytes();
  if ((excess_a > 0 || excess_b > 0) && excess_a != excess_b) return excess_a < excess_b;
  if (Seconds(a) != Seconds(b)) return Seconds(a) < Seconds(b);
  return IsSimpler(a, b);
}

size_t CandidateOrder::IndexOfBest(absl::Span<const Candidate> candidates) const {
  size_t fastest = 0;
  for (size_t i = 1; i < candidates.size(); ++i) {
    if (IsBetter(candidates[i], candidates[fastest])) fastest = i;
  }
  if (!candidates[fastest].estimate.fits()) return fastest;
  const double limit = Seconds(candidates[fastest]) * (1 + kTieTolerance);
  size_t best = fastest;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const bool ties = candidates[i].estimate.fits() && Seconds(candidates[i]) <= limit;
    if (ties && IsSimpler(candidates[i], candidates[best])) best = i;
  }
  return best;
}

}  // namespace penstock::planner
