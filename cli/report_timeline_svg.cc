#include "cli/report_timeline_svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/json.h"
#include "cli/report_html.h"
#include "fmt/format.h"

#include "base/counted.h"
#include "base/format.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

using planner::PhaseKind;

constexpr double kPathRow = 16;  // the critical path as a whole
constexpr double kTop = 8;
constexpr double kPhaseHeight = 20;
constexpr double kMarkHeight = 4;  // of the path, below the phases
constexpr double kKernelHeight = 10;
constexpr double kLinkHeight = 9;
constexpr double kGap = 12;
constexpr double kAxisHeight = 24;
constexpr double kUsualWidth = 1000;  // pixels, to decide what has room for text
constexpr double kCharWidth = 7;
constexpr int kNumTimeTicks = 10;

// Classes of report_style.css.
constexpr std::array<std::string_view, 6> kPhaseClasses = {"f", "b", "w", "pre", "upd", "comm"};
constexpr std::array<std::string_view, 6> kPhaseLegends = {
    "forward", "backward", "weight gradients", "before the step", "update", "communication"};
constexpr std::array<std::string_view, 4> kPathClasses = {"p0", "p1", "p2", "p3"};
constexpr std::array<std::string_view, 4> kPathNames = {"compute", "communication",
                                                        "waiting for cores", "idle"};

size_t IndexOf(PhaseKind kind) { return std::min<size_t>(static_cast<size_t>(kind), 5); }

struct LinkLane {
  ReportLane lane;
  std::string_view label;
};

class TimelineWriter {
 public:
  explicit TimelineWriter(const ReportTimeline& timeline) : timeline_(timeline) {
    for (const LinkLane lane :
         {LinkLane{ReportLane::kSend, "send"}, LinkLane{ReportLane::kReceive, "receive"},
          LinkLane{ReportLane::kCollective, "collective"}}) {
      const bool is_used =
          std::any_of(timeline.slices.begin(), timeline.slices.end(),
                      [&](const ReportSlice& slice) { return slice.lane == lane.lane; });
      if (is_used) links_.push_back(lane);
    }
    has_kernels_ =
        std::any_of(timeline.slices.begin(), timeline.slices.end(),
                    [](const ReportSlice& slice) { return slice.lane == ReportLane::kKernel; });
    row_height_ = kPhaseHeight + kMarkHeight + (has_kernels_ ? kKernelHeight : 0) +
                  kLinkHeight * static_cast<double>(links_.size()) + kGap;
    bottom_ = kTop + kPathRow + kGap + row_height_ * static_cast<double>(timeline.rows.size());
  }

  std::string Run() {
    AddLegend();
    out_ += "<div class=\"timeline\">\n";
    AddLabels();
    Add("<svg class=\"lanes\" width=\"100%\" height=\"{:.0f}\" data-span=\"{}\">\n",
        bottom_ + kAxisHeight, JsonNumber(timeline_.span_s));
    AddAxis();
    AddPath();
    for (const ReportSlice& slice : timeline_.slices) {
      if (slice.lane != ReportLane::kKernel) AddSlice(slice);
    }
    out_ += "</svg>\n</div>\n";
    AddKernels();
    AddNotes();
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void Add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  double RowTop(size_t row) const {
    return kTop + kPathRow + kGap + row_height_ * static_cast<double>(row);
  }
  double KernelTop(size_t row) const { return RowTop(row) + kPhaseHeight + kMarkHeight; }
  double LinkTop(size_t row, size_t link) const {
    return KernelTop(row) + (has_kernels_ ? kKernelHeight : 0) +
           kLinkHeight * static_cast<double>(link);
  }
  double Percent(double seconds) const { return 100 * seconds / timeline_.span_s; }

  void AddLegend() {
    std::array<bool, kPhaseClasses.size()> has_phase = {};
    for (const ReportSlice& slice : timeline_.slices) has_phase[IndexOf(slice.kind)] = true;
    if (!links_.empty()) has_phase[IndexOf(PhaseKind::kTransfer)] = true;
    out_ += "<p class=\"legend\">";
    for (size_t i = 0; i < has_phase.size(); ++i) {
      if (has_phase[i]) {
        Add("<span class=\"swatch {}\">{}</span> ", kPhaseClasses[i], kPhaseLegends[i]);
      }
    }
    out_ += "<span class=\"path-legend\">Critical path:</span> ";
    for (size_t i = 0; i < kPathClasses.size(); ++i) {
      const bool is_used = std::any_of(
          timeline_.path.begin(), timeline_.path.end(),
          [i](const ReportPathSlice& slice) { return static_cast<size_t>(slice.kind) == i; });
      if (is_used) Add("<span class=\"swatch {}\">{}</span> ", kPathClasses[i], kPathNames[i]);
    }
    out_ += "</p>\n";
  }

  void AddLabels() {
    Add("<svg class=\"labels\" width=\"104\" height=\"{:.0f}\">\n<text x=\"0\" y=\"{:.1f}\">"
        "critical path</text>\n",
        bottom_ + kAxisHeight, kTop + kPathRow - 4);
    for (size_t row = 0; row < timeline_.rows.size(); ++row) {
      const ReportRow& device = timeline_.rows[row];
      Add("<text x=\"0\" y=\"{:.1f}\">device {} <tspan class=\"dim\">s{}</tspan></text>",
          RowTop(row) + kPhaseHeight * 0.72, device.device, device.stage);
      if (has_kernels_) {
        Add("<text class=\"lane\" x=\"98\" y=\"{:.1f}\">kernels</text>",
            KernelTop(row) + kKernelHeight - 2);
      }
      for (size_t link = 0; link < links_.size(); ++link) {
        Add("<text class=\"lane\" x=\"98\" y=\"{:.1f}\">{}</text>",
            LinkTop(row, link) + kLinkHeight - 1, links_[link].label);
      }
      out_ += "\n";
    }
    Add("<text class=\"lane\" x=\"98\" y=\"{:.1f}\">ms</text>\n</svg>\n", bottom_ + 15);
  }

  void AddAxis() {
    for (size_t row = 0; row < timeline_.rows.size(); ++row) {
      Add("<rect class=\"track\" x=\"0\" width=\"100%\" y=\"{:.1f}\" height=\"{}\"/>\n",
          RowTop(row), kPhaseHeight);
    }
    Add("<g class=\"axis\" data-bottom=\"{:.0f}\">", bottom_);
    for (const double tick : Ticks(0, 1e3 * timeline_.span_s, kNumTimeTicks)) {
      const double x = Percent(1e-3 * tick);
      // The last one has no room for its text.
      Add("<line x1=\"{0:.3f}%\" x2=\"{0:.3f}%\" y1=\"0\" y2=\"{1:.0f}\"/>", x, bottom_);
      if (x < 98) {
        Add("<text x=\"{:.3f}%\" y=\"{:.0f}\"{}>{:g}</text>", x, bottom_ + 15,
            x < 1 ? " class=\"first\"" : "", tick);
      }
    }
    out_ += "</g>\n";
  }

  void AddPath() {
    for (const ReportPathSlice& slice : timeline_.path) {
      const auto kind = static_cast<size_t>(slice.kind);
      const std::string_view style = kPathClasses[kind];
      const double x = Percent(slice.begin_s);
      const double width = Percent(slice.end_s - slice.begin_s);
      const std::string title =
          StrCat(kPathNames[kind], slice.name.empty() ? "" : ": ", slice.name, ", device ",
                 slice.device, ", ", FormatSeconds(slice.end_s - slice.begin_s));
      Add("<rect class=\"t {}\" x=\"{:.4f}%\" width=\"{:.4f}%\" y=\"{}\" height=\"{}\"><title>{}"
          "</title></rect>",
          style, x, width, kTop, kPathRow, HtmlText(title));
      if (slice.row >= 0) {
        Add("<rect class=\"t {}\" x=\"{:.4f}%\" width=\"{:.4f}%\" y=\"{:.1f}\" height=\"{}\"/>",
            style, x, width, RowTop(static_cast<size_t>(slice.row)) + kPhaseHeight,
            kMarkHeight - 1);
      }
      out_ += "\n";
    }
  }

  void AddSlice(const ReportSlice& slice) {
    const bool is_phase = slice.lane == ReportLane::kPhase;
    double y = RowTop(slice.row);
    double height = kPhaseHeight;
    if (!is_phase) {
      const auto link = std::find_if(links_.begin(), links_.end(),
                                     [&](const LinkLane& lane) { return lane.lane == slice.lane; });
      y = LinkTop(slice.row, static_cast<size_t>(link - links_.begin()));
      height = kLinkHeight - 1;
    }
    const double x = Percent(slice.begin_s);
    const double width = Percent(slice.end_s - slice.begin_s);
    const std::string number = slice.microbatch >= 0 ? StrCat(slice.microbatch) : "";
    const std::string title = StrCat(timeline_.names[slice.name], number.empty() ? "" : " ", number,
                                     slice.is_other_step ? " of another step" : "", ", ",
                                     FormatSeconds(slice.end_s - slice.begin_s));
    Add("<rect class=\"t {}{}{}\" x=\"{:.4f}%\" width=\"{:.4f}%\" y=\"{:.1f}\" height=\"{}\">"
        "<title>{}</title></rect>",
        is_phase ? "ph " : "", kPhaseClasses[IndexOf(is_phase ? slice.kind : PhaseKind::kTransfer)],
        slice.is_other_step ? " other" : "", x, width, y, height, HtmlText(title));
    const bool has_room = width / 100 * kUsualWidth > kCharWidth * number.size() + 5;
    if (is_phase && !number.empty()) {
      // The script shows it where zooming makes room.
      Add("<text class=\"mb\" x=\"{:.4f}%\" y=\"{:.1f}\" data-width=\"{:.4f}\"{}>{}</text>",
          x + width / 2, y + kPhaseHeight * 0.7, width, has_room ? "" : " style=\"display:none\"",
          number);
    }
    out_ += "\n";
  }

  // Numbers in hundreds of nanoseconds; of each kernel its beginning since the one before it, its
  // duration, its name, its kind of phase and its micro-batch.
  void AddKernels() {
    if (!has_kernels_) return;
    const auto number = [](double seconds) { return std::llround(seconds * 1e7); };
    std::string json = "{\"names\":[";
    for (size_t i = 0; i < timeline_.names.size(); ++i) {
      StrAppend(&json, i > 0 ? "," : "", JsonString(timeline_.names[i]));
    }
    StrAppend(&json, "],\"height\":", kKernelHeight - 1, ",\"classes\":[");
    for (size_t i = 0; i < kPhaseClasses.size(); ++i) {
      StrAppend(&json, i > 0 ? "," : "", JsonString(kPhaseClasses[i]));
    }
    json += "],\"rows\":[";
    for (uint32_t row = 0; row < timeline_.rows.size(); ++row) {
      StrAppend(&json, row > 0 ? "," : "", "{\"y\":", KernelTop(row), ",\"kernels\":[");
      long long before = 0;
      bool is_first = true;
      for (const ReportSlice& slice : timeline_.slices) {
        if (slice.row != row || slice.lane != ReportLane::kKernel) continue;
        const long long begin = number(slice.begin_s);
        StrAppend(&json, is_first ? "" : ",", begin - before, ",", number(slice.end_s) - begin, ",",
                  slice.name, ",", IndexOf(slice.kind), ",", slice.microbatch);
        before = begin;
        is_first = false;
      }
      json += "]}";
    }
    StrAppend(&out_, "<script type=\"application/json\" id=\"kernels\">", ScriptJson(json + "]}"),
              "</script>\n");
  }

  void AddNotes() {
    std::vector<std::string> notes;
    if (timeline_.rows.size() < timeline_.num_devices) {
      notes.push_back(StrCat(timeline_.rows.size(), " of ", timeline_.num_devices,
                             " devices are drawn, the first ones of each stage"));
    }
    const auto note = [&](const ReportOmitted& omitted, std::string_view what) {
      if (omitted.count == 0) return;
      notes.push_back(StrCat(Counted(omitted.count, what), " of at most ",
                             FormatSeconds(omitted.longest_s), ", ", FormatSeconds(omitted.total_s),
                             " in all, left out"));
    };
    note(timeline_.omitted_phases, "phase");
    note(timeline_.omitted_kernels, "kernel");
    note(timeline_.omitted_communications, "communication");
    note(timeline_.omitted_path, "path segment");
    if (!notes.empty()) {
      StrAppend(&out_, "<p class=\"note\">", HtmlText(StrJoin(notes, "; ")), ".</p>\n");
    }
  }

  const ReportTimeline& timeline_;
  std::vector<LinkLane> links_;
  bool has_kernels_ = false;
  double row_height_ = 0;
  double bottom_ = 0;
  std::string out_;
};

}  // namespace

std::string TimelineHtml(const ReportTimeline& timeline) { return TimelineWriter(timeline).Run(); }

}  // namespace penstock::cli
