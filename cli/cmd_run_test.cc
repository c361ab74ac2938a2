// What `penstock run` does with a job, in this process: what it writes, and losses that are not
// finite. processes_test.cc runs it over processes.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "cli/npy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/machine.h"
#include "tests/support/run_fixture.h"
#include "tests/support/test_policies.h"

namespace penstock::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CmdRunTest : public testing::RunFixture {};

// --- The examples --------------------------------------------------------------------------------

TEST_F(CmdRunTest, TheRegressionExampleRunsAsInTheReadme) {
  const std::string folder = PENSTOCK_SOURCE_DIR "/examples/regression/";
  const Outcome opt =
      Call({"opt", folder + "regression.pst", "--pass", "propagate,insert-reshards"});
  EXPECT_EQ(opt.status, 0) << opt.err;
  EXPECT_THAT(opt.out, HasSubstr("graph regression {"));
  const Outcome eval = Call({"eval", folder + "regression.pst", "--json"});
  ASSERT_EQ(eval.status, 0) << eval.err;
  EXPECT_EQ(nlohmann::json::parse(eval.out)["results"][0]["name"], "loss");
  const Outcome run = Call({"run", folder + "regression.toml", "--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.err, Not(HasSubstr("note: train")));
  EXPECT_THAT(run.out, HasSubstr("\"steps\": 100"));
}

// --- What is written -----------------------------------------------------------------------------

TEST_F(CmdRunTest, TheDrawingIsOfTheConsolesLastStep) {
  const std::vector<nlohmann::json> lines =
      RunLines({"--svg", Path("step.svg"), "--trace", Path("trace.json"), "--set",
                "parallel.strategy=\"dp=2,pp=2\"", "--set", "parallel.microbatches=2", "--set",
                "train.steps=5"});
  ASSERT_EQ(lines.size(), 6);
  std::smatch match;
  const std::string svg = Read("step.svg");
  ASSERT_TRUE(std::regex_search(svg, match, std::regex(", step (\\d+): ([0-9.]+) ms<")));
  EXPECT_EQ(match[1], "5");
  const double step_ms = 1e3 * lines[4]["step_time_s"].get<double>();
  EXPECT_NEAR(std::stod(match[2]), step_ms, 1e-3 + 1e-6 * step_ms);
  const nlohmann::json trace = nlohmann::json::parse(Read("trace.json"));
  int first = 100;
  int last = 0;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    first = std::min<int>(first, event["args"]["step"]);
    last = std::max<int>(last, event["args"]["step"]);
    if (event["cat"] == "phase" && event["args"].contains("microbatch")) {
      EXPECT_THAT(event["name"].get<std::string>(), Not(::testing::MatchesRegex(".*[0-9]")));
    }
  }
  EXPECT_EQ(first, 1);
  EXPECT_EQ(last, 5);
}

TEST_F(CmdRunTest, ATraceTellsTheCriticalPath) {
  const std::vector<std::string> job = {
      "run",   Path("job.toml"),          "--set", "parallel.strategy=\"dp=2,pp=2\"",
      "--set", "parallel.microbatches=2", "--set", "train.steps=5",
      "--set", "train.log_every=1"};
  const auto call = [&](std::vector<std::string> more) {
    more.insert(more.begin(), job.begin(), job.end());
    const Outcome outcome = Call(more);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out;
  };
  std::istringstream lines(call({"--json", "--report", Path("report.md")}));
  std::vector<double> step_times_s = {0};  // from step 1
  nlohmann::json summary;
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    if (json.contains("step")) step_times_s.push_back(json["step_time_s"]);
    if (json.contains("summary")) summary = json["summary"];
  }
  ASSERT_TRUE(summary.contains("critical_path")) << summary;
  const nlohmann::json& path = summary["critical_path"];
  const int step = path["step"];
  ASSERT_EQ(step_times_s.size(), 6u);
  ASSERT_GE(step, 2);  // the first warms up
  ASSERT_LE(step, 5);
  EXPECT_NEAR(path["step_time_s"], step_times_s[step], 1e-8);
  const double compute_s = path["compute_s"];
  const double exposed_s = path["exposed_communication_s"];
  const double core_wait_s = path["core_wait_s"];
  const double idle_s = path["idle_s"];
  EXPECT_GT(compute_s, 0);
  EXPECT_GE(exposed_s, 0);
  EXPECT_GE(core_wait_s, 0);
  EXPECT_GE(idle_s, 0);
  EXPECT_NEAR(compute_s + exposed_s + core_wait_s + idle_s, path["step_time_s"], 1e-8);
  EXPECT_GT(summary["replayed_step_time_s"], 0);
  for (const char* fraction : {"hidden_fraction", "bubble_fraction"}) {
    EXPECT_GE(path[fraction], 0);
    EXPECT_LE(path[fraction], 1);
  }
  EXPECT_GT(path["bubble_fraction"], 0);
  const nlohmann::json& mean = summary["mean_critical_path"];
  EXPECT_EQ(mean["steps"], 4);  // of five, the first warms up
  ASSERT_EQ(mean["device_compute_s"].size(), 4u);
  for (const nlohmann::json& seconds : mean["device_compute_s"]) {
    EXPECT_GT(seconds, 0);
    EXPECT_LE(seconds, mean["step_time_s"]);
  }
  ASSERT_EQ(mean["per_step"].size(), 4u);
  double idle_sum_s = 0;
  for (const nlohmann::json& one : mean["per_step"]) {
    ASSERT_TRUE(one["step"] >= 2 && one["step"] <= 5) << one;
    EXPECT_NEAR(one["step_time_s"], step_times_s[one["step"].get<size_t>()], 1e-8);
    idle_sum_s += one["idle_s"].get<double>();
  }
  EXPECT_NEAR(mean["idle_s"], idle_sum_s / 4, 1e-8);
  EXPECT_NEAR(mean["step_time_s"],
              (step_times_s[2] + step_times_s[3] + step_times_s[4] + step_times_s[5]) / 4, 1e-8);
  EXPECT_NEAR(mean["compute_s"].get<double>() + mean["exposed_communication_s"].get<double>() +
                  mean["core_wait_s"].get<double>() + mean["idle_s"].get<double>(),
              mean["step_time_s"], 1e-8);
  EXPECT_THAT(Read("report.md"), HasSubstr(StrCat("## Critical path (step ", step, ", ")));
  EXPECT_THAT(Read("report.md"), HasSubstr("| device | longest acts of the path | runs | time |"));

  EXPECT_THAT(call({"--trace", Path("trace.json")}),
              ::testing::ContainsRegex("\npath: step [2-5], .* = .* compute \\+ .* exposed "
                                       "communication \\+ .* idle\n.*\n      replayed bound "));
}

// Without a trace file, a few steps are recorded for it.
TEST_F(CmdRunTest, TellsTheCriticalPathOfSampledSteps) {
  const auto call = [&](std::vector<std::string> options) {
    std::vector<std::string> words = {
        "run",   Path("job.toml"),          "--set", "parallel.strategy=\"dp=2,pp=2\"",
        "--set", "parallel.microbatches=2", "--set", "train.steps=12"};
    words.insert(words.end(), options.begin(), options.end());
    const Outcome outcome = Call(words);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out;
  };
  const std::string printed = call({});
  EXPECT_THAT(printed, ::testing::ContainsRegex("\npath: step [0-9]+, .* exposed communication.*\n"
                                                ".* hidden .*, bubble .*\n      replayed bound "));
  EXPECT_THAT(printed, Not(HasSubstr("trace:")));
  const std::string lines = call({"--json"});
  const size_t last = lines.find("{\"summary\"");
  ASSERT_NE(last, std::string::npos);
  const nlohmann::json summary = nlohmann::json::parse(lines.substr(last))["summary"];
  EXPECT_EQ(summary["mean_critical_path"]["steps"], 5);  // of 12 every other one, without the first
  EXPECT_GT(summary["replayed_step_time_s"], 0);
  EXPECT_FALSE(summary.contains("traced_steps"));
  EXPECT_THAT(call({"--set", "parallel.strategy=\"dp=1\"", "--devices", "1"}),
              Not(HasSubstr("path:")));
  // Nothing is recorded.
  const std::string off = call({"--trace-every", "0"});
  EXPECT_THAT(off, Not(HasSubstr("path:")));
  EXPECT_THAT(off, Not(HasSubstr("replayed bound")));
}

// Of 4096 micro-batches, a few steps fill what a device keeps.
TEST_F(CmdRunTest, ATraceOfTheLastStepsSaysSo) {
  Write("many.pst",
        "graph g {\n  %x = input : f32[4096, 1]\n  %w = parameter : f32[1, 1]\n"
        "  %y = matmul(%x, %w) : f32[4096, 1]\n  %q = square(%y) : f32[4096, 1]\n"
        "  %l = reduce_mean(%q) {axes=[0, 1]} : f32[]\n  return %l\n}\n");
  const std::string job = Write("many.toml",
                                "[model]\nfile = \"many.pst\"\n[data]\ninputs = \"random\"\n"
                                "[train]\nsteps = 16\n[parallel]\nmicrobatches = 4096\n");
  const Outcome all =
      Call({"run", job, "--svg", Path("all.svg"), "--json", "--set", "train.steps=2"});
  ASSERT_EQ(all.status, 0) << all.err;
  EXPECT_THAT(all.out, HasSubstr("\"traced_steps\": {\"first\": 1, \"last\": 2}"));
  const Outcome last = Call({"run", job, "--svg", Path("last.svg")});
  ASSERT_EQ(last.status, 0) << last.err;
  EXPECT_THAT(last.out, ::testing::ContainsRegex(
                            "trace: steps [0-9]+ to 16 of 16: each device keeps its last "
                            "262144 events; run with train.steps = [0-9]+ for earlier"));
}

TEST_F(CmdRunTest, TheReportTellsWorkFromWaiting) {
  RunLines({"--report", Path("report.md"), "--set", "parallel.strategy=\"dp=2,pp=2\"", "--set",
            "parallel.microbatches=2", "--set", "train.validation_sequences=0", "--set",
            "cluster.threads=1"});
  const std::string report = Read("report.md");
  EXPECT_THAT(report, HasSubstr("| computing | transferring | waiting | working / predicted |"));
  EXPECT_THAT(report, HasSubstr("## Phases (mean time of one run, steps 1 to 3)"));
  EXPECT_THAT(report, HasSubstr("## Devices"));
  EXPECT_THAT(report,
              HasSubstr("| collective buffers | computing | transferring | waiting | between "
                        "phases |\n"));
  // What a device does adds up to the step.
  const std::regex shares(
      "\n\\| (\\d) \\| \\d \\|.* ([0-9.]+) % \\| ([0-9.]+) % \\| ([0-9.]+) % \\| ([0-9.]+) % \\|");
  int num_devices = 0;
  for (auto it = std::sregex_iterator(report.begin(), report.end(), shares);
       it != std::sregex_iterator(); ++it, ++num_devices) {
    double sum = 0;
    for (int i = 2; i <= 5; ++i) sum += std::stod((*it)[i]);
    EXPECT_NEAR(sum, 100, 0.25) << it->str();
    EXPECT_GT(std::stod((*it)[2]), 0) << it->str();
  }
  EXPECT_EQ(num_devices, 4) << report;
  EXPECT_THAT(report, Not(HasSubstr("nan")));
  EXPECT_THAT(report, Not(HasSubstr("validation loss")));
  if (UsableCores() < 4) {
    EXPECT_THAT(report, HasSubstr("4 devices share "));
  }
  // A receive is posted long before its data are sent: it waits longer than it transfers.
  const std::regex row(
      "\\| recv [^|]*\\| \\d+ \\|[^|]*\\| 0.00 us \\| ([0-9.]+ [num]?s) \\| ([0-9.]+ [num]?s) \\|");
  const auto seconds = [](const std::string& text) {
    const double unit = text.find("us") != std::string::npos   ? 1e-6
                        : text.find("ms") != std::string::npos ? 1e-3
                                                               : 1;
    return std::stod(text) * unit;
  };
  double transfer_s = 0;
  double wait_s = 0;
  for (auto it = std::sregex_iterator(report.begin(), report.end(), row);
       it != std::sregex_iterator(); ++it) {
    transfer_s += seconds((*it)[1]);
    wait_s += seconds((*it)[2]);
  }
  EXPECT_GT(wait_s, 0) << report;
  EXPECT_GT(wait_s, transfer_s) << report;
  EXPECT_THAT(Call({"run", Path("job.toml"), "--set", "cluster.threads=1024"}).err,
              HasSubstr("note: 1 device of 1024 threads each has "));
}

TEST_F(CmdRunTest, ADryRunRunsNothing) {
  const Outcome outcome = Call({"run", Path("job.toml"), "--dry-run", "--dump", Path("dump"),
                                "--svg", Path("no.svg"), "--json"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const nlohmann::json summary = nlohmann::json::parse(outcome.out)["summary"];
  EXPECT_EQ(summary["dry_run"], true);
  EXPECT_GT(summary["predicted_peak_memory_bytes"], 0);
  EXPECT_THAT(outcome.err, HasSubstr("plan: dp=1"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "dump"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "no.svg"));
  EXPECT_EQ(Call({"run", Path("job.toml"), "--dry-run", "--set", "model.heads=3"}).status, 2);
}

TEST_F(CmdRunTest, ADryRunChecksWhereOutputsWouldGo) {
  for (const char* option : {"--svg", "--trace", "--report"}) {
    const Outcome outcome =
        Call({"run", Path("job.toml"), "--dry-run", option, Path("none/out.file")});
    EXPECT_EQ(outcome.status, 2) << option;
    EXPECT_THAT(outcome.err,
                HasSubstr(StrCat(option, " ", Path("none/out.file"), ": there is no folder ")));
  }
  const std::string below_file = Path("job.toml/dump");
  const Outcome outcome = Call({"run", Path("job.toml"), "--dry-run", "--dump", below_file});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err,
              HasSubstr(StrCat("--dump ", below_file, ": ", Path("job.toml"), " is not a folder")));
  EXPECT_EQ(Call({"run", Path("job.toml"), "--dry-run", "--dump", Path("a/b/c")}).status, 0);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "a"));
}

TEST_F(CmdRunTest, ADryRunChecksTheNumberOfProcesses) {
  const std::vector<std::string> arguments = {"run", Path("job.toml"), "--devices",
                                              "4",   "--procs",        "5"};
  std::vector<std::string> dry = arguments;
  dry.push_back("--dry-run");
  const Outcome outcome = Call(dry);
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err,
            "penstock: --procs 5: 5 processes for 4 devices: each process needs at least one\n");
  EXPECT_EQ(Call(arguments).err, outcome.err);
}

TEST_F(CmdRunTest, ADryRunCountsTheMemoryOfAHostsDevicesOnly) {
  const auto peak_of = [this](const char* hosts) {
    const Outcome outcome =
        Call({"run", Path("job.toml"), "--dry-run", "--json", "--set", "cluster.threads=1",
              "--strategy", "dp=4", "--set", StrCat("cluster.hosts=", hosts)});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out)["summary"]["predicted_peak_memory_bytes"]
        .get<double>();
  };
  EXPECT_LT(peak_of("2"), 0.7 * peak_of("1"));
  EXPECT_LT(peak_of("4"), 0.7 * peak_of("2"));
  EXPECT_THAT(
      Call({"run", Path("job.toml"), "--dry-run", "--strategy", "dp=2", "--set", "cluster.hosts=2"})
          .out,
      HasSubstr("fits into 2 hosts with as much memory as this one"));
}

// A process does not span the hosts that a job names. Validations in between, which the processes
// make from what they keep, and the sample are those of one process.
TEST_F(CmdRunTest, HostsMayBeUneven) {
  Write("hosts.toml",
        "[cluster]\nprocesses = 2\n[[cluster.host]]\nname = \"a\"\ndevices = 3\n"
        "[[cluster.host]]\nname = \"b\"\ndevices = 1\n");
  const std::vector<std::string> arguments = {
      "run",   Path("job.toml"),           "--json",     "--set", "train.steps=6",
      "--set", "train.validation_every=2", "--strategy", "dp=4"};
  const Outcome one = Call(arguments);
  std::vector<std::string> uneven = arguments;
  uneven.insert(uneven.end(), {"--cluster", Path("hosts.toml")});
  const Outcome two = Call(uneven);
  ASSERT_EQ(one.status, 0) << one.err;
  ASSERT_EQ(two.status, 0) << two.err;
  EXPECT_THAT(two.err, HasSubstr("devices 0 to 2"));
  EXPECT_THAT(two.err, Not(HasSubstr(" for 2 hosts")));
  uneven.insert(uneven.end(), {"--procs", "1", "--dry-run"});
  EXPECT_THAT(Call(uneven).err, HasSubstr("note: 1 process for 2 hosts ("));
  const auto losses_of = [](const std::string& out) {
    std::vector<std::string> losses;
    std::istringstream lines(out);
    for (std::string line; std::getline(lines, line);) {
      const nlohmann::json json = nlohmann::json::parse(line);
      const nlohmann::json& values = json.contains("summary") ? json["summary"] : json;
      for (const char* key : {"loss", "validation_loss", "sample"}) {
        if (values.contains(key)) losses.push_back(values[key].dump());
      }
    }
    return losses;
  };
  EXPECT_EQ(losses_of(two.out), losses_of(one.out));
  EXPECT_GT(losses_of(one.out).size(), 6u);
  EXPECT_THAT(
      Call({"run", Path("job.toml"), "--strategy", "dp=8", "--cluster", Path("hosts.toml")}).err,
      HasSubstr("the hosts have 4 devices (a has 3, b 1)"));
}

TEST_F(CmdRunTest, LogAndValidationHaveIntervals) {
  const std::vector<nlohmann::json> all = RunLines({"--set", "train.steps=7"});
  const std::vector<nlohmann::json> lines =
      RunLines({"--set", "train.steps=7", "--set", "train.validation_every=2", "--set",
                "train.log_every=2"});
  std::vector<int> steps;
  std::vector<int> evaluated;
  for (const nlohmann::json& line : lines) {
    if (!line.contains("step")) continue;
    steps.push_back(line["step"]);
    if (line.contains("validation_loss")) evaluated.push_back(line["step"]);
    // Evaluation changes nothing of the training.
    EXPECT_EQ(line["loss"], all[steps.back() - 1]["loss"]);
  }
  EXPECT_THAT(steps, ::testing::ElementsAre(1, 2, 4, 6, 7));
  EXPECT_THAT(evaluated, ::testing::ElementsAre(2, 4, 6));
  EXPECT_EQ(lines.back()["summary"]["validation_loss"], all.back()["summary"]["validation_loss"]);
  EXPECT_NE(lines[1]["validation_loss"], lines[2]["validation_loss"]);
  // What is measured after the last step is what would be measured there in between.
  const std::vector<nlohmann::json> shorter = RunLines({"--set", "train.steps=4"});
  EXPECT_NEAR(lines[2]["validation_loss"].get<double>(),
              shorter.back()["summary"]["validation_loss"].get<double>(), 1e-12);
}

TEST_F(CmdRunTest, ValidationTextMayBeOnesOwn) {
  const std::string held = Write("held.txt", std::string(500, 'z'));
  const std::vector<nlohmann::json> lines =
      RunLines({"--set", StrCat("data.validation=[\"", held, "\"]"), "--set", "train.steps=20"});
  // The training text has no z: their likelihood falls.
  EXPECT_GT(lines.back()["summary"]["validation_loss"], std::log(256.0));
  EXPECT_LT(RunLines({"--set", "train.steps=20"}).back()["summary"]["validation_loss"],
            std::log(256.0));
  const std::string tiny = Write("tiny.txt", "abc");
  EXPECT_THAT(
      Call({"run", Path("job.toml"), "--set", StrCat("data.validation=\"", tiny, "\"")}).err,
      HasSubstr("tiny.txt: the text has 3 bytes; one sequence of context = 8 tokens needs"));
}

// --- What goes wrong -----------------------------------------------------------------------------

TEST_F(CmdRunTest, ALossThatIsNotFiniteStopsTheRunAndNamesItsOrigin) {
  const std::vector<std::string> job = {
      "run",   Path("job.toml"),      "--json", "--set",         "train.learning_rate=1e30",
      "--set", "train.dtype=\"f32\"", "--set",  "train.steps=50"};
  std::vector<std::string> arguments = job;
  arguments.insert(arguments.end(), {"--set", "parallel.strategy=\"dp=2\"", "--report",
                                     Path("report.md"), "--svg", Path("step.svg")});
  const Outcome outcome = Call(arguments);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err,
              HasSubstr("the loss of step 2 is nan: actor h0.attn.qkv_product on device "));
  EXPECT_THAT(outcome.err, HasSubstr(", step 2, micro-batch 0: result 0 of einsum (a tile "));
  EXPECT_THAT(outcome.err, ::testing::ContainsRegex(" holds (an infinity|nan) at element "));
  EXPECT_THAT(outcome.err, HasSubstr("a smaller train.learning_rate may help"));
  EXPECT_THAT(outcome.err, HasSubstr("its operands are finite"));
  // What ran is written.
  EXPECT_THAT(Read("report.md"), HasSubstr("2 steps, final loss"));
  EXPECT_THAT(Read("step.svg"), HasSubstr(", step 2: "));
  EXPECT_THAT(outcome.out, HasSubstr("\"steps\": 2"));

  arguments = job;
  arguments.insert(arguments.end(),
                   {"--set", "train.on_nonfinite=\"continue\"", "--set", "train.steps=4"});
  const Outcome going_on = Call(arguments);
  EXPECT_EQ(going_on.status, 0) << going_on.err;
  EXPECT_THAT(going_on.err, HasSubstr("warning: the loss is not finite from step 2 on"));
  EXPECT_THAT(going_on.out, HasSubstr("\"step\": 4"));
  EXPECT_THAT(going_on.err,
              HasSubstr("note: no validation and no sampling: the loss is not finite\n"));
  arguments.insert(arguments.end(),
                   {"--set", "sample.bytes=0", "--set", "train.validation_sequences=0"});
  EXPECT_THAT(Call(arguments).err, Not(HasSubstr("note: no ")));
}

TEST_F(CmdRunTest, AnInputThatIsNotFiniteIsNamed) {
  Tensor x = Counting({4, 3});
  x.As<double>()[5] = std::nan("");
  ASSERT_TRUE(WriteNpy(Path("x.npy"), x).ok());
  const Outcome outcome =
      Call({"run", GraphJob(), "--set", StrCat("data.inputs={x=\"", Path("x.npy"), "\"}")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("input x (f64[4, 3]) of step 1 is nan at element 5; "));
  EXPECT_THAT(outcome.err, Not(HasSubstr("learning_rate")));
}

// The infinity, not the NaN that a later operator makes of it: the loss of the step is finite, its
// gradient is not.
TEST_F(CmdRunTest, AnInfinityBehindAFiniteLossIsNamedBeforeItsNan) {
  Write("sqrt.pst",
        "graph g {\n  %x = input : f32[4, 4]\n  %w = parameter {init=\"zeros\"} : f32[4, 4]\n"
        "  %a = matmul(%x, %w) : f32[4, 4]\n  %s = square(%a) : f32[4, 4]\n"
        "  %l = sqrt(%s) : f32[4, 4]\n  %loss = reduce_mean(%l) {axes=[0, 1]} : f32[]\n"
        "  return %loss\n}\n");
  const std::string job = Write("sqrt.toml",
                                "[model]\nfile = \"sqrt.pst\"\n[train]\nsteps = 3\n"
                                "[data]\ninputs = \"random\"\n");
  const Outcome outcome = Call({"run", job});
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr("the loss of step 2 is nan: actor s.grad on device 0, step 1, micro-batch "
                        "0: result 0 of div (a tile f32[4, 4]) holds an infinity at element 0; its "
                        "operands are finite"));
}

// A mask of -inf and a guarded log(0) are intended; what goes wrong is a division by zero.
TEST_F(CmdRunTest, IntendedInfinitiesAreNotBlamed) {
  Write("mask.pst",
        "graph g {\n  %mask = input : f32[4]\n  %t = input : f32[4]\n"
        "  %w = parameter {init=\"ones\"} : f32[4]\n"
        "  %inf = constant {value=-inf} : f32[4]\n  %m = min(%mask, %inf) : f32[4]\n"
        "  %s = add(%w, %mask) : f32[4]\n  %p = softmax(%s) {axis=0} : f32[4]\n"
        "  %e = exp(%m) : f32[4]\n  %u = add(%p, %e) : f32[4]\n"
        "  %q = div(%u, %t) : f32[4]\n  %r = mul(%q, %t) : f32[4]\n"
        "  %l = reduce_mean(%r) {axes=[0]} : f32[]\n  return %l\n}\n");
  Tensor mask({DType::kF32, {4}});
  mask.As<float>()[3] = -HUGE_VALF;
  ASSERT_TRUE(WriteNpy(Path("mask.npy"), mask).ok());
  Tensor t({DType::kF32, {3, 4}});  // of three steps; in the third, 0
  for (int i = 0; i < 11; ++i) t.As<float>()[i] = 1;
  ASSERT_TRUE(WriteNpy(Path("t.npy"), t).ok());
  const std::string job =
      Write("mask.toml",
            "[model]\nfile = \"mask.pst\"\n[train]\nsteps = 5\nlearning_rate = 0\n"
            "[data]\ninputs = {mask = \"mask.npy\", t = \"t.npy\"}\n");
  const Outcome outcome = Call({"run", job});
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("the loss of step 3 is nan: actor q on device 0, step 3, "
                                     "micro-batch 0: result 0 of div (a tile f32[4]) holds nan at "
                                     "element 3; its operands are finite"));
}

TEST_F(CmdRunTest, APolicyThatChoosesNothingFailsAtOnce) {
  ASSERT_TRUE(registries_.policies.Add(testing::EmptyPolicy()).ok());
  ASSERT_TRUE(registries_.policies.Add(testing::SilentPolicy()).ok());
  const Outcome empty = Call({"run", Path("job.toml"), "--set", "parallel.schedule=\"empty\""});
  EXPECT_EQ(empty.status, 2);
  EXPECT_THAT(empty.err, HasSubstr("penstock: policy 'empty' chooses nothing for stage 0: its "
                                   "PlannedOrder is empty"));
  const Outcome silent = Call({"run", Path("job.toml"), "--set", "parallel.schedule=\"silent\""});
  EXPECT_NE(silent.status, 0);
  EXPECT_THAT(silent.err,
              HasSubstr("penstock: the policy chooses nothing though a phase could run, "
                        "and nothing is under way: stage 0, policy 'silent'"));
}

TEST_F(CmdRunTest, AnErrorOfOrdersInAFileNamesTheFile) {
  const auto error_of = [this](const std::string& orders) {
    const std::string file = Write("bad.csv", orders);
    const Outcome outcome = Call({"run", Path("job.toml"), "--strategy", "pp=2", "--set",
                                  "parallel.microbatches=2", "--policy", file});
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(error_of("0F0,0Z0\n"), HasSubstr("bad.csv:1:5: '0Z0'"));
  EXPECT_THAT(error_of("0F0,0F1,0B0,0B1\n1F0,1F1,1B0\n"), HasSubstr("bad.csv:2:1: the order of "));
  EXPECT_THAT(error_of("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"),
              HasSubstr("bad.csv': the orders of the groups wait for each other"));
  EXPECT_THAT(error_of("0F0,0B0\n1F0,1B0\n"), HasSubstr("bad.csv': its orders are for 2 stages"));
  EXPECT_THAT(Call({"run", Path("job.toml"), "--policy", Path("none.csv")}).err,
              HasSubstr("none.csv: no such file"));
}

TEST_F(CmdRunTest, AModelThatFitsNoMachineSaysHowMuchMemoryIsMissing) {
  // With and without running, on one device and on several: the same numbers.
  struct Case {
    const char* devices;
    const char* width;
    const char* message;
  };
  const Case cases[] = {
      {"1", "100000", "device 0 needs 1[0-9].[0-9] TiB, available are .*: 1[0-9].[0-9] TiB "},
      {"1", "600000", "device 0 needs 5[0-9][0-9].[0-9] TiB, available are .*: 5[0-9]+.[0-9] TiB "},
      {"4", "100000",
       "devices 0 to 3 need 5[0-9].[0-9] TiB .the most: device 0 with 1[0-9].[0-9] TiB .*, "
       "available are .*: 5[0-9].[0-9] TiB "},
  };
  for (const Case& test : cases) {
    for (const bool is_dry : {false, true}) {
      std::vector<std::string> arguments = {"run",        Path("job.toml"),
                                            "--devices",  test.devices,
                                            "--set",      StrCat("model.width=", test.width),
                                            "--set",      "model.heads=4",
                                            "--set",      "model.layers=4",
                                            "--strategy", StrCat("dp=", test.devices)};
      if (is_dry) arguments.push_back("--dry-run");
      const Outcome outcome = Call(arguments);
      EXPECT_EQ(outcome.status, 2);
      EXPECT_THAT(outcome.err,
                  ::testing::ContainsRegex(
                      StrCat("the plan does not fit into memory: ", test.message, "are missing")));
    }
  }
  Write("large.pst", "graph g {\n  %w = parameter : f32[100000000, 1000000]\n  return %w\n}\n");
  EXPECT_THAT(Call({"eval", Path("large.pst")}).err, HasSubstr(" TiB are missing"));
}

TEST_F(CmdRunTest, ThreadsUseTheCoresAtHand) {
  const Outcome outcome = Call({"plan", Path("job.toml"), "-o", Path("one.plan")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr(StrCat("1 device of ", UsableCores(), " thread")));
  EXPECT_THAT(Call({"plan", Path("job.toml"), "--devices", "8"}).out,
              HasSubstr(StrCat("8 devices of ", std::max(UsableCores() / 8, 1), " thread")));
  EXPECT_THAT(Call({"plan", Path("job.toml"), "--set", "cluster.threads=3"}).out,
              HasSubstr("1 device of 3 threads"));
}

}  // namespace
}  // namespace penstock::cli
