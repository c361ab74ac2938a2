#include "base/thread_pool.h"

#include <algorithm>
#include <system_error>

#include "base/machine.h"
#include "base/shape.h"
#include "base/spin_pause.h"

namespace penstock {
namespace {

// About as long as a wake-up costs; see docs/ARCHITECTURE.md.
constexpr int kSpins = 2000;

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  set_spins(num_threads <= UsableCores());
  workers_.reserve(num_threads - 1);
  try {
    for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { WorkerLoop(i); });
  } catch (const std::system_error&) {
    // size() tells.
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::set_spins(bool spins) {
  spins_.store(spins ? kSpins : 0, std::memory_order_relaxed);
}

void ThreadPool::ParallelFor(int64_t count, int64_t grain,
                             absl::FunctionRef<void(int64_t, int64_t, int)> body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  const int parts = static_cast<int>(std::min<int64_t>(size(), (count + grain - 1) / grain));
  if (parts <= 1) {
    body(0, count, 0);
    return;
  }
  job_ = {count, parts, &body};
  unfinished_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  const Range mine = PartOf(count, 0, parts);
  body(mine.begin, mine.end, 0);
  for (int spins = 0;; ++spins) {
    const int left = unfinished_.load(std::memory_order_acquire);
    if (left == 0) return;
    if (spins < spins_.load(std::memory_order_relaxed)) {
      SpinPause();
    } else {
      unfinished_.wait(left, std::memory_order_acquire);
    }
  }
}

void ThreadPool::WorkerLoop(int index) {
  uint32_t seen = 0;
  for (;;) {
    uint32_t now = generation_.load(std::memory_order_acquire);
    for (int spins = 0; now == seen; ++spins) {
      if (spins < spins_.load(std::memory_order_relaxed)) {
        SpinPause();
      } else {
        generation_.wait(seen, std::memory_order_acquire);
      }
      now = generation_.load(std::memory_order_acquire);
    }
    seen = now;
    if (stopping_.load(std::memory_order_relaxed)) return;
    if (index < job_.parts) {
      const Range range = PartOf(job_.count, index, job_.parts);
      (*job_.body)(range.begin, range.end, index);
    }
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
  }
}

}  // namespace penstock
