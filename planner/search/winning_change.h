// What would have to change in a machine for a strategy that lost to be chosen: found by estimating
// it and the chosen one on changed machines, so that what is said holds when the machine is changed
// so and searched for again.
//
// A strategy that does not fit wants memory: the least with which it fits and is chosen is found by
// bisection, as a pipeline that has less may be cut otherwise. One that fits, and is slower, is
// tried with links of other rates, all of them faster or all of them slower: twice, four times and
// so on up to kMostTimesAsFast, then bisected. Latencies stay.
//
// Candidates that the search has estimated are compared, each with the micro-batches and the
// schedule that were best for it. One that the search did not estimate, as it could not win as
// things are, may win instead: on few devices, where that takes no time, the changed machine is
// searched for again, and what is not chosen there is not said to win.
//
// Example: dp=4 loses against tp=4, because its gradients take longer than what tp=4 sends. Faster
// links gain more for dp=4, which hides a part of its communication; from 1.31 times the rate on,
// it is chosen.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_SEARCH_WINNING_CHANGE_H_
#define PENSTOCK_PLANNER_SEARCH_WINNING_CHANGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "planner/search/machine.h"
#include "planner/search/search.h"

namespace penstock::planner {

// Links are not tried faster or slower than this.
inline constexpr double kMostTimesAsFast = 16;
// Changes are exact to this fraction.
inline constexpr double kChangePrecision = 0.01;
// With more devices, changes are not confirmed.
inline constexpr int64_t kMostDevicesToConfirm = 64;

struct WinningChange {
  enum class Kind : uint8_t {
    kNone,          // not looked for: the chosen one does not fit itself
    kTies,          // it is as fast, but not as simple
    kNoMemory,      // with enough of it, another one is chosen
    kNoLinkRate,    // with none that was tried it is chosen; another strategy may win first
    kDeviceMemory,  // every device has at least so many bytes
    kHostMemory,    // and every device as much on its host
    kLinkRate,      // the rates of all links are so many times what they are
  };
  Kind kind = Kind::kNone;
  double amount = 0;
  // Whether a search on the changed machine chooses it; else it is only known to be chosen before
  // the one that was, and before others near it.
  bool is_confirmed = false;

  friend bool operator==(const WinningChange&, const WinningChange&) = default;
};

// The machine with the change.
Machine WithChange(const Machine& machine, const WinningChange& change);

// Of each of `others`, candidates of a search that lost; one that is refused on a changed machine
// does not win there. Errors are those of StrategyWork::Create. REQUIRES: the result is that of the
// problem.
absl::StatusOr<std::vector<WinningChange>> FindWinningChanges(
    const SearchProblem& problem, const SearchResult& result,
    absl::Span<const Candidate* const> others);

// "a device had 12.3 GiB", the end of "would be chosen if": amounts are rounded so that what is
// said is enough. Empty for kNone.
std::string Describe(const WinningChange& change);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_WINNING_CHANGE_H_
