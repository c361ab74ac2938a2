#include "planner/draw/draw_graph.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <set>
#include <vector>

#include "fmt/format.h"

#include "base/counted.h"
#include "base/format.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/xml.h"
#include "planner/draw/drawn_graph.h"
#include "planner/draw/layout.h"

namespace penstock::planner {
namespace {

constexpr double kSlot = 150;  // of a box and the gap beside it
constexpr double kBoxWidth = 128;
constexpr double kBoxHeight = 34;
constexpr double kLevel = 66;
constexpr double kGraphLeft = 46;
constexpr double kGraphTop = 96;
constexpr double kJunctionRadius = 4;
constexpr double kJunctionStep = 11;
constexpr double kLegendCharWidth = 6.2;  // of the legend

constexpr const char* kColumnNames[kNumDrawnColumns] = {"forward \u2193", "backward \u2191",
                                                        "weight gradients", "update"};
// Of edges: what is communicated, what is sent between stages, and all else.
constexpr const char* kCollectiveColour = "#b3261e";
constexpr const char* kSendColour = "#6a3d9a";
constexpr const char* kPlainColour = "#8a8f98";
constexpr const char* kStashColour = "#d3d7de";  // of many that go far: activations, gradients

// The text, or its beginning or end with dots for the rest.
std::string Shortened(std::string_view text, size_t most, bool keeps_end) {
  if (text.size() <= most) return std::string(text);
  const auto is_inside = [&](size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
  };
  size_t cut = keeps_end ? text.size() - most + 1 : most - 1;
  while (is_inside(cut)) ++cut;
  return keeps_end ? "\u2026" + std::string(text.substr(cut))
                   : std::string(text.substr(0, cut)) + "\u2026";
}

std::string Hex(double hue, double saturation, double lightness) {
  const double chroma = (1 - std::abs(2 * lightness - 1)) * saturation;
  const auto channel = [&](double offset) {
    const double k = std::fmod(offset + hue * 12, 12);
    const double value = lightness - chroma / 2 * std::max(-1.0, std::min({k - 3, 9 - k, 1.0}));
    return static_cast<int>(std::lround(255 * value));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", channel(0), channel(8), channel(4));
}

struct Point {
  double x = 0;
  double y = 0;
};

class Writer {
 public:
  Writer(const DrawnGraph& graph, std::string_view title)
      : graph_(graph), layout_(LayOut(graph)), title_(title) {
    // Several junctions of one box do not hide each other's lines.
    junction_offsets_.resize(graph.boxes.size(), 0);
    std::vector<int> num_junctions(graph.boxes.size(), 0);
    for (const DrawnEdge& edge : graph.edges) {
      most_bytes_ = std::max(most_bytes_, edge.bytes);
      if (!Box(edge.to).is_junction || junction_offsets_[static_cast<size_t>(edge.to)] > 0)
        continue;
      junction_offsets_[static_cast<size_t>(edge.to)] =
          kJunctionStep * num_junctions[static_cast<size_t>(edge.from)]++;
    }
  }

  std::string Run() {
    const double width = std::max(kGraphLeft * 2 + layout_.num_slots * kSlot, 900.0);
    const double height = kGraphTop + 40 + layout_.num_levels * kLevel;
    Add("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"Helvetica, Arial, sans-serif\" "
        "font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        width, height);
    AddMarkers();
    AddHeader();
    AddColumns(height);
    // What passes below other things first.
    for (const bool is_labelled : {false, true}) {
      for (const DrawnEdge& edge : graph_.edges) {
        if (edge.label.empty() != is_labelled) AddPath(edge);
      }
    }
    for (size_t b = 0; b < graph_.boxes.size(); ++b) AddBox(b);
    for (const DrawnEdge& edge : graph_.edges) {
      if (!edge.label.empty()) AddLabel(edge);
    }
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void Add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  Point CentreOf(size_t box) const {
    const BoxPosition& at = layout_.boxes[box];
    return {kGraphLeft + at.slot * kSlot,
            kGraphTop + 30 + kBoxHeight / 2 + at.level * kLevel + junction_offsets_[box]};
  }

  const DrawnBox& Box(int box) const { return graph_.boxes[static_cast<size_t>(box)]; }

  static const char* ColourOf(const DrawnEdge& edge) {
    return edge.label == "send" ? kSendColour : kCollectiveColour;
  }

  // 1.6 to 8, by the logarithm of the bytes.
  double WidthOf(int64_t bytes) const {
    constexpr double kLeast = 1.6;
    constexpr double kRange = 6.4;
    constexpr double kDecades = 4;  // below the widest
    if (bytes <= 0 || most_bytes_ <= 0) return kLeast;
    const double decades =
        std::log10(static_cast<double>(bytes) / static_cast<double>(most_bytes_)) + kDecades;
    return kLeast + kRange * std::max(decades, 0.0) / kDecades;
  }

  void AddMarkers() {
    out_ += "<defs>\n";
    for (const auto& [name, colour] : {std::pair{"plain", kPlainColour},
                                       {"stash", kStashColour},
                                       {"collective", kCollectiveColour},
                                       {"send", kSendColour}}) {
      Add("<marker id=\"{}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" "
          "markerHeight=\"8\" markerUnits=\"userSpaceOnUse\" orient=\"auto\">"
          "<path d=\"M0,0.8 L8,4 L0,7.2 Z\" fill=\"{}\"/></marker>\n",
          name, colour);
    }
    out_ += "</defs>\n";
  }

  void AddHeader() {
    Add("<text x=\"{}\" y=\"26\" font-size=\"17\" font-weight=\"bold\" "
        "fill=\"#202124\">{}</text>\n",
        kGraphLeft, EscapeXml(title_));
    double x = kGraphLeft;
    const auto text = [&](const std::string& words) {
      Add("<text x=\"{:.0f}\" y=\"53\" fill=\"#3c4043\">{}</text>\n", x, EscapeXml(words));
      x += kLegendCharWidth * static_cast<double>(words.size()) + 18;
    };
    constexpr int kMaxChips = 16;
    std::set<int> stages;
    for (const DrawnBox& box : graph_.boxes) stages.insert(box.stage);
    int chips = 0;
    for (const int stage : stages) {
      if (++chips > kMaxChips) break;
      Add("<rect class=\"stage\" x=\"{:.0f}\" y=\"43\" width=\"13\" height=\"13\" rx=\"3\" "
          "fill=\"{}\" stroke=\"#5f6368\" stroke-width=\"0.6\"/>\n",
          x, StageColour(stage, graph_.num_stages));
      x += 18;
      text(StrCat("stage ", stage));
    }
    if (stages.size() > kMaxChips) text(StrCat("\u2026 to ", *stages.rbegin()));
    const auto sample = [&](const char* colour, double width, const char* dashes,
                            const std::string& words) {
      Add("<line x1=\"{:.0f}\" y1=\"49\" x2=\"{:.0f}\" y2=\"49\" stroke=\"{}\" "
          "stroke-width=\"{}\"{}/>\n",
          x, x + 26, colour, width, dashes);
      x += 32;
      text(words);
    };
    x = kGraphLeft;
    out_ += "<g transform=\"translate(0,22)\">\n";
    sample(kCollectiveColour, 4, "", "redistribution: bytes that a device receives, each time");
    if (graph_.num_stages > 1) {
      sample(kSendColour, 3, " stroke-dasharray=\"7 4\"", "sent to another stage");
    }
    sample(kPlainColour, 1.2, "", "read where it is");
    const bool is_folded = std::any_of(graph_.boxes.begin(), graph_.boxes.end(),
                                       [](const DrawnBox& box) { return box.count > 1; });
    if (is_folded) text("\u00d7 n: drawn once for n of the graph");
    out_ += "</g>\n";
  }

  void AddColumns(double height) {
    for (int column = 0; column < kNumDrawnColumns; ++column) {
      const double begin = layout_.column_begin[column];
      const double end = layout_.column_end[column];
      if (begin >= end) continue;
      Add("<rect x=\"{:.1f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"{:.0f}\" rx=\"8\" "
          "fill=\"#f7f8fa\"/>\n<text x=\"{:.1f}\" y=\"{:.0f}\" text-anchor=\"middle\" "
          "font-size=\"12\" fill=\"#5f6368\">{}</text>\n",
          kGraphLeft + begin * kSlot - 8, kGraphTop, (end - begin) * kSlot + 16,
          height - kGraphTop - 14, kGraphLeft + (begin + end) / 2 * kSlot, kGraphTop + 17,
          kColumnNames[column]);
    }
  }

  // The ends of an edge and the points that bend it.
  struct Curve {
    Point from, bend_from, bend_to, to;
    std::optional<double> past = {};  // instead: down or up at this x
    Point At(double t) const {
      if (past.has_value()) return {*past, from.y + t * (to.y - from.y)};
      const double s = 1 - t;
      const auto mix = [&](double a, double b, double c, double d) {
        return s * s * s * a + 3 * s * s * t * b + 3 * s * t * t * c + t * t * t * d;
      };
      return {mix(from.x, bend_from.x, bend_to.x, to.x), mix(from.y, bend_from.y, bend_to.y, to.y)};
    }
  };

  Curve CurveOf(const DrawnEdge& edge) const {
    const auto from = static_cast<size_t>(edge.from);
    const auto to = static_cast<size_t>(edge.to);
    const Point a = CentreOf(from);
    const Point b = CentreOf(to);
    const auto half = [&](size_t box, double size) {
      return graph_.boxes[box].is_junction ? kJunctionRadius : size / 2;
    };
    if (edge.is_loop) {
      // Round the left side of the column.
      const double x = std::min(a.x, b.x) - kBoxWidth / 2 - 34;
      const Point begin = {a.x - half(from, kBoxWidth), a.y};
      const Point end = {b.x - half(to, kBoxWidth), b.y};
      return {begin, {x, a.y}, {x, b.y}, end};
    }
    const bool is_level = std::abs(a.y - b.y) < kLevel / 2;
    if (Box(edge.from).column == Box(edge.to).column && !is_level) {
      const double way = b.y > a.y ? 1 : -1;
      const Point begin = {a.x, a.y + way * half(from, kBoxHeight)};
      const Point end = {b.x, b.y - way * half(to, kBoxHeight)};
      const double bend = (end.y - begin.y) * 0.45;
      if (std::abs(b.y - a.y) < 1.5 * kLevel) {
        return {begin, {begin.x, begin.y + bend}, {end.x, end.y - bend}, end};
      }
      // Past the boxes between, on their right.
      Curve detour = {begin, begin, end, end};
      detour.past = std::max(a.x, b.x) + kBoxWidth / 2 + 12 + 5 * (edge.from % 3);
      return detour;
    }
    const double way = b.x > a.x ? 1 : -1;
    const Point begin = {a.x + way * half(from, kBoxWidth), a.y};
    const Point end = {b.x - way * half(to, kBoxWidth), b.y};
    const double bend = (end.x - begin.x) * 0.5;
    return {begin, {begin.x + bend, begin.y}, {end.x - bend, end.y}, end};
  }

  bool IsStash(const DrawnEdge& edge) const {
    return edge.label.empty() && Box(edge.from).column != Box(edge.to).column &&
           (Box(edge.from).column == DrawnColumn::kForward ||
            Box(edge.to).column == DrawnColumn::kUpdate);
  }

  void AddPath(const DrawnEdge& edge) {
    if (edge.is_loop && edge.label.empty() && edge.from == edge.to) return;
    const Curve c = CurveOf(edge);
    const bool has_label = !edge.label.empty();
    const char* colour = has_label ? ColourOf(edge) : IsStash(edge) ? kStashColour : kPlainColour;
    const char* marker = !has_label             ? (IsStash(edge) ? "stash" : "plain")
                         : edge.label == "send" ? "send"
                                                : "collective";
    const bool to_junction = Box(edge.to).is_junction;
    Add("<path d=\"M{:.1f},{:.1f} ", c.from.x, c.from.y);
    const double y_way = c.to.y > c.from.y ? kLevel / 2 : -kLevel / 2;
    if (c.past.has_value()) {
      Add("C{0:.1f},{1:.1f} {2:.1f},{1:.1f} {2:.1f},{3:.1f} V{4:.1f} C{2:.1f},{5:.1f} "
          "{6:.1f},{5:.1f} {6:.1f},{7:.1f}",
          c.from.x, c.from.y + y_way / 2, *c.past, c.from.y + y_way, c.to.y - y_way,
          c.to.y - y_way / 2, c.to.x, c.to.y);
    } else {
      Add("C{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f}", c.bend_from.x, c.bend_from.y, c.bend_to.x,
          c.bend_to.y, c.to.x, c.to.y);
    }
    Add("\" fill=\"none\" stroke=\"{}\" stroke-width=\"{:.1f}\"", colour,
        has_label ? WidthOf(edge.bytes) : 1.2);
    if (!to_junction) Add(" marker-end=\"url(#{})\"", marker);
    if (edge.label == "send") {
      out_ += " stroke-dasharray=\"7 4\"";
    } else if (edge.is_loop) {
      out_ += " stroke-dasharray=\"2 3\"";
    }
    if (!has_label) {
      out_ += "/>\n";
      return;
    }
    Add(" opacity=\"0.85\"><title>{}</title></path>\n", EscapeXml(edge.title));
  }

  // Beside a line that goes down or up, above one that goes across.
  void AddLabel(const DrawnEdge& edge) {
    const Curve c = CurveOf(edge);
    const bool goes_across = Box(edge.from).column != Box(edge.to).column;
    const Point at = c.At(goes_across ? 0.3 : 0.5);
    const double half = WidthOf(edge.bytes) / 2;
    const bool is_beside = !goes_across && std::abs(c.to.y - c.from.y) > kLevel / 4;
    const bool is_before_junction = !is_beside && Box(edge.to).is_junction;
    const double x = is_beside ? at.x + half + 4 : is_before_junction ? c.to.x - 32 : at.x;
    const double y = is_beside ? at.y : at.y - half - 11;
    const std::string times = edge.count > 1 ? StrCat(" \u00d7 ", edge.count) : "";
    const std::string bytes = FormatBytes(static_cast<uint64_t>(edge.bytes));
    // With an edge of the background's colour, as labels may lie on lines.
    Add("<g class=\"bytes\" text-anchor=\"{}\" font-size=\"10\" fill=\"{}\" stroke=\"#f7f8fa\" "
        "stroke-width=\"3\" stroke-linejoin=\"round\" paint-order=\"stroke\"><title>{} bytes\n{}"
        "</title><text x=\"{:.1f}\" y=\"{:.1f}\">{}</text><text x=\"{:.1f}\" y=\"{:.1f}\">{}{}"
        "</text></g>\n",
        is_beside ? "start" : "middle", ColourOf(edge), edge.bytes, EscapeXml(edge.title), x, y - 2,
        EscapeXml(edge.label), x, y + 9, bytes, times);
  }

  void AddBox(size_t b) {
    const DrawnBox& box = graph_.boxes[b];
    const Point at = CentreOf(b);
    const std::string colour = StageColour(box.stage, graph_.num_stages);
    if (box.is_junction) {
      Add("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\" stroke=\"#b3261e\" "
          "stroke-width=\"1.5\"><title>{}</title></circle>\n",
          at.x, at.y, kJunctionRadius, colour, EscapeXml(box.title));
      return;
    }
    const bool is_round = box.op == "input" || box.op == "parameter" || box.op == "state";
    constexpr size_t kOpChars = 18;
    constexpr size_t kNameChars = 24;
    const std::string times = box.count > 1 ? StrCat(" \u00d7 ", box.count) : "";
    Add("<g><title>{}</title><rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" "
        "rx=\"{}\" fill=\"{}\" stroke=\"#5f6368\" stroke-width=\"0.8\"/>",
        EscapeXml(box.title), at.x - kBoxWidth / 2, at.y - kBoxHeight / 2, kBoxWidth, kBoxHeight,
        is_round ? kBoxHeight / 2 : 5, colour);
    Add("<text x=\"{0:.1f}\" y=\"{1:.1f}\" text-anchor=\"middle\" font-weight=\"bold\" "
        "fill=\"#202124\">{2}{3}</text><text x=\"{0:.1f}\" y=\"{4:.1f}\" text-anchor=\"middle\" "
        "font-size=\"9\" fill=\"#3c4043\">{5}</text></g>\n",
        at.x, at.y - 2, EscapeXml(Shortened(box.op, kOpChars - times.size(), false)), times,
        at.y + 10.5, EscapeXml(Shortened(box.name, kNameChars, true)));
  }

  const DrawnGraph& graph_;
  const Layout layout_;
  const std::string_view title_;
  int64_t most_bytes_ = 0;
  std::vector<double> junction_offsets_;  // of each box, downwards
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> DrawGraph(const graph::Graph& graph, std::string_view title) {
  ASSIGN_OR_RETURN(const DrawnGraph drawn, ToDraw(graph));
  return Writer(drawn, title).Run();
}

std::string StageColour(int stage, int num_stages) {
  // Far apart in hue where they are near in number; light enough for black text.
  constexpr const char* kFirst[] = {"#a8c7fa", "#fdd663", "#a8dab5", "#f6aea9", "#d7aefb",
                                    "#8ddfe2", "#fcc29b", "#c9d1a0", "#f7b6d7", "#c4c7cf"};
  if (num_stages <= static_cast<int>(std::size(kFirst))) return kFirst[stage];
  return Hex(static_cast<double>(stage) / num_stages, stage % 2 == 0 ? 0.75 : 0.45,
             stage % 2 == 0 ? 0.78 : 0.70);
}

}  // namespace penstock::planner
