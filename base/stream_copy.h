// Copies data larger than the caches with non-temporal stores: the target is not read first, and
// what the caches hold stays there. A copy that is read at once and fits a cache is better made by
// memcpy.
//
// Thread rule: a pure function; when it returns, the copy is visible to any thread that
// synchronises with this one.

#ifndef PENSTOCK_BASE_STREAM_COPY_H_
#define PENSTOCK_BASE_STREAM_COPY_H_

#include <cstddef>

namespace penstock {

// From here on data are taken to be more than caches hold.
inline constexpr size_t kStreamBytes = size_t{32} << 20;

// REQUIRES: the ranges do not overlap.
void StreamCopy(void* to, const void* from, size_t num_bytes);

}  // namespace penstock

#endif  // PENSTOCK_BASE_STREAM_COPY_H_
