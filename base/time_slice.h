// How the system shares a core between threads.
//
// Thread rule: acts on the calling thread.

#ifndef PENSTOCK_BASE_TIME_SLICE_H_
#define PENSTOCK_BASE_TIME_SLICE_H_

namespace penstock {

// Asks for short time slices: when the calling thread wakes on a core where another thread
// computes, it runs within microseconds instead of after the other's slice (milliseconds). For
// threads that sleep most of the time. Needs Linux 6.12 and no privilege; elsewhere it has no
// effect. Returns whether the system accepted it.
bool RequestShortSlices();

}  // namespace penstock

#endif  // PENSTOCK_BASE_TIME_SLICE_H_
