// How fast the CPU kernels are at the sizes of a small GPT: 2048 tokens, widths 256 and 768.
//
// Thread rule: call once, before the benchmarks run.

#ifndef PENSTOCK_BENCH_KERNELS_BENCH_H_
#define PENSTOCK_BENCH_KERNELS_BENCH_H_

namespace penstock::bench {

// Registers with Google Benchmark, under names such as "kernels/matmul/2048x768x256". Counters:
// GFLOP/s where work counts, GB/s (operands and results once) where memory does.
void RegisterKernelBenchmarks();

}  // namespace penstock::bench

#endif  // PENSTOCK_BENCH_KERNELS_BENCH_H_
