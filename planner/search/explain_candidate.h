// What a search says of its candidates: what they are, why they lost, and what limits them.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_SEARCH_EXPLAIN_CANDIDATE_H_
#define PENSTOCK_PLANNER_SEARCH_EXPLAIN_CANDIDATE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

#include "planner/search/search.h"

namespace penstock::planner {

// kResourceExhausted unless the best strategy fits: what it lacks, and what would make it fit.
absl::Status CheckFits(const SearchResult& result);

// The candidates that are of interest beside the best: the fastest that fit, and those that would
// be faster if they did. What differs from the best in its schedule alone is not among them. They
// live as long as the result.
std::vector<const Candidate*> RunnersUp(const SearchResult& result);

// "dp=2,tp=2,pp=2, 4 micro-batches, 1f1b": a pipeline's schedule too.
std::string Describe(const Candidate& candidate);

// Why `other` lost against `best`, in a few words: "1.2 s more communication".
std::string WhyNot(const Candidate& other, const Candidate& best);

// What would have to change for the estimate to be faster, or for it to fit: one sentence.
std::string WhatLimits(const Candidate& candidate);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_EXPLAIN_CANDIDATE_H_
