#include "base/time_slice.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace penstock {
namespace {

constexpr uint64_t kSliceNs = 100'000;

// struct sched_attr of sched_setattr(2), which the C library does not declare.
struct SchedulingAttributes {
  uint32_t size = sizeof(SchedulingAttributes);
  uint32_t policy = 0;  // SCHED_OTHER
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = 0;  // of SCHED_OTHER: the slice
  uint64_t deadline_ns = 0;
  uint64_t period_ns = 0;
};

}  // namespace

bool RequestShortSlices() {
  SchedulingAttributes attributes;
  attributes.runtime_ns = kSliceNs;
#ifdef SYS_sched_getattr
  SchedulingAttributes current;
  if (syscall(SYS_sched_getattr, 0, &current, sizeof(current), 0) == 0) {
    if (current.policy != attributes.policy) return false;  // the user chose another
    attributes.nice = current.nice;
  }
  return syscall(SYS_sched_setattr, 0, &attributes, 0) == 0;
#else
  return false;
#endif
}

}  // namespace penstock
