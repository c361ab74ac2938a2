#include "cli/report_curves.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cli/json.h"
#include "cli/report_html.h"
#include "fmt/format.h"

#include "base/strings.h"

namespace penstock::cli {
namespace {

constexpr double kSize = 1000;  // of the drawing, which is stretched over the plot
constexpr int kNumValueTicks = 5;
constexpr int kNumStepTicks = 8;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void Add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  double span() const { return high - low; }
  // From 0 to 1; a range of one value is in the middle.
  double At(double value) const { return span() > 0 ? (value - low) / span() : 0.5; }
};

class CurvesWriter {
 public:
  explicit CurvesWriter(const ReportChart& chart) : chart_(chart) {
    for (const ReportCurve& curve : chart.curves) {
      std::vector<ReportPoint> points = Downsample(curve.points, kMaxCurvePoints);
      for (const ReportPoint& point : points) {
        steps_.Add(static_cast<double>(point.step));
        values_.Add(point.value);
      }
      const auto finite =
          std::count_if(curve.points.begin(), curve.points.end(),
                        [](const ReportPoint& point) { return std::isfinite(point.value); });
      not_finite_ += curve.points.size() - static_cast<size_t>(finite);
      left_out_ += static_cast<size_t>(finite) - points.size();
      drawn_.push_back(std::move(points));
    }
    if (std::isfinite(chart.line) && values_.span() > 0 &&
        std::abs(chart.line - values_.low) < 1.5 * values_.span() &&
        std::abs(chart.line - values_.high) < 1.5 * values_.span()) {
      has_line_ = true;
      values_.Add(chart.line);
    }
    // Room above and below.
    if (values_.span() > 0) {
      const double room = 0.04 * values_.span();
      values_.Add(values_.low >= 0 ? std::max(0.0, values_.low - room) : values_.low - room);
      values_.Add(values_.high + room);
    }
  }

  std::string Run() {
    out_ = StrCat("<figure class=\"chart\" id=\"", HtmlText(chart_.id), "\">\n<figcaption><b>",
                  HtmlText(chart_.title), "</b>",
                  chart_.unit.empty() ? "" : StrCat(" ", HtmlText(chart_.unit)));
    for (const ReportCurve& curve : chart_.curves) {
      if (curve.points.empty()) continue;
      StrAppend(&out_, " <span class=\"key ", HtmlText(curve.style), "\">", HtmlText(curve.name),
                "</span>");
    }
    if (has_line_) {
      StrAppend(&out_, " <span class=\"key line\">", HtmlText(chart_.line_name), "</span>");
    }
    out_ += "</figcaption>\n";
    if (!(values_.low <= values_.high)) {
      out_ += "<p class=\"empty\">There are no values to draw.</p>\n";
    } else {
      AddPlot();
    }
    AddNotes();
    return out_ + "</figure>\n";
  }

 private:
  double X(int64_t step) const { return kSize * steps_.At(static_cast<double>(step)); }
  double Y(double value) const { return kSize * (1 - values_.At(value)); }

  void AddPlot() {
    out_ +=
        "<div class=\"plot\"><svg viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" "
        "role=\"img\" aria-label=\"";
    StrAppend(&out_, HtmlText(chart_.title), "\">\n");
    const std::vector<double> value_ticks = Ticks(values_.low, values_.high, kNumValueTicks);
    for (const double tick : value_ticks) {
      out_ += fmt::format("<path class=\"grid\" d=\"M0 {0:.1f}H1000\"/>", Y(tick));
    }
    if (has_line_) {
      out_ += fmt::format("<path class=\"reference\" d=\"M0 {:.1f}H1000\"/>", Y(chart_.line));
    }
    out_ += "\n";
    for (size_t c = 0; c < drawn_.size(); ++c) AddCurve(chart_.curves[c], drawn_[c]);
    out_ += "</svg>\n";
    for (const double tick : value_ticks) {
      out_ +=
          fmt::format("<span class=\"y\" style=\"top:{:.2f}%\">{:g}</span>", Y(tick) / 10, tick);
    }
    for (const double tick : Ticks(steps_.low, steps_.high, kNumStepTicks)) {
      if (tick != std::floor(tick)) continue;
      out_ += fmt::format("<span class=\"x\" style=\"left:{:.2f}%\">{:.0f}</span>",
                          100 * steps_.At(tick), tick);
    }
    out_ += "\n<i class=\"cursor\"></i><div class=\"tip\"></div></div>\n";
    out_ += "<span class=\"xname\">step</span>\n";
    AddPoints();
  }

  void AddCurve(const ReportCurve& curve, const std::vector<ReportPoint>& points) {
    if (points.empty()) return;
    std::string line;
    std::string dots;
    for (const ReportPoint& point : points) {
      const double x = X(point.step);
      const double y = Y(point.value);
      line += fmt::format("{}{:.1f} {:.1f}", line.empty() ? "M" : "L", x, y);
      dots += fmt::format("M{:.1f} {:.1f}h0", x, y);
    }
    StrAppend(&out_, "<path class=\"curve ", HtmlText(curve.style), "\" d=\"", line, "\"/>");
    if (curve.has_dots || points.size() == 1) {
      StrAppend(&out_, "<path class=\"dots ", HtmlText(curve.style), "\" d=\"", dots, "\"/>");
    }
    out_ += "\n";
  }

  void AddPoints() {
    std::string json = StrCat("{\"steps\":[", JsonNumber(steps_.low), ",", JsonNumber(steps_.high),
                              "],\"unit\":", JsonString(chart_.unit), ",\"curves\":[");
    for (size_t c = 0; c < drawn_.size(); ++c) {
      StrAppend(&json, c > 0 ? "," : "", "{\"name\":", JsonString(chart_.curves[c].name),
                ",\"points\":[");
      for (size_t i = 0; i < drawn_[c].size(); ++i) {
        StrAppend(&json, i > 0 ? "," : "", "[", drawn_[c][i].step, ",",
                  JsonNumber(drawn_[c][i].value), "]");
      }
      json += "]}";
    }
    StrAppend(&out_, "<script type=\"application/json\">", ScriptJson(json + "]}"), "</script>\n");
  }

  void AddNotes() {
    if (left_out_ > 0) {
      StrAppend(&out_, "<p class=\"note\">Of ", kMaxCurvePoints / 2,
                " ranges of steps, the least and the greatest value are drawn; ", left_out_,
                " values between them are left out.</p>\n");
    }
    if (not_finite_ > 0) {
      StrAppend(&out_, "<p class=\"note\">", not_finite_,
                " values are not finite and not drawn.</p>\n");
    }
  }

  const ReportChart& chart_;
  std::vector<std::vector<ReportPoint>> drawn_;
  Range steps_;
  Range values_;
  bool has_line_ = false;
  size_t not_finite_ = 0;
  size_t left_out_ = 0;
  std::string out_;
};

}  // namespace

std::vector<ReportPoint> Downsample(const std::vector<ReportPoint>& points, size_t most) {
  std::vector<ReportPoint> finite;
  for (const ReportPoint& point : points) {
    if (std::isfinite(point.value)) finite.push_back(point);
  }
  if (finite.size() <= most) return finite;
  const auto is_less = [](const ReportPoint& a, const ReportPoint& b) { return a.value < b.value; };
  const size_t num_ranges = std::max<size_t>(most / 2, 1);
  std::vector<ReportPoint> drawn = {finite.front()};
  const auto add = [&](const ReportPoint& point) {
    if (point.step > drawn.back().step) drawn.push_back(point);
  };
  for (size_t r = 0; r < num_ranges; ++r) {
    const auto begin = finite.begin() + static_cast<std::ptrdiff_t>(r * finite.size() / num_ranges);
    const auto end =
        finite.begin() + static_cast<std::ptrdiff_t>((r + 1) * finite.size() / num_ranges);
    const auto [least, greatest] = std::minmax_element(begin, end, is_less);
    add(*std::min(least, greatest));
    add(*std::max(least, greatest));
  }
  add(finite.back());
  return drawn;
}

std::string CurvesHtml(const ReportChart& chart) { return CurvesWriter(chart).Run(); }

}  // namespace penstock::cli
