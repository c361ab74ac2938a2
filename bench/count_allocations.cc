#include "bench/count_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PENSTOCK_COUNTS_ALLOCATIONS 0
#else
#define PENSTOCK_COUNTS_ALLOCATIONS 1
#endif

namespace penstock::bench {
namespace {

constinit std::atomic<bool> is_counting = false;
constinit std::atomic<uint64_t> num_allocations = 0;

}  // namespace

bool CountsAllocations() { return PENSTOCK_COUNTS_ALLOCATIONS; }

uint64_t NumAllocations() {
  is_counting.store(true, std::memory_order_relaxed);
  return num_allocations.load(std::memory_order_relaxed);
}

#if PENSTOCK_COUNTS_ALLOCATIONS
namespace {

void* Take(size_t num_bytes, size_t alignment) {
  if (is_counting.load(std::memory_order_relaxed)) {
    num_allocations.fetch_add(1, std::memory_order_relaxed);
  }
  if (num_bytes == 0) num_bytes = 1;
  void* const memory =
      alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__
          ? std::malloc(num_bytes)
          : std::aligned_alloc(alignment, (num_bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace
#endif

}  // namespace penstock::bench

#if PENSTOCK_COUNTS_ALLOCATIONS

// The array and nothrow forms of the library end in these.
void* operator new(size_t num_bytes) { return penstock::bench::Take(num_bytes, 1); }
void* operator new(size_t num_bytes, std::align_val_t alignment) {
  return penstock::bench::Take(num_bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

#endif
