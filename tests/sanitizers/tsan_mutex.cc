// Makes absl::Mutex visible to ThreadSanitizer. Debian's libabsl_synchronization is not
// instrumented, so ThreadSanitizer would report a race for every access that a mutex orders. The
// linker redirects the calls of our code (--wrap, see base/CMakeLists.txt) to the functions below,
// which tell ThreadSanitizer what the mutex does, as Abseil itself does where it is instrumented.
//
// Linked into builds with ThreadSanitizer only. Functions that the project does not call are
// missing; add them here and in base/CMakeLists.txt when they are needed.

#include <sanitizer/tsan_interface.h>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

// The mangled names of Debian's Abseil, whose inline namespace is debian3.
#define REAL(name) __real__ZN4absl7debian3##name
#define WRAP(name) __wrap__ZN4absl7debian3##name

extern "C" {

void REAL(5Mutex4LockEv)(absl::Mutex* mutex);
void WRAP(5Mutex4LockEv)(absl::Mutex* mutex) {
  __tsan_mutex_pre_lock(mutex, 0);
  REAL(5Mutex4LockEv)(mutex);
  __tsan_mutex_post_lock(mutex, 0, 0);
}

void REAL(5Mutex6UnlockEv)(absl::Mutex* mutex);
void WRAP(5Mutex6UnlockEv)(absl::Mutex* mutex) {
  __tsan_mutex_pre_unlock(mutex, 0);
  REAL(5Mutex6UnlockEv)(mutex);
  __tsan_mutex_post_unlock(mutex, 0);
}

void REAL(5Mutex8LockWhenERKNS0_9ConditionE)(absl::Mutex* mutex, const absl::Condition& condition);
void WRAP(5Mutex8LockWhenERKNS0_9ConditionE)(absl::Mutex* mutex, const absl::Condition& condition) {
  __tsan_mutex_pre_lock(mutex, 0);
  REAL(5Mutex8LockWhenERKNS0_9ConditionE)(mutex, condition);
  __tsan_mutex_post_lock(mutex, 0, 0);
}

// While it waits, Await releases the mutex.
void REAL(5Mutex5AwaitERKNS0_9ConditionE)(absl::Mutex* mutex, const absl::Condition& condition);
void WRAP(5Mutex5AwaitERKNS0_9ConditionE)(absl::Mutex* mutex, const absl::Condition& condition) {
  __tsan_mutex_pre_unlock(mutex, 0);
  __tsan_mutex_post_unlock(mutex, 0);
  __tsan_mutex_pre_lock(mutex, 0);
  REAL(5Mutex5AwaitERKNS0_9ConditionE)(mutex, condition);
  __tsan_mutex_post_lock(mutex, 0, 0);
}

bool REAL(5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE)(
    absl::Mutex* mutex, const absl::Condition& condition, absl::Duration timeout);
bool WRAP(5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE)(
    absl::Mutex* mutex, const absl::Condition& condition, absl::Duration timeout) {
  __tsan_mutex_pre_unlock(mutex, 0);
  __tsan_mutex_post_unlock(mutex, 0);
  __tsan_mutex_pre_lock(mutex, 0);
  const bool is_true =
      REAL(5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE)(mutex, condition, timeout);
  __tsan_mutex_post_lock(mutex, 0, 0);
  return is_true;
}

void REAL(5MutexD1Ev)(absl::Mutex* mutex);
void WRAP(5MutexD1Ev)(absl::Mutex* mutex) {
  __tsan_mutex_destroy(mutex, 0);
  REAL(5MutexD1Ev)(mutex);
}

}  // extern "C"
