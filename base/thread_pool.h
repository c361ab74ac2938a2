// The threads that one CPU device owns. The thread that calls ParallelFor takes part, so a pool of
// one thread owns none and runs inline.
//
// Thread rule: one caller at a time (the device's executor), which may also set whether threads
// spin. Workers spin briefly after a job, unless that would take a core from others, and then sleep
// on a futex-like atomic wait. Invariant: ParallelFor returns only after every chunk has run. The
// chunk boundaries depend on (count, grain, size) alone, never on timing: kernels that reduce per
// chunk stay deterministic.

#ifndef PENSTOCK_BASE_THREAD_POOL_H_
#define PENSTOCK_BASE_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace penstock {

// Runs one loop at a time on a fixed number of threads.
class ThreadPool {
 public:
  // Fewer where the system gives no more: size() tells. REQUIRES: num_threads >= 1.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Threads that run a loop, the caller's included: at least 1.
  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Whether threads that wait for a job, or for the end of one, spin before they sleep. Initially,
  // they do if the thread that made the pool may use as many cores as the pool has threads.
  void set_spins(bool spins);

  // Calls body(begin, end, part) for `parts` = min(size(), ceil(count/grain)) contiguous pieces of
  // [0, count), part p being PartOf(count, p, parts), each on its own thread.
  // REQUIRES: not called from a body.
  void ParallelFor(int64_t count, int64_t grain,
                   absl::FunctionRef<void(int64_t begin, int64_t end, int part)> body);

 private:
  struct Job {
    int64_t count = 0;
    int parts = 0;
    const absl::FunctionRef<void(int64_t, int64_t, int)>* body = nullptr;
  };

  void WorkerLoop(int index);

  std::vector<std::thread> workers_;
  Job job_;                              // written by the caller before it bumps generation_
  std::atomic<uint32_t> generation_{0};  // bumped once a job; odd values are not special
  std::atomic<int> unfinished_{0};
  std::atomic<int> spins_{0};  // looks before a thread sleeps
  std::atomic<bool> stopping_{false};
};

}  // namespace penstock

#endif  // PENSTOCK_BASE_THREAD_POOL_H_
