// The unit in which processors exchange memory: what threads write independently of each other lies
// in lines of its own, or each write takes the other's line away.

#ifndef PENSTOCK_BASE_CACHE_LINE_H_
#define PENSTOCK_BASE_CACHE_LINE_H_

#include <cstddef>

namespace penstock {

// In bytes, of the processors that the library is built for.
inline constexpr size_t kCacheLine = 64;

}  // namespace penstock

#endif  // PENSTOCK_BASE_CACHE_LINE_H_
