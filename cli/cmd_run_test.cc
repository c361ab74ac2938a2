// What `penstock run` does with a job, in this process: inputs, initial values, losses that are not
// finite, and what it writes. processes_test.cc runs it over processes.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "cli/npy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/machine.h"
#include "tests/support/command_line_fixture.h"
#include "tests/support/test_policies.h"

namespace penstock::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CmdRunTest : public testing::CommandLineFixture {
 protected:
  // loss = mean((x w1 - x w2)^2), with one input and two parameters that name no stream.
  std::string GraphJob(const std::string& more = "") const {
    Write("graph.pst",
          "graph g {\n  %x = input : f64[4, 3]\n"
          "  %w1 = parameter {std=0.5} : f64[3, 2]\n  %w2 = parameter {std=0.2} : f64[3, 2]\n"
          "  %a = matmul(%x, %w1) : f64[4, 2]\n  %b = matmul(%x, %w2) : f64[4, 2]\n"
          "  %d = sub(%a, %b) : f64[4, 2]\n  %q = mul(%d, %d) : f64[4, 2]\n"
          "  %l = reduce_mean(%q) {axes=[0, 1]} : f64[]\n  return %l\n}\n");
    return Write("graph.toml", StrCat("[model]\nfile = \"graph.pst\"\n[train]\nsteps = 3\n"
                                      "learning_rate = 0\nweight_decay = 0\n",
                                      more));
  }

  static Tensor Doubles(Shape shape, const std::vector<double>& values) {
    Tensor tensor({DType::kF64, std::move(shape)});
    std::copy(values.begin(), values.end(), tensor.As<double>());
    return tensor;
  }
  static Tensor Counting(Shape shape) {
    std::vector<double> values(static_cast<size_t>(NumElements(shape)));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
    return Doubles(std::move(shape), values);
  }

  std::vector<double> Losses(const Outcome& outcome) const {
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    std::vector<double> losses;
    std::istringstream stream(outcome.out);
    for (std::string line; std::getline(stream, line);) {
      const nlohmann::json json = nlohmann::json::parse(line);
      if (json.contains("loss")) losses.push_back(json["loss"]);
    }
    return losses;
  }
};

// --- Initial values ------------------------------------------------------------------------------

TEST_F(CmdRunTest, ParametersWithoutAStreamStartDifferently) {
  const std::string job = GraphJob("[data]\ninputs = \"random\"\n");
  ASSERT_EQ(Call({"run", job, "--dump", Path("dump")}).status, 0);
  const absl::StatusOr<Tensor> w1 = ReadNpy(Path("dump/w1.npy"));
  const absl::StatusOr<Tensor> w2 = ReadNpy(Path("dump/w2.npy"));
  ASSERT_TRUE(w1.ok() && w2.ok());
  for (int i = 0; i < 6; ++i) {
    EXPECT_NE(w1->As<double>()[i] / 0.5, w2->As<double>()[i] / 0.2) << i;
  }
}

TEST_F(CmdRunTest, EvalAndRunGiveTheSameValues) {
  const std::string job = GraphJob("[data]\ninputs = \"random\"\n");
  for (const char* seed : {"1", "7"}) {
    const Outcome eval = Call({"eval", Path("graph.pst"), "--json", "--seed", seed});
    ASSERT_EQ(eval.status, 0) << eval.err;
    const double loss = nlohmann::json::parse(eval.out)["results"][0]["sum"];
    EXPECT_GT(loss, 1e-4);
    const std::vector<double> losses =
        Losses(Call({"run", job, "--json", "--set", StrCat("train.seed=", seed)}));
    ASSERT_EQ(losses.size(), 3);
    EXPECT_NEAR(losses[0], loss, 1e-8 * loss);
  }
}

// --- Inputs --------------------------------------------------------------------------------------

TEST_F(CmdRunTest, InputsComeFromFiles) {
  const std::string job = GraphJob();
  ASSERT_TRUE(WriteNpy(Path("x.npy"), Counting({4, 3})).ok());
  const auto run = [&](const std::string& inputs) {
    return Call({"run", job, "--json", "--set", StrCat("data.inputs=", inputs)});
  };
  const std::vector<double> same = Losses(run(StrCat("{x = \"", Path("x.npy"), "\"}")));
  ASSERT_EQ(same.size(), 3);
  EXPECT_EQ(same[0], same[1]);

  // The loss is a quadratic form of x: twice the values, four times the loss.
  std::vector<double> rows;
  for (int step = 0; step < 2; ++step) {
    for (int i = 0; i < 12; ++i) rows.push_back((step + 1) * i);
  }
  ASSERT_TRUE(WriteNpy(Path("rows.npy"), Doubles({8, 3}, rows)).ok());
  ASSERT_TRUE(WriteNpy(Path("steps.npy"), Doubles({2, 4, 3}, rows)).ok());
  std::filesystem::create_directories(folder_ / "folder");
  ASSERT_TRUE(WriteNpy(Path("folder/0.npy"), Counting({4, 3})).ok());
  ASSERT_TRUE(
      WriteNpy(Path("folder/1.npy"), Doubles({4, 3}, {rows.begin() + 12, rows.end()})).ok());
  for (const char* source : {"rows.npy", "steps.npy", "folder"}) {
    const std::vector<double> losses = Losses(run(StrCat("{x = \"", Path(source), "\"}")));
    ASSERT_EQ(losses.size(), 3) << source;
    EXPECT_EQ(losses[0], same[0]) << source;
    EXPECT_NEAR(losses[1], 4 * same[0], 1e-12 * losses[1]) << source;
    EXPECT_EQ(losses[2], losses[0]) << source;  // from the start again
  }
  // One folder for all inputs.
  std::filesystem::create_directories(folder_ / "all");
  ASSERT_TRUE(WriteNpy(Path("all/x.npy"), Counting({4, 3})).ok());
  EXPECT_EQ(Losses(run(StrCat("\"", Path("all"), "\""))), same);
}

TEST_F(CmdRunTest, InputsWithoutValuesAreRefused) {
  const std::string job = GraphJob();
  ASSERT_TRUE(WriteNpy(Path("bad.npy"), Counting({4, 2})).ok());
  ASSERT_TRUE(WriteNpy(Path("short.npy"), Counting({3, 3})).ok());
  std::filesystem::create_directories(folder_ / "empty");
  struct Case {
    std::string setting;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"train.steps=2", "input x (f64[4, 3]) has no values: set data.inputs = {x = \"x.npy\"}"},
      {"data.inputs={y = \"random\"}", "the graph has no input 'y'"},
      {"data.inputs={xx = \"random\"}", "did you mean 'x'?"},
      {"data.inputs={x = 3}", "expected a path or \"random\" for the input x, not an integer"},
      {"data.inputs=3", "expected a table of inputs"},
      {StrCat("data.inputs={x = \"", Path("none.npy"), "\"}"), "none.npy: no such file"},
      {StrCat("data.inputs={x = \"", Path("bad.npy"), "\"}"),
       "bad.npy: holds f64[4, 2]; input x is"},
      {StrCat("data.inputs={x = \"", Path("short.npy"), "\"}"), "short.npy: holds f64[3, 3]"},
      {StrCat("data.inputs={x = \"", Path("empty"), "\"}"), "holds no .npy file for input x"},
      {StrCat("data.inputs=\"", Path("empty"), "\""), "empty/x.npy: no such file"},
      {StrCat("data.text=[\"", Path("text.txt"), "\"]"), "nothing reads text"},
  };
  for (const Case& test : cases) {
    const Outcome outcome = Call({"run", job, "--set", test.setting});
    EXPECT_EQ(outcome.status, 2) << test.setting;
    EXPECT_THAT(outcome.err, HasSubstr(test.message)) << test.setting;
  }
  // An input that is named, of two: the other one has no values.
  Write("two.pst",
        "graph g {\n  %x = input : f32[4]\n  %y = input : f32[4]\n  %w = parameter : f32[4]\n"
        "  %a = mul(%x, %w) : f32[4]\n  %b = mul(%y, %a) : f32[4]\n"
        "  %l = reduce_mean(%b) {axes=[0]} : f32[]\n  return %l\n}\n");
  const std::string two = Write("two.toml", "[model]\nfile = \"two.pst\"\n[train]\nsteps = 1\n");
  EXPECT_THAT(Call({"run", two, "--set", "data.inputs={x=\"random\"}"}).err,
              HasSubstr("input y (f32[4]) has no values"));
  ASSERT_TRUE(WriteNpy(Path("x3.npy"), Counting({3, 4})).ok());
  ASSERT_TRUE(WriteNpy(Path("y2.npy"), Counting({2, 4})).ok());
  EXPECT_THAT(Call({"run", two, "--set",
                    StrCat("data.inputs={x=\"", Path("x3.npy"), "\", y=\"", Path("y2.npy"), "\"}")})
                  .err,
              HasSubstr("x has values for 3 steps and y for 2"));
}

TEST_F(CmdRunTest, InputsOfDifferentNumbersOfStepsAreRefused) {
  Write("pair.pst",
        "graph g {\n  %x = input : f32[8, 4]\n  %y = input : f32[8, 4]\n"
        "  %w = parameter : f32[4, 4]\n  %a = mul(%x, %y) : f32[8, 4]\n"
        "  %b = matmul(%a, %w) : f32[8, 4]\n  %l = reduce_mean(%b) {axes=[0, 1]} : f32[]\n"
        "  return %l\n}\n");
  const std::string job = Write("pair.toml", "[model]\nfile = \"pair.pst\"\n[train]\nsteps = 2\n");
  const auto run = [&](const Shape& y) {
    EXPECT_TRUE(WriteNpy(Path("x.npy"), Counting({80, 4})).ok());
    EXPECT_TRUE(WriteNpy(Path("y.npy"), Counting(y)).ok());
    return Call({"run", job, "--set",
                 StrCat("data.inputs={x=\"", Path("x.npy"), "\", y=\"", Path("y.npy"), "\"}")});
  };
  EXPECT_THAT(run({12, 4}).err, HasSubstr("y.npy: holds f32[12, 4]; input y is f32[8, 4]: 4 rows "
                                          "would be left over after 1 step of 8 rows"));
  EXPECT_THAT(run({1, 8, 4}).err,
              HasSubstr("data.inputs: x has values for 10 steps and y for 1: they would not stay "
                        "together"));
  EXPECT_EQ(run({8, 4}).status, 0);
  EXPECT_EQ(run({10, 8, 4}).status, 0);
}

// The default text is for built-in models; the input of a graph file is not fed what nobody named.
TEST_F(CmdRunTest, TokensOfAGraphFileAreFedOnlyTextThatTheJobNames) {
  Write("tokens.pst",
        "graph g {\n  %tokens = input : i32[8, 4]\n  %t = cast(%tokens) {dtype=f32} : f32[8, 4]\n"
        "  %w = parameter : f32[4, 4]\n  %y = matmul(%t, %w) : f32[8, 4]\n"
        "  %l = reduce_mean(%y) {axes=[0, 1]} : f32[]\n  return %l\n}\n");
  const std::string job =
      Write("tokens.toml", "[model]\nfile = \"tokens.pst\"\n[train]\nsteps = 1\n");
  const std::string expected =
      "input tokens (i32[8, 4]) has no values: set data.inputs = {tokens = \"tokens.npy\"} (.npy "
      "files, folders of them, or \"random\"); data.text = [\"FILE\"] feeds tokens from a text\n";
  const Outcome outcome = Call({"run", job});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err, StrCat("penstock: ", job, ":2:8: ", expected));
  ASSERT_EQ(Call({"plan", job, "-o", Path("tokens.plan")}).status, 0);
  EXPECT_EQ(Call({"run", Path("tokens.plan")}).err, StrCat("penstock: ", expected));

  const std::string text = StrCat("data.text=\"", Path("text.txt"), "\"");
  for (const std::string& file : {job, Path("tokens.plan")}) {
    EXPECT_EQ(Call({"run", file, "--set", text}).status, 0);
    EXPECT_EQ(Call({"run", file, "--set", "data.inputs=\"random\""}).status, 0);
  }
}

TEST_F(CmdRunTest, AllInputsWithoutValuesAreNamedAtOnce) {
  Write("pair.pst",
        "graph g {\n  %labels = input : f32[4]\n  %y.1 = input : f32[4]\n"
        "  %w = parameter : f32[4]\n  %a = mul(%labels, %w) : f32[4]\n"
        "  %b = mul(%y.1, %a) : f32[4]\n  %l = reduce_mean(%b) {axes=[0]} : f32[]\n"
        "  return %l\n}\n");
  EXPECT_THAT(Call({"run", Write("pair.toml", "[model]\nfile = \"pair.pst\"\n")}).err,
              HasSubstr("inputs labels (f32[4]), y.1 (f32[4]) have no values: set data.inputs = "
                        "{labels = \"labels.npy\", \"y.1\" = \"y.1.npy\"} (.npy files, folders of "
                        "them, or \"random\")\n"));
}

TEST_F(CmdRunTest, AnUnknownInputIsNotTakenForOneThatHasASource) {
  const std::string job = GraphJob();
  EXPECT_THAT(Call({"run", job, "--set", "data.inputs={x1=\"random\"}"}).err,
              HasSubstr("the graph has no input 'x1'; did you mean 'x'?"));
  EXPECT_THAT(Call({"run", job, "--set", "data.inputs={x1=\"random\", x=\"random\"}"}).err,
              HasSubstr("the graph has no input 'x1'; its inputs are x"));
}

TEST_F(CmdRunTest, TextBesideInputsThatCoverEverythingIsRefused) {
  EXPECT_THAT(
      Call({"run", Path("job.toml"), "--set", "data.inputs=\"random\""}).err,
      HasSubstr("data.text: nothing reads text: data.inputs gives the values of every input; "
                "leave out one of the two"));
}

TEST_F(CmdRunTest, AWrongTextIsPlacedAtItsOwnKey) {
  EXPECT_THAT(Call({"run", Path("job.toml"), "--set", "data.validation=\"/nowhere\""}).err,
              HasSubstr("penstock: --set data.validation=\"/nowhere\": /nowhere: no such file"));
  const std::string job =
      Write("held.toml", "[data]\nvalidation = \"none.txt\"\ntext = \"text.txt\"\n");
  EXPECT_THAT(Call({"run", job}).err, HasSubstr("held.toml:2:14: "));
  EXPECT_THAT(Call({"run", job, "--set", "data.text=\"/gone\""}).err,
              HasSubstr("penstock: --set data.text=\"/gone\": /gone: no such file"));
}

// --- Options and keys ----------------------------------------------------------------------------

TEST_F(CmdRunTest, KeysWithoutEffectOnAGraphFileAreNotedOnce) {
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

TEST_F(CmdRunTest, MicrobatchesBesideAMeshOfTheGraphAreNoted) {
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

TEST_F(CmdRunTest, DevicesThatDoNotFitTheStrategyComeWithTheRemedy) {
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
TEST_F(CmdRunTest, TensorParallelismOfAGraphFileIsWrittenIntoItAsTheErrorSays) {
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
  // A mesh of other axes than the strategy's.
  const Outcome other = Call({"run", job, "--strategy", "dp=4"});
  EXPECT_EQ(other.status, 2);
  EXPECT_THAT(other.err, HasSubstr("is laid out by its mesh m (dp=2,tp=2), not by dp=4,tp=1,pp=1; "
                                   "change the mesh, or leave the strategy \"auto\"\n"));
}

TEST_F(CmdRunTest, StagesWithoutOverlapAreNoted) {
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

TEST_F(CmdRunTest, AWrongStrategyIsQuotedOnce) {
  const std::string expected =
      "unknown axis 'xp'; expected \"auto\" or axis sizes such as \"dp=2,tp=2,pp=1\"\n";
  EXPECT_EQ(Call({"run", Path("job.toml"), "--strategy", "dp=2,xp=2"}).err,
            StrCat("penstock: --strategy dp=2,xp=2: ", expected));
  const std::string job = Write("axis.toml", Job() + "[parallel]\nstrategy = \"dp=2,xp=2\"\n");
  EXPECT_THAT(Call({"run", job}).err,
              ::testing::MatchesRegex(StrCat("penstock: ", job, ":[0-9]+:12: ", expected)));
}

TEST_F(CmdRunTest, NumbersThatAreTooSmallAreRefusedInAShortLine) {
  for (const auto& [option, value] :
       {std::pair("--devices", "0"), std::pair("--procs", "0"), std::pair("--procs", "-3")}) {
    const Outcome outcome = Call({"run", Path("job.toml"), option, value});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err,
                HasSubstr(StrCat(option, ": has to be at least 1, not ", value, "\n")));
    EXPECT_LT(outcome.err.size(), 200) << outcome.err;
  }
  EXPECT_THAT(Call({"node", "--join", "127.0.0.1:1", "--rank", "-1"}).err,
              HasSubstr("--rank: has to be at least 0, not -1"));
}

TEST_F(CmdRunTest, APlanRunsWithNoMoreThreadsThanItWasCompiledFor) {
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

TEST_F(CmdRunTest, AGraphFileIsNoJob) {
  GraphJob();
  for (const char* command : {"run", "plan"}) {
    const Outcome outcome = Call({command, Path("graph.pst")});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr("graph.pst: a .pst file is a graph; name it in model.file "
                                       "of a job (a .toml file)"));
  }
}

TEST_F(CmdRunTest, AMissingGraphFileIsPlacedAtItsKey) {
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

TEST_F(CmdRunTest, ListenAddressesAreCheckedBeforeAnythingElse) {
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
  EXPECT_NEAR(mean["step_time_s"],
              (step_times_s[2] + step_times_s[3] + step_times_s[4] + step_times_s[5]) / 4, 1e-8);
  EXPECT_NEAR(mean["compute_s"].get<double>() + mean["exposed_communication_s"].get<double>() +
                  mean["core_wait_s"].get<double>() + mean["idle_s"].get<double>(),
              mean["step_time_s"], 1e-8);
  EXPECT_THAT(Read("report.md"), HasSubstr(StrCat("## Critical path (step ", step, ", ")));
  EXPECT_THAT(Read("report.md"), HasSubstr("| device | longest acts of the path | runs | time |"));

  EXPECT_THAT(call({"--trace", Path("trace.json")}),
              ::testing::ContainsRegex("\npath: step [2-5], .* = .* compute \\+ .* exposed "
                                       "communication \\+ .* idle\n.*, replayed bound "));
  EXPECT_THAT(call({"--json"}), Not(HasSubstr("critical_path")));
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
  EXPECT_THAT(report, ::testing::ContainsRegex("collective buffers \\| computing \\|\n.*\n"
                                               "\\| 0 \\| 0 \\|.* [0-9][0-9]? % \\|\n"));
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
            "penstock: --procs 5: 5 processes for 4 devices: each process needs one at least\n");
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

TEST_F(CmdRunTest, AModelThatFitsNoMachineSaysHowMuchMemoryIsMissing) {
  for (const char* devices : {"1", "4"}) {
    const Outcome outcome =
        Call({"run", Path("job.toml"), "--devices", devices, "--set", "model.width=100000", "--set",
              "model.heads=4", "--set", "model.layers=4"});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, ::testing::ContainsRegex(
                                 "the plan does not fit into memory: device 0 needs [0-9.]+ "
                                 "TiB( \\(.*\\))?, available are .*: [0-9.]+ TiB are missing"));
  }
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
