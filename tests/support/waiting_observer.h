// Waits for what an engine with real threads tells.
//
// Thread rule: thread-safe.

#ifndef PENSTOCK_TESTS_SUPPORT_WAITING_OBSERVER_H_
#define PENSTOCK_TESTS_SUPPORT_WAITING_OBSERVER_H_

#include <chrono>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "actors/session/engine.h"

namespace penstock::testing {

class WaitingObserver final : public actors::EngineObserver {
 public:
  static constexpr std::chrono::seconds kPatience{60};

  void OnStepDone(const actors::DeviceStepReport&) override {
    const absl::MutexLock lock(&mutex_);
    ++num_done_;
  }
  void OnError(uint32_t, int64_t, const absl::Status& status) override { OnFailure(status); }
  void OnFailure(const absl::Status& status) override {
    const absl::MutexLock lock(&mutex_);
    if (failure_.ok()) failure_ = status;
  }

  bool AwaitDone(int count) {
    const auto is_over = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return num_done_ >= count || !failure_.ok();
    };
    const absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&is_over), absl::FromChrono(kPatience));
  }
  absl::Status AwaitFailure() {
    const auto has_failed = [this]()
                                ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !failure_.ok(); };
    const absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&has_failed), absl::FromChrono(kPatience));
    return failure_;
  }
  absl::Status failure() {
    const absl::MutexLock lock(&mutex_);
    return failure_;
  }

 private:
  absl::Mutex mutex_;
  int num_done_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_WAITING_OBSERVER_H_
