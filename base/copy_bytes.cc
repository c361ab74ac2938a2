#include "base/copy_bytes.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace penstock {
namespace {

constexpr size_t kPieceBytes = 2048;  // glibc copies less than this without `rep movsb`
constexpr uintptr_t kPageBytes = 4096;
constexpr uintptr_t kLineBytes = 64;

}  // namespace

void CopyBytes(void* to, const void* from, size_t num_bytes) {
  if (num_bytes == 0 || to == from) return;
  const uintptr_t distance =
      (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % kPageBytes;
  if (num_bytes < kPieceBytes || distance == 0 || distance >= kLineBytes) {
    std::memcpy(to, from, num_bytes);
    return;
  }
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  while (num_bytes > 0) {
    const size_t piece = std::min(num_bytes, kPieceBytes - 1);
    std::memcpy(target, source, piece);
    target += piece;
    source += piece;
    num_bytes -= piece;
  }
}

}  // namespace penstock
