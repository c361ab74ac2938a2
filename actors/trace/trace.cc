#include "actors/trace/trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "actors/engine/step_name.h"
#include "actors/trace/communication_times.h"
#include "base/strings.h"
#include "base/text_colour.h"
#include "base/xml.h"

namespace penstock::actors {
namespace {

using planner::ActorKind;
using planner::kNone;
using planner::Lane;
using planner::PhaseKind;

bool IsInPlan(const planner::Plan& plan, const TraceEvent& event) {
  if (event.device >= plan.devices.size()) return false;
  const planner::DevicePlan& device = plan.devices[event.device];
  return event.phase < device.phases.size() &&
         (event.actor == kNone || event.actor < device.actors.size());
}

int64_t FirstBegin(absl::Span<const TraceEvent> events) {
  int64_t first = INT64_MAX;
  for (const TraceEvent& event : events) first = std::min(first, event.begin_ns);
  return events.empty() ? 0 : first;
}

// --- JSON ----------------------------------------------------------------------------------------

struct DeviceTrack {
  int number = 0;
  const char* name = nullptr;
};

constexpr int kNumTracks = 8;  // more than any number of TrackOf

DeviceTrack TrackOf(const planner::DevicePlan& device, const TraceEvent& event) {
  if (event.actor == kNone) {
    switch (device.phases[event.phase].lane) {
      case Lane::kCompute:
        return {0, "compute phases"};
      case Lane::kPerStep:
        return {1, "once-a-step phases"};
      case Lane::kFloating:
        return {2, "floating phases"};
    }
  }
  switch (device.actors[event.actor].kind) {
    case ActorKind::kCollective:
      return {4, "collectives"};
    case ActorKind::kSend:
      return {5, "sends"};
    case ActorKind::kRecv:
      return {6, "receives"};
    case ActorKind::kCopy:
      return {7, "copies to and from the host"};
    default:
      return {3, "kernels"};
  }
}

nlohmann::json Metadata(const char* what, uint32_t device, int track, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", device}, {"tid", track}, {"args", {{"name", name}}}};
}

// --- SVG -----------------------------------------------------------------------------------------

constexpr double kLeft = 90;
constexpr double kWidth = 1100;
constexpr double kTop = 46;
constexpr double kRow = 26;     // of a device's lanes
constexpr double kLinkRow = 9;  // of its sends, receives or collectives
constexpr double kGap = 10;
constexpr double kCharWidth = 7;  // of a micro-batch number

struct Style {
  const char* colour;
  const char* label;
};

constexpr std::array<Style, 6> kStyles = {{{"#4c78a8", "F forward"},
                                           {"#f58518", "B backward"},
                                           {"#e4b43c", "W weight gradient"},
                                           {"#9d9da1", "before the step"},
                                           {"#54a24b", "update"},
                                           {"#b279a2", "communication"}}};

const Style& StyleOf(PhaseKind kind) {
  return kStyles[std::min<size_t>(static_cast<size_t>(kind), 5)];
}

// The rows of communication below a device's lanes: the kinds that the plan has.
struct LinkRow {
  ActorKind kind;
  const char* label;
};

std::vector<LinkRow> LinkRowsOf(const planner::Plan& plan) {
  std::vector<LinkRow> rows;
  for (const LinkRow row : {LinkRow{ActorKind::kSend, "send"}, LinkRow{ActorKind::kRecv, "receive"},
                            LinkRow{ActorKind::kCollective, "collective"}}) {
    const bool is_used =
        std::any_of(plan.devices.begin(), plan.devices.end(), [&](const auto& device) {
          return std::any_of(device.actors.begin(), device.actors.end(),
                             [&](const auto& actor) { return actor.kind == row.kind; });
        });
    if (is_used) rows.push_back(row);
  }
  return rows;
}

// 1, 2 or 5 times a power of ten, so that about ten ticks cover `span`.
double TickStep(double span) {
  const double raw = span / 10;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw) return factor * power;
  }
  return 10 * power;
}

}  // namespace

void WriteTraceJson(const planner::Plan& plan, absl::Span<const TraceEvent> events,
                    std::ostream& out) {
  const int64_t first = FirstBegin(events);
  const std::vector<TransferTime> transfers = TransferTimes(plan, events);
  nlohmann::json list = nlohmann::json::array();
  std::vector<std::array<bool, kNumTracks>> named(plan.devices.size());
  for (size_t i = 0; i < events.size(); ++i) {
    const TraceEvent& event = events[i];
    if (!IsInPlan(plan, event)) continue;
    const planner::DevicePlan& device = plan.devices[event.device];
    const planner::PhasePlan& phase = device.phases[event.phase];
    const DeviceTrack track = TrackOf(device, event);
    if (!named[event.device][track.number]) {
      named[event.device][track.number] = true;
      list.push_back(Metadata("process_name", event.device, 0,
                              StrCat("device ", event.device, ", stage ", device.stage)));
      list.push_back(Metadata("thread_name", event.device, track.number, track.name));
    }
    nlohmann::json args = {{"step", StepNumber(event.step)}, {"phase", phase.name}};
    if (phase.per_microbatch) args["microbatch"] = event.microbatch;
    if (IsCommunication(plan, event)) {
      args["wait_ms"] =
          static_cast<double>(event.end_ns - event.begin_ns - transfers[i].moving_ns) * 1e-6;
    }
    const std::string& name = event.actor == kNone ? phase.name : device.actors[event.actor].name;
    list.push_back({{"ph", "X"},
                    {"name", name},
                    {"cat", event.actor == kNone ? "phase" : "actor"},
                    {"pid", event.device},
                    {"tid", track.number},
                    {"ts", static_cast<double>(event.begin_ns - first) * 1e-3},
                    {"dur", static_cast<double>(event.end_ns - event.begin_ns) * 1e-3},
                    {"args", args}});
  }
  out << nlohmann::json{{"displayTimeUnit", "ms"}, {"traceEvents", list}}.dump(
             -1, ' ', false, nlohmann::json::error_handler_t::replace)
      << "\n";
}

void WriteTimelineSvg(const planner::Plan& plan, absl::Span<const TraceEvent> events,
                      const StepWindow& window, std::ostream& out) {
  const std::vector<TransferTime> transfers = TransferTimes(plan, events);
  struct Drawn {
    TraceEvent event;
    int64_t begin_ns = 0;  // clipped to the window
    int64_t end_ns = 0;
  };
  std::vector<Drawn> drawn;
  for (size_t i = 0; i < events.size(); ++i) {
    const TraceEvent& event = events[i];
    const int64_t begin_ns = std::max(transfers[i].begin_ns, window.begin_ns);
    const int64_t end_ns = std::min(transfers[i].begin_ns + transfers[i].moving_ns, window.end_ns);
    if (begin_ns < end_ns && IsInPlan(plan, event)) drawn.push_back({event, begin_ns, end_ns});
  }
  const int64_t first = window.begin_ns;
  const double span_ms =
      static_cast<double>(std::max<int64_t>(window.end_ns - window.begin_ns, 1)) * 1e-6;
  const double scale = kWidth / span_ms;  // pixels a ms
  auto x_of = [&](int64_t ns) { return kLeft + static_cast<double>(ns - first) * 1e-6 * scale; };
  const std::vector<LinkRow> link_rows = LinkRowsOf(plan);
  const double device_height = kRow + kLinkRow * static_cast<double>(link_rows.size()) + kGap;
  const double bottom = kTop + device_height * static_cast<double>(plan.devices.size());

  out << fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kLeft + kWidth + 30, bottom + 40);
  out << fmt::format("<text x=\"{}\" y=\"18\" font-size=\"14\">{}, step {}: {:.3f} ms</text>\n",
                     kLeft, EscapeXml(plan.name), StepNumber(window.step), span_ms);
  double legend_x = kLeft;
  for (const Style& style : kStyles) {
    out << fmt::format(
        "<rect x=\"{:.0f}\" y=\"26\" width=\"12\" height=\"12\" fill=\"{}\"/>"
        "<text x=\"{:.0f}\" y=\"36\">{}</text>\n",
        legend_x, style.colour, legend_x + 16, style.label);
    legend_x += 40 + kCharWidth * static_cast<double>(std::string_view(style.label).size());
  }
  const double tick_ms = TickStep(span_ms);
  for (int i = 0; i * tick_ms <= span_ms; ++i) {
    const double x = kLeft + i * tick_ms * scale;
    out << fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1:.0f}\" x2=\"{0:.1f}\" y2=\"{2:.0f}\" stroke=\"#dddddd\"/>"
        "<text x=\"{0:.1f}\" y=\"{3:.0f}\" text-anchor=\"middle\">{4:g}</text>\n",
        x, kTop, bottom, bottom + 14, i * tick_ms);
  }
  out << fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"middle\">ms</text>\n",
                     kLeft + kWidth / 2, bottom + 32);
  for (size_t device = 0; device < plan.devices.size(); ++device) {
    const double y = kTop + device_height * static_cast<double>(device);
    out << fmt::format("<text x=\"6\" y=\"{:.0f}\">device {}</text>\n", y + kRow * 0.65, device);
    out << fmt::format(
        "<rect x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" fill=\"#f4f4f4\"/>\n", kLeft, y,
        kWidth, kRow);
    for (size_t row = 0; row < link_rows.size(); ++row) {
      const double bottom_y = y + kRow + kLinkRow * static_cast<double>(row + 1);
      out << fmt::format(
          "<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\" font-size=\"8\">{}</text>"
          "<line x1=\"{:.0f}\" y1=\"{:.1f}\" x2=\"{:.0f}\" y2=\"{:.1f}\" stroke=\"#eeeeee\"/>\n",
          kLeft - 4, bottom_y - 1.5, link_rows[row].label, kLeft, bottom_y, kLeft + kWidth,
          bottom_y);
    }
  }
  for (const auto& [event, begin_ns, end_ns] : drawn) {
    const planner::DevicePlan& device = plan.devices[event.device];
    const planner::PhasePlan& phase = device.phases[event.phase];
    const bool is_phase = event.actor == kNone;
    const bool is_comm = IsCommunication(plan, event);
    if (is_phase ? phase.lane == Lane::kFloating : !is_comm) continue;
    const double x = x_of(begin_ns);
    const double width = std::max(x_of(end_ns) - x, 0.5);
    double y = kTop + device_height * event.device;
    if (is_comm) {
      const ActorKind kind = device.actors[event.actor].kind;
      const auto row = std::find_if(link_rows.begin(), link_rows.end(),
                                    [&](const LinkRow& link) { return link.kind == kind; });
      y += kRow + kLinkRow * static_cast<double>(row - link_rows.begin());
    }
    const std::string name = is_phase ? phase.name : device.actors[event.actor].name;
    const bool is_other_step = event.step != window.step;
    const std::string number = phase.per_microbatch ? StrCat(event.microbatch) : "";
    out << fmt::format(
        "<g{}><title>{}{}{}{}: {:.3f} ms</title><rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" "
        "height=\"{:.0f}\" fill=\"{}\" stroke=\"white\" stroke-width=\"{}\"/>",
        is_other_step ? " opacity=\"0.4\"" : "", EscapeXml(name), number.empty() ? "" : " ", number,
        is_other_step ? StrCat(" of ", StepName(event.step)) : "",
        static_cast<double>(is_phase ? event.end_ns - event.begin_ns : end_ns - begin_ns) * 1e-6, x,
        y, width, is_phase ? kRow : kLinkRow - 1,
        StyleOf(is_phase ? phase.kind : PhaseKind::kTransfer).colour, width > 3 ? 0.6 : 0.0);
    if (is_phase && width > kCharWidth * static_cast<double>(number.size()) + 4) {
      out << fmt::format(
          "<text x=\"{:.2f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"{}\">{}</text>",
          x + width / 2, y + kRow * 0.66, TextColourOn(StyleOf(phase.kind).colour), number);
    }
    out << "</g>\n";
  }
  out << "</svg>\n";
}

}  // namespace penstock::actors
