#include "cli/report_page.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/json.h"
#include "cli/progress.h"
#include "cli/report_assets_internal.h"
#include "cli/report_blocks.h"
#include "cli/report_curves.h"
#include "cli/report_html.h"
#include "cli/report_timeline_svg.h"
#include "cli/run_report.h"
#include "cli/utf8.h"
#include "fmt/format.h"

#include "base/counted.h"
#include "base/format.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

// A ratio to something shorter says nothing.
constexpr double kMinPredictedPhase = 1e-6;

std::string Cut(std::string_view text) {
  if (text.size() <= kMaxReportText) return std::string(text);
  return StrCat(text.substr(0, kMaxReportText), " ... (", text.size() - kMaxReportText,
                " more bytes)");
}

std::string Text(std::string_view text) { return HtmlText(Cut(text)); }

std::string RatioHtml(double measured, double predicted) {
  return predicted >= kMinPredictedPhase ? fmt::format("{:.2f}", measured / predicted)
                                         : std::string("-");
}

// "0, 1 and 2", "0 to 7".
std::string Numbers(const std::vector<uint32_t>& numbers) {
  bool is_range = numbers.size() > 2;
  for (size_t i = 1; i < numbers.size(); ++i) is_range &= numbers[i] == numbers[i - 1] + 1;
  if (is_range) return StrCat(numbers.front(), " to ", numbers.back());
  constexpr size_t kMost = 12;
  const std::vector<uint32_t> shown(
      numbers.begin(),
      numbers.begin() + static_cast<std::ptrdiff_t>(std::min(numbers.size(), kMost)));
  return StrCat(StrJoin(shown, ", "), numbers.size() > kMost ? ", ..." : "");
}

double TotalBytes(const std::vector<ReportMemory>& memory) {
  double total = 0;
  for (const ReportMemory& part : memory) total += part.bytes;
  return total;
}

// "-": it does not happen, or is not known.
std::string DurationHtml(double seconds) { return seconds > 0 ? FormatSeconds(seconds) : "-"; }

std::string BytesHtml(double bytes) {
  return FormatBytes(static_cast<uint64_t>(std::max(bytes, 0.0)));
}

class Page {
 public:
  explicit Page(const Report& report) : report_(report) {}

  std::string Run() {
    AddHead();
    AddHeader();
    AddNumbers();
    AddWarnings();
    AddRun();
    AddCurves();
    AddTimeline();
    AddPath();
    AddStages();
    AddOperators();
    AddGraph();
    AddCheckpoints();
    AddSample();
    StrAppend(&out_, "<footer>Written by penstock ", HtmlText(report_.version),
              ". All of the page is in this file.</footer>\n</main>\n",
              "<script type=\"application/json\" id=\"summary\">", ScriptJson(report_.summary_json),
              "</script>\n<script>/*<![CDATA[*/\n", kReportScript,
              "\n/*]]>*/</script>\n</body>\n</html>\n");
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void Add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  void AddHead() {
    StrAppend(&out_,
              "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n"
              "<meta charset=\"utf-8\"/>\n"
              "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
              "style-src 'unsafe-inline'; script-src 'unsafe-inline'\"/>\n"
              "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
              "<meta name=\"color-scheme\" content=\"light dark\"/>\n<title>",
              Text(report_.title), " \u00b7 penstock run</title>\n<style>\n", kReportStyle,
              "</style>\n</head>\n<body>\n<main>\n");
  }

  void AddHeader() {
    StrAppend(&out_, "<header>\n<h1>", Text(report_.title), "</h1>\n<p class=\"subtitle\">",
              Text(report_.subtitle), "</p>\n<nav>");
    for (const auto& [id, name] : {std::pair{"run", "Run"},
                                   {"curves", "Loss"},
                                   {"timeline", "Timeline"},
                                   {"path", "Critical path"},
                                   {"stages", "Stages"},
                                   {"operators", "Operators"},
                                   {"graph", "Graph"},
                                   {"checkpoints", "Checkpoints"}}) {
      Add("<a href=\"#{}\">{}</a> ", id, name);
    }
    out_ += "</nav>\n</header>\n";
  }

  void Begin(std::string_view id, std::string_view title) {
    Add("<section id=\"{}\">\n<h2>{}</h2>\n", id, title);
  }
  void End() { out_ += "</section>\n"; }
  void AddText(std::string_view text) {
    StrAppend(&out_, "<p class=\"text\">", HtmlText(text), "</p>\n");
  }

  // A number of --json, by its name there.
  void AddNumber(std::string_view key, double value, std::string_view label, std::string_view text,
                 std::string_view note) {
    StrAppend(&out_, "<div class=\"number\"><dt>", HtmlText(label), "</dt><dd data-key=\"", key,
              "\" data-value=\"", JsonNumber(value), "\">", HtmlText(text),
              "</dd><dd class=\"of\">", HtmlText(note), "</dd></div>\n");
  }

  void AddNumbers() {
    out_ += "<dl class=\"numbers\">\n";
    const Report& r = report_;
    if (!r.losses.empty()) {
      AddNumber("final_loss", r.final_loss, "Loss", FormatLoss(r.final_loss),
                StrCat("of step ", r.losses.back().step));
    }
    if (std::isfinite(r.validation_loss)) {
      AddNumber("validation_loss", r.validation_loss, "Validation loss",
                FormatLoss(r.validation_loss),
                std::isfinite(r.unigram_entropy)
                    ? fmt::format("{:.2f} of the unigram entropy {:.4f}",
                                  r.validation_loss / r.unigram_entropy, r.unigram_entropy)
                    : std::string());
    }
    if (r.steps > 0) {
      AddNumber("step_time_s", r.step_time_s, "Step time", FormatSeconds(r.step_time_s),
                StrCat("median; predicted ", FormatSeconds(r.predicted_step_s)));
    }
    if (r.tokens_per_s > 0) {
      AddNumber("tokens_per_s", r.tokens_per_s, "Throughput", FormatCount(r.tokens_per_s),
                "tokens a second");
    }
    if (r.path.has_value()) {
      const ReportPath& path = *r.path;
      AddNumber("exposed_communication_s", path.exposed_s, "Exposed communication",
                path.exposed_s > 0 ? FormatSeconds(path.exposed_s) : std::string("none"),
                StrCat(FormatPercent(path.exposed_s / path.step_s), " of step ", path.step));
      const bool communicates =
          std::any_of(r.devices.begin(), r.devices.end(),
                      [](const ReportDevice& device) { return device.communication_s > 0; });
      AddNumber(
          "hidden_fraction", path.hidden_fraction, "Hidden",
          communicates ? FormatPercent(path.hidden_fraction) : "-",
          communicates ? "of communication, behind computation" : "no communication was recorded");
      AddNumber("bubble_fraction", path.bubble_fraction, "Bubble",
                FormatPercent(path.bubble_fraction),
                path.core_wait_s > 0 ? "of device time, waits for cores included"
                                     : "of the time of all devices");
      if (path.bound_s > 0) {
        AddNumber("replayed_step_time_s", path.bound_s, "Bound", FormatSeconds(path.bound_s),
                  fmt::format("the step took {:.2f} times as long", path.step_s / path.bound_s));
      }
    }
    out_ += "</dl>\n";
  }

  void AddWarnings() {
    if (report_.warnings.empty()) return;
    out_ += "<section id=\"warnings\" class=\"warnings\">\n<h2>Warnings and notes</h2>\n<ul>\n";
    for (const std::string& warning : report_.warnings) {
      StrAppend(&out_, "<li>", Text(warning), "</li>\n");
    }
    if (report_.omitted_warnings > 0) {
      StrAppend(&out_, "<li>and ", report_.omitted_warnings, " more</li>\n");
    }
    out_ += "</ul>\n";
    End();
  }

  void AddFacts(const std::vector<ReportFact>& facts) {
    out_ += "<dl class=\"facts\">\n";
    for (const ReportFact& fact : facts) {
      constexpr size_t kMostInHalf = 80;
      StrAppend(&out_, fact.value.size() > kMostInHalf ? "<div class=\"long\"><dt>" : "<div><dt>",
                Text(fact.name), "</dt><dd>", Text(fact.value), "</dd></div>\n");
    }
    out_ += "</dl>\n";
  }

  void AddRun() {
    Begin("run", "What was run");
    AddFacts(report_.facts);
    const auto add_details = [this](std::string_view title, const std::vector<ReportFact>& facts) {
      if (facts.empty()) return;
      StrAppend(&out_, "<details><summary>", title, "</summary>\n");
      AddFacts(facts);
      out_ += "</details>\n";
    };
    add_details(Counted(report_.processes.size(), "process", "es"), report_.processes);
    add_details(Counted(report_.settings.size(), "setting"), report_.settings);
    End();
  }

  void AddCurves() {
    Begin("curves", "Loss and step time");
    if (report_.losses.empty()) {
      AddText("No step completed.");
      End();
      return;
    }
    ReportChart loss = {"chart-loss", "Loss", "", {}, report_.unigram_entropy, "unigram entropy"};
    loss.curves.push_back({"training", "c1", report_.losses, false});
    loss.curves.push_back({"validation", "c2", report_.validation_losses, true});
    ReportChart time = {"chart-time", "Step time", "ms", {}, kNoNumber, ""};
    ReportCurve steps = {"measured", "c3", report_.step_times_s, false};
    for (ReportPoint& point : steps.points) point.value *= 1e3;
    time.curves.push_back(std::move(steps));
    StrAppend(&out_, "<div class=\"charts\">\n", CurvesHtml(loss), CurvesHtml(time), "</div>\n");
    End();
  }

  void AddTimeline() {
    Begin("timeline", "One step");
    const ReportTimeline& timeline = report_.timeline;
    if (!(timeline.span_s > 0)) {
      AddText(report_.no_trace);
      End();
      return;
    }
    AddText(StrCat("Step ", timeline.step, ", of median time: ", FormatSeconds(timeline.span_s),
                   ". Numbers are micro-batches; communication is drawn while data moved; work of "
                   "other steps is pale."));
    out_ +=
        "<p class=\"controls\"><button type=\"button\" data-zoom=\"in\">zoom in</button> "
        "<button type=\"button\" data-zoom=\"out\">zoom out</button> "
        "<button type=\"button\" data-zoom=\"left\">\u2190</button> "
        "<button type=\"button\" data-zoom=\"right\">\u2192</button> "
        "<button type=\"button\" data-zoom=\"all\">whole step</button> "
        "<span class=\"hint\">drag over the timeline to zoom into a part; double click for the "
        "whole step</span></p>\n";
    out_ += TimelineHtml(timeline);
    End();
  }

  // Parts of a whole, as one bar.
  struct Part {
    std::string_view style;
    std::string_view name;
    double value = 0;
  };
  void AddBar(const std::vector<Part>& parts, double whole) {
    out_ += "<div class=\"bar\">";
    for (const Part& part : parts) {
      if (!(part.value > 0) || !(whole > 0)) continue;
      Add("<i class=\"{}\" style=\"width:{:.3f}%\" title=\"{}: {}\"></i>", part.style,
          100 * std::min(part.value / whole, 1.0), part.name, FormatSeconds(part.value));
    }
    out_ += "</div>";
  }

  void AddPathRow(std::string_view name, double step_s, const std::vector<Part>& parts) {
    StrAppend(&out_, "<tr><th>", HtmlText(name), "</th><td>", FormatSeconds(step_s), "</td>");
    for (const Part& part : parts) StrAppend(&out_, "<td>", DurationHtml(part.value), "</td>");
    out_ += "<td class=\"wide\">";
    AddBar(parts, step_s);
    out_ += "</td></tr>\n";
  }

  void AddPath() {
    Begin("path", "Critical path");
    if (!report_.path.has_value()) {
      AddText(report_.no_trace);
      End();
      return;
    }
    const ReportPath& p = *report_.path;
    AddText(StrCat(
        "The chain of acts that determined the step time; an act is one firing of an actor. "
        "Communication is exposed while its device does not compute. Waiting for cores: other "
        "devices computed on all cores of the device. Idle: nothing of the path ran.",
        p.mean_omits_first ? " The mean leaves out the first step, which warms up." : ""));
    out_ +=
        "<table><thead><tr><th></th><th>step</th><th><span class=\"swatch p0\">compute</span></th>"
        "<th><span class=\"swatch p1\">exposed communication</span></th>"
        "<th><span class=\"swatch p2\">waiting for cores</span></th>"
        "<th><span class=\"swatch p3\">idle</span></th><th class=\"wide\"></th></tr></thead>"
        "<tbody>\n";
    AddPathRow(StrCat("step ", p.step), p.step_s,
               {{"p0", "compute", p.compute_s},
                {"p1", "exposed communication", p.exposed_s},
                {"p2", "waiting for cores", p.core_wait_s},
                {"p3", "idle", p.idle_s}});
    AddPathRow(StrCat("mean of ", Counted(p.mean_steps, "step")), p.mean_step_s,
               {{"p0", "compute", p.mean_compute_s},
                {"p1", "exposed communication", p.mean_exposed_s},
                {"p2", "waiting for cores", p.mean_core_wait_s},
                {"p3", "idle", p.mean_idle_s}});
    out_ += "</tbody></table>\n<div class=\"halves\">\n";
    AddActs();
    AddDevices();
    out_ += "</div>\n";
    if (p.bound_s > 0) {
      AddText(
          "The bound is a simulation of the plan with the measured median kernel times, the given "
          "or measured latency of links, the link rates that the planner assumes, and no runtime "
          "overhead.");
    }
    End();
  }

  void AddActs() {
    out_ +=
        "<div><h3>Longest acts of the path</h3>\n<table><thead><tr><th>act</th><th>device</th>"
        "<th>runs</th><th>time</th><th>share</th></tr></thead><tbody>\n";
    for (const ReportAct& act : report_.path_acts) {
      StrAppend(&out_, "<tr><th>", HtmlText(act.kind), " <code>", Text(act.name),
                "</code></th><td>", act.device, "</td><td>", act.runs, "</td><td>",
                FormatSeconds(act.seconds), "</td><td>",
                FormatPercent(act.seconds / report_.path->step_s), "</td></tr>\n");
    }
    out_ += "</tbody></table></div>\n";
  }

  void AddDevices() {
    out_ +=
        "<div><h3>Devices in this step</h3>\n<table><thead><tr><th>device</th><th>computing</th>"
        "<th>transferring</th><th>of it hidden</th><th>bubble</th></tr></thead><tbody>\n";
    const size_t count = std::min(report_.devices.size(), kMaxReportDevices);
    for (size_t i = 0; i < count; ++i) {
      const ReportDevice& d = report_.devices[i];
      StrAppend(&out_, "<tr><th>", d.device, " <span class=\"dim\">stage ", d.stage,
                "</span></th><td>", DurationHtml(d.compute_s), "</td><td>",
                DurationHtml(d.communication_s), "</td><td>", DurationHtml(d.hidden_s), "</td><td>",
                DurationHtml(d.bubble_s), "</td></tr>\n");
    }
    out_ += "</tbody></table>\n";
    if (count < report_.devices.size()) {
      StrAppend(&out_, "<p class=\"note\">", report_.devices.size() - count,
                " more devices left out.</p>\n");
    }
    out_ += "</div>\n";
  }

  void AddStagePhase(const ReportPhase& phase, double most_s, bool is_total) {
    StrAppend(&out_, is_total ? "<tr class=\"total\"><th>" : "<tr><th>", HtmlText(phase.name),
              "</th><td>", DurationHtml(phase.predicted_s), "</td>");
    if (!report_.path.has_value()) {
      out_ += "<td>-</td><td>-</td><td>-</td><td>-</td>";
    } else {
      StrAppend(&out_, "<td>", DurationHtml(phase.compute_s), "</td><td>",
                DurationHtml(phase.transfer_s), "</td><td>", DurationHtml(phase.wait_s),
                "</td><td>", RatioHtml(phase.work_s, phase.predicted_s), "</td>");
    }
    out_ += "<td class=\"wide\">";
    AddBar({{"predicted", "predicted", phase.predicted_s}}, most_s);
    AddBar({{"p0", "computing", phase.compute_s}, {"p1", "transferring", phase.transfer_s}},
           most_s);
    out_ += "</td></tr>\n";
  }

  // One line, whose parts add up.
  void AddStepParts(const ReportStepParts& parts) {
    if (parts.step_s <= 0) return;
    StrAppend(&out_, "<tr class=\"parts\"><td colspan=\"7\">A step of ", DurationHtml(parts.step_s),
              " = ", DurationHtml(parts.compute_s), " computing + ", DurationHtml(parts.transfer_s),
              " transferring alone + ", DurationHtml(parts.wait_s), " waiting + ",
              DurationHtml(parts.outside_s), " between phases</td></tr>\n");
  }

  void AddStages() {
    Begin("stages", "Stages: predicted and measured");
    AddText(
        "Time in a step, of a device of the stage on average. Computing: its kernels run, by the "
        "clock, also while other devices use its cores. Transferring: its data move. Waiting: for "
        "the other side, a core or a link; communication between phases waits beside them, which "
        "is not counted. The ratio is computing and transferring over predicted. The last line of "
        "a stage divides the mean step among them: transferring alone is beside no computation, "
        "and between phases the device has nothing to run, because what it needs comes from "
        "others or the step has no more for it.");
    double most_s = 0;
    for (const ReportStage& stage : report_.stages) {
      most_s = std::max(
          {most_s, stage.total.predicted_s, stage.total.compute_s + stage.total.transfer_s});
    }
    const size_t count = std::min(report_.stages.size(), kMaxReportStages);
    constexpr size_t kMostInFull = 16;
    out_ +=
        "<table class=\"stages\"><thead><tr><th>phase</th><th>predicted</th><th>computing</th>"
        "<th>transferring</th><th>waiting</th><th>ratio</th><th class=\"wide\">"
        "<span class=\"swatch predicted\">predicted</span> <span class=\"swatch p0\">computing"
        "</span> <span class=\"swatch p1\">transferring</span></th></tr></thead>\n";
    for (size_t i = 0; i < count; ++i) {
      const ReportStage& stage = report_.stages[i];
      Add("<tbody><tr class=\"stage\"><th colspan=\"7\"><span class=\"chip\" style=\"background:{}"
          "\"></span> Stage {} <span class=\"dim\">{} {}</span></th></tr>\n",
          StageStyle(stage.stage, report_.stages.size()), stage.stage,
          stage.devices.size() == 1 ? "device" : "devices", Numbers(stage.devices));
      if (report_.stages.size() <= kMostInFull) {
        for (const ReportPhase& phase : stage.phases) AddStagePhase(phase, most_s, false);
      }
      AddStagePhase(stage.total, most_s, true);
      AddStepParts(stage.parts);
      out_ += "</tbody>\n";
    }
    out_ += "</table>\n";
    AddMemory(count);
    if (count < report_.stages.size()) {
      StrAppend(&out_, "<p class=\"note\">", report_.stages.size() - count,
                " more stages left out.</p>\n");
    }
    End();
  }

  void AddMemoryBar(const std::vector<ReportMemory>& parts, double most) {
    out_ += "<div class=\"bar\">";
    for (const ReportMemory& part : parts) {
      std::string style = "m-";
      for (const char c : part.name) style.push_back(c == ' ' ? '-' : c);
      Add("<i class=\"{}\" style=\"width:{:.3f}%\" title=\"{}: {}\"></i>", HtmlText(style),
          most > 0 ? 100 * part.bytes / most : 0, HtmlText(part.name), BytesHtml(part.bytes));
    }
    out_ += "</div>";
  }

  static std::string PartsText(const std::vector<ReportMemory>& parts) {
    std::vector<std::string> texts;
    for (const ReportMemory& part : parts) {
      texts.push_back(StrCat(part.name, " ", BytesHtml(part.bytes)));
    }
    return StrJoin(texts, ", ");
  }

  void AddMemory(size_t count) {
    double most = 0;
    bool is_predicted = false;
    bool is_measured = false;
    for (const ReportStage& stage : report_.stages) {
      most = std::max({most, TotalBytes(stage.allocated_memory), TotalBytes(stage.predicted_memory),
                       TotalBytes(stage.measured_memory)});
      is_predicted |= !stage.predicted_memory.empty();
      is_measured |= !stage.measured_memory.empty();
    }
    out_ += "<h3>Memory of a device</h3>\n";
    AddText(StrCat(
        is_predicted ? "Predicted: by the planner, from the sizes of values, before the plan was "
                       "compiled. "
                     : "",
        is_measured ? "Measured: states, kernels' workspace, and the most bytes of channels that "
                      "held values at one time in the recorded steps. "
                    : "",
        "Allocated: the arena that the engine has reserved for the device of the stage that needs "
        "most, and its collective buffers.",
        report_.peak_process_bytes > 0 ? StrCat(" The largest process on this host had at most ",
                                                BytesHtml(report_.peak_process_bytes),
                                                " resident, with code, libraries and text.")
                                       : ""));
    out_ +=
        "<table><thead><tr><th>stage</th><th></th><th>bytes</th><th class=\"parts\">of it</th>"
        "<th class=\"wide\"></th></tr></thead><tbody>\n";
    for (size_t i = 0; i < count; ++i) {
      const ReportStage& stage = report_.stages[i];
      for (const auto& [name, parts] : {std::pair{"predicted", &stage.predicted_memory},
                                        {"measured", &stage.measured_memory},
                                        {"allocated", &stage.allocated_memory}}) {
        if (parts->empty()) continue;
        StrAppend(&out_, "<tr><th>", stage.stage, "</th><th>", name, "</th><td>",
                  BytesHtml(TotalBytes(*parts)), "</td><td class=\"parts\">",
                  HtmlText(PartsText(*parts)), "</td><td class=\"wide\">");
        AddMemoryBar(*parts, most);
        out_ += "</td></tr>\n";
      }
    }
    out_ += "</tbody></table>\n";
  }

  void AddOperators() {
    Begin("operators", "Slowest operators");
    if (report_.operators.empty()) {
      AddText(report_.no_trace.empty() ? "No operators were recorded." : report_.no_trace);
      End();
      return;
    }
    AddText(StrCat(
        "Of ", Counted(report_.num_operators, "operator"), ", a mean over the traced steps",
        report_.path.has_value() && report_.path->mean_omits_first ? kWithoutFirst : "",
        ". Time, calls and share are those of all devices together; "
        "layers of a stage count together. Rates are while the operator runs, by the clock: "
        "devices that share cores slow each other down. Bytes are those of operands and results, "
        "each once; of a communication, those that a device receives."));
    out_ +=
        "<table><thead><tr><th>operator</th><th "
        "class=\"left\">where</th><th>calls</th><th>time</th>"
        "<th>share</th><th class=\"narrow\"></th><th>compute</th><th>memory, network</th></tr>"
        "</thead><tbody>\n";
    const double most = report_.operators.front().share;
    for (const ReportOperator& op : report_.operators) {
      StrAppend(&out_, "<tr title=\"", Text(StrJoin(op.shapes, "\n")), "\"><th>", Text(op.op),
                " <code>", Text(op.name), "</code></th><td class=\"left\">", Text(op.where),
                "</td>");
      Add("<td>{:g}</td><td>{}</td><td>{}</td><td class=\"narrow\"><div class=\"bar\">"
          "<i class=\"p0\" style=\"width:{:.2f}%\"></i></div></td><td>{}</td><td>{}</td></tr>\n",
          op.calls, FormatSeconds(op.seconds), FormatPercent(op.share),
          most > 0 ? 100 * op.share / most : 0, FormatRate(op.flops_per_s, "FLOP/s"),
          FormatRate(op.bytes_per_s, "B/s"));
    }
    out_ += "</tbody></table>\n";
    if (report_.num_operators > static_cast<int64_t>(report_.operators.size())) {
      StrAppend(&out_, "<p class=\"note\">",
                report_.num_operators - static_cast<int64_t>(report_.operators.size()),
                " faster operators left out.</p>\n");
    }
    End();
  }

  void AddGraph() {
    Begin("graph", "The planned graph");
    if (report_.blocks.empty()) {
      AddText(report_.no_graph.empty() ? "The graph is empty." : report_.no_graph);
    } else {
      out_ += BlocksHtml(report_.blocks, report_.num_graph_stages, kMaxReportBlockSteps);
    }
    if (!report_.graph_svg.empty()) {
      StrAppend(&out_,
                "<details class=\"drawing\"><summary>Drawing of operators and what flows between "
                "them</summary>\n<div class=\"scroll\">",
                report_.graph_svg, "</div></details>\n");
    } else if (!report_.blocks.empty()) {
      out_ +=
          "<p class=\"note\">A drawing of operators and edges is too large for this page; "
          "<code>penstock plan JOB --svg FILE</code> writes one.</p>\n";
    }
    End();
  }

  void AddCheckpoints() {
    Begin("checkpoints", "Checkpoints");
    if (report_.checkpoint_path.empty()) {
      AddText("None were written: checkpoint.path is not set.");
    } else if (report_.checkpoints.empty()) {
      AddText(StrCat("None were written into ", Cut(report_.checkpoint_path), "."));
    } else {
      out_ +=
          "<table><thead><tr><th>step</th><th "
          "class=\"left\">path</th><th>bytes</th><th>time</th></tr></thead>"
          "<tbody>\n";
      const size_t count = report_.checkpoints.size();
      for (size_t i = count - std::min(count, kMaxReportCheckpoints); i < count; ++i) {
        const actors::CheckpointResult& c = report_.checkpoints[i];
        if (c.status.ok()) {
          StrAppend(&out_, "<tr><th>", c.step, "</th><td class=\"left\"><code>", Text(c.path),
                    "</code></td><td>", FormatBytes(c.num_bytes), "</td><td>",
                    FormatSeconds(c.seconds), "</td></tr>\n");
        } else {
          StrAppend(&out_, "<tr class=\"failed\"><th>", c.step,
                    "</th><td class=\"left\" colspan=\"3\">not written: ",
                    Text(ToStd(c.status.message())), "</td></tr>\n");
        }
      }
      out_ += "</tbody></table>\n";
      if (count > kMaxReportCheckpoints) {
        StrAppend(&out_, "<p class=\"note\">", count - kMaxReportCheckpoints,
                  " earlier checkpoints left out.</p>\n");
      }
      AddText("Only the last checkpoints are kept (checkpoint.keep).");
    }
    End();
  }

  void AddSample() {
    if (report_.sample.empty()) return;
    Begin("sample", "Sample of the trained model");
    StrAppend(&out_, "<pre>", Text(ReadableUtf8(report_.sample)), "</pre>\n");
    End();
  }

  const Report& report_;
  std::string out_;
};

}  // namespace

std::string RenderReport(const Report& report) {
  std::string page = Page(report).Run();
  if (page.size() <= kMaxReportBytes) return page;
  Report smaller = report;
  smaller.graph_svg.clear();
  smaller.blocks.clear();
  smaller.no_graph =
      "The graph is too large for this page; `penstock plan JOB --svg FILE` writes a drawing.";
  page = Page(smaller).Run();
  if (page.size() <= kMaxReportBytes) return page;
  smaller.timeline = ReportTimeline();
  smaller.no_trace = "The timeline is too large for this page; `--trace FILE` writes all of it.";
  return Page(smaller).Run();
}

}  // namespace penstock::cli
