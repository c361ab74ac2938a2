// How long the planner takes for large models on many devices, without lowering to a plan.
//
// Thread rule: call once, before the benchmarks run.

#ifndef PENSTOCK_BENCH_SEARCH_BENCH_H_
#define PENSTOCK_BENCH_SEARCH_BENCH_H_

namespace penstock::bench {

// Registers with Google Benchmark, under names such as "search/gpt3-175b/hgx-h100:128":
// "search/CASE" is the choice of a strategy; its counters are the strategies that were estimated
// and the predicted step in seconds. "search/estimate/CASE" is the estimate of a given strategy on
// the whole graph, which is built, passed through and measured each time.
void RegisterSearchBenchmarks();

}  // namespace penstock::bench

#endif  // PENSTOCK_BENCH_SEARCH_BENCH_H_
