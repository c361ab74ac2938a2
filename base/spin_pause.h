// Tells the processor that a loop waits for another thread, which may share the core with it.

#ifndef PENSTOCK_BASE_SPIN_PAUSE_H_
#define PENSTOCK_BASE_SPIN_PAUSE_H_

namespace penstock {

inline void SpinPause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace penstock

#endif  // PENSTOCK_BASE_SPIN_PAUSE_H_
