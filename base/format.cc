#include "base/format.h"

#include <array>
#include <string_view>

#include "fmt/format.h"

namespace penstock {

std::string FormatBytes(uint64_t num_bytes) {
  constexpr std::array<std::string_view, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (num_bytes < 1024) return fmt::format("{} B", num_bytes);
  double amount = static_cast<double>(num_bytes) / 1024;
  size_t unit = 0;
  while (amount >= 1023.95 && unit + 1 < kUnits.size()) {
    amount /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", amount, kUnits[unit]);
}

std::string FormatSeconds(double seconds) {
  if (seconds >= 1) return fmt::format("{:#.3g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:#.3g} ms", seconds * 1e3);
  return fmt::format("{:#.3g} us", seconds * 1e6);
}

}  // namespace penstock
