#include "cli/report_page.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cli/report_blocks.h"
#include "cli/report_curves.h"
#include "cli/report_html.h"
#include "cli/report_run.h"
#include "cli/report_timeline_svg.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

#include "base/strings.h"
#include "tests/support/xml_error.h"

namespace penstock::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::XmlError;

constexpr char kNasty[] = "</script><script>alert(1)</script> \"a\" & 'b' \x01 \xff \u00e9 ]]>";

// What a name may hold must not become markup.
void ExpectIsEscaped(const std::string& page) {
  EXPECT_EQ(XmlError(page), "");
  EXPECT_THAT(page, Not(HasSubstr("alert(1)</script>")));
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
}

// A <script> of JSON by the end of its tag.
nlohmann::json JsonAfter(const std::string& page, const std::string& tag) {
  const size_t at = page.find(tag);
  if (at == std::string::npos) return nullptr;
  const size_t begin = at + tag.size();
  return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

ReportSlice Slice(uint32_t row, ReportLane lane, double begin_s, double end_s,
                  int64_t microbatch = -1) {
  ReportSlice slice;
  slice.row = row;
  slice.lane = lane;
  slice.microbatch = microbatch;
  slice.begin_s = begin_s;
  slice.end_s = end_s;
  return slice;
}

ReportTimeline TwoDevices() {
  ReportTimeline timeline;
  timeline.step = 7;
  timeline.span_s = 0.010;
  timeline.num_devices = 2;
  timeline.rows = {{0, 0}, {1, 1}};
  timeline.names = {"F <0>"};
  timeline.slices = {
      Slice(0, ReportLane::kPhase, 0, 0.004, 3), Slice(0, ReportLane::kKernel, 0.001, 0.002, 3),
      Slice(0, ReportLane::kKernel, 0.0025, 0.003, 3), Slice(0, ReportLane::kSend, 0.004, 0.005, 3),
      Slice(1, ReportLane::kReceive, 0.004, 0.005, 3)};
  timeline.path = {{ReportPathKind::kCompute, 0, 0, "matmul", 0, 0.004},
                   {ReportPathKind::kIdle, -1, 9, "", 0.004, 0.010}};
  return timeline;
}

// All parts that a run can have, with a name that a user might choose.
Report FullReport(const std::string& name) {
  Report report;
  report.title = name;
  report.subtitle = name;
  report.version = "1.2.3";
  report.summary_json =
      StrCat("{\"summary\": {\"strategy\": ", nlohmann::json("</x>").dump(), "}}");
  report.facts = {{"Job", name}, {name, "value"}};
  report.processes = {{"node 0", name}};
  report.settings = {{"train.steps", "3"}};
  report.warnings = {name};
  report.omitted_warnings = 4;
  report.steps = 3;
  report.final_loss = 2.25;
  report.validation_loss = 2.5;
  report.unigram_entropy = 3;
  report.step_time_s = 0.0123456789;
  report.predicted_step_s = 0.01;
  report.tokens_per_s = 12345;
  report.losses = {{1, 3}, {2, 2.5}, {3, 2.25}};
  report.validation_losses = {{3, 2.5}};
  report.step_times_s = {{1, 0.02}, {2, 0.0123456789}, {3, 0.011}};
  report.timeline = TwoDevices();
  report.timeline.names = {name};
  report.timeline.path[0].name = name;
  ReportPath path;
  path.step = 7;
  path.step_s = 0.010;
  path.compute_s = 0.004;
  path.idle_s = 0.006;
  path.bound_s = 0.009;
  report.path = path;
  report.path_acts = {{0, "kernel", name, 1, 0.004}};
  report.devices = {{0, 0, 0.004, 0.001, 0.0005, 0.005}};
  ReportStage stage;
  stage.devices = {0};
  ReportPhase phase;
  phase.name = name;
  phase.predicted_s = 0.003;
  phase.compute_s = phase.work_s = 0.0045;
  stage.phases = {phase};
  stage.total = phase;
  stage.predicted_memory = {{"parameters", 1024}};
  stage.measured_memory = {{"channels", 1536}};
  stage.allocated_memory = {{"states", 2048}, {"on the host", 512}};
  report.stages = {stage};
  ReportOperator op;
  op.op = name;
  op.name = name;
  op.where = "stage 0, F";
  op.calls = 2;
  op.seconds = 0.003;
  op.share = 0.75;
  op.flops_per_s = 12.34e9;
  op.shapes = {name};
  report.operators = {op};
  report.num_operators = 3;
  planner::StageBlocks blocks;
  blocks.stages = {0};
  blocks.num_steps = 4;
  blocks.columns[0] = {{2, name, {{name, name, "f32[8]", name, name, 2, {{"all_reduce", 2048}}}}}};
  report.blocks = {blocks};
  actors::CheckpointResult written;
  written.step = 2;
  written.path = name;
  written.num_bytes = 4096;
  actors::CheckpointResult failed;
  failed.step = 3;
  failed.status = absl::ResourceExhaustedError(name);
  report.checkpoint_path = name;
  report.checkpoints = {written, failed};
  report.sample = name;
  return report;
}

TEST(ReportPageTest, AllPartsAreThere) {
  const std::string page = RenderReport(FullReport("gpt"));
  EXPECT_EQ(XmlError(page), "");
  for (const char* id : {"warnings", "run", "curves", "timeline", "path", "stages", "operators",
                         "graph", "checkpoints", "sample"}) {
    EXPECT_THAT(page, HasSubstr(StrCat("<section id=\"", id, "\""))) << id;
  }
  EXPECT_THAT(page, HasSubstr("data-key=\"final_loss\" data-value=\"2.25\">2.2500<"));
  EXPECT_THAT(page, HasSubstr("data-key=\"step_time_s\" data-value=\"0.0123456789\">12.3 ms<"));
  EXPECT_THAT(page, HasSubstr("data-key=\"replayed_step_time_s\" data-value=\"0.009\">9.00 ms<"));
  EXPECT_THAT(page, HasSubstr("the step took 1.11 times as long"));
  EXPECT_THAT(page, HasSubstr("12.3 GFLOP/s"));
  EXPECT_THAT(page, HasSubstr("75 %"));
  EXPECT_THAT(page, HasSubstr("2 faster operators left out"));
  EXPECT_THAT(page, HasSubstr("predicted"));
  EXPECT_THAT(page, HasSubstr("states 2.0 KiB, on the host 512 B"));
  EXPECT_THAT(page, HasSubstr("<th>measured</th><td>1.5 KiB</td><td class=\"parts\">channels 1.5"));
  EXPECT_THAT(page, HasSubstr("<li>and 4 more</li>"));
  EXPECT_THAT(page, HasSubstr("<td>4.0 KiB</td>"));
  EXPECT_THAT(page, HasSubstr("1.50"));  // measured over predicted
}

// The page must work without a network, and must not ask for one.
TEST(ReportPageTest, NothingIsLoaded) {
  const std::string page = RenderReport(FullReport("gpt"));
  for (const char* forbidden :
       {"src=", "<link", "url(http", "@import", "fetch(", "XMLHttpRequest"}) {
    EXPECT_THAT(page, Not(HasSubstr(forbidden))) << forbidden;
  }
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
}

TEST(ReportPageTest, NamesAreEscaped) {
  const std::string page = RenderReport(FullReport(kNasty));
  ExpectIsEscaped(page);
  EXPECT_THAT(page, HasSubstr("&lt;/script&gt;&lt;script&gt;alert(1)"));
  EXPECT_THAT(page, HasSubstr("\u00e9"));
  EXPECT_EQ(JsonAfter(page, "id=\"summary\">")["summary"]["strategy"], "</x>");
  EXPECT_THAT(JsonAfter(page, "id=\"kernels\">")["names"][0].get<std::string>(),
              HasSubstr("</script>"));
}

TEST(ReportPageTest, ARunWithoutStepsSaysSo) {
  Report report;
  report.title = "g";
  report.summary_json = "{}";
  report.no_trace = "Nothing was recorded.";
  report.no_graph = "A plan file does not hold the graph.";
  const std::string page = RenderReport(report);
  EXPECT_EQ(XmlError(page), "");
  EXPECT_THAT(page, HasSubstr("No step completed."));
  EXPECT_THAT(page, HasSubstr("Nothing was recorded."));
  EXPECT_THAT(page, HasSubstr("A plan file does not hold the graph."));
  EXPECT_THAT(page, HasSubstr("checkpoint.path is not set"));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
  EXPECT_THAT(page, Not(HasSubstr("data-key")));
  EXPECT_THAT(page, Not(HasSubstr("id=\"warnings\"")));
}

// One step, one device, no validation, no communication.
TEST(ReportPageTest, ASmallRunHasAllThatItCanHave) {
  Report report = FullReport("gpt");
  report.losses = {{1, 3}};
  report.step_times_s = {{1, 0.01}};
  report.validation_losses.clear();
  report.validation_loss = report.unigram_entropy = kNoNumber;
  report.path->bound_s = kNoNumber;
  report.timeline.rows.resize(1);
  report.timeline.num_devices = 1;
  report.timeline.slices.resize(3);
  report.operators[0].flops_per_s = kNoNumber;
  const std::string page = RenderReport(report);
  EXPECT_EQ(XmlError(page), "");
  EXPECT_THAT(page, Not(HasSubstr("nan")));
  EXPECT_THAT(page, Not(HasSubstr("Validation loss")));
  EXPECT_THAT(page, Not(HasSubstr("replayed_step_time_s")));
  EXPECT_THAT(page, Not(HasSubstr(">receive<")));
  EXPECT_THAT(page, HasSubstr("class=\"dots c1\""));  // a point has no line
}

TEST(ReportPageTest, TheSizeIsBounded) {
  // Very long names where they may be long, and more of everything than is shown.
  const std::string name(20'000, 'x');
  Report report = FullReport(name);
  for (uint32_t i = 0; i < 300; ++i) {
    report.stages.push_back(report.stages[0]);
    report.devices.push_back(report.devices[0]);
    report.checkpoints.push_back(report.checkpoints[0]);
    report.blocks[0].columns[1].push_back(report.blocks[0].columns[0][0]);
    report.timeline.names.push_back(name);
  }
  report.graph_svg = StrCat("<svg>", std::string(400'000, ' '), "</svg>");
  for (int64_t step = 4; step < 200'000; ++step) report.losses.push_back({step, 1.0 / step});
  const std::string page = RenderReport(report);
  EXPECT_LE(page.size(), kMaxReportBytes);
  EXPECT_EQ(XmlError(page), "");
  EXPECT_THAT(page, HasSubstr("The graph is too large for this page"));
  EXPECT_THAT(page, HasSubstr("The timeline is too large for this page"));
  EXPECT_THAT(page, HasSubstr("earlier checkpoints left out"));
  EXPECT_THAT(page, HasSubstr("more stages left out"));
  EXPECT_THAT(page, HasSubstr("more devices left out"));
  EXPECT_THAT(page, HasSubstr("more bytes)"));
}

TEST(ReportCurvesTest, ExtremesAreKept) {
  std::vector<ReportPoint> points;
  for (int64_t step = 1; step <= 10'000; ++step) points.push_back({step, 1});
  points[4321].value = 100;
  points[7654].value = -100;
  points[5000].value = std::numeric_limits<double>::quiet_NaN();
  const std::vector<ReportPoint> drawn = Downsample(points, 100);
  EXPECT_LE(drawn.size(), 102u);
  EXPECT_EQ(drawn.front().step, 1);
  EXPECT_EQ(drawn.back().step, 10'000);
  double low = 1;
  double high = 1;
  for (size_t i = 0; i < drawn.size(); ++i) {
    if (i > 0) {
      EXPECT_GT(drawn[i].step, drawn[i - 1].step);
    }
    low = std::min(low, drawn[i].value);
    high = std::max(high, drawn[i].value);
  }
  EXPECT_EQ(low, -100);
  EXPECT_EQ(high, 100);
  EXPECT_EQ(Downsample({{1, 2}, {2, 3}}, 100).size(), 2u);
}

TEST(ReportCurvesTest, AxesFitTheValues) {
  ReportChart chart = {"c", "Loss", "", {}, kNoNumber, ""};
  chart.curves = {{"training", "c1", {{1, 0}, {5, 4}}, false}};
  const std::string html = CurvesHtml(chart);
  EXPECT_EQ(XmlError(html), "");
  // The least at the bottom, 4 % below the top the greatest.
  EXPECT_THAT(html, HasSubstr("d=\"M0.0 1000.0L1000.0 38.5\""));
  EXPECT_THAT(html, HasSubstr("\">4</span>"));
  const nlohmann::json data = JsonAfter(html, "<script type=\"application/json\">");
  EXPECT_EQ(data["curves"][0]["points"], (nlohmann::json{{1, 0}, {5, 4}}));
  EXPECT_EQ(data["steps"], (nlohmann::json{1, 5}));
}

TEST(ReportCurvesTest, ValuesThatAreNotFiniteAreCounted) {
  ReportChart chart = {"c", "Loss", "", {}, kNoNumber, ""};
  const double infinity = std::numeric_limits<double>::infinity();
  chart.curves = {{"training", "c1", {{1, infinity}, {2, kNoNumber}}, false}};
  const std::string html = CurvesHtml(chart);
  EXPECT_EQ(XmlError(html), "");
  EXPECT_THAT(html, HasSubstr("There are no values to draw."));
  EXPECT_THAT(html, HasSubstr("2 values are not finite"));
  // The smallest and the largest of doubles are no reason to fail.
  chart.curves[0].points = {{1, -1.7e308}, {2, 1.7e308}};
  EXPECT_EQ(XmlError(CurvesHtml(chart)), "");
}

TEST(ReportTimelineSvgTest, KernelsAreNumbers) {
  const std::string html = TimelineHtml(TwoDevices());
  EXPECT_EQ(XmlError(html), "");
  const nlohmann::json data = JsonAfter(html, "id=\"kernels\">");
  ASSERT_EQ(data["rows"].size(), 2u);
  // Beginning since the one before, duration, name, kind of phase, micro-batch; 100 ns.
  EXPECT_EQ(data["rows"][0]["kernels"],
            (nlohmann::json{10000, 10000, 0, 0, 3, 15000, 5000, 0, 0, 3}));
  EXPECT_THAT(data["rows"][1]["kernels"], IsEmpty());
  EXPECT_EQ(data["names"], nlohmann::json{"F <0>"});
  EXPECT_THAT(html, HasSubstr("x=\"0.0000%\" width=\"40.0000%\""));
  EXPECT_THAT(html, HasSubstr("<title>F &lt;0&gt; 3, 4.00 ms</title>"));
  EXPECT_THAT(html, HasSubstr(">receive</text>"));
  EXPECT_THAT(html, Not(HasSubstr(">collective</text>")));
}

TEST(ReportTimelineSvgTest, WhatIsLeftOutIsSaid) {
  ReportTimeline timeline = TwoDevices();
  timeline.num_devices = 64;
  timeline.omitted_kernels = {1234, 1e-6, 5e-4};
  const std::string html = TimelineHtml(timeline);
  EXPECT_THAT(html, HasSubstr("2 of 64 devices are drawn"));
  EXPECT_THAT(html, HasSubstr("1234 kernels of at most 1.00 us, 500 us in all, left out"));
}

TEST(ReportBlocksTest, RepeatedBlocksAreCounted) {
  planner::StageBlocks stage;
  stage.stages = {1, 2, 3};
  stage.num_steps = 24;
  stage.columns[0] = {{12,
                       "h11.ln",
                       {{"layer_norm", "h0.ln", "f32[8]", "@[dp, _]", "%t", 1, {}},
                        {"matmul", "h0.w1", "f32[8]", "@[dp, tp]", "", 1, {{"send", 1024, 12}}}}}};
  const std::string html = BlocksHtml({stage}, 4, 100);
  EXPECT_EQ(XmlError(html), "");
  EXPECT_THAT(html, HasSubstr("Stages 1 to 3"));
  EXPECT_THAT(html, HasSubstr("\u00d7 12 <span class=\"dim\">h0 to h11</span>"));
  EXPECT_THAT(html, HasSubstr("<span class=\"dim name\">h*.ln</span> <code>@[dp, _]</code>"));
  EXPECT_THAT(html, HasSubstr("<em class=\"send\">send 1.0 KiB</em>"));
  EXPECT_THAT(BlocksHtml({stage}, 4, 1), HasSubstr("1 more operator left out"));
}

TEST(ReportHtmlTest, TicksAreRound) {
  EXPECT_THAT(Ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(Ticks(1.3, 2.9, 4), ElementsAre(1.5, 2, 2.5));
  EXPECT_THAT(Ticks(3, 3, 5), ElementsAre(3));
  EXPECT_THAT(Ticks(kNoNumber, 3, 5), IsEmpty());
  EXPECT_THAT(Ticks(0, std::numeric_limits<double>::infinity(), 5), IsEmpty());
}

TEST(ReportHtmlTest, AmountsAreShort) {
  EXPECT_EQ(FormatPercent(0.123), "12 %");
  EXPECT_EQ(FormatPercent(0.0123), "1.2 %");
  EXPECT_EQ(FormatPercent(kNoNumber), "-");
  EXPECT_EQ(FormatRate(123.4e9, "FLOP/s"), "123 GFLOP/s");
  EXPECT_EQ(FormatRate(999.9, "B/s"), "1.00 kB/s");
  EXPECT_EQ(FormatRate(0.5, "B/s"), "0.50 B/s");
  EXPECT_EQ(FormatRate(kNoNumber, "B/s"), "-");
}

TEST(ReportRunTest, CommandsAreQuoted) {
  EXPECT_EQ(ShellCommand({"run", "my job.toml", "--set", "a=\"b\"", "it's", ""}),
            "penstock run 'my job.toml' --set 'a=\"b\"' 'it'\\''s' ''");
  EXPECT_TRUE(IsPage("a/report.html"));
  EXPECT_TRUE(IsPage("report.htm"));
  EXPECT_FALSE(IsPage("report.md"));
  EXPECT_FALSE(IsPage(""));
}

}  // namespace
}  // namespace penstock::cli
