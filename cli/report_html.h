// HTML that is well-formed XML too, from text and numbers that come from anywhere.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_REPORT_HTML_H_
#define PENSTOCK_CLI_REPORT_HTML_H_

#include <string>
#include <string_view>
#include <vector>

namespace penstock::cli {

// For content and quoted attributes: markup is escaped, control characters are left out, bytes that
// are not UTF-8 become U+FFFD.
std::string HtmlText(std::string_view text);

// JSON for the inside of a <script> element: nothing in it ends the element or looks like markup.
std::string ScriptJson(std::string_view json);

// "12 %", one decimal below 10; "-" where the fraction is not finite.
std::string FormatPercent(double fraction);

// "12.3 GFLOP/s" for (12.3e9, "FLOP/s"), three digits; "-" where the rate is not finite.
std::string FormatRate(double per_second, std::string_view unit);

// 1, 2 or 5 times a power of ten apart, from `low` to `high`, about `count` of them. One where the
// range is empty; none where it is not finite.
std::vector<double> Ticks(double low, double high, int count);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_REPORT_HTML_H_
