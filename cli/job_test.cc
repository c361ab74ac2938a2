#include "cli/job.h"

#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

absl::StatusOr<Job> Parse(std::string_view text, std::vector<std::string> overrides = {}) {
  return ParseJob(text, "j.toml", "/jobs", overrides);
}

std::string ErrorOf(std::string_view text, std::vector<std::string> overrides = {}) {
  const absl::StatusOr<Job> job = Parse(text, std::move(overrides));
  return job.ok() ? "no error" : std::string(ToStd(job.status().message()));
}

TEST(JobTest, AnEmptyJobHasTheDefaults) {
  const absl::StatusOr<Job> job = Parse("");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->model.name, "gpt");
  EXPECT_THAT(job->data.text, ElementsAre("/usr/share/common-licenses"));
  EXPECT_EQ(job->train.batch, 16);
  EXPECT_EQ(job->train.seed, 1);
  EXPECT_EQ(job->train.dtype, DType::kF32);
  EXPECT_EQ(job->parallel.strategy, "auto");
  EXPECT_EQ(job->parallel.microbatches, 0);
  EXPECT_EQ(job->parallel.schedule, "1f1b");
  EXPECT_FALSE(job->cluster.devices.has_value());
}

TEST(JobTest, ReadsEveryKeyOfTheContract) {
  const absl::StatusOr<Job> job = Parse(R"(
[model]
name = "gpt"
layers = 4
width = 256
heads = 8
context = 128
dropout = 0.1
[data]
text = ["/usr/share/common-licenses", "more"]
[train]
steps = 50
batch = 16
learning_rate = 3e-4
schedule = "cosine"
seed = 7
dtype = "f64"
[parallel]
strategy = "dp=2,tp=2"
microbatches = 4
schedule = "gpipe"
recompute = "full"
chunks = 2
[cluster]
devices = 4
processes = 1
threads = 2
)");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->model.layers, 4);
  EXPECT_EQ(job->model.width, 256);
  EXPECT_EQ(job->model.heads, 8);
  EXPECT_EQ(job->model.context, 128);
  EXPECT_EQ(job->model.dropout, 0.1);
  EXPECT_THAT(job->data.text, ElementsAre("/usr/share/common-licenses", "/jobs/more"));
  EXPECT_EQ(job->train.steps, 50);
  EXPECT_EQ(job->train.options.learning_rate, 3e-4);
  EXPECT_EQ(job->train.options.schedule, graph::LearningRateSchedule::kCosine);
  EXPECT_EQ(job->train.seed, 7);
  EXPECT_EQ(job->train.dtype, DType::kF64);
  EXPECT_EQ(job->parallel.strategy, "dp=2,tp=2");
  EXPECT_EQ(job->parallel.microbatches, 4);
  EXPECT_EQ(job->parallel.schedule, "gpipe");
  EXPECT_EQ(job->parallel.recompute, planner::Recompute::kFull);
  EXPECT_EQ(job->parallel.chunks, 2);
  EXPECT_EQ(job->cluster.devices, 4);
  EXPECT_EQ(job->cluster.threads, 2);
}

TEST(JobTest, AnIntegerIsANumber) {
  const absl::StatusOr<Job> job = Parse("[train]\nlearning_rate = 1\n");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->train.options.learning_rate, 1.0);
}

struct BadJob {
  std::string text;
  std::string place;
  std::string message;
};

TEST(JobTest, ErrorsTellThePlaceAndWhatWasExpected) {
  const std::vector<BadJob> bad = {
      {"[train]\nstepz = 5\n", "j.toml:2:1: ", "did you mean 'train.steps'?"},
      {"[train]\n  lerning_rate = 5\n", "j.toml:2:3: ", "did you mean 'train.learning_rate'?"},
      {"[model]\nsteps = 5\n", "j.toml:2:1: ", "did you mean 'train.steps'?"},
      {"[trian]\nsteps = 5\n", "j.toml:1:2: ", "did you mean 'train'?"},
      {"steps = 5\n", "j.toml:1:1: ", "did you mean 'train.steps'?"},
      {"train = 5\n", "j.toml:1:9: ", "expected a section [train], not an integer"},
      {"[train]\nsteps = \"5\"\n",
       "j.toml:2:9: ", "train.steps: expected an integer, not a string"},
      {"[train]\nsteps = 5.0\n", "j.toml:2:9: ", "expected an integer, not a float"},
      {"[train]\nsteps = 0\n", "j.toml:2:9: ", "out of range"},
      {"[train]\nseed = -1\n", "j.toml:2:8: ", "out of range"},
      {"[train]\nlearning_rate = true\n", "j.toml:2:17: ", "expected a number, not a boolean"},
      {"[train]\nlearning_rate = nan\n", "j.toml:2:17: ", "out of range"},
      {"[train]\ndtype = \"f8\"\n",
       "j.toml:2:9: ", "expected \"f32\" or \"f64\" or \"bf16\" or \"f16\""},
      {"[model]\ndropout = 1.0\n", "j.toml:2:11: ", "[0, 1)"},
      {"[model]\nname = [1]\n", "j.toml:2:8: ", "expected a string, not a list"},
      {"[data]\ntext = [1]\n", "j.toml:2:8: ", "expected a list of paths only"},
      {"[data]\ntext = []\n", "j.toml:2:8: ", "the list is empty"},
      {"[parallel]\nmicrobatches = \"many\"\n", "j.toml:2:16: ", "\"auto\""},
      {"[cluster]\ndevices = 0\n", "j.toml:2:11: ", "out of range"},
      {"[train]\nsteps = \n", "j.toml:2:", "the value after '=' is missing"},
      {"[train\nsteps = 1\n", "j.toml:1:", "']' is missing after the name of the section"},
      {"[]\nsteps = 1\n", "j.toml:1:", "expected KEY = VALUE or [SECTION]"},
      {"[train]]\nsteps = 1\n", "j.toml:1:", "expected [SECTION] on its own line"},
      {"[train]\nsteps = 1\nsteps = 2\n",
       "j.toml:3:", "the key 'steps' is set twice; remove one of the lines"},
      {"[train]\nsteps = 1\n[train]\nbatch = 2\n",
       "j.toml:3:", "the section [train] appears twice; join the two"},
      {"[train]\nsteps\n", "j.toml:2:", "'=' is missing; expected KEY = VALUE"},
      {"[train]\n= 1\n", "j.toml:2:", "the key before '=' is missing"},
      {"[train]\nsteps = 1 2\n", "j.toml:2:", "expected one KEY = VALUE per line"},
      {"[model]\nname = \"gpt\n", "j.toml:2:", "a quote is missing"},
      {"[data]\ntext = [\"a\"\n", "j.toml:", "',' or ']' is missing in a list"},
      {"[data]\ninputs = {x = \"a\"\n", "j.toml:2:", "'}' is missing"},
      {"[train]\nsteps = 0x\n", "j.toml:2:", "not valid TOML ("},
      {"x = " + std::string(1000, '['), "j.toml", "deep"},
  };
  for (const BadJob& job : bad) {
    const std::string error = ErrorOf(job.text);
    EXPECT_THAT(error, StartsWith(job.place)) << job.text;
    EXPECT_THAT(error, HasSubstr(job.message)) << job.text;
    EXPECT_THAT(error, Not(HasSubstr("\n"))) << job.text;
  }
}

TEST(JobTest, OverridesReplaceKeysInTheirOrder) {
  const absl::StatusOr<Job> job = Parse(
      "[train]\nsteps = 5\n", {"train.steps=6", "train.steps = 7", "model.name=\"mlp\"",
                               "parallel.strategy=\"dp=2,tp=1\"", "data.text=[\"a\", \"/b\"]"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->train.steps, 7);
  EXPECT_EQ(job->model.name, "mlp");
  EXPECT_EQ(job->parallel.strategy, "dp=2,tp=1");
  EXPECT_THAT(job->data.text, ElementsAre("a", "/b"));
}

TEST(JobTest, ErrorsOfOverridesBeginWithTheOption) {
  EXPECT_THAT(ErrorOf("", {"train.stepz=5"}),
              ::testing::AllOf(StartsWith("--set train.stepz=5: "),
                               HasSubstr("did you mean 'train.steps'?")));
  EXPECT_THAT(ErrorOf("", {"train.steps"}), StartsWith("--set train.steps: expected key=value"));
  EXPECT_THAT(ErrorOf("", {"train.steps=\"x\""}), HasSubstr("expected an integer, not a string"));
  EXPECT_THAT(ErrorOf("", {"model.name=gpt"}),
              HasSubstr("--set model.name=gpt: not a TOML value; a string needs quotes: "
                        "--set 'model.name=\"gpt\"'"));
  EXPECT_THAT(ErrorOf("", {"train.steps=5\ntrain.batch=1"}), StartsWith("--set "));
}

TEST(JobTest, AModelIsNamedOrInAFile) {
  EXPECT_EQ(
      ErrorOf("[model]\nfile = \"g.pst\"\nname = \"gpt\"\n"),
      "j.toml:3:8: model.name does not go with model.file (j.toml:2:8): a graph file is trained "
      "as it is written; expected one of the two");
  EXPECT_THAT(ErrorOf("[model]\nfile = \"g.pst\"\n", {"model.layers=2"}),
              StartsWith("--set model.layers=2: model.layers does not go with model.file"));
  EXPECT_TRUE(Parse("[model]\nfile = \"g.pst\"\n").ok());
}

TEST(JobTest, AGraphFileHasNoValidationText) {
  const std::string job = "[model]\nfile = \"g.pst\"\n[data]\ntext = \"a\"\n";
  EXPECT_EQ(ErrorOf(job + "validation = \"b\"\n"),
            "j.toml:5:14: data.validation does not go with model.file (j.toml:2:8): only built-in "
            "models are validated");
  EXPECT_THAT(ErrorOf(job, {"data.validation=\"b\""}),
              StartsWith("--set data.validation=\"b\": data.validation does not go with "));
  EXPECT_EQ(ErrorOf(job), "no error");
}

TEST(JobTest, AtKeyPointsAtTheFirstKeyThatIsSet) {
  const absl::StatusOr<Job> job = Parse("[train]\nbatch = 5\n");
  ASSERT_TRUE(job.ok());
  const absl::Status status = absl::InvalidArgumentError("odd");
  EXPECT_EQ(AtKey(*job, {"parallel.strategy", "train.batch"}, status).message(), "j.toml:2:9: odd");
  EXPECT_EQ(AtKey(*job, {"parallel.strategy"}, status).message(), "odd");
}

TEST(JobTest, TheMinimumOfACosineFollowsTheRate) {
  const absl::StatusOr<Job> job = Parse("[train]\nlearning_rate = 1e-2\nsteps = 9\n");
  ASSERT_TRUE(job.ok());
  EXPECT_DOUBLE_EQ(TrainingOptionsOf(*job).min_learning_rate, 1e-3);
  EXPECT_EQ(TrainingOptionsOf(*job).total_steps, 9);
}

TEST(JobTest, EveryKeyIsDescribedWithADefaultThatItAccepts) {
  const std::string text = DescribeJobKeys();
  std::istringstream lines(text);
  std::vector<std::string> names;
  std::vector<std::string> descriptions;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100u) << line;
    const size_t begin = line.find_first_not_of(' ');
    if (begin == 2) {
      const size_t end = line.find(' ', begin);
      names.push_back(line.substr(begin, end - begin));
      descriptions.emplace_back();
    }
    ASSERT_FALSE(descriptions.empty()) << line;
    ASSERT_GT(line.size(), 30u) << line;
    EXPECT_EQ(line[29], ' ') << line;
    EXPECT_NE(line[30], ' ') << line;
    descriptions.back() += (descriptions.back().empty() ? "" : " ") + line.substr(30);
  }
  const std::vector<std::string_view> keys = JobKeys();
  EXPECT_EQ(names, std::vector<std::string>(keys.begin(), keys.end()));
  int num_literals = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    const size_t open = descriptions[i].rfind('(');
    ASSERT_NE(open, std::string::npos) << names[i];
    ASSERT_EQ(descriptions[i].back(), ')') << names[i];
    const std::string value = descriptions[i].substr(open + 1, descriptions[i].size() - open - 2);
    // Others say in words where the value comes from.
    if (value.find_first_of("0123456789\"[") != 0) continue;
    ++num_literals;
    EXPECT_EQ(ErrorOf("", {StrCat(names[i], "=", value)}), "no error");
  }
  EXPECT_GT(num_literals, 20);
}

}  // namespace
}  // namespace penstock::cli
