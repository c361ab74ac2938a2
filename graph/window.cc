#include "graph/window.h"

#include <algorithm>

#include "base/strings.h"

namespace penstock::graph {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 48;
constexpr int64_t kMaxPosition = int64_t{1} << 60;

// Rounded down, also below zero.
int64_t FloorDiv(int64_t dividend, int64_t divisor) {
  const int64_t quotient = dividend / divisor;
  return dividend % divisor < 0 ? quotient - 1 : quotient;
}

}  // namespace

Range Window::Reads(const Range& results, int64_t operand_extent) const {
  if (results.size() <= 0) return {};
  const int64_t first = FloorDiv(results.begin * stride + low, divisor);
  const int64_t last = FloorDiv((results.end - 1) * stride + low + size - 1, divisor);
  const int64_t begin = std::clamp<int64_t>(first, 0, operand_extent);
  return {begin, std::clamp<int64_t>(last + 1, begin, operand_extent)};
}

absl::Status CheckWindow(const Window& window) {
  const bool is_in_range = window.extent >= 0 && window.extent <= kMaxElements &&
                           window.stride >= 1 && window.divisor >= 1 && window.size >= 1 &&
                           window.divisor <= kMaxElements && window.size <= kMaxElements &&
                           window.low >= -kMaxElements && window.low <= kMaxElements;
  if (is_in_range && window.stride <= kMaxPosition / std::max<int64_t>(window.extent, 1)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      StrCat(ToString(window), " is no window: stride, divisor and size must be at least 1, and ",
             "all positions within 2^60"));
}

std::string ToString(const Window& window) {
  std::string text = StrCat("window(of=", window.extent);
  const Window defaults;
  if (window.stride != defaults.stride) StrAppend(&text, ", stride=", window.stride);
  if (window.divisor != defaults.divisor) StrAppend(&text, ", divisor=", window.divisor);
  if (window.low != defaults.low) StrAppend(&text, ", low=", window.low);
  if (window.size != defaults.size) StrAppend(&text, ", size=", window.size);
  return text + ")";
}

}  // namespace penstock::graph
