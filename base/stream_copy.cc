#include "base/stream_copy.h"

#include <cstdint>
#include <cstring>

#include "base/copy_bytes.h"

// Sanitizers do not see stores that go past the caches.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PENSTOCK_HAS_STREAM_STORES 1
#include <emmintrin.h>
#endif

namespace penstock {

void StreamCopy(void* to, const void* from, size_t num_bytes) {
#ifdef PENSTOCK_HAS_STREAM_STORES
  constexpr size_t kLine = 64;
  constexpr size_t kAhead = 1024;
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  const size_t before = (kLine - reinterpret_cast<uintptr_t>(target) % kLine) % kLine;
  if (num_bytes >= before + kLine) {
    std::memcpy(target, source, before);
    size_t at = before;
    for (; at + kLine <= num_bytes; at += kLine) {
      _mm_prefetch(source + at + kAhead, _MM_HINT_T0);
      const auto* line = reinterpret_cast<const __m128i*>(source + at);
      auto* place = reinterpret_cast<__m128i*>(target + at);
      const __m128i a = _mm_loadu_si128(line);
      const __m128i b = _mm_loadu_si128(line + 1);
      const __m128i c = _mm_loadu_si128(line + 2);
      const __m128i d = _mm_loadu_si128(line + 3);
      _mm_stream_si128(place, a);
      _mm_stream_si128(place + 1, b);
      _mm_stream_si128(place + 2, c);
      _mm_stream_si128(place + 3, d);
    }
    _mm_sfence();
    std::memcpy(target + at, source + at, num_bytes - at);
    return;
  }
#endif
  CopyBytes(to, from, num_bytes);
}

}  // namespace penstock
