// Collects the replies of several actors for one thread that waits for them.
//
// Thread rule: thread-safe.
// Invariant: each actor's first reply counts. A reply that arrives after Wait has returned is
// ignored.

#ifndef PENSTOCK_ACTORS_ENGINE_REPLY_COLLECTOR_INTERNAL_H_
#define PENSTOCK_ACTORS_ENGINE_REPLY_COLLECTOR_INTERNAL_H_

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/await.h"

namespace penstock::actors {

template <typename Reply>
class ReplyCollector {
 public:
  // For the replies of `count` actors.
  explicit ReplyCollector(size_t count) : replies_(count), num_missing_(count) {}

  // REQUIRES: index < count.
  void Set(size_t index, Reply reply) {
    const absl::MutexLock lock(&mutex_);
    if (replies_[index].has_value()) return;
    replies_[index] = std::move(reply);
    --num_missing_;
  }

  bool IsComplete() {
    const absl::MutexLock lock(&mutex_);
    return num_missing_ == 0;
  }

  // Waits until all replies have arrived, at most for `timeout`. Returns the replies; those that
  // are missing are nullopt.
  std::vector<std::optional<Reply>> Wait(absl::Duration timeout) {
    const auto is_complete = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return num_missing_ == 0;
    };
    const absl::MutexLock lock(&mutex_);
    AwaitFor(absl::Condition(&is_complete), timeout, &mutex_);
    return replies_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::optional<Reply>> replies_ ABSL_GUARDED_BY(mutex_);
  size_t num_missing_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_REPLY_COLLECTOR_INTERNAL_H_
