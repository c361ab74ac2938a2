// Waits for a condition on an absl::Mutex, with a bound that the steady clock measures. Timeouts of
// Abseil follow the clock of the system, which an operator or NTP may set: one that is set forward
// would end a wait of minutes at once.
//
//   const absl::MutexLock lock(&mutex_);
//   if (!AwaitFor(absl::Condition(&is_done_), absl::Seconds(10), &mutex_)) return Late();
//
// Thread rule: the caller holds the mutex, which is released while it waits.
// A system clock that is set back during a wait can prolong it by as much.

#ifndef PENSTOCK_BASE_AWAIT_H_
#define PENSTOCK_BASE_AWAIT_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace penstock {

// Whether the condition holds. `timeout` may be infinite.
bool AwaitFor(const absl::Condition& condition, absl::Duration timeout, absl::Mutex* mutex)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

}  // namespace penstock

#endif  // PENSTOCK_BASE_AWAIT_H_
