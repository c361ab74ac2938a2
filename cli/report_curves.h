// Charts of values over steps, for a page (report_page.h).
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_REPORT_CURVES_H_
#define PENSTOCK_CLI_REPORT_CURVES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "cli/report.h"

namespace penstock::cli {

struct ReportCurve {
  std::string name;
  std::string style;  // a class of report_style.css
  std::vector<ReportPoint> points;
  bool has_dots = false;
};

struct ReportChart {
  std::string id;
  std::string title;
  std::string unit;  // of the values; empty: none
  std::vector<ReportCurve> curves;
  double line = kNoNumber;  // across the chart, where it is within 1.5 times the curves' range
  std::string line_name;
};

// Of longer curves, the least and the greatest value of each of so many ranges are drawn.
inline constexpr size_t kMaxCurvePoints = 800;

// A <figure> with axes that fits any width, and its points as JSON for values under the pointer. A
// note tells of values that are not drawn.
std::string CurvesHtml(const ReportChart& chart);

// At most about `most` points, the first, the last and all extremes of ranges among them; without
// values that are not finite.
std::vector<ReportPoint> Downsample(const std::vector<ReportPoint>& points, size_t most);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_REPORT_CURVES_H_
