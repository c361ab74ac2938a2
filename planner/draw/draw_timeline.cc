#include "planner/draw/draw_timeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "fmt/format.h"

#include "base/strings.h"
#include "base/text_colour.h"
#include "base/xml.h"

namespace penstock::planner {
namespace {

constexpr double kLeft = 74;
constexpr double kWidth = 1200;
constexpr double kTop = 58;
constexpr double kRow = 26;
constexpr double kMemoryRow = 18;
constexpr double kGap = 8;
constexpr double kCharWidth = 7;
constexpr double kTicks = 8;  // about

struct Style {
  std::string_view label;
  std::string_view even_chunk;  // colours
  std::string_view odd_chunk;
};
constexpr std::array<Style, kNumPolicyKinds> kStyles = {
    {{"F forward", "#4c78a8", "#8fb3d9"},
     {"B backward", "#f58518", "#f9b572"},
     {"W weight gradient", "#e4b43c", "#f2dc9f"}}};
constexpr std::string_view kMemoryColour = "#c9cdd4";

std::string_view ColourOf(const PhaseChoice& phase) {
  const Style& style = kStyles[static_cast<size_t>(phase.kind)];
  return phase.chunk % 2 == 0 ? style.even_chunk : style.odd_chunk;
}

// A round number of which about kTicks make the span.
double TickStep(double span) {
  const double power = std::pow(10, std::floor(std::log10(span / kTicks)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power * kTicks >= span) return factor * power;
  }
  return 10 * power;
}

class TimelineWriter {
 public:
  TimelineWriter(const Pipeline& pipeline, const Timeline& timeline)
      : pipeline_(pipeline),
        timeline_(timeline),
        span_(std::max(timeline.makespan_s, 1e-12)),
        peak_(timeline.peak_activations.empty()
                  ? 0
                  : *std::max_element(timeline.peak_activations.begin(),
                                      timeline.peak_activations.end())),
        group_height_(kRow + kMemoryRow + kGap),
        bottom_(kTop + group_height_ * static_cast<double>(timeline.groups.size())) {}

  std::string Write(std::string_view title) {
    Add("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        "<text x=\"{}\" y=\"18\" font-size=\"14\">{}</text>\n",
        kLeft + kWidth + 30, bottom_ + 26, kLeft, EscapeXml(title));
    AddLegend();
    AddAxis();
    for (size_t g = 0; g < timeline_.groups.size(); ++g) AddGroup(g);
    svg_ += "</svg>\n";
    return std::move(svg_);
  }

 private:
  template <typename... Values>
  void Add(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(svg_), format, std::forward<Values>(values)...);
  }

  double XOf(double seconds) const { return kLeft + seconds / span_ * kWidth; }

  void AddLegend() {
    double x = kLeft;
    const auto add = [&](std::string_view colour, std::string_view other, std::string_view label) {
      if (!colour.empty()) {
        Add("<rect x=\"{:.0f}\" y=\"28\" width=\"12\" height=\"12\" fill=\"{}\"/>", x, colour);
      }
      if (!other.empty()) {
        Add("<rect x=\"{:.0f}\" y=\"28\" width=\"12\" height=\"12\" fill=\"{}\"/>", x + 12, other);
        x += 12;
      }
      Add("<text x=\"{:.0f}\" y=\"38\">{}</text>\n", x + 16, label);
      x += 34 + kCharWidth * static_cast<double>(label.size());
    };
    const bool has_chunks = pipeline_.num_chunks() > 1;
    for (size_t k = 0; k < kStyles.size(); ++k) {
      const bool is_used = std::any_of(pipeline_.stages.begin(), pipeline_.stages.end(),
                                       [k](const VirtualStage& stage) { return stage.kinds[k]; });
      if (is_used)
        add(kStyles[k].even_chunk, has_chunks ? kStyles[k].odd_chunk : "", kStyles[k].label);
    }
    add(kMemoryColour, "", "activations kept");
    if (has_chunks) add("", "", "(light: odd chunks)");
  }

  void AddAxis() {
    const double step = TickStep(span_);
    for (int i = 0; i * step <= span_ * (1 + 1e-9); ++i) {
      Add("<line x1=\"{0:.1f}\" y1=\"{1:.0f}\" x2=\"{0:.1f}\" y2=\"{2:.0f}\" stroke=\"#dddddd\"/>"
          "<text x=\"{0:.1f}\" y=\"{3:.0f}\" text-anchor=\"middle\">{4:g}</text>\n",
          XOf(i * step), kTop - 4, bottom_, bottom_ + 14, i * step);
    }
  }

  void AddGroup(size_t g) {
    const double y = kTop + group_height_ * static_cast<double>(g);
    Add("<text x=\"6\" y=\"{:.0f}\">group {}</text>\n", y + kRow * 0.66, g);
    Add("<text x=\"6\" y=\"{:.0f}\" font-size=\"10\" fill=\"#666666\">peak {:.3g}</text>\n",
        y + kRow + kMemoryRow - 4, timeline_.peak_activations[g]);
    Add("<rect x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" fill=\"#f4f4f4\"/>\n", kLeft, y,
        kWidth, kRow);
    for (const PhaseRun& run : timeline_.groups[g]) AddPhase(run, y);
    AddMemory(g, y + kRow);
  }

  void AddPhase(const PhaseRun& run, double y) {
    const double x = XOf(run.begin_s);
    const double width = std::max(XOf(run.end_s) - x, 0.3);
    Add("<g><title>{} of stage {}: {:.6g} to {:.6g}</title><rect x=\"{:.2f}\" y=\"{:.1f}\" "
        "width=\"{:.2f}\" height=\"{}\" fill=\"{}\" stroke=\"white\" stroke-width=\"{}\"/>",
        ToString(run.phase), run.stage, run.begin_s, run.end_s, x, y, width, kRow,
        ColourOf(run.phase), width > 3 ? 0.6 : 0.0);
    const std::string number = StrCat(run.phase.microbatch);
    if (width > kCharWidth * static_cast<double>(number.size()) + 4) {
      Add("<text x=\"{:.2f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"{}\">{}</text>",
          x + width / 2, y + kRow * 0.66, TextColourOn(ColourOf(run.phase)), number);
    }
    svg_ += "</g>\n";
  }

  // A step at each phase that begins or ends an activation.
  void AddMemory(size_t g, double y) {
    if (peak_ <= 0) return;
    const double bottom = y + kMemoryRow;
    double held = 0;
    std::string path = fmt::format("M{:.2f} {:.2f}", XOf(0), bottom);
    const auto step = [&](double at, double change) {
      fmt::format_to(std::back_inserter(path), "H{:.2f}", XOf(at));
      held += change;
      fmt::format_to(std::back_inserter(path), "V{:.2f}", bottom - (kMemoryRow - 3) * held / peak_);
    };
    for (const PhaseRun& run : timeline_.groups[g]) {
      const VirtualStage& stage = pipeline_.stages[run.stage];
      if (run.phase.kind == PhaseKind::kForward) step(run.begin_s, stage.activation);
      if (run.phase.kind == stage.last_kind()) step(run.end_s, -stage.activation);
    }
    fmt::format_to(std::back_inserter(path), "H{:.2f}V{:.2f}Z", XOf(span_), bottom);
    Add("<path d=\"{}\" fill=\"{}\"/>\n", path, kMemoryColour);
  }

  const Pipeline& pipeline_;
  const Timeline& timeline_;
  const double span_;
  const double peak_;
  const double group_height_;
  const double bottom_;
  std::string svg_;
};

}  // namespace

std::string DrawTimeline(const Pipeline& pipeline, const Timeline& timeline,
                         std::string_view title) {
  return TimelineWriter(pipeline, timeline).Write(title);
}

}  // namespace penstock::planner
