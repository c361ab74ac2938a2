#include "base/format.h"

#include <array>
#include <string_view>
#include <utility>

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
  // Limits that rounding respects: 0.9999 ms is 1.00 ms, not 1000 us.
  const auto [amount, unit] = seconds >= 0.9995      ? std::pair(seconds, "s")
                              : seconds >= 0.9995e-3 ? std::pair(seconds * 1e3, "ms")
                                                     : std::pair(seconds * 1e6, "us");
  const int num_decimals = amount >= 99.95 ? 0 : amount >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", amount, num_decimals, unit);
}

}  // namespace penstock
