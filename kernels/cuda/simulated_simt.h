// The part of CUDA that the kernels of this folder use, on the host: every thread of a block is a
// fiber, and barriers and shuffles switch between them. So kernels are tested, value for value, on
// machines without a GPU. Tests only.
//
// Fibers run in an order that changes from launch to launch, each until its next barrier, so that a
// missing barrier shows as a wrong result. A barrier that some threads of the block do not come to
// ends the process with a message: on a GPU it would hang or worse.
//
// Thread rule: one thread. Blocks run one after another, so a __shared__ variable is a static one.

#ifndef PENSTOCK_KERNELS_CUDA_SIMULATED_SIMT_H_
#define PENSTOCK_KERNELS_CUDA_SIMULATED_SIMT_H_

#include <ucontext.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "kernels/cuda/launch.h"

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

namespace penstock::kernels::cuda::simulated {

struct Index3 {
  unsigned x = 0;
  unsigned y = 0;
  unsigned z = 0;
};

inline unsigned char* shared_memory = nullptr;
inline uint64_t num_launches = 0;
// Where launches go instead of running, while a stream captures them; null: none does.
inline std::vector<std::function<int()>>* captured = nullptr;
inline std::map<void*, size_t> allowed_shared_bytes;  // of kernels, where more than the plain ones
inline unsigned max_grid_x = UINT_MAX;                // kernels must be right for any grid_x

class Block;
inline Block* running_block = nullptr;

}  // namespace penstock::kernels::cuda::simulated

// Of the fiber that runs.
inline penstock::kernels::cuda::simulated::Index3 threadIdx;
inline penstock::kernels::cuda::simulated::Index3 blockIdx;
inline penstock::kernels::cuda::simulated::Index3 blockDim;
inline penstock::kernels::cuda::simulated::Index3 gridDim;

namespace penstock::kernels::cuda::simulated {

// Where a stack goes on. The compiler's own jumps keep no mask of signals and so make no system
// call, and they lead to any stack.
struct Context {
  void* buffer[5];
};
[[gnu::noinline]] inline void JumpTo(Context& to) { __builtin_longjmp(to.buffer, 1); }
[[gnu::noinline]] inline void Switch(Context& from, Context& to) {
  if (__builtin_setjmp(from.buffer) == 0) JumpTo(to);
}

// A stack of its own on which `main` runs, which does not return.
class Fiber {
 public:
  explicit Fiber(void (*main)()) : main_(main) {
    ucontext_t begin;
    getcontext(&begin);
    begin.uc_stack.ss_sp = stack_.get();
    begin.uc_stack.ss_size = kStackBytes;
    begin.uc_link = nullptr;
    makecontext(&begin, &Fiber::Begin, 0);
    made_ = this;
    Enter(begin);
  }

  Context context;  // where it waits

 private:
  static constexpr size_t kStackBytes = 64 << 10;

  // Up to the first switch to the fiber.
  [[gnu::noinline]] static void Enter(const ucontext_t& begin) {
    if (__builtin_setjmp(maker_.buffer) == 0) setcontext(&begin);
  }
  static void Begin() {
    Fiber* const fiber = made_;
    Switch(fiber->context, maker_);
    fiber->main_();
  }

  static inline Fiber* made_ = nullptr;
  static inline Context maker_;

  void (*const main_)();
  const std::unique_ptr<char[]> stack_ = std::make_unique_for_overwrite<char[]>(kStackBytes);
};

class Block {
 public:
  Block(unsigned num_threads, const std::function<void()>& body)
      : body_(body), threads_(num_threads) {}

  // All threads, each from begin to end. `order`: which of them go first.
  void Run(uint64_t order) {
    const auto count = static_cast<unsigned>(threads_.size());
    running_block = this;
    is_backward_ = order % 2 != 0;
    first_ = static_cast<unsigned>(order % count);
    for (Thread& thread : threads_) thread = {};
    do {
      next_ = 0;
      GoOn(scheduler_);
    } while (Release());
    running_block = nullptr;
  }

  void WaitForBlock() { Wait(State::kAtBlockBarrier); }

  // The value of `lane` in the caller's warp; its own where the block has no such thread.
  uint64_t Exchange(uint64_t value, unsigned lane) {
    const unsigned own = current_;
    threads_[own].slot = value;
    Wait(State::kAtWarpBarrier);
    const unsigned other = own / kWarp * kWarp + lane;
    const uint64_t result = other < threads_.size() ? threads_[other].slot : value;
    Wait(State::kAtWarpBarrier);
    return result;
  }
  unsigned lane() const { return current_ % kWarp; }

  // A bit for each lane of the caller's warp that gave true.
  unsigned Ballot(bool value) {
    const unsigned own = current_;
    threads_[own].slot = value ? 1 : 0;
    Wait(State::kAtWarpBarrier);
    const unsigned first = own / kWarp * kWarp;
    unsigned bits = 0;
    for (unsigned lane = 0; lane < kWarp && first + lane < threads_.size(); ++lane) {
      bits |= static_cast<unsigned>(threads_[first + lane].slot) << lane;
    }
    Wait(State::kAtWarpBarrier);
    return bits;
  }

  // f(what every lane of the caller's warp has given, by its number). REQUIRES: whole warps.
  template <typename F>
  void WithWarp(const void* own, const F& f) {
    const unsigned first = current_ / kWarp * kWarp;
    threads_[current_].slot = reinterpret_cast<uintptr_t>(own);
    Wait(State::kAtWarpBarrier);
    f([this, first](unsigned lane) {
      return reinterpret_cast<const void*>(threads_[first + lane].slot);
    });
    Wait(State::kAtWarpBarrier);
  }

  unsigned thread() const { return current_; }

  // Whether any thread of the block gave true.
  bool WaitForAny(bool value) {
    threads_[current_].slot = value ? 1 : 0;
    Wait(State::kAtBlockBarrier);
    bool result = false;
    for (const Thread& thread : threads_) result = result || thread.slot != 0;
    Wait(State::kAtBlockBarrier);
    return result;
  }

 private:
  enum class State { kReady, kAtWarpBarrier, kAtBlockBarrier, kDone };
  struct Thread {
    State state = State::kReady;
    Fiber* fiber = nullptr;  // once it has begun
    uint64_t slot = 0;
  };

  // Of a fiber: thread after thread, of any block.
  static void Main() {
    for (;;) {
      Block& block = *running_block;
      Thread& thread = block.threads_[block.current_];
      Fiber* const fiber = thread.fiber;
      block.body_();
      thread.state = State::kDone;
      idle_.push_back(fiber);  // a thread that has not begun takes it at once
      block.GoOn(fiber->context);
    }
  }

  void Wait(State state) {
    Thread& thread = threads_[current_];
    thread.state = state;
    GoOn(thread.fiber->context);
  }

  // Has the next thread run that is ready or, if there is none, the scheduler; returns when it is
  // the caller's turn again.
  void GoOn(Context& from) {
    Context& to = FindReady() ? threads_[current_].fiber->context : scheduler_;
    if (&to != &from) Switch(from, to);
  }

  // Makes the next thread that is ready the current one; false if this round has no more.
  bool FindReady() {
    const auto count = static_cast<unsigned>(threads_.size());
    while (next_ < count) {
      unsigned at = first_ + (is_backward_ ? count - 1 - next_ : next_);
      if (at >= count) at -= count;
      ++next_;
      Thread& thread = threads_[at];
      if (thread.state != State::kReady) continue;
      if (thread.fiber == nullptr) thread.fiber = TakeFiber();
      current_ = at;
      threadIdx = {at % blockDim.x, at / blockDim.x, 0};
      return true;
    }
    return false;
  }

  static Fiber* TakeFiber() {
    if (idle_.empty()) {
      fibers_.push_back(std::make_unique<Fiber>(&Block::Main));
      return fibers_.back().get();
    }
    Fiber* const fiber = idle_.back();
    idle_.pop_back();
    return fiber;
  }

  // Opens the barriers that all have come to. Returns false when all threads are done.
  bool Release() {
    size_t num_done = 0;
    size_t num_at_block = 0;
    for (const Thread& thread : threads_) {
      num_done += thread.state == State::kDone ? 1 : 0;
      num_at_block += thread.state == State::kAtBlockBarrier ? 1 : 0;
    }
    if (num_done == threads_.size()) return false;
    bool has_opened = false;
    if (num_at_block == threads_.size()) {
      for (Thread& thread : threads_) thread.state = State::kReady;
      return true;
    }
    for (size_t begin = 0; begin < threads_.size(); begin += kWarp) {
      const size_t end = begin + kWarp < threads_.size() ? begin + kWarp : threads_.size();
      size_t num_there = 0;
      for (size_t i = begin; i < end; ++i) {
        num_there += threads_[i].state == State::kAtWarpBarrier ? 1 : 0;
      }
      if (num_there != end - begin) continue;
      for (size_t i = begin; i < end; ++i) threads_[i].state = State::kReady;
      has_opened = true;
    }
    if (!has_opened) {
      std::fprintf(stderr, "block (%u, %u): threads wait at a barrier that others do not come to\n",
                   blockIdx.x, blockIdx.y);
      std::abort();
    }
    return true;
  }

  // Kept for the blocks of all launches.
  static inline std::vector<std::unique_ptr<Fiber>> fibers_;
  static inline std::vector<Fiber*> idle_;

  const std::function<void()>& body_;
  std::vector<Thread> threads_;
  Context scheduler_;
  bool is_backward_ = false;
  unsigned first_ = 0;
  unsigned next_ = 0;  // of the round
  unsigned current_ = 0;
};

// Copies that a thread has asked for and not waited for; shared memory keeps its garbage until
// then.
struct LateCopy {
  unsigned thread;
  void* to;
  const void* from;
  size_t num_bytes;
};
inline std::vector<LateCopy> late_copies;

inline void CopyLater(void* to, const void* from, size_t num_bytes) {
  late_copies.push_back({running_block->thread(), to, from, num_bytes});
}
inline void FinishCopies() {
  const unsigned thread = running_block->thread();
  std::erase_if(late_copies, [thread](const LateCopy& copy) {
    if (copy.thread == thread) std::memcpy(copy.to, copy.from, copy.num_bytes);
    return copy.thread == thread;
  });
}

// Runs a kernel to its end. Dynamic shared memory is full of garbage before every block; __shared__
// variables keep what the block before has left.
inline LaunchResult RunGrid(const LaunchShape& shape, const std::function<void()>& kernel) {
  if (!IsLaunchable(shape)) return 9;  // cudaErrorInvalidConfiguration
  const auto shared = std::make_unique<uint64_t[]>(shape.shared_bytes / 8 + 2);
  shared_memory = reinterpret_cast<unsigned char*>(shared.get());
  if (reinterpret_cast<uintptr_t>(shared_memory) % 16 != 0) shared_memory += 8;
  gridDim = {std::min(shape.grid_x, max_grid_x), shape.grid_y, 1};
  blockDim = {shape.threads_x, shape.threads_y, 1};
  Block block(shape.threads_x * shape.threads_y, kernel);
  const uint64_t order = num_launches++;
  for (unsigned y = 0; y < shape.grid_y; ++y) {
    for (unsigned x = 0; x < gridDim.x; ++x) {
      blockIdx = {x, y, 0};
      std::memset(shared_memory, 0x7f, shape.shared_bytes);
      block.Run(order);
      late_copies.clear();
    }
  }
  shared_memory = nullptr;
  return 0;
}

template <typename T>
T Exchange(T value, unsigned lane) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  bits = running_block->Exchange(bits, lane);
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace penstock::kernels::cuda::simulated

inline void __syncthreads() { penstock::kernels::cuda::simulated::running_block->WaitForBlock(); }
inline int __syncthreads_or(int value) {
  return penstock::kernels::cuda::simulated::running_block->WaitForAny(value != 0) ? 1 : 0;
}
inline unsigned __ballot_sync(unsigned, int value) {
  return penstock::kernels::cuda::simulated::running_block->Ballot(value != 0);
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline void __threadfence_system() {}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  namespace simulated = penstock::kernels::cuda::simulated;
  return simulated::Exchange(value, simulated::running_block->lane() ^ static_cast<unsigned>(mask));
}
template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  return penstock::kernels::cuda::simulated::Exchange(value, static_cast<unsigned>(lane));
}
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }

#endif  // PENSTOCK_KERNELS_CUDA_SIMULATED_SIMT_H_
