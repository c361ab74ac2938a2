// The queue between the event loop of a node, which never blocks, and its work thread.
//
// Thread rule: thread-safe; only one thread calls Run.

#ifndef PENSTOCK_ACTORS_CLUSTER_WORK_QUEUE_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_WORK_QUEUE_INTERNAL_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace penstock::actors {

class WorkQueue {
 public:
  // More calls than a coordinator has in flight; each may hold a chunk of memory.
  static constexpr size_t kMaxWork = 64;
  // More of these: what they would end stays if they find no room.
  static constexpr size_t kMaxClosing = 64;

  enum class Kind { kCall, kClosing };

  // Returns whether the queue had room.
  bool Push(std::function<void()> work, Kind kind = Kind::kCall) {
    const size_t limit = kMaxWork + (kind == Kind::kClosing ? kMaxClosing : 0);
    const absl::MutexLock lock(&mutex_);
    if (work_.size() >= limit) return false;
    work_.push_back(std::move(work));
    return true;
  }

  // Makes Run return `status`. Only the first call has an effect.
  void End(const absl::Status& status) {
    const absl::MutexLock lock(&mutex_);
    if (!end_.has_value()) end_ = status;
  }

  bool has_ended() {
    const absl::MutexLock lock(&mutex_);
    return end_.has_value();
  }

  void Clear() {
    const absl::MutexLock lock(&mutex_);
    work_.clear();
  }

  // Runs the work in order, until End.
  absl::Status Run() {
    const auto is_ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return end_.has_value() || !work_.empty();
    };
    while (true) {
      std::function<void()> work;
      {
        const absl::MutexLock lock(&mutex_, absl::Condition(&is_ready));
        if (end_.has_value()) return *end_;
        work = std::move(work_.front());
        work_.pop_front();
      }
      work();
    }
  }

 private:
  absl::Mutex mutex_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_WORK_QUEUE_INTERNAL_H_
