#include "cli/report_html.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "cli/json.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "base/strings.h"
#include "base/xml.h"

namespace penstock::cli {

std::string HtmlText(std::string_view text) {
  const bool is_ascii = std::all_of(text.begin(), text.end(),
                                    [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (is_ascii) return EscapeXml(text);
  return EscapeXml(nlohmann::json::parse(JsonString(text)).get<std::string>());
}

std::string ScriptJson(std::string_view json) {
  // These are in strings alone.
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    if (c == '<' || c == '>' || c == '&') {
      text += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      text.push_back(c);
    }
  }
  return text;
}

std::string FormatPercent(double fraction) {
  if (!std::isfinite(fraction)) return "-";
  const double percent = 100 * fraction;
  return fmt::format("{:.{}f} %", percent, std::abs(percent) < 9.95 ? 1 : 0);
}

std::string FormatRate(double per_second, std::string_view unit) {
  if (!std::isfinite(per_second)) return "-";
  constexpr std::string_view kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  size_t prefix = 0;
  while (per_second >= 999.5 && prefix + 1 < std::size(kPrefixes)) {
    per_second /= 1000;
    ++prefix;
  }
  const int decimals = per_second >= 99.95 ? 0 : per_second >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}{}", per_second, decimals, kPrefixes[prefix], unit);
}

std::vector<double> Ticks(double low, double high, int count) {
  if (!std::isfinite(low) || !std::isfinite(high) || !std::isfinite(high - low)) return {};
  const double span = high - low;
  // Too narrow for doubles between the ends.
  if (!(span > 1e-12 * std::max(std::abs(low), std::abs(high)))) return {low};
  const double raw = span / std::max(count, 1);
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= raw * (1 - 1e-9)) step = factor * power;
  }
  std::vector<double> ticks;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i) {
    ticks.push_back(i == 0 ? 0 : i * step);
  }
  return ticks;
}

}  // namespace penstock::cli
