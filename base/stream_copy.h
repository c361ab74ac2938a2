// Copies of more than caches hold: what is written goes past them to memory, so that it is not read
// first and pushes nothing out that is still wanted. Who reads the copy at once, and could have had
// it from a cache, is better served by memcpy.
//
// Thread rule: a pure function; the copy is complete for whoever is told of it by this thread.

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
