// memcpy without the case that AMD's Zen 3 and Zen 4 take 25 times as long for.
//
// From a few KiB on, glibc copies with `rep movsb`. Where the target lies less than 64 bytes behind
// the source, multiples of a page apart, those processors then move 1.5 to 2 GB/s instead of 40
// (glibc bug 30994). Such copies are made in pieces that are too short for `rep movsb`.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_BASE_COPY_BYTES_H_
#define PENSTOCK_BASE_COPY_BYTES_H_

#include <cstddef>

namespace penstock {

// REQUIRES: the ranges do not overlap, or are the same.
void CopyBytes(void* to, const void* from, size_t num_bytes);

}  // namespace penstock

#endif  // PENSTOCK_BASE_COPY_BYTES_H_
