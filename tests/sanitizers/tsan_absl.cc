// Makes absl::Mutex, absl::Notification and the reference count of absl::Status visible to
// ThreadSanitizer. Debian's Abseil is not instrumented, so ThreadSanitizer would report a race for
// every access that one of them orders, and for the deletion of a status that another thread has
// read. The functions below tell it what is ordered, as Abseil itself does where it is
// instrumented, and call the library's (next_function.h).
//
// Linked into builds with ThreadSanitizer only. Functions that the project does not call are
// missing; add them when they are needed.

#include <sanitizer/tsan_interface.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

#include "tests/sanitizers/drop_reference.h"
#include "tests/sanitizers/next_function.h"

namespace absl {
ABSL_NAMESPACE_BEGIN
namespace {

using penstock::testing::DropReference;
using penstock::testing::NextFunction;

// Waiting releases the mutex.
void BeginWait(Mutex* mutex) {
  __tsan_mutex_pre_unlock(mutex, 0);
  __tsan_mutex_post_unlock(mutex, 0);
  __tsan_mutex_pre_lock(mutex, 0);
}

void EndWait(Mutex* mutex) { __tsan_mutex_post_lock(mutex, 0, 0); }

}  // namespace

void Mutex::Lock() {
  static const auto next = NextFunction<void (*)(Mutex*)>("_ZN4absl7debian35Mutex4LockEv");
  __tsan_mutex_pre_lock(this, 0);
  next(this);
  __tsan_mutex_post_lock(this, 0, 0);
}

void Mutex::Unlock() {
  static const auto next = NextFunction<void (*)(Mutex*)>("_ZN4absl7debian35Mutex6UnlockEv");
  __tsan_mutex_pre_unlock(this, 0);
  next(this);
  __tsan_mutex_post_unlock(this, 0);
}

void Mutex::LockWhen(const Condition& condition) {
  static const auto next = NextFunction<void (*)(Mutex*, const Condition&)>(
      "_ZN4absl7debian35Mutex8LockWhenERKNS0_9ConditionE");
  __tsan_mutex_pre_lock(this, 0);
  next(this, condition);
  __tsan_mutex_post_lock(this, 0, 0);
}

// LockWhenWithTimeout and Notification call it too.
bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  static const auto next = NextFunction<bool (*)(Mutex*, const Condition&, Time)>(
      "_ZN4absl7debian35Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  __tsan_mutex_pre_lock(this, 0);
  const bool is_true = next(this, condition, deadline);
  __tsan_mutex_post_lock(this, 0, 0);
  return is_true;
}

void Mutex::Await(const Condition& condition) {
  static const auto next = NextFunction<void (*)(Mutex*, const Condition&)>(
      "_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE");
  BeginWait(this);
  next(this, condition);
  EndWait(this);
}

// AwaitWithTimeout calls it too.
bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  static const auto next = NextFunction<bool (*)(Mutex*, const Condition&, Time)>(
      "_ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  BeginWait(this);
  const bool is_true = next(this, condition, deadline);
  EndWait(this);
  return is_true;
}

Mutex::~Mutex() {
  static const auto next = NextFunction<void (*)(Mutex*)>("_ZN4absl7debian35MutexD1Ev");
  __tsan_mutex_destroy(this, 0);
  next(this);
}

// Who waits after the notification locks no mutex.
void Notification::Notify() {
  static const auto next =
      NextFunction<void (*)(Notification*)>("_ZN4absl7debian312Notification6NotifyEv");
  __tsan_release(this);
  next(this);
}

void Notification::WaitForNotification() const {
  static const auto next = NextFunction<void (*)(const Notification*)>(
      "_ZNK4absl7debian312Notification19WaitForNotificationEv");
  next(this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  static const auto next = NextFunction<bool (*)(const Notification*, Duration)>(
      "_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE");
  const bool is_notified = next(this, timeout);
  if (is_notified) __tsan_acquire(const_cast<Notification*>(this));
  return is_notified;
}

// Copies of a status share one object; who drops the last reference deletes it.
void Status::UnrefNonInlined(uintptr_t rep) {
  static const auto next =
      NextFunction<void (*)(uintptr_t)>("_ZN4absl7debian36Status15UnrefNonInlinedEm");
  const status_internal::StatusRep* object = RepToPointer(rep);
  DropReference(object, object->ref, [rep] { next(rep); });
}

ABSL_NAMESPACE_END
}  // namespace absl
