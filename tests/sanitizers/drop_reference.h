// Shows ThreadSanitizer what the reference count of an object orders whose library is not
// instrumented: what was done before a reference was dropped happens before the object is
// destroyed.

#ifndef PENSTOCK_TESTS_SANITIZERS_DROP_REFERENCE_H_
#define PENSTOCK_TESTS_SANITIZERS_DROP_REFERENCE_H_

#include <sanitizer/tsan_interface.h>
#include <sched.h>

#include <atomic>
#include <utility>

namespace penstock::testing {

// ThreadSanitizer does not see this lock, so it hides no race.
class UnseenLock {
 public:
  __attribute__((no_sanitize("thread"), noinline)) void Lock() {
    while (__atomic_exchange_n(&is_locked_, true, __ATOMIC_ACQUIRE)) sched_yield();
  }
  __attribute__((no_sanitize("thread"), noinline)) void Unlock() {
    __atomic_store_n(&is_locked_, false, __ATOMIC_RELEASE);
  }

 private:
  bool is_locked_ = false;
};

// ThreadSanitizer does not see the read either: a library that it does not see may have handed the
// object to this thread.
template <typename Count>
__attribute__((no_sanitize("thread"), noinline)) Count UnseenLoad(const std::atomic<Count>& count) {
  static_assert(sizeof(count) == sizeof(Count));
  return __atomic_load_n(reinterpret_cast<const Count*>(&count), __ATOMIC_RELAXED);
}

// Calls `drop`, which drops one reference to the object at `address` and destroys it if that was
// the last one. Whether it is has to be known before: so references are dropped one at a time, but
// the last one outside the lock, because a destructor may drop others or wait.
template <typename Count, typename Drop>
void DropReference(const void* address, const std::atomic<Count>& count, Drop drop) {
  static UnseenLock lock;
  void* object = const_cast<void*>(address);
  lock.Lock();
  const bool is_last = UnseenLoad(count) == 1;
  __tsan_release(object);
  if (is_last) {
    __tsan_acquire(object);
    lock.Unlock();
    drop();
  } else {
    drop();
    lock.Unlock();
  }
}

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SANITIZERS_DROP_REFERENCE_H_
