// The estimates of candidates, and which of several a search chooses: what its result and what is
// said of those that lost both go by.
//
// Thread rule: pure functions; a CandidateOrder is a value.

#ifndef PENSTOCK_PLANNER_SEARCH_RANK_CANDIDATES_H_
#define PENSTOCK_PLANNER_SEARCH_RANK_CANDIDATES_H_

#include <array>
#include <cstdint>
#include <limits>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "planner/search/estimate.h"
#include "planner/search/machine.h"
#include "planner/search/search.h"
#include "planner/search/strategy_work.h"

namespace penstock::planner {

// A strategy, how often the batch is divided, and the schedule.
struct CandidateKey {
  Strategy strategy;
  int64_t microbatches = 1;
  const Policy* policy = nullptr;
};

// Cuts a strategy into stages and estimates its step, up to a limit (StepEstimate::is_above_limit).
// `too_large_s`, if not null, is set where memory limits the cut: the step of the fastest cut.
// Errors are those of EstimateStep.
absl::StatusOr<Candidate> EstimateCandidate(
    const SearchProblem& problem, const Machine& machine, const StrategyWork::Cutting& cutting,
    const CandidateKey& key, LinkCache* links,
    double limit_s = std::numeric_limits<double>::infinity(),
    std::optional<double>* too_large_s = nullptr);

// Cuts that memory forces are those with the fastest slowest stage, which is not all that makes a
// step fast: others near it are tried, and the fastest replaces the candidate's. False: memory does
// not force its cut.
absl::StatusOr<bool> RefineCandidate(const SearchProblem& problem, const Machine& machine,
                                     const StrategyWork::Cutting& cutting, LinkCache* links,
                                     Candidate* candidate);

class CandidateOrder {
 public:
  // The problem outlives the order.
  explicit CandidateOrder(const SearchProblem& problem) : problem_(&problem) {}

  // Of the problem's policies, which one.
  int64_t PlaceOf(const Policy* policy) const;
  // What a candidate competes with: its step, and more by another schedule than the first.
  double Seconds(const Candidate& candidate) const;
  bool IsSimpler(const Candidate& a, const Candidate& b) const;
  // What fits before what does not, and what lacks less memory before what lacks more; then the
  // faster one, then the simpler one.
  bool IsBetter(const Candidate& a, const Candidate& b) const;
  // The simplest of those that are as fast as the best; the best where nothing fits. REQUIRES:
  // there is one.
  size_t IndexOfBest(absl::Span<const Candidate> candidates) const;

 private:
  std::array<int64_t, 13> SimplicityOf(const Candidate& candidate) const;

  const SearchProblem* problem_;
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_RANK_CANDIDATES_H_
