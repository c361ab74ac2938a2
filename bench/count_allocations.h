// Counts what the process takes from the heap, for measurements that must take nothing.
//
// Linking this in replaces the global operator new by one that counts (not in sanitizer builds,
// whose own would be lost). Memory taken with malloc itself is not seen.
//
// Thread rule: any thread; all threads are counted.

#ifndef PENSTOCK_BENCH_COUNT_ALLOCATIONS_H_
#define PENSTOCK_BENCH_COUNT_ALLOCATIONS_H_

#include <cstdint>

namespace penstock::bench {

// False in sanitizer builds: NumAllocations stays 0.
bool CountsAllocations();

// Calls of operator new since the first call of this function.
uint64_t NumAllocations();

}  // namespace penstock::bench

#endif  // PENSTOCK_BENCH_COUNT_ALLOCATIONS_H_
