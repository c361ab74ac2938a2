// Chooses a strategy: of all ways to divide a training step over devices, the one that is estimated
// to be fastest and fits into memory.
//
// Every strategy is lowered and measured on a model with three of the layers that the real one
// repeats, of each kind (repeated_layers.h), cut at the points where least crosses; the work of the
// middle layer counts as often as there are layers between. So a search takes as long for a hundred
// layers as for ten. Stages are cut so that the slowest is as fast as possible.
//
// A strategy is not lowered if it cannot win: its states alone do not fit into memory, or its work,
// divided over the devices without communication, with the least bubble of its pipeline, takes
// longer than the best strategy so far.
//
// A pipeline is tried with every schedule that orders its chunks. What is lowered serves them all.
// The bubble and the micro-batches in flight of a schedule come from its orders; these are not made
// if no order of such phases can win (policy/least_times.h). Without a pipeline, there are as few
// micro-batches as fit; where kernels were measured, more are tried as long as each number gains,
// because tensors that caches hold make small kernels faster for their size.
//
// Options are not enumerated with the axes. What does not fit is tried with zero=1, 2 and 3 and
// then sp=true, as far as it takes; the fastest strategies are tried with zero=1 and sp=true. Each
// that does not fit with those is tried with recompute=selective and then full, unless one that
// fits is as fast as it would be without.
// What does not fit with those is tried with offload=states, with recompute again, and with
// offload=all, if devices have memory of their own beside that of their hosts.
// Context parallelism divides what data parallelism divides at less cost, but for single sequences:
// it is enumerated, up to d / gcd(d, n) parts, if d devices do not divide n sequences, and tried if
// single sequences do not fit; the fastest such strategies are tried with ulysses=true.
//
// Where a model does not name what tp splits (SplitHint), that is chosen by cost for each strategy
// (split_by_cost.h).
//
// Strategies whose times are within kTieTolerance of each other tie; the simpler one is taken: one
// without virtual stages, with fewer stages, then with less context, tensor and expert parallelism,
// without options, then with the schedule that is listed first, then with fewer micro-batches.
// Steps by another schedule than the first count as longer by kLeastScheduleGain (schedules.h). The
// result depends on nothing but the problem.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_SEARCH_SEARCH_H_
#define PENSTOCK_PLANNER_SEARCH_SEARCH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "graph/graph.h"
#include "graph/models/model.h"
#include "graph/op.h"
#include "graph/training.h"
#include "planner/policy/policy.h"
#include "planner/search/enumerate_strategies.h"
#include "planner/search/estimate.h"
#include "planner/search/machine.h"
#include "planner/strategy/strategy.h"

namespace penstock::planner {

// A step that takes longer than the fastest by no more than this part of it ties with it.
inline constexpr double kTieTolerance = 1e-3;

// What a strategy is searched for, and what is known of it before. All that it refers to outlives
// the call; the policies outlive the result too.
struct SearchProblem {
  const graph::OpRegistry* ops = nullptr;  // that the graph is made of; not null
  const graph::Graph* forward = nullptr;   // returns the loss; without a mesh
  graph::TrainingOptions training;         // of the step that is made of the graph
  // What tp, ep and cp split. If no strategy is given: without hints for tp, what it splits is
  // chosen by cost; without hints for ep or cp, that axis is 1.
  absl::Span<const graph::SplitHint> hints;
  const Machine* machine = nullptr;  // with num_devices devices at least; not null
  // The schedules to choose from, the simplest first (schedules.h); at least one. What is not a
  // pipeline has the first.
  std::vector<const Policy*> policies;
  int64_t num_devices = 1;  // those of `strategy`, if it is given
  // Given: only the number of micro-batches and the schedule are chosen.
  std::optional<Strategy> strategy;
  int64_t microbatches = 0;              // 0: chosen too
  int64_t chunks = 0;                    // of each group of a pipeline; 0: chosen too
  std::optional<Recompute> recompute;    // not given: chosen too
  bool splits_weight_gradients = false;  // or if the schedule wants that
  bool keeps_group_order = false;        // the stages follow the devices (see device_groups)
  // Where a strategy is given, only that of micro-batches counts.
  SearchLimits limits;
  // From a graph with shardings and stages to one with lowered redistributions (EstimatePasses).
  std::function<absl::Status(graph::Graph&)> lower;
};

// A strategy that was lowered and estimated.
struct Candidate {
  Strategy strategy;               // its axes and options
  int64_t microbatches = 1;        // of a step
  const Policy* policy = nullptr;  // of SearchProblem::policies
  // Of each group of the pipeline, the group of devices; empty: in their order.
  std::vector<int> device_groups;
  // Of each stage, the index of its first operator in ForwardSequenceOf(the whole model).
  std::vector<int> stage_starts;
  // The time of its step and the memory that it needs, which may be more than there is.
  StepEstimate estimate;
};

// The strategy that was found, those that it was compared with, and what the search took.
struct SearchResult {
  Candidate best;  // fits into memory, if any does
  // The other strategies and schedules, each with its best number of micro-batches: those that fit
  // by time, then the others.
  std::vector<Candidate> others;
  // The best strategy, with as many micro-batches, by the other schedules that order its chunks.
  std::vector<Candidate> other_schedules;
  // How often a strategy with a number of micro-batches and a schedule was estimated, whether it
  // fits or not; other_schedules do not count.
  int num_estimated = 0;
  int num_refused = 0;    // do not divide the model or the batch, or cannot be planned
  int num_too_large = 0;  // do not fit into memory
  int num_bounded = 0;    // could not be faster than the best, by whatever order
  int num_layers = 0;     // that the model repeats, of all kinds; 0: none
  // What the search took: graphs of the short model that were lowered and measured, failures
  // included.
  int num_lowered = 0;
  int64_t num_lowered_nodes = 0;  // that these graphs had before, in all
};

// Where nothing fits into memory, the result is what comes nearest (see CheckFits in
// explain_candidate.h). An error: no strategy divides the model, or a policy is bidirectional
// (strategy/directions.h), whose steps are not estimated.
absl::StatusOr<SearchResult> FindStrategy(const SearchProblem& problem);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_SEARCH_H_
