// What `penstock run` feeds a graph file, and the values that parameters start from.

#include <filesystem>
#include <string>
#include <vector>

#include "cli/npy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/support/run_fixture.h"

namespace penstock::cli {
namespace {

using ::testing::HasSubstr;

class CmdRunInputsTest : public testing::RunFixture {};

// --- Initial values ------------------------------------------------------------------------------

TEST_F(CmdRunInputsTest, ParametersWithoutAStreamStartDifferently) {
  const std::string job = GraphJob("[data]\ninputs = \"random\"\n");
  ASSERT_EQ(Call({"run", job, "--dump", Path("dump")}).status, 0);
  const absl::StatusOr<Tensor> w1 = ReadNpy(Path("dump/w1.npy"));
  const absl::StatusOr<Tensor> w2 = ReadNpy(Path("dump/w2.npy"));
  ASSERT_TRUE(w1.ok() && w2.ok());
  for (int i = 0; i < 6; ++i) {
    EXPECT_NE(w1->As<double>()[i] / 0.5, w2->As<double>()[i] / 0.2) << i;
  }
}

TEST_F(CmdRunInputsTest, EvalAndRunGiveTheSameValues) {
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

TEST_F(CmdRunInputsTest, InputsComeFromFiles) {
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

TEST_F(CmdRunInputsTest, ARunThatIsResumedOnOtherInputsSaysSo) {
  const std::string note = "note: the training data is not that of the checkpoint";
  const std::string job = GraphJob();
  std::filesystem::create_directories(folder_ / "folder");
  const auto write = [this](double first) {
    std::vector<double> rows(36, 1.0);
    rows[12] = first;
    ASSERT_TRUE(WriteNpy(Path("rows.npy"), Doubles({12, 3}, rows)).ok());
    ASSERT_TRUE(WriteNpy(Path("folder/0.npy"), Counting({4, 3})).ok());
    ASSERT_TRUE(
        WriteNpy(Path("folder/1.npy"), Doubles({4, 3}, {rows.begin() + 12, rows.begin() + 24}))
            .ok());
  };
  for (const char* source : {"rows.npy", "folder"}) {
    const auto run = [&](const char* steps, const std::vector<std::string>& more) {
      std::vector<std::string> words = {
          "run",
          job,
          "--json",
          "--set",
          StrCat("data.inputs.x=\"", Path(source), "\""),
          "--set",
          StrCat("checkpoint.path=\"", Path(StrCat("checkpoints-", source)), "\""),
          "--set",
          StrCat("train.steps=", steps)};
      words.insert(words.end(), more.begin(), more.end());
      return Call(words);
    };
    write(5);
    const std::vector<double> all = Losses(
        Call({"run", job, "--json", "--set", StrCat("data.inputs.x=\"", Path(source), "\"")}));
    ASSERT_EQ(Losses(run("1", {})).size(), 1u);
    // The position: one step's values were read.
    const Outcome shown =
        Call({"checkpoint", "show", Path(StrCat("checkpoints-", source)), "--json"});
    ASSERT_EQ(shown.status, 0) << shown.err;
    EXPECT_EQ(nlohmann::json::parse(shown.out)["metadata"]["sequences"], "1") << shown.out;
    const Outcome same = run("2", {"--resume"});
    EXPECT_EQ(Losses(same), std::vector<double>({all[1]})) << source;
    EXPECT_EQ(same.err.find(note), std::string::npos) << same.err;
    write(6);  // of the second step
    const Outcome other = run("3", {"--resume"});
    EXPECT_EQ(other.status, 0);
    EXPECT_THAT(other.err, HasSubstr(note)) << source;
    EXPECT_EQ(run("4", {"--resume"}).err.find(note), std::string::npos) << source;
    ASSERT_EQ(run("5", {"--resume", "--set", "data.inputs.x=\"random\""}).status, 0);
    EXPECT_THAT(run("6", {"--resume"}).err, HasSubstr(note)) << source;
  }
}

TEST_F(CmdRunInputsTest, InputsWithoutValuesAreRefused) {
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
      {StrCat("data.text=[\"", Path("text.txt"), "\"]"), "the text would not be used"},
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
  // Inputs set one by one, or over what the job says; and of a plan, which has no job to write to.
  EXPECT_EQ(
      Call({"run", two, "--set", "data.inputs.x=\"random\"", "--set", "data.inputs.y=\"random\""})
          .status,
      0);
  EXPECT_EQ(Call({"run", two, "--set", "data.inputs=\"random\"", "--set",
                  StrCat("data.inputs.x=\"", Path("x3.npy"), "\"")})
                .status,
            0);
  EXPECT_THAT(Call({"run", two, "--set", "data.inputs.x=3"}).err,
              HasSubstr("expected a path or \"random\" for the input x, not an integer"));
  ASSERT_EQ(Call({"plan", two, "-o", Path("two.plan")}).status, 0);
  EXPECT_THAT(Call({"run", Path("two.plan")}).err,
              HasSubstr("have no values: give --set 'data.inputs={x = \"x.npy\", y = "
                        "\"y.npy\"}' (.npy files"));
  EXPECT_EQ(Call({"run", Path("two.plan"), "--set", "train.steps=1", "--set",
                  "data.inputs.x=\"random\"", "--set", "data.inputs.y=\"random\""})
                .status,
            0);
}

TEST_F(CmdRunInputsTest, InputsOfDifferentNumbersOfStepsAreRefused) {
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
  EXPECT_THAT(run({12, 4}).err, HasSubstr("y.npy: holds f64[12, 4]; input y is f32[8, 4]: 4 rows "
                                          "would be left over after 1 step of 8 rows"));
  EXPECT_THAT(run({1, 8, 4}).err,
              HasSubstr("data.inputs: x has values for 10 steps and y for 1: they would get out "
                        "of step"));
  EXPECT_EQ(run({8, 4}).status, 0);
  EXPECT_EQ(run({10, 8, 4}).status, 0);
}

// The default text is for built-in models; the input of a graph file is not fed what nobody named.
TEST_F(CmdRunInputsTest, TokensOfAGraphFileAreFedOnlyTextThatTheJobNames) {
  Write("tokens.pst",
        "graph g {\n  %tokens = input : i32[8, 4]\n  %t = cast(%tokens) {dtype=f32} : f32[8, 4]\n"
        "  %w = parameter : f32[4, 4]\n  %y = matmul(%t, %w) : f32[8, 4]\n"
        "  %l = reduce_mean(%y) {axes=[0, 1]} : f32[]\n  return %l\n}\n");
  const std::string job =
      Write("tokens.toml", "[model]\nfile = \"tokens.pst\"\n[train]\nsteps = 1\n");
  const std::string expected =
      "input tokens (i32[8, 4]) has no values: set data.inputs = {tokens = \"tokens.npy\"} (.npy "
      "files, folders of them, or \"random\"); data.text = [\"FILE\"] feeds tokens from text\n";
  const Outcome outcome = Call({"run", job});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err, StrCat("penstock: ", job, ":2:8: ", expected));
  ASSERT_EQ(Call({"plan", job, "-o", Path("tokens.plan")}).status, 0);
  EXPECT_EQ(Call({"run", Path("tokens.plan")}).err,
            "penstock: input tokens (i32[8, 4]) has no values: give --set 'data.inputs={tokens = "
            "\"tokens.npy\"}' (.npy files, folders of them, or \"random\"); --set "
            "'data.text=[\"FILE\"]' feeds tokens from text\n");

  const std::string text = StrCat("data.text=\"", Path("text.txt"), "\"");
  for (const std::string& file : {job, Path("tokens.plan")}) {
    EXPECT_EQ(Call({"run", file, "--set", text}).status, 0);
    EXPECT_EQ(Call({"run", file, "--set", "data.inputs=\"random\""}).status, 0);
  }
}

TEST_F(CmdRunInputsTest, AllInputsWithoutValuesAreNamedAtOnce) {
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

TEST_F(CmdRunInputsTest, AnUnknownInputIsNotTakenForOneThatHasASource) {
  const std::string job = GraphJob();
  EXPECT_THAT(Call({"run", job, "--set", "data.inputs={x1=\"random\"}"}).err,
              HasSubstr("the graph has no input 'x1'; did you mean 'x'?"));
  EXPECT_THAT(Call({"run", job, "--set", "data.inputs={x1=\"random\", x=\"random\"}"}).err,
              HasSubstr("the graph has no input 'x1'; its inputs are x"));
}

TEST_F(CmdRunInputsTest, TextBesideInputsThatCoverEverythingIsRefused) {
  EXPECT_THAT(
      Call({"run", Path("job.toml"), "--set", "data.inputs=\"random\""}).err,
      HasSubstr(
          "data.text: the text would not be used: data.inputs already gives the values of every "
          "input; leave out one of the two"));
}

TEST_F(CmdRunInputsTest, AWrongTextIsPlacedAtItsOwnKey) {
  EXPECT_THAT(Call({"run", Path("job.toml"), "--set", "data.validation=\"/nowhere\""}).err,
              HasSubstr("penstock: --set data.validation=\"/nowhere\": /nowhere: no such file"));
  const std::string job =
      Write("held.toml", "[data]\nvalidation = \"none.txt\"\ntext = \"text.txt\"\n");
  EXPECT_THAT(Call({"run", job}).err, HasSubstr("held.toml:2:14: "));
  EXPECT_THAT(Call({"run", job, "--set", "data.text=\"/gone\""}).err,
              HasSubstr("penstock: --set data.text=\"/gone\": /gone: no such file"));
}

}  // namespace
}  // namespace penstock::cli
