// The options and keys of `penstock run`: strategies, devices, and what is wrong with them.

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "kernels/gpu.h"
#include "planner/plan/plan_io.h"
#include "tests/support/run_fixture.h"

namespace penstock::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CmdRunOptionsTest : public testing::RunFixture {};

TEST_F(CmdRunOptionsTest, KeysWithoutEffectOnAGraphFileAreNotedOnce) {
  const std::string job = GraphJob(
      "batch = 4\nvalidation_every = 1\nvalidation_sequences = 0\n[sample]\nbytes = 9\n"
      "[data]\ninputs = \"random\"\n");
  const Outcome outcome = Call({"run", job, "--set", "train.dtype=\"f64\""});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto count = [&outcome](const std::string& text) {
    size_t found = 0;
    for (size_t at = outcome.err.find(text); at != std::string::npos;
         at = outcome.err.find(text, at + 1)) {
      ++found;
    }
    return found;
  };
  EXPECT_EQ(count(" has no effect: "), 4) << outcome.err;
  EXPECT_EQ(count("note: train.batch has no effect: model.file states the shapes of its inputs ("),
            1);
  EXPECT_EQ(count("graph.toml:7:9)\n"), 1) << outcome.err;
  EXPECT_EQ(count("note: train.dtype has no effect: model.file states the types of its values "
                  "(--set train.dtype=\"f64\")\n"),
            1);
  EXPECT_EQ(count("note: train.validation_every has no effect: "), 1);
  EXPECT_EQ(count("note: sample.bytes has no effect: "), 1);
  // `plan` says it too, and not where its result goes.
  const Outcome plan = Call({"plan", job});
  EXPECT_THAT(plan.err, HasSubstr("note: train.batch has no effect: "));
  EXPECT_THAT(plan.out, Not(HasSubstr("has no effect")));
  // Built-in models use all of these keys, and what is not set needs no note.
  EXPECT_THAT(Call({"run", Path("job.toml")}).err, Not(HasSubstr("has no effect")));
  EXPECT_THAT(Call({"run", GraphJob("[data]\ninputs = \"random\"\n")}).err,
              Not(HasSubstr("has no effect")));
}

TEST_F(CmdRunOptionsTest, JobsOnGpusArePlannedWithoutOne) {
  const std::string job = Path("job.toml");
  const std::string device = "cluster.device_kind=\"cuda\"";
  const std::string dtype = "train.dtype=\"f32\"";
  const Outcome plan = Call({"plan", job, "--set", device, "--set", dtype});
  if (BuiltinRegistries().cuda_kernels.Names().empty()) {
    EXPECT_EQ(plan.status, 2);
    EXPECT_THAT(plan.err, HasSubstr("this build has no kernels for devices of kind \"cuda\""));
  } else {
    EXPECT_EQ(plan.status, 0) << plan.err;
    if (!kernels::FindGpus().status.ok()) {
      const Outcome run = Call({"run", job, "--set", device, "--set", dtype});
      EXPECT_EQ(run.status, 2);
      EXPECT_THAT(run.err, HasSubstr("CUDA finds no GPU: "));
    }
  }
  EXPECT_THAT(
      Call({"plan", job, "--set", "cluster.device_kind=\"tpu\""}).err,
      HasSubstr("unknown kind of device \"tpu\"; expected \"cpu\", \"cuda\", \"emulated\""));
}

TEST_F(CmdRunOptionsTest, SumsAreF32OrOfTheTypeThatTheModelComputesIn) {
  for (const std::string key : {"train.sum_dtype", "train.residual_dtype"}) {
    const auto plan = [&](const std::string& dtype, const std::string& sums) {
      return Call({"plan", Path("job.toml"), "--set", "train.dtype=\"" + dtype + "\"", "--set",
                   key + "=\"" + sums + "\""});
    };
    for (const std::string dtype : {"f32", "bf16", "f16"}) {
      EXPECT_EQ(plan(dtype, "f32").status, 0) << key << " " << dtype;
      EXPECT_EQ(plan(dtype, dtype).status, 0) << key << " " << dtype;
    }
    EXPECT_THAT(plan("f16", "bf16").err,
                HasSubstr("--set " + key + "=\"bf16\": " + key + " = bf16: must be f32, or " +
                          "train.dtype, which is f16"));
  }
}

// Training, validation and the sample on devices of two kinds.
TEST_F(CmdRunOptionsTest, JobsRunOnDevicesOfSeveralKinds) {
  const std::string kinds = "cluster.device_kind=[\"cpu\", \"emulated\"]";
  for (const std::string strategy : {"pp=2", "dp=2", "optimizer=host"}) {
    std::vector<std::string> options = {"--strategy", strategy, "--set",
                                        "train.validation_every=2"};
    const std::vector<nlohmann::json> cpu = RunLines(options);
    options.insert(options.end(), {"--set", kinds});
    const std::vector<nlohmann::json> mixed = RunLines(options);
    options.insert(options.end(), {"--procs", "2"});
    const std::vector<nlohmann::json> processes = RunLines(options);
    ASSERT_EQ(cpu.size(), mixed.size());
    ASSERT_EQ(cpu.size(), processes.size());
    for (size_t i = 0; i + 1 < cpu.size(); ++i) {
      for (const char* key : {"loss", "validation_loss"}) {
        if (!cpu[i].contains(key)) continue;
        EXPECT_EQ(cpu[i][key], mixed[i][key]) << strategy << ", line " << i << ", " << key;
        EXPECT_EQ(cpu[i][key], processes[i][key]) << strategy << ", line " << i << ", " << key;
      }
    }
    for (const char* key : {"validation_loss", "sample"}) {
      const nlohmann::json value = cpu.back()["summary"][key];
      EXPECT_EQ(value, mixed.back()["summary"][key]) << strategy << ", " << key;
      EXPECT_EQ(value, processes.back()["summary"][key]) << strategy << ", " << key;
    }
  }
}

// It has a device before those of the strategy, which is a CPU.
TEST_F(CmdRunOptionsTest, AnOptimizerOnTheHostHasADeviceOfItsOwn) {
  const std::string job = Path("job.toml");
  const std::string kinds = "cluster.device_kind=[\"cpu\", \"emulated\", \"emulated\"]";
  const auto plan = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"plan", job});
    return Call(options);
  };
  const Outcome explained =
      plan({"--explain", "--strategy", "dp=2,optimizer=host", "--set", kinds});
  EXPECT_EQ(explained.status, 0) << explained.err;
  EXPECT_THAT(explained.out, HasSubstr("dp=2,tp=1,pp=1,optimizer=host, "));
  EXPECT_THAT(explained.out, HasSubstr("optimizer=host: device 0 keeps the parameters"));
  const Outcome json = plan({"--json", "--strategy", "optimizer=host"});
  EXPECT_THAT(json.out, HasSubstr("\"strategy\":\"dp=1,tp=1,pp=1,optimizer=host\""));
  EXPECT_THAT(json.out, HasSubstr("\"devices\":2"));
  EXPECT_THAT(plan({"--strategy", "dp=2,optimizer=host", "--devices", "2"}).err,
              HasSubstr("strategy dp=2,tp=1,pp=1,optimizer=host, with the one that has the "
                        "optimiser, needs 3 devices, not 2 (--devices 2); set --devices 3, or "
                        "dp=1 to use 2, or --strategy auto"));
  EXPECT_THAT(
      plan({"--strategy", "dp=2,optimizer=host", "--set", "cluster.device_kind=\"emulated\""}).err,
      HasSubstr("optimizer=host: device 0 has the optimiser and is to be a CPU, not "
                "\"emulated\"; set device_kind to [\"cpu\", \"emulated\", \"emulated\"]"));
  EXPECT_THAT(plan({"--strategy", "dp=2,optimizer=host", "--cluster", "hgx-h100:1"}).err,
              HasSubstr("optimizer=host: device 0 of the cluster is H100-SXM5-80GB, but the "
                        "optimiser is to be on a CPU"));
  for (const std::string schedule : {"dualpipe", "interleaved"}) {
    EXPECT_THAT(plan({"--strategy", "pp=2,optimizer=host", "--set",
                      "parallel.schedule=\"" + schedule + "\""})
                    .err,
                HasSubstr("optimizer=host: policy '" + schedule + "' runs several stages"));
  }
}

TEST_F(CmdRunOptionsTest, PlansReadTheKindOfEachDevice) {
  const std::string job = Path("job.toml");
  const std::string kinds = "cluster.device_kind=[\"cpu\", \"emulated\"]";
  const Outcome plan = Call({"plan", job, "--explain", "--strategy", "pp=2", "--set", kinds});
  EXPECT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("0, cpu"));
  EXPECT_THAT(plan.out, HasSubstr("1, emulated"));
  const std::string three = "cluster.device_kind=[\"cpu\", \"emulated\", \"cpu\"]";
  for (const std::string command : {"plan", "run"}) {
    const Outcome wrong = Call({command, job, "--strategy", "dp=2", "--set", three});
    EXPECT_EQ(wrong.status, 2);
    EXPECT_THAT(wrong.err, HasSubstr("3 kinds for 2 devices: give a kind for each device"));
  }
  const std::string gpus = "cluster.device_kind=[\"cpu\", \"cuda\"]";
  const Outcome on_gpus = Call({"plan", job, "--explain", "--strategy", "pp=2", "--set", gpus,
                                "--set", "train.dtype=\"f32\""});
  if (BuiltinRegistries().cuda_kernels.Names().empty()) {
    EXPECT_EQ(on_gpus.status, 2);
    EXPECT_THAT(on_gpus.err, HasSubstr("this build has no kernels for devices of kind \"cuda\""));
    return;
  }
  EXPECT_EQ(on_gpus.status, 0) << on_gpus.err;
  EXPECT_THAT(on_gpus.out, HasSubstr("0, cpu"));
  // The job trains in f64, in which GPUs have no softmax, norms and optimisers.
  EXPECT_THAT(Call({"plan", job, "--strategy", "pp=2", "--set", gpus}).err,
              AllOf(HasSubstr("on devices of kind cuda: "),
                    HasSubstr(" on f64; its kernel computes in f32")));
}

// A CPU and a GPU in one plan train as CPUs do.
TEST_F(CmdRunOptionsTest, AGpuBesideACpuHasItsLosses) {
  if (BuiltinRegistries().cuda_kernels.Names().empty()) GTEST_SKIP() << "CUDA is not built";
  if (const absl::Status status = kernels::FindGpus().status; !status.ok()) {
    GTEST_SKIP() << status;
  }
  std::vector<std::string> options = {"--strategy", "pp=2", "--set", "train.dtype=\"f32\""};
  const std::vector<nlohmann::json> cpu = RunLines(options);
  options.insert(options.end(), {"--set", "cluster.device_kind=[\"cpu\", \"cuda\"]"});
  const std::vector<nlohmann::json> mixed = RunLines(options);
  ASSERT_EQ(cpu.size(), mixed.size());
  for (size_t i = 0; i < cpu.size(); ++i) {
    if (!cpu[i].contains("loss")) continue;
    EXPECT_NEAR(mixed[i]["loss"].get<double>(), cpu[i]["loss"].get<double>(), 1e-4);
  }
}

TEST_F(CmdRunOptionsTest, MicrobatchesBesideAMeshOfTheGraphAreNoted) {
  Write("mesh.pst",
        "mesh m = [d=2]\ngraph g {\n  %x = input : f32[8, 4] @[d, _]\n"
        "  %w = parameter : f32[4, 4]\n  %y = matmul(%x, %w) : f32[8, 4]\n"
        "  %l = reduce_mean(%y) {axes=[0, 1]} : f32[]\n  return %l\n}\n");
  const std::string job = Write("mesh.toml",
                                "[model]\nfile = \"mesh.pst\"\n[train]\nsteps = 1\n"
                                "[data]\ninputs = \"random\"\n");
  const Outcome outcome = Call({"run", job, "--set", "parallel.microbatches=4"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("note: parallel.microbatches has no effect: the mesh in "
                                     "model.file states the micro-batches (--set "));
  EXPECT_THAT(Call({"run", job, "--devices", "4"}).err,
              HasSubstr("mesh m needs 2 devices, not 4 (--devices 4); set --devices 2, or change "
                        "the sizes of the mesh's axes"));
}

TEST_F(CmdRunOptionsTest, DevicesThatDoNotFitTheStrategyComeWithTheRemedy) {
  const std::vector<std::string> arguments = {"run",       Path("job.toml"), "--strategy",
                                              "dp=2,tp=2", "--devices",      "8"};
  EXPECT_THAT(Call(arguments).err,
              HasSubstr("penstock: --strategy dp=2,tp=2: strategy dp=2,tp=2,pp=1 needs 4 devices, "
                        "not 8 (--devices 8); set --devices 4, or dp=4 to use 8, or --strategy "
                        "auto to let the planner choose\n"));
  // No size of one axis makes dp=2,tp=2 fit 3 devices.
  EXPECT_THAT(Call({"run", Path("job.toml"), "--strategy", "dp=2,tp=2", "--devices", "3"}).err,
              HasSubstr("set --devices 4, or --strategy auto"));
  EXPECT_THAT(Call({"run", Path("job.toml"), "--strategy", "dp=4,tp=2", "--devices", "4"}).err,
              HasSubstr("set --devices 8, or dp=2 to use 4, or "));
  EXPECT_THAT(
      Call({"plan", Path("job.toml"), "--strategy", "dp=2", "--set", "cluster.devices=3"}).err,
      HasSubstr("needs 2 devices, not 3 (--set cluster.devices=3); set --devices 2, or dp=3 "));
  const Outcome automatic = Call({"run", Path("job.toml"), "--set", "parallel.strategy=\"tp=2\"",
                                  "--strategy", "auto", "--devices", "4", "--dry-run"});
  EXPECT_EQ(automatic.status, 0) << automatic.err;
  EXPECT_THAT(automatic.err, HasSubstr("4 devices of "));
  ASSERT_EQ(Call({"plan", Path("job.toml"), "-o", Path("job.plan")}).status, 0);
  EXPECT_THAT(Call({"run", Path("job.plan"), "--strategy", "dp=1"}).err,
              HasSubstr("--strategy dp=1: a plan runs as it was compiled"));
}

// What the error shows works when it is put into the file: with tensor parallelism, pipeline stages
// and micro-batches, and the strategy left as it is.
TEST_F(CmdRunOptionsTest, TensorParallelismOfAGraphFileIsWrittenIntoItAsTheErrorSays) {
  const std::vector<std::string> lines = {
      "  %x = input : f32[8, 16]",
      "  %b = parameter {init=\"zeros\"} : f32[3]",
      "  %w1 = parameter {std=0.1} : f32[16, 32]",
      "  %w2 = parameter {std=0.1} : f32[32, 3]",
      "  %h = matmul(%x, %w1) : f32[8, 32]",
      "  %a = gelu(%h) : f32[8, 32]",
      "  %y = matmul(%a, %w2) : f32[8, 3]",
      "  %z = bias_add(%y, %b) : f32[8, 3]",
      "  %q = square(%z) : f32[8, 3]",
      "  %l = reduce_mean(%q) {axes=[0, 1]} : f32[]",
      "  return %l",
  };
  const auto write = [&](std::vector<std::string> graph, const std::string& mesh) {
    Write("mlp.pst", StrCat(mesh, "\ngraph mlp {\n", StrJoin(graph, "\n"), "\n}\n"));
  };
  write(lines, "");
  const std::string job = Write(
      "mlp.toml", "[model]\nfile = \"mlp.pst\"\n[data]\ninputs = \"random\"\n[train]\nsteps = 3\n");
  const std::vector<double> one = Losses(Call({"run", job, "--json"}));
  ASSERT_EQ(one.size(), 3u);
  for (const char* strategy : {"tp=2", "dp=2,tp=2", "dp=2,tp=2,pp=2"}) {
    write(lines, "");
    const std::vector<std::string> arguments = {"run", job, "--json", "--strategy", strategy};
    const Outcome refused = Call(arguments);
    EXPECT_EQ(refused.status, 2) << strategy;
    EXPECT_THAT(refused.err,
                HasSubstr(StrCat("penstock: --strategy ", strategy, ": tp = 2: ", Path("mlp.pst"),
                                 " does not say which weights to split; ")));
    // The example: a mesh, and statements that replace those of the same result.
    std::istringstream example(refused.err.substr(refused.err.find("\n    mesh ") + 1));
    std::vector<std::string> graph = lines;
    std::string mesh;
    for (std::string line; std::getline(example, line);) {
      line = line.substr(2);
      if (mesh.empty()) {
        mesh = line;
        continue;
      }
      const std::string result = line.substr(0, line.find('=') + 1);
      for (std::string& old : graph) {
        if (old.substr(0, result.size()) == result) old = line;
      }
    }
    EXPECT_NE(graph, lines) << refused.err;
    write(graph, mesh);
    const Outcome outcome = Call(arguments);
    const std::vector<double> losses = Losses(outcome);
    ASSERT_EQ(losses.size(), 3u) << strategy << "\n" << refused.err;
    for (int step = 0; step < 3; ++step) EXPECT_NEAR(losses[step], one[step], 1e-5 * one[step]);
    EXPECT_THAT(outcome.out, HasSubstr(StrCat("\"strategy\": \"")));
  }
  // ZeRO over the mesh's axis dp; sequences are the file's to name.
  const std::string options = "dp=2,tp=2,zero=3";
  const Outcome zero = Call({"run", job, "--json", "--strategy", options});
  EXPECT_THAT(zero.out, HasSubstr("\"strategy\": \"dp=2,tp=2,zero=3\""));
  const std::vector<double> losses = Losses(zero);
  ASSERT_EQ(losses.size(), 3u) << zero.err;
  for (int step = 0; step < 3; ++step) EXPECT_NEAR(losses[step], one[step], 1e-5 * one[step]);
  EXPECT_THAT(Call({"run", job, "--strategy", "dp=2,tp=2,sp=true"}).err, HasSubstr("sp = true: "));
  // A mesh of other axes than the strategy's.
  const Outcome other = Call({"run", job, "--strategy", "dp=4"});
  EXPECT_EQ(other.status, 2);
  EXPECT_THAT(other.err, HasSubstr("is laid out by its mesh m (dp=2,tp=2), not by dp=4,tp=1,pp=1; "
                                   "change the mesh, or leave the strategy \"auto\"\n"));
}

TEST_F(CmdRunOptionsTest, StagesWithoutOverlapAreNoted) {
  const auto run = [this](const std::string& microbatches) {
    return Call({"run", Path("job.toml"), "--dry-run", "--strategy", "pp=2", "--set",
                 StrCat("parallel.microbatches=", microbatches)});
  };
  const char expected[] =
      "note: pp = 2 with 1 micro-batch: one stage computes at a time, a bubble of 50 %; several ";
  EXPECT_THAT(run("1").err, HasSubstr(expected));
  EXPECT_THAT(run("2").err, Not(HasSubstr("bubble")));
  EXPECT_THAT(Call({"plan", Path("job.toml"), "--strategy", "pp=2", "--set", "train.batch=1"}).err,
              HasSubstr(expected));
}

TEST_F(CmdRunOptionsTest, AWrongStrategyIsQuotedOnce) {
  const std::string expected =
      "unknown axis 'xp'; expected \"auto\" or axis sizes such as \"dp=2,tp=2,pp=1\"\n";
  EXPECT_EQ(Call({"run", Path("job.toml"), "--strategy", "dp=2,xp=2"}).err,
            StrCat("penstock: --strategy dp=2,xp=2: ", expected));
  const std::string job = Write("axis.toml", Job() + "[parallel]\nstrategy = \"dp=2,xp=2\"\n");
  EXPECT_THAT(Call({"run", job}).err,
              ::testing::MatchesRegex(StrCat("penstock: ", job, ":[0-9]+:12: ", expected)));
}

TEST_F(CmdRunOptionsTest, NumbersThatAreTooSmallAreRefusedInAShortLine) {
  for (const auto& [option, value] :
       {std::pair("--devices", "0"), std::pair("--procs", "0"), std::pair("--procs", "-3")}) {
    const Outcome outcome = Call({"run", Path("job.toml"), option, value});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr(StrCat(option, ": must be at least 1, not ", value, "\n")));
    EXPECT_LT(outcome.err.size(), 200) << outcome.err;
  }
  EXPECT_THAT(Call({"node", "--join", "127.0.0.1:1", "--rank", "-1"}).err,
              HasSubstr("--rank: must be at least 0, not -1"));
}

TEST_F(CmdRunOptionsTest, TraceEveryWantsATrace) {
  EXPECT_THAT(Call({"run", Path("job.toml"), "--trace-every", "-1"}).err,
              HasSubstr("--trace-every: must be at least 0, not -1"));
  const Outcome none = Call({"run", Path("job.toml"), "--trace-every", "0", "--trace", Path("t")});
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.err, HasSubstr("--trace-every 0: records no step, but --trace"));
  const Outcome outcome = Call({"run", Path("job.toml"), "--trace-every", "3"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("give --trace, --svg or --report with it"));
}

TEST_F(CmdRunOptionsTest, ATemperatureIsANumber) {
  for (const std::string value : {"nan", "inf", "-1"}) {
    const Outcome outcome =
        Call({"generate", Path("none"), "--prompt", "a", "--temperature", value});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr("--temperature: expected a number of at least 0"));
  }
}

TEST_F(CmdRunOptionsTest, APlanRunsWithNoMoreThreadsThanItWasCompiledFor) {
  const std::string plan = Path("job.plan");
  ASSERT_EQ(Call({"plan", Path("job.toml"), "-o", plan, "--set", "cluster.threads=2"}).status, 0);
  const std::string text = StrCat("data.text=\"", Path("text.txt"), "\"");
  const Outcome more = Call({"run", plan, "--set", "cluster.threads=8"});
  EXPECT_EQ(more.status, 2);
  EXPECT_THAT(more.err, HasSubstr(StrCat("penstock: --set cluster.threads=8: ", plan,
                                         " was compiled for 2 threads a device, not 8")));
  EXPECT_THAT(Call({"run", Path("job.toml"), "--plan", plan, "--set", "cluster.threads=8"}).err,
              HasSubstr(" was compiled for 2 threads a device, not 8"));
  for (const char* fewer : {"cluster.threads=2", "cluster.threads=1"}) {
    EXPECT_EQ(Call({"run", plan, "--set", text, "--set", "train.steps=1", "--set", fewer}).status,
              0);
  }
}

TEST_F(CmdRunOptionsTest, APlanIsVerifiedBeforeItRuns) {
  const std::string file = Path("job.plan");
  ASSERT_EQ(Call({"plan", Path("job.toml"), "-o", file}).status, 0);
  absl::StatusOr<planner::Plan> plan = planner::ReadPlan(file);
  ASSERT_TRUE(plan.ok()) << plan.status();
  plan->devices[0].channels[0].produce = 0;
  const std::string changed = Path("changed.plan");
  ASSERT_TRUE(planner::WritePlan(*plan, changed).ok());
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"run", changed, "--set", StrCat("data.text=\"", Path("text.txt"), "\"")},
           {"run", Path("job.toml"), "--plan", changed}}) {
    const Outcome outcome = Call(arguments);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr(StrCat("penstock: ", changed, ": ")));
    EXPECT_THAT(outcome.err, HasSubstr("produce 0,"));
  }
}

// A row of four elements cannot be on two devices, so pairs of devices do the same.
TEST_F(CmdRunOptionsTest, APlanListsGathersThatNothingAsksFor) {
  Write("rows.pst",
        "mesh m = [a=4]\ngraph g {\n  %x = input : f64[24] @[a]\n"
        "  %w = parameter : f64[6, 4]\n  %y = reshape(%x) {shape=[6, 4]} : f64[6, 4]\n"
        "  %q = mul(%y, %w) : f64[6, 4]\n"
        "  %l = reduce_mean(%q) {axes=[0, 1]} : f64[]\n  return %l\n}\n");
  const std::string job = Write("rows.toml", "[model]\nfile = \"rows.pst\"\n");
  const Outcome plan = Call({"plan", job});
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr(StrCat("      gathered though nothing asks for it: %x at ",
                                         Path("rows.pst"),
                                         ":5:3, 48 B a device, because reshape cannot run "
                                         "on @[a] and reads @[a:(1)2]\n")));
  const auto json = nlohmann::json::parse(Call({"plan", job, "--json"}).out);
  ASSERT_EQ(json["unasked_gathers"].size(), 1u);
  EXPECT_EQ(json["unasked_gathers"][0]["value"], "x");
  EXPECT_EQ(json["unasked_gathers"][0]["bytes"], 48);
  EXPECT_EQ(json["unasked_gathers"][0]["location"], Path("rows.pst") + ":5:3");
  EXPECT_THAT(Call({"plan", Path("job.toml"), "--strategy", "dp=2"}).out,
              Not(HasSubstr("nothing asks for it")));
}

TEST_F(CmdRunOptionsTest, AGraphFileIsNoJob) {
  GraphJob();
  for (const char* command : {"run", "plan"}) {
    const Outcome outcome = Call({command, Path("graph.pst")});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr("graph.pst: a .pst file is a graph; name it in model.file "
                                       "of a job (a .toml file)"));
  }
}

TEST_F(CmdRunOptionsTest, AMissingGraphFileIsPlacedAtItsKey) {
  const std::string job = Write("gone.toml", "[model]\n  file = \"gone.pst\"\n");
  for (const char* command : {"run", "plan"}) {
    const Outcome outcome = Call({command, job});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.err,
              StrCat("penstock: ", job, ":2:10: ", Path("gone.pst"), ": no such file\n"));
  }
  EXPECT_EQ(Call({"run", GraphJob(), "--set", "model.file=\"/gone.pst\""}).err,
            "penstock: --set model.file=\"/gone.pst\": /gone.pst: no such file\n");
}

TEST_F(CmdRunOptionsTest, ListenAddressesAreCheckedBeforeAnythingElse) {
  const auto error_of = [this](const std::string& address) {
    const Outcome outcome = Call({"run", Path("none.plan"), "--listen", address});
    EXPECT_EQ(outcome.status, 2);
    return outcome.err;
  };
  EXPECT_EQ(error_of(""),
            "penstock: --listen \"\": the address is empty; expected HOST:PORT or unix:PATH\n");
  EXPECT_THAT(error_of("127.0.0.1:99999"),
              HasSubstr("--listen \"127.0.0.1:99999\": '99999' is not a port; expected a number "
                        "from 0 to 65535"));
  EXPECT_THAT(error_of("127.0.0.1:0"), HasSubstr("none.plan"));
}

}  // namespace
}  // namespace penstock::cli
