// The commands as a script meets them: exit status, what goes to standard output, and where errors
// point. Everything runs in this process, on jobs that take a moment.

#include <sched.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "cli/environment.h"
#include "cli/npy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/format.h"
#include "base/machine.h"
#include "base/strings.h"
#include "tests/support/command_line_fixture.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;
using testing::CommandLineFixture;
using Outcome = CommandLineFixture::Outcome;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class CommandLineTest : public CommandLineFixture {};

TEST_F(CommandLineTest, HelpIsAnswered) {
  EXPECT_EQ(Call({"--help"}).status, 0);
  EXPECT_THAT(Call({"--help"}).out, HasSubstr("Examples:"));
  const Outcome run = Call({"run", "--help"});
  EXPECT_EQ(run.status, 0);
  EXPECT_THAT(run.out, HasSubstr("train.learning_rate"));
}

TEST_F(CommandLineTest, BadUsageAndBadInputAreStatusTwo) {
  struct Case {
    std::vector<std::string> arguments;
    std::string message;
  };
  const std::string job = Path("job.toml");
  const std::string bad_graph = Write("bad.pst", "graph g {\n  %x = inpot : f32[2]\n}\n");
  const std::vector<Case> cases = {
      {{}, "a command is missing, as in `penstock run JOB.toml`"},
      {{"ran"}, "did you mean 'run'?"},
      {{"run"}, "FILE"},
      {{"run", Path("none.toml")}, "no such file"},
      {{"run", folder_.string()}, "is a folder; expected a file"},
      {{"run", job, "--steps", "3"},
       "`penstock run` has no option --steps; did you mean --set train.steps=...?"},
      {{"run", job, "--device", "3"}, "has no option --device; did you mean --devices?"},
      {{"run", job, "3"}, "`penstock run` takes no argument 3; see `penstock run --help`"},
      {{"doctor", "--xyz"}, "`penstock doctor` has no option --xyz; see `penstock doctor --help`"},
      {{"--json"}, "`penstock` has no option --json; see `penstock --help`"},
      {{"-x"}, "`penstock` has no option -x; see `penstock --help`"},
      {{"run", job, "--set", "model.name=gpt"},
       "a string needs quotes: --set 'model.name=\"gpt\"'"},
      {{"run", job, "--set", "parallel.strategy=dp=2"},
       "a string needs quotes: --set 'parallel.strategy=\"dp=2\"'"},
      {{"run", job, "--set", "train.learning_rate=fast"}, "expected a number, not a string"},
      {{"run", job, "--set", "train.steps=1e3"}, "expected an integer, not a float; write 1000"},
      {{"run", job, "--set", "train.steps=0.5"}, "expected an integer, not a float\n"},
      {{"run", Write("bare.toml", "[model]\nname = gpt\n")},
       "bare.toml:2:1: not a TOML value; a string needs quotes\n"},
      {{"run", job, "--cluster", Write("flat.toml", "devices = 2\n")},
       "unexpected key 'devices'; its keys stand below a line [cluster]"},
      {{"plan", job, "-o", folder_.string()}, "is a folder; expected the name of a file"},
      {{"plan", job, "--svg", folder_.string()}, "is a folder; expected the name of a file"},
      {{"run", job, "--devices", "0"}, "--devices"},
      {{"run", job, "--procs", "2"}, "penstock: --procs 2: 2 processes for 1 device: "},
      {{"run", job, "--set", "train.stepz=5"}, "did you mean 'train.steps'?"},
      {{"run", job, "--set", "train.steps=x"}, "--set train.steps=x"},
      {{"run", job, "--set", "train.steps=-1"}, "out of range"},
      {{"run", job, "--set", "model.heads=3"}, "--set model.heads=3: heads = 3 does not divide"},
      {{"run", job, "--set", "model.name=\"moe\"", "--set", "model.top_k=9"},
       "--set model.top_k=9: top_k = 9: must lie between 1 and 8"},
      {{"run", job, "--set", "parallel.strategy=\"dp=2,ep=2\"", "--devices", "2"},
       "ep = 2: the model has no experts"},
      {{"run", job, "--set", "model.name=\"gptt\""}, "did you mean 'gpt'?"},
      {{"run", job, "--set", "parallel.strategy=\"tp=3\""}, "tp = 3 does not divide the 2 heads"},
      {{"run", job, "--set", "parallel.strategy=\"dp=3\""},
       "does not divide batch = 8; a batch that is a multiple of 3 fits"},
      {{"run", job, "--set", "parallel.strategy=\"zp=3\""}, "unknown axis 'zp'"},
      {{"run", job, "--set", "parallel.strategy=\"dp=2\"", "--devices", "3"}, "needs 2 devices"},
      {{"run", job, "--set", "parallel.strategy=\"dp=2\"", "--set", "cluster.hosts=3"},
       "cluster.hosts = 3 for 2 devices"},
      {{"run", job, "--set", "parallel.schedule=\"2f2b\""}, "unknown schedule '2f2b'"},
      {{"run", job, "--set", "data.text=[\"/nowhere\"]"}, "/nowhere: no such file or folder"},
      {{"run", job, "--set", "model.context=100000"}, "need at least"},
      {{"run", Write("bad.toml", "[train]\nstepz = 3\n")}, "bad.toml:2:1: "},
      {{"run", Write("bad.plan", "this is no plan")}, "bad.plan"},
      {{"plan", job, "--strategy", "dp=7"}, "penstock: --strategy dp=7: dp = 7 does not divide"},
      {{"show", Path("none.plan")}, "none.plan"},
      {{"opt", bad_graph, "--pass", "verify"}, "bad.pst:2:8: "},
      {{"opt", bad_graph}, "bad.pst:2:8: "},
      {{"eval", bad_graph}, "bad.pst:2:8: "},
      {{"eval", Path("none.pst")}, "no such file"},
      {{"eval", Write("g.pst", "graph g {\n  %x = input : f32[2]\n  return %x\n}\n"), "--inputs",
        job},
       "job.toml: is a file; expected a folder with NAME.npy files"},
      {{"list", "wishes"}, "there is no list 'wishes'; one of ops, policies, "},
      {{"list", "polices"}, "there is no list 'polices'; did you mean 'policies'?"},
      {{"eval", job},
       "job.toml: a .toml file is a job, which `penstock run` runs; expected a graph"},
      {{"opt", job}, "job.toml: a .toml file is a job"},
      {{"show", job}, "job.toml: not a compiled plan, as `penstock plan` writes: "},
      {{"list"}, "one of ops, policies, transports"},
      {{"bench", "nothing"}, "unknown benchmark 'nothing'"},
  };
  for (const Case& test : cases) {
    const Outcome outcome = Call(test.arguments);
    const std::string call = StrJoin(test.arguments, " ");
    EXPECT_EQ(outcome.status, 2) << call << "\n" << outcome.err;
    EXPECT_THAT(outcome.err, ::testing::ContainsRegex("(^|\n)penstock: ")) << call;
    EXPECT_THAT(outcome.err, HasSubstr(test.message)) << call;
    EXPECT_EQ(outcome.out, "") << call;
  }
}

TEST_F(CommandLineTest, EvalNamesTheInputsWithoutAFile) {
  const std::string graph =
      Write("missing.pst",
            "graph g {\n  %x = input : f32[2, 2]\n  %y = input : f32[2, 2]\n"
            "  %w1 = parameter : f32[2, 2]\n  %z = parameter {init=\"zeros\"} : f32[2, 2]\n"
            "  %a = matmul(%x, %w1) : f32[2, 2]\n  %b = add(%a, %y) : f32[2, 2]\n"
            "  %c = add(%b, %z) : f32[2, 2]\n  return %c\n}\n");
  const std::string folder = Path("values");
  fs::create_directories(folder);
  Tensor y({DType::kF32, {2, 2}});
  for (int i = 0; i < 4; ++i) y.As<float>()[i] = 1;
  ASSERT_TRUE(WriteNpy(folder + "/y.npy", y).ok());
  const Outcome some = Call({"eval", graph, "--inputs", folder});
  EXPECT_EQ(some.status, 0);
  EXPECT_EQ(some.err, StrCat("note: no file in ", folder, " for w1, x: drawn from seed 1\n"));
  EXPECT_THAT(some.out, Not(HasSubstr("note")));
  EXPECT_EQ(Call({"eval", graph}).err, "");
  ASSERT_TRUE(WriteNpy(folder + "/x.npy", y).ok());
  ASSERT_TRUE(WriteNpy(folder + "/w1.npy", y).ok());
  EXPECT_EQ(Call({"eval", graph, "--inputs", folder}).err, "");
}

TEST_F(CommandLineTest, EvalPrintsNanWithoutASign) {
  const std::string graph = Write("nan.pst", "graph g {\n  %x = input : f32[2]\n  return %x\n}\n");
  Tensor x({DType::kF32, {2}});
  x.As<float>()[0] = 1;
  x.As<float>()[1] = -std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE(std::signbit(x.As<float>()[1]));
  ASSERT_TRUE(WriteNpy(Path("x.npy"), x).ok());
  EXPECT_EQ(Call({"eval", graph, "--inputs", folder_.string()}).out,
            "x : f32[2]  sum nan  abs_max nan\n");
}

TEST_F(CommandLineTest, BadGraphsAndTextsAreStatusTwo) {
  const std::string mismatch = Write("mismatch.pst",
                                     "graph g {\n  %x = input : f32[2, 3]\n"
                                     "  %y = input : f32[4, 5]\n"
                                     "  %z = matmul(%x, %y) : f32[2, 5]\n  return %z\n}\n");
  const std::string wide = Write("wide.pst",
                                 "mesh m = [a=4]\ngraph g {\n  %x = input : f32[8] @[a]\n"
                                 "  return %x\n}\n");
  Write("empty.txt", "");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"eval", mismatch}, "mismatch.pst:4:3: matmul: the inner dimensions differ"},
      {{"eval", wide, "--devices", "2"}, "--devices 2: "},
      {{"run", Path("job.toml"), "--set", "data.text=[\"" + Path("empty.txt") + "\"]"},
       "the text is empty"},
      {{"run", Path("job.toml"), "--set", "model.layers=1048576"}, "out of range"},
  };
  for (const auto& [arguments, message] : cases) {
    const Outcome outcome = Call(arguments);
    EXPECT_EQ(outcome.status, 2) << message << "\n" << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
}

TEST_F(CommandLineTest, DamagedPlansAreStatusTwo) {
  const std::string path = Path("job.plan");
  ASSERT_EQ(Call({"plan", Path("job.toml"), "-o", path}).status, 0);
  std::ifstream stream(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  ASSERT_GT(bytes.size(), 1000u);
  for (size_t length : {size_t{0}, size_t{7}, bytes.size() / 2, bytes.size() - 1}) {
    const std::string damaged = Write("short.plan", bytes.substr(0, length));
    const Outcome outcome = Call({"run", damaged});
    EXPECT_EQ(outcome.status, 2) << length;
    EXPECT_THAT(outcome.err, HasSubstr("short.plan: ")) << length;
  }
  for (size_t i = 0; i < 64; ++i) {
    std::string flipped = bytes;
    const size_t at = i * (bytes.size() - 1) / 63;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << (i % 8)));
    const Outcome outcome = Call({"show", Write("flipped.plan", flipped)});
    EXPECT_EQ(outcome.status, 2) << "byte " << at;
    EXPECT_THAT(outcome.err, HasSubstr("flipped.plan: ")) << "byte " << at;
  }
}

TEST_F(CommandLineTest, APlanForAnotherGraphIsStatusTwo) {
  const std::string path = Path("job.plan");
  ASSERT_EQ(Call({"plan", Path("job.toml"), "-o", path}).status, 0);
  // What the plan was not compiled for.
  const Outcome devices = Call({"run", path, "--devices", "3"});
  EXPECT_EQ(devices.status, 2);
  EXPECT_THAT(devices.err, HasSubstr("penstock: --devices 3: "));
  const Outcome model = Call({"run", path, "--set", "model.layers=3"});
  EXPECT_EQ(model.status, 2) << model.err;
  EXPECT_THAT(model.err, HasSubstr("model.layers"));
  // A job that is given the plan of another.
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--devices", "2"}, "is a plan for 1 device, not 2"},
      {{"--set", "parallel.strategy=\"dp=2\""}, "with parallel.strategy = dp=1,tp=1,pp=1, not dp"},
      {{"--set", "parallel.microbatches=2"}, "compiled with parallel.microbatches = 1, not 2"},
      {{"--set", "parallel.schedule=\"gpipe\""}, "with parallel.schedule = 1f1b, not gpipe"},
  };
  for (const auto& [arguments, message] : cases) {
    std::vector<std::string> call = {"run", Path("job.toml"), "--plan", path};
    call.insert(call.end(), arguments.begin(), arguments.end());
    const Outcome outcome = Call(call);
    EXPECT_EQ(outcome.status, 2) << message << "\n" << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
  EXPECT_EQ(Call({"run", path, "--plan", path}).status, 2);
}

// Every key that a built-in model's training step depends on.
TEST_F(CommandLineTest, APlanForAnotherGraphNamesWhatDiffers) {
  const std::string job = Path("job.toml");
  const std::string plan = Path("cosine.plan");
  const std::string cosine = "train.schedule=\"cosine\"";
  ASSERT_EQ(Call({"plan", job, "--set", cosine, "-o", plan}).status, 0);
  const auto error_of = [&](const std::vector<std::string>& settings) {
    std::vector<std::string> call = {"run", job, "--plan", plan, "--set", cosine};
    for (const std::string& setting : settings) {
      call.insert(call.end(), {"--set", setting});
    }
    const Outcome outcome = Call(call);
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    return outcome.err;
  };
  EXPECT_EQ(error_of({"train.steps=5"}), StrCat("penstock: --set train.steps=5: ", plan,
                                                " was compiled with train.steps = 3, not 5; "
                                                "`penstock plan` compiles another plan, and "
                                                "`penstock run ",
                                                plan,
                                                " --set train.steps=5` runs so many steps of this "
                                                "one\n"));
  EXPECT_EQ(Call({"run", plan, "--set", "train.steps=1"}).status, 0);
  EXPECT_THAT(error_of({"train.learning_rate=0.125", "train.min_learning_rate=1e-3"}),
              HasSubstr(" was compiled with train.learning_rate = 0.01, not 0.125; "));
  for (const char* setting : {"model.name=\"mlp\"",
                              "model.layers=3",
                              "model.width=32",
                              "model.heads=4",
                              "model.context=4",
                              "model.vocabulary=300",
                              "model.dropout=0.5",
                              "train.batch=4",
                              "train.dtype=\"f32\"",
                              "train.optimizer=\"sgd\"",
                              "train.beta1=0.5",
                              "train.beta2=0.5",
                              "train.epsilon=1e-7",
                              "train.weight_decay=0.2",
                              "train.clip_norm=2",
                              "train.learning_rate=1e-3",
                              "train.min_learning_rate=1e-5",
                              "train.warmup_steps=2",
                              "train.schedule=\"constant\"",
                              "train.steps=4"}) {
    const std::string key = std::string(setting).substr(0, std::string(setting).find('='));
    EXPECT_THAT(error_of({setting}), HasSubstr(StrCat(key, " = "))) << setting;
  }
  EXPECT_EQ(Call({"run", job, "--plan", plan, "--set", cosine, "--set", "train.seed=5"}).status, 0);

  const auto write_graph = [this](const char* op) {
    Write("g.pst",
          StrCat("graph g {\n  %x = input : f32[4]\n  %w = parameter : f32[4]\n  %a = ", op,
                 "(%x, %w) : f32[4]\n  %l = reduce_mean(%a) {axes=[0]} : f32[]\n"
                 "  return %l\n}\n"));
  };
  write_graph("mul");
  const std::string graph_job =
      Write("g.toml", "[model]\nfile = \"g.pst\"\n[data]\ninputs = \"random\"\n");
  ASSERT_EQ(Call({"plan", graph_job, "-o", Path("g.plan")}).status, 0);
  write_graph("sub");
  EXPECT_THAT(Call({"run", graph_job, "--plan", Path("g.plan")}).err,
              ::testing::ContainsRegex(StrCat(graph_job, ":2:8: ", Path("g.plan"),
                                              " was compiled with model.file = graph g "
                                              "[0-9a-f]+, not graph g [0-9a-f]+; ")));
  EXPECT_THAT(Call({"run", graph_job, "--plan", plan}).err,
              HasSubstr("cosine.plan was compiled with "));
}

TEST_F(CommandLineTest, APlanThatDoesNotFitNamesDeviceNeedAndRoom) {
  const Outcome outcome =
      Call({"run", Path("job.toml"), "--set", "model.width=65536", "--set", "model.layers=8"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, ::testing::ContainsRegex(
                               "device 0 needs [0-9.]+ [KMGT]iB, available are [0-9.]+ [KMGT]iB"));
}

TEST_F(CommandLineTest, WhatCannotBeWrittenIsSaidBeforeTraining) {
  const std::string job = Path("job.toml");
  const std::string nowhere = Path("nowhere/file");
  for (const std::string option : {"--trace", "--svg", "--report"}) {
    const Outcome missing = Call({"run", job, option, nowhere, "--json"});
    EXPECT_EQ(missing.status, 2) << option;
    EXPECT_THAT(missing.err, StartsWith(StrCat("penstock: ", option, " ", nowhere,
                                               ": there is no folder ", Path("nowhere"))));
    EXPECT_EQ(missing.out, "") << "a step was run";
    const Outcome folder = Call({"run", job, option, folder_.string(), "--json"});
    EXPECT_EQ(folder.status, 2) << option;
    EXPECT_THAT(folder.err, HasSubstr(": is a folder"));
    EXPECT_EQ(folder.out, "");
  }
  // A folder that takes no files, whatever the permissions say.
  const Outcome proc = Call({"run", job, "--trace", "/proc/trace.json", "--json"});
  EXPECT_EQ(proc.status, 2);
  EXPECT_THAT(proc.err, StartsWith("penstock: --trace /proc/trace.json: cannot be written ("));
  EXPECT_EQ(proc.out, "");
  const Outcome dump = Call({"run", job, "--dump", Path("text.txt"), "--json"});
  EXPECT_EQ(dump.status, 2);
  EXPECT_EQ(dump.out, "");
  EXPECT_EQ(Call({"plan", job, "-o", nowhere}).status, 2);
}

TEST_F(CommandLineTest, TheCheckOfAnOutputChangesNothing) {
  const std::string job = Path("job.toml");
  const std::string old = Write("old.json", "of the last run");
  EXPECT_EQ(Call({"run", job, "--dry-run", "--trace", old}).status, 0);
  EXPECT_EQ(Read("old.json"), "of the last run");
  EXPECT_EQ(Call({"run", job, "--dry-run", "--trace", Path("new.json")}).status, 0);
  EXPECT_FALSE(fs::exists(Path("new.json")));
  fs::create_symlink(Path("target.json"), Path("link.json"));
  EXPECT_EQ(Call({"run", job, "--dry-run", "--trace", Path("link.json")}).status, 0);
  EXPECT_TRUE(fs::is_symlink(Path("link.json")));
  EXPECT_FALSE(fs::exists(Path("target.json")));
  // Nobody reads it: opening it would wait.
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(Call({"run", job, "--dry-run", "--trace", Path("pipe")}).status, 0);
}

TEST_F(CommandLineTest, MicrobatchesThatDoNotFitAreToBlame) {
  const std::string job =
      Write("mb.toml", Job() + "[parallel]\nstrategy = \"dp=2\"\nmicrobatches = 3\n");
  const Outcome outcome = Call({"plan", job});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err,
              HasSubstr("mb.toml:20:16: dp = 2 times microbatches = 3 does not divide batch = 8"));
  const Outcome automatic = Call({"plan", job, "--strategy", "auto"});
  EXPECT_EQ(automatic.status, 2);
  EXPECT_THAT(automatic.err, HasSubstr("mb.toml:20:16: "));
  // The strategy is to blame where no number of micro-batches helps.
  EXPECT_THAT(Call({"plan", job, "--strategy", "dp=3"}).err,
              HasSubstr("--strategy dp=3: dp = 3 does not divide batch = 8"));
}

TEST_F(CommandLineTest, OneIsNotSeveral) {
  const Outcome plan = Call({"plan", Path("job.toml"), "-o", Path("job.plan")});
  EXPECT_THAT(plan.out, HasSubstr("1 micro-batch, 1 stage"));
  EXPECT_THAT(plan.out, HasSubstr("1 device of "));
  const Outcome show = Call({"show", Path("job.plan")});
  EXPECT_THAT(show.out, HasSubstr("1 micro-batch a step"));
  EXPECT_THAT(show.out, HasSubstr("1 device in 1 stage, "));
  ASSERT_EQ(Call({"plan", Path("job.toml"), "--strategy", "pp=2", "-o", Path("pp.plan")}).status,
            0);
  EXPECT_THAT(Call({"show", Path("pp.plan"), "--device", "0"}).out,
              AllOf(HasSubstr(" 1 actor "), Not(HasSubstr(" 1 actors"))));
  const Outcome devices =
      Call({"run", Path("job.toml"), "--set", "parallel.strategy=\"dp=1\"", "--devices", "2"});
  EXPECT_THAT(devices.err, HasSubstr("needs 1 device, "));
  const Outcome run =
      Call({"run", Path("job.toml"), "--set", "train.steps=1", "--report", Path("one.md")});
  EXPECT_THAT(run.out, HasSubstr("run:  1 step, loss "));
  EXPECT_THAT(Read("one.md"), HasSubstr("\n1 step, final loss "));
  EXPECT_THAT(Read("one.md"), HasSubstr("Mean of 1 traced step: "));
  EXPECT_THAT(Read("one.md"), HasSubstr("## Phases (mean time of one run, step 1)"));
}

TEST_F(CommandLineTest, ResultsThatCannotBeWrittenAreAnError) {
  if (std::filesystem::is_character_file("/dev/full")) {
    const Outcome plan = Call({"plan", Path("job.toml"), "-o", "/dev/full"});
    EXPECT_NE(plan.status, 0);
    EXPECT_THAT(plan.err, HasSubstr("cannot write /dev/full: No space left on device"));
    EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  }
  std::ofstream full("/dev/full");
  std::ostringstream err;
  const Registries registries = BuiltinRegistries();
  const std::vector<std::string> arguments = {"list", "ops"};
  EXPECT_EQ(RunCommandLine({registries, full, err}, arguments), 1);
  EXPECT_THAT(err.str(), HasSubstr("could not be written to standard output"));
}

TEST_F(CommandLineTest, ListsNames) {
  for (const std::string what :
       {"ops", "policies", "transports", "devices", "models", "presets", "clusters"}) {
    const Outcome outcome = Call({"list", what, "--json"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const auto items = nlohmann::json::parse(outcome.out)["items"].get<std::vector<std::string>>();
    EXPECT_FALSE(items.empty()) << what;
    EXPECT_TRUE(std::is_sorted(items.begin(), items.end())) << what;
    const Outcome text = Call({"list", what});
    EXPECT_THAT(text.out, HasSubstr(items[0]));
  }
  EXPECT_THAT(Call({"list", "devices"}).out, HasSubstr("\ncuda          "));
  EXPECT_THAT(Call({"list", "presets"}).out, HasSubstr("gpt2-124m"));
  EXPECT_THAT(Call({"list", "clusters"}).out, HasSubstr("dgx-a100:NODES"));
}

TEST_F(CommandLineTest, OptPrintsTheGraph) {
  const std::string file = Write("g.pst",
                                 "graph g {\n  %x = input : f32[4]\n  %y = neg(%x) : f32[4]\n"
                                 "  return %y\n}\n");
  const Outcome outcome = Call({"opt", file, "--pass", "verify"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("neg(%x)"));
  EXPECT_EQ(Call({"opt", file, "--pass", "verfy"}).status, 2);
}

TEST_F(CommandLineTest, DoctorChecksThisMachine) {
  const Outcome outcome = Call({"doctor", "--json"});
  const nlohmann::json json = nlohmann::json::parse(outcome.out);
  ASSERT_FALSE(json["checks"].empty());
  std::string nccl;
  for (const nlohmann::json& check : json["checks"]) {
    EXPECT_TRUE(check["ok"].get<bool>()) << check.dump();
    EXPECT_FALSE(check["detail"].get<std::string>().empty());
    if (check["name"] == "nccl") nccl = check["detail"].get<std::string>();
  }
  EXPECT_THAT(nccl, HasSubstr("NCCL"));
  // The cores that this process may use, not those of the machine.
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &all)) CPU_SET(core, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const Outcome pinned = Call({"doctor"});
  ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
  EXPECT_THAT(pinned.out,
              HasSubstr(MachineCores() == 1 ? std::string("cores: 1 core\n")
                                            : StrCat("cores: 1 usable of the machine's ",
                                                     MachineCores(), " cores\n")));
  EXPECT_EQ(outcome.status, 0);
}

TEST_F(CommandLineTest, BenchNamesItsGroups) {
  const Outcome outcome = Call({"bench", "--list", "--json"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const nlohmann::json json = nlohmann::json::parse(outcome.out);
  EXPECT_THAT(json["items"].get<std::vector<std::string>>(), Contains("kernels"));
}

TEST_F(CommandLineTest, BenchMeasuresTheTransport) {
  const std::string size = "transport/shared_memory/1048576/";
  const Outcome outcome =
      Call({"bench", "transport", "--filter", size + ".*(one_way|bandwidth)$", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const nlohmann::json json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["name"], "transport");
  const nlohmann::json& metrics = json["metrics"];
  EXPECT_GT(metrics[size + "one_way"], 0);
  EXPECT_GT(metrics[size + "bandwidth"], 0);
  EXPECT_EQ(json["unit"][size + "one_way"], "us");
  EXPECT_EQ(json["unit"][size + "bandwidth"], "GB/s");
  EXPECT_FALSE(metrics.contains(size + "one_way_ratio"));
  EXPECT_EQ(metrics.contains(size + "plain_perftest_bandwidth"),
            metrics.contains(size + "perftest_bandwidth"));
}

TEST_F(CommandLineTest, BenchMeasuresActs) {
  const std::string filter = "actors/chain/100/|actors/wake/polling$";
  const Outcome outcome = Call({"bench", "actors", "--filter", filter, "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const nlohmann::json json = nlohmann::json::parse(outcome.out);
  EXPECT_GT(json["metrics"]["actors/chain/100/act"], 0);
  EXPECT_EQ(json["unit"]["actors/chain/100/act"], "ns");
  EXPECT_GT(json["metrics"]["actors/chain/100/step"], 0);
  EXPECT_GT(json["metrics"]["actors/wake/polling"], 0);
  EXPECT_FALSE(json["metrics"].contains("actors/wake/sleeping"));
  EXPECT_FALSE(json["metrics"].contains("actors/phase/100/act"));

  const Outcome table = Call({"bench", "actors", "--filter", filter});
  EXPECT_THAT(table.out, HasSubstr("ns/act"));
  EXPECT_THAT(table.out, HasSubstr("\nchain "));
  EXPECT_EQ(Call({"bench", "actors", "--filter", "actors/none"}).status, 2);
}

TEST_F(CommandLineTest, PlanTellsWhatItCompiled) {
  const std::string file = Path("job.plan");
  const Outcome outcome =
      Call({"plan", Path("job.toml"), "--strategy", "dp=2,tp=2", "-o", file, "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const nlohmann::json json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["strategy"], "dp=2,tp=2,pp=1");
  EXPECT_EQ(json["stages"], 1);
  EXPECT_GT(json["actors"], 0);
  EXPECT_GT(json["channels"], 0);
  EXPECT_GT(json["collectives"], 0);
  EXPECT_EQ(json["predicted_peak_memory_bytes"].size(), 4);
  EXPECT_GT(json["predicted_step_time_s"], 0);
  EXPECT_GE(json["search_time_s"], 0);
  EXPECT_EQ(json["checkpoint_copy_bytes"], 0);

  const Outcome show = Call({"show", file, "--json"});
  ASSERT_EQ(show.status, 0) << show.err;
  const nlohmann::json shown = nlohmann::json::parse(show.out);
  EXPECT_EQ(shown["devices"], 4);
  EXPECT_EQ(shown["actors"], json["actors"]);
  EXPECT_EQ(shown["channels"], json["channels"]);
  EXPECT_EQ(shown["collectives"], json["collectives"]);
  EXPECT_EQ(Call({"show", file}).status, 0);
  EXPECT_EQ(Call({"show", file, "--device", "3"}).status, 0);
  EXPECT_EQ(Call({"show", file, "--device", "4"}).status, 2);
  EXPECT_EQ(Call({"plan", Path("job.toml"), "--explain"}).status, 0);
}

// Each process copies the tiles that its devices hold, each once.
TEST_F(CommandLineTest, PlanCountsTheCopyForCheckpointsAsRunDoes) {
  const auto copied = [this](const char* strategy, const char* processes) {
    const std::vector<std::string> more = {Path("job.toml"),
                                           "--strategy",
                                           strategy,
                                           "--set",
                                           "checkpoint.path=\"c\"",
                                           "--set",
                                           StrCat("cluster.processes=", processes)};
    std::vector<std::string> plan = {"plan", "--json"};
    plan.insert(plan.end(), more.begin(), more.end());
    const Outcome outcome = Call(plan);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const nlohmann::json json = nlohmann::json::parse(outcome.out);
    const uint64_t bytes = json["checkpoint_copy_bytes"];
    // They are a part of what devices are said to need.
    std::vector<std::string> without = plan;
    without.insert(without.end(), {"--set", "checkpoint.path=\"\""});
    const nlohmann::json bare = nlohmann::json::parse(Call(without).out);
    uint64_t difference = 0;
    uint64_t most = 0;
    for (size_t d = 0; d < json["predicted_peak_memory_bytes"].size(); ++d) {
      const uint64_t needed = json["predicted_peak_memory_bytes"][d];
      difference += needed - bare["predicted_peak_memory_bytes"][d].get<uint64_t>();
      most = std::max(most, needed);
    }
    EXPECT_EQ(difference, bytes);
    const std::string note = StrCat("\n      with ", FormatBytes(bytes),
                                    " in all for the copies of states that go into checkpoints\n");
    plan.erase(plan.begin() + 1);
    const std::string up_to = StrCat("up to ", FormatBytes(most), " a device");
    EXPECT_THAT(Call(plan).out, AllOf(HasSubstr(note), HasSubstr(up_to)));
    std::vector<std::string> run = {"run", "--dry-run"};
    run.insert(run.end(), more.begin(), more.end());
    EXPECT_THAT(Call(run).err, AllOf(HasSubstr(note), HasSubstr(up_to)));
    return bytes;
  };
  const uint64_t whole = copied("dp=2", "1");
  EXPECT_GT(whole, 0u);
  EXPECT_EQ(copied("dp=2", "2"), 2 * whole);
  EXPECT_EQ(copied("tp=2,dp=2", "1"), whole);
}

TEST_F(CommandLineTest, TheVersionIsPrinted) {
  for (const char* option : {"--version", "-V"}) {
    const Outcome outcome = Call({option});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_THAT(outcome.out, ::testing::MatchesRegex("penstock [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  }
}

TEST_F(CommandLineTest, PlanTakesTheNumberOfDevices) {
  const Outcome outcome = Call({"plan", Path("job.toml"), "--devices", "4", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["devices"], 4);
  EXPECT_THAT(Call({"plan", Path("job.toml"), "--devices", "3", "--strategy", "dp=2"}).err,
              HasSubstr("needs 2 devices, not 3 (--devices 3)"));
}

TEST_F(CommandLineTest, ShowNamesTheRegistersOfADevice) {
  ASSERT_EQ(Call({"plan", Path("job.toml"), "-o", Path("job.plan")}).status, 0);
  const std::string text = Call({"show", Path("job.plan"), "--device", "0"}).out;
  EXPECT_THAT(text, ::testing::ContainsRegex("  r[0-9]+ +state +1 x [^\n]*: wte\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("  r[0-9]+ +channel +[^\n]*: h0\\.attn"));
  EXPECT_THAT(text,
              ::testing::ContainsRegex(" h0\\.attn\\.qkv[^\n]*\\([^)]*r[0-9]+:h0\\.attn\\.qkv"));
}

TEST_F(CommandLineTest, PlanDumpsTheGraphAfterAPass) {
  const Outcome outcome =
      Call({"plan", Path("job.toml"), "--strategy", "tp=2", "--dump",
            StrCat("input=", Path("a.pst")), "--dump", StrCat("lower-reshards=", Path("b.pst"))});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(Call({"opt", Path("a.pst"), "--pass", "propagate,decompose"}).status, 0);
  EXPECT_THAT(Call({"opt", Path("b.pst"), "--pass", "verify"}).out, HasSubstr("all_reduce"));
  for (const std::string bad : {"nothing", "nothing=x", "=x", "input="}) {
    EXPECT_EQ(Call({"plan", Path("job.toml"), "--dump", bad}).status, 2) << bad;
  }
}

TEST_F(CommandLineTest, PlanDrawsTheGraph) {
  const Outcome outcome =
      Call({"plan", Path("job.toml"), "--strategy", "tp=2,pp=2", "--svg", Path("plan.svg")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  std::ifstream file(Path("plan.svg"));
  const std::string svg{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(svg, ::testing::StartsWith("<svg "));
  EXPECT_THAT(svg, HasSubstr("tp=2,pp=2"));
  EXPECT_THAT(svg, HasSubstr(">stage 1</text>"));
  EXPECT_THAT(svg, HasSubstr(">all_reduce</text>"));
}

TEST_F(CommandLineTest, RunPrintsALineAStepAndASummary) {
  const std::vector<nlohmann::json> lines = RunLines({});
  ASSERT_EQ(lines.size(), 4);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(lines[i]["step"], i + 1);
    EXPECT_GT(lines[i]["loss"], 0);
    EXPECT_GT(lines[i]["step_time_s"], 0);
    EXPECT_GT(lines[i]["tokens_per_s"], 0);
  }
  // An untrained model knows nothing: ln 256.
  EXPECT_NEAR(lines[0]["loss"].get<double>(), std::log(256.0), 0.05);
  const nlohmann::json& summary = lines[3]["summary"];
  EXPECT_EQ(summary["strategy"], "dp=1,tp=1,pp=1");
  EXPECT_EQ(summary["final_loss"], lines[2]["loss"]);
  EXPECT_GT(summary["validation_loss"], 0);
  EXPECT_GT(summary["unigram_entropy"], 1);
  EXPECT_FALSE(summary["sample"].get<std::string>().empty());
  EXPECT_GT(summary["step_time_s"], 0);
}

// What holds for every layout: the same numbers.
TEST_F(CommandLineTest, LayoutsAgree) {
  const std::vector<nlohmann::json> one = RunLines({});
  const std::vector<std::vector<std::string>> layouts = {
      {"--set", "parallel.strategy=\"dp=2\""},
      {"--set", "parallel.strategy=\"dp=4\""},
      {"--set", "parallel.strategy=\"dp=8\""},
      {"--set", "parallel.strategy=\"tp=2\""},
      {"--set", "parallel.strategy=\"pp=2\"", "--set", "parallel.microbatches=4"},
      {"--set", "parallel.strategy=\"dp=2,tp=2,pp=2\"", "--set", "parallel.microbatches=2"},
      {"--set", "parallel.microbatches=4"},
      {"--devices", "2"},
  };
  for (const std::vector<std::string>& layout : layouts) {
    const std::vector<nlohmann::json> lines = RunLines(layout);
    ASSERT_EQ(lines.size(), one.size());
    for (size_t i = 0; i + 1 < lines.size(); ++i) {
      EXPECT_NEAR(lines[i]["loss"].get<double>(), one[i]["loss"].get<double>(), 1e-8)
          << StrJoin(layout, " ");
    }
    const nlohmann::json& summary = lines.back()["summary"];
    const nlohmann::json& expected = one.back()["summary"];
    EXPECT_NEAR(summary["validation_loss"].get<double>(), expected["validation_loss"].get<double>(),
                1e-8)
        << StrJoin(layout, " ");
    EXPECT_EQ(summary["sample"], expected["sample"]) << StrJoin(layout, " ");
  }
}

TEST_F(CommandLineTest, APlanFileRunsLikeItsJob) {
  ASSERT_EQ(Call({"plan", Path("job.toml"), "--strategy", "dp=2", "-o", Path("job.plan")}).status,
            0);
  const std::vector<nlohmann::json> lines = RunLines({"--set", "parallel.strategy=\"dp=2\""});
  const Outcome outcome = Call({"run", Path("job.plan"), "--json", "--set", "train.steps=3",
                                "--set", StrCat("data.text=[\"", Path("text.txt"), "\"]")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  std::istringstream stream(outcome.out);
  std::string line;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(std::getline(stream, line));
    EXPECT_EQ(nlohmann::json::parse(line)["loss"], lines[i]["loss"]);
  }
  EXPECT_EQ(Call({"run", Path("job.plan"), "--devices", "3"}).status, 2);

  // And the job by its plan, whatever layout the plan has.
  const std::vector<nlohmann::json> by_plan = RunLines({"--plan", Path("job.plan")});
  ASSERT_EQ(by_plan.size(), lines.size());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(by_plan[i]["loss"], lines[i]["loss"]);
  EXPECT_EQ(by_plan.back()["summary"]["strategy"], "dp=2,tp=1,pp=1");
}

// The graph is correct, its inputs are not: a failure while running.
TEST_F(CommandLineTest, AnErrorOfAStepIsStatusOne) {
  const std::string file = Write("ids.pst",
                                 "graph g {\n  %t = parameter : f32[4, 2]\n  %i = input : i64[3]\n"
                                 "  %e = embedding(%t, %i) : f32[3, 2]\n  return %e\n}\n");
  Tensor ids({DType::kI64, {3}});
  ids.As<int64_t>()[1] = 4;
  ASSERT_TRUE(WriteNpy(Path("i.npy"), ids).ok());
  const Outcome outcome = Call({"eval", file, "--inputs", folder_.string()});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("embedding: index 4 lies outside [0, 4)"));
}

TEST_F(CommandLineTest, EvalRunsTheGraphAsSharded) {
  const std::string file = Write("g.pst",
                                 "mesh m = [d=2]\n"
                                 "graph g {\n"
                                 "  %x = input : f32[4, 3] @[d, _]\n"
                                 "  %w = parameter : f32[3, 2]\n"
                                 "  %y = matmul(%x, %w) : f32[4, 2]\n"
                                 "  %s = reduce_sum(%y) {axes=[0, 1]} : f32[]\n"
                                 "  return %y, %s\n}\n");
  Tensor x({DType::kF64, {4, 3}});
  for (int i = 0; i < 12; ++i) x.As<double>()[i] = i;
  Tensor w({DType::kF32, {3, 2}});
  for (int i = 0; i < 6; ++i) w.As<float>()[i] = 1;
  ASSERT_TRUE(WriteNpy(Path("x.npy"), x).ok());
  ASSERT_TRUE(WriteNpy(Path("w.npy"), w).ok());
  const Outcome outcome =
      Call({"eval", file, "--inputs", folder_.string(), "-o", Path("out"), "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const nlohmann::json results = nlohmann::json::parse(outcome.out)["results"];
  ASSERT_EQ(results.size(), 2);
  EXPECT_EQ(results[0]["name"], "y");
  EXPECT_EQ(results[0]["shape"], nlohmann::json({4, 2}));
  EXPECT_EQ(results[0]["sum"], 132);
  EXPECT_EQ(results[0]["abs_max"], 30);
  EXPECT_EQ(results[1]["shape"], nlohmann::json::array());
  EXPECT_EQ(results[1]["sum"], 132);
  const absl::StatusOr<Tensor> y = ReadNpy(Path("out/return0.npy"));
  ASSERT_TRUE(y.ok()) << y.status();
  EXPECT_EQ(y->As<float>()[0], 3);

  EXPECT_THAT(Call({"eval", file, "--devices", "1"}).err, HasSubstr("laid out over 2 devices"));
  ASSERT_TRUE(WriteNpy(Path("x.npy"), w).ok());
  EXPECT_THAT(Call({"eval", file, "--inputs", folder_.string()}).err, HasSubstr("f32[3, 2]"));
}

TEST_F(CommandLineTest, EvalOverProcessesGivesTheSameBits) {
  const std::string file = Write("g.pst",
                                 "mesh m = [d=4]\n"
                                 "graph g {\n"
                                 "  %x = input : f32[8, 300] @[d, _]\n"
                                 "  %w = parameter : f32[300, 5]\n"
                                 "  %y = matmul(%x, %w) : f32[8, 5]\n"
                                 "  %s = reduce_sum(%y) {axes=[0]} : f32[5]\n"
                                 "  return %y, %s\n}\n");
  const Outcome one = Call({"eval", file, "--json"});
  EXPECT_EQ(one.status, 0) << one.err;
  for (const std::string processes : {"2", "4"}) {
    const Outcome many = Call({"eval", file, "--json", "--procs", processes});
    EXPECT_EQ(many.status, 0) << many.err;
    EXPECT_EQ(many.out, one.out);
  }
  // They are processes indeed: a program that is not there cannot be started.
  std::ostringstream out;
  std::ostringstream err;
  EXPECT_NE(RunCommandLine({registries_, out, err, false, "/nowhere/penstock"},
                           std::vector<std::string>{"eval", file, "--procs", "2"}),
            0);
  EXPECT_THAT(err.str(), HasSubstr("/nowhere/penstock"));
  const Outcome five = Call({"eval", file, "--procs", "5"});
  EXPECT_EQ(five.status, 2);
  EXPECT_THAT(five.err, HasSubstr("--procs 5: the graph has 4 devices"));
  EXPECT_EQ(Call({"run", Path("job.toml"), "--procs", "2"}).status, 2);
}

TEST_F(CommandLineTest, WhatIsDrawnDependsOnTheSeedAlone) {
  const std::string one =
      "graph g {\n  %x = input : f32[8]\n  %n = input : i32[8]\n"
      "  %y = neg(%x) : f32[8]\n  return %y, %n\n}\n";
  const std::string two =
      "mesh m = [d=2]\ngraph g {\n  %x = input : f32[8] @[d]\n"
      "  %n = input : i32[8] @[d]\n  %y = neg(%x) : f32[8]\n  return %y, %n\n}\n";
  const std::string plain = Write("one.pst", one);
  const std::string split = Write("two.pst", two);
  const Outcome a = Call({"eval", plain, "--json", "--seed", "5"});
  const Outcome b = Call({"eval", split, "--json", "--seed", "5"});
  const Outcome c = Call({"eval", plain, "--json", "--seed", "6"});
  ASSERT_EQ(a.status, 0) << a.err;
  EXPECT_EQ(a.out, b.out) << b.err;
  EXPECT_NE(a.out, c.out);
}

}  // namespace
}  // namespace penstock::cli
