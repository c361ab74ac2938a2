// Runs that write checkpoints, and runs that continue from them.

#include "cli/checkpoints.h"

#include <sys/resource.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "cli/npy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/checkpoint/checkpoint_folder.h"
#include "tests/support/run_fixture.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;
using actors::CheckpointFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// The job of the fixture has dropout: what a step draws depends on its number.
class CheckpointsTest : public testing::RunFixture {
 protected:
  CheckpointsTest() {
    Write("job.toml", StrCat(Job(), "[checkpoint]\npath = \"checkpoints\"\nevery = 2\n"));
  }

  Outcome RunJob(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"run", Path("job.toml"), "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Call(arguments);
  }
  // The losses by step.
  static std::map<int, double> LossesOf(const Outcome& outcome) {
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    std::map<int, double> losses;
    std::istringstream stream(outcome.out);
    for (std::string line; std::getline(stream, line);) {
      const nlohmann::json json = nlohmann::json::parse(line);
      if (json.contains("loss")) losses[json["step"]] = json["loss"];
    }
    return losses;
  }
  // A strategy, or one and a policy.
  static std::vector<std::string> Layout(const std::string& strategy) {
    const size_t space = strategy.find(' ');
    if (space == std::string::npos) {
      return {"--strategy", strategy, "--set", "parallel.microbatches=2"};
    }
    return {"--strategy", strategy.substr(0, space), "--policy", strategy.substr(space + 1),
            "--set",      "parallel.microbatches=4"};
  }
  static std::vector<std::string> Join(std::vector<std::string> a,
                                       const std::vector<std::string>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  std::string Folder() const { return Path("checkpoints"); }
  std::vector<int64_t> Steps() const { return *CheckpointFolder::Steps(Folder()); }
};

TEST_F(CheckpointsTest, AResumedRunHasTheSameLosses) {
  const std::map<int, double> whole =
      LossesOf(RunJob({"--set", "train.steps=7", "--set", "checkpoint.path=\"\""}));
  const std::map<int, double> begin = LossesOf(RunJob({"--set", "train.steps=3"}));
  EXPECT_THAT(Steps(), ElementsAre(2, 3));
  const Outcome resumed = RunJob({"--set", "train.steps=7", "--resume"});
  const std::map<int, double> end = LossesOf(resumed);
  EXPECT_THAT(resumed.err, HasSubstr("after 3 steps"));
  EXPECT_THAT(resumed.out, HasSubstr("\"resumed_from_step\": 3"));
  EXPECT_THAT(resumed.out, HasSubstr("{\"checkpoint\": {\"step\": 7"));
  EXPECT_THAT(Steps(), ElementsAre(6, 7));
  ASSERT_EQ(end.size(), 4u);
  for (const auto& [step, loss] : begin) EXPECT_EQ(loss, whole.at(step)) << step;
  for (const auto& [step, loss] : end) EXPECT_EQ(loss, whole.at(step)) << step;
}

// `dump` holds what a run has read of a checkpoint.
void ExpectBitsOf(const actors::Checkpoint& checkpoint, const std::string& dump,
                  const std::string& context) {
  for (const actors::CheckpointTensor& tensor : checkpoint.tensors()) {
    const auto expected = checkpoint.Read(tensor.name);
    const auto state = ReadNpy(StrCat(dump, "/", tensor.name, ".npy"));
    ASSERT_TRUE(expected.ok() && state.ok()) << context << " " << tensor.name;
    ASSERT_EQ(state->type(), tensor.type) << context << " " << tensor.name;
    ASSERT_EQ(memcmp(state->data(), expected->data(), tensor.type.num_bytes()), 0)
        << context << " " << tensor.name;
  }
}

// What one strategy has written, any other one takes up, bit for bit, and goes on alike.
TEST_F(CheckpointsTest, EveryStrategyContinuesEveryOther) {
  const std::vector<std::string> strategies = {"dp=1",
                                               "dp=2",
                                               "tp=2",
                                               "pp=2",
                                               "dp=2,tp=2",
                                               "dp=2,tp=2,pp=2",
                                               "zero=3,dp=4",
                                               "pp=2 dualpipe",
                                               "pp=2,vpp=2 interleaved",
                                               "tp=2,sp=true",
                                               "cp=2",
                                               "cp=2,ulysses=true",
                                               "dp=2,optimizer=host"};
  constexpr int kSteps = 5;
  const std::vector<std::string> steps = {"--set", StrCat("train.steps=", kSteps)};
  const std::map<int, double> whole =
      LossesOf(RunJob(Join(Join(Layout("dp=1"), steps), {"--set", "checkpoint.path=\"\""})));
  for (const std::string& saving : strategies) {
    const std::string saved = Path(StrCat("saved-", saving));
    ASSERT_EQ(RunJob(Join(Layout(saving), {"--set", "train.steps=2", "--set",
                                           StrCat("checkpoint.path=\"", saved, "\"")}))
                  .status,
              0);
    const auto checkpoint = actors::Checkpoint::Open(CheckpointFolder::NewestOr(saved));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    for (const std::string& loading : strategies) {
      const std::string context = StrCat(saving, " to ", loading);
      const std::string copy = Path("copy");
      fs::remove_all(copy);
      fs::copy(saved, copy, fs::copy_options::recursive);
      const std::string dump = Path(StrCat("dump-", saving, "-", loading));
      const Outcome resumed =
          RunJob(Join(Join(Layout(loading), steps), {"--resume", "--dump", dump, "--set",
                                                     StrCat("checkpoint.path=\"", copy, "\"")}));
      const std::map<int, double> losses = LossesOf(resumed);
      ASSERT_EQ(losses.size(), kSteps - 2u) << context;
      for (const auto& [step, loss] : losses) {
        EXPECT_NEAR(loss, whole.at(step), 1e-9) << context << ", step " << step;
      }
      ExpectBitsOf(*checkpoint, dump, context);
    }
  }
}

// The same where two processes write their parts, and two processes read what they need of them:
// each strategy continues the one before, and the first the last.
TEST_F(CheckpointsTest, EveryStrategyOfProcessesContinuesAnother) {
  const std::vector<std::string> strategies = {
      "dp=2",           "tp=2",        "pp=2",          "dp=2,tp=2",
      "dp=2,tp=2,pp=2", "zero=3,dp=4", "pp=2 dualpipe", "dp=2"};
  const int num_runs = static_cast<int>(strategies.size());
  const std::map<int, double> whole =
      LossesOf(RunJob(Join(Layout("dp=1"), {"--set", "checkpoint.path=\"\"", "--set",
                                            StrCat("train.steps=", num_runs)})));
  for (int run = 0; run < num_runs; ++run) {
    const std::string& strategy = strategies[static_cast<size_t>(run)];
    const std::string context =
        StrCat(run == 0 ? "" : strategies[static_cast<size_t>(run) - 1], " to ", strategy);
    const std::string saved = run == 0 ? "" : CheckpointFolder::NewestOr(Folder());
    const absl::StatusOr<actors::Checkpoint> checkpoint = actors::Checkpoint::Open(saved);
    std::vector<std::string> more = {"--procs", "2", "--set", StrCat("train.steps=", run + 1)};
    const std::string dump = Path(StrCat("dump-", run));
    if (run > 0) {
      ASSERT_TRUE(checkpoint.ok()) << context << ": " << checkpoint.status();
      more = Join(more, {"--resume", "--dump", dump});
    }
    const Outcome outcome = RunJob(Join(Layout(strategy), more));
    const std::map<int, double> losses = LossesOf(outcome);
    ASSERT_EQ(losses.size(), 1u) << context;
    EXPECT_NEAR(losses.at(run + 1), whole.at(run + 1), 1e-9) << context;
    int num_parts = 0;
    for (const auto& file : fs::directory_iterator(CheckpointFolder::NewestOr(Folder()))) {
      num_parts += file.path().extension() == ".safetensors";
    }
    EXPECT_EQ(num_parts, 2) << context;
    if (run == 0) continue;
    ExpectBitsOf(*checkpoint, dump, context);
  }
}

TEST_F(CheckpointsTest, ProcessesWriteAndContinue) {
  const std::map<int, double> whole =
      LossesOf(RunJob({"--set", "checkpoint.path=\"\"", "--set", "train.steps=6"}));
  LossesOf(RunJob(Join(Layout("dp=2,tp=2"), {"--procs", "2"})));
  // Of the two copies of a state that `chimera` has, one is written.
  for (const auto& [layout, steps] : {std::pair("pp=2 chimera", 5), std::pair("pp=2", 6)}) {
    const std::map<int, double> losses = LossesOf(RunJob(Join(
        Layout(layout), {"--procs", "2", "--resume", "--set", StrCat("train.steps=", steps)})));
    EXPECT_EQ(losses.size(), steps == 5 ? 2u : 1u);
    for (const auto& [step, loss] : losses) EXPECT_NEAR(loss, whole.at(step), 1e-9) << step;
  }
}

// Tiles in two dimensions, several a process.
TEST_F(CheckpointsTest, ProcessesWriteTilesInTwoDimensions) {
  const Outcome outcome =
      RunJob({"--strategy", "dp=2,tp=2,zero=3", "--devices", "4", "--procs", "1", "--set",
              "parallel.hints=[\"h{0-1}.mlp.w1 @[dp, tp]\", \"h{0-1}.mlp.w2 @[tp, dp]\"]"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  fs::remove_all(Folder());
  const Outcome two = RunJob({"--strategy", "dp=4,tp=2,zero=3", "--devices", "8", "--procs", "2"});
  EXPECT_EQ(two.status, 0) << two.err;
  EXPECT_EQ(Call({"checkpoint", "verify", Folder()}).status, 0);
  EXPECT_EQ(RunJob({"--resume", "--set", "train.steps=4"}).status, 0);
}

// Steps with more sequences go on where the text was read to.
TEST_F(CheckpointsTest, TheTextGoesOnWithAnotherBatch) {
  LossesOf(RunJob({}));
  const Outcome resumed = RunJob({"--resume", "--set", "train.steps=4", "--set", "train.batch=4",
                                  "--dump", Path("dump"), "--set", "checkpoint.every=0"});
  LossesOf(resumed);
  EXPECT_THAT(resumed.err, HasSubstr("note: the checkpoint was made with train.batch = 8, not 4"));
  LossesOf(
      RunJob({"--set", "checkpoint.path=\"\"", "--set", "train.steps=4", "--dump", Path("whole")}));
  const auto tokens = ReadNpy(Path("dump/step_4.tokens.npy"));
  const auto expected = ReadNpy(Path("whole/step_4.tokens.npy"));
  ASSERT_TRUE(tokens.ok() && expected.ok());
  EXPECT_EQ(tokens->num_elements() * 2, expected->num_elements());
  EXPECT_EQ(memcmp(tokens->data(), expected->data(), tokens->type().num_bytes()), 0);
  const auto checkpoint = actors::Checkpoint::Open(CheckpointFolder::NewestOr(Folder()));
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_EQ(actors::InfoFromMetadata(checkpoint->metadata())->sequences, 3 * 8 + 4);
}

TEST_F(CheckpointsTest, APlanIsResumedToo) {
  ASSERT_EQ(
      Call({"plan", Path("job.toml"), "--set", "train.steps=5", "-o", Path("job.plan")}).status, 0);
  const std::string text = StrCat("data.text=[\"", Path("text.txt"), "\"]");
  const std::string folder = StrCat("checkpoint.path=\"", Folder(), "\"");
  const auto run = [&](const std::string& steps, const std::vector<std::string>& more) {
    return LossesOf(Call(Join(
        {"run", Path("job.plan"), "--json", "--set", text, "--set", StrCat("train.steps=", steps)},
        more)));
  };
  const std::map<int, double> whole = run("5", {});
  run("3", {"--set", folder});
  const std::map<int, double> end = run("5", {"--set", folder, "--resume"});
  ASSERT_EQ(end.size(), 2u);
  for (const auto& [step, loss] : end) EXPECT_EQ(loss, whole.at(step)) << step;
}

TEST_F(CheckpointsTest, ARunThatIsDoneIsNotTrainedAgain) {
  LossesOf(RunJob({}));
  const Outcome again = RunJob({"--resume"});
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("nothing is left to be trained"));
  EXPECT_THAT(again.out, AllOf(HasSubstr("\"steps\": 0"), HasSubstr("\"final_loss\": null")));
}

TEST_F(CheckpointsTest, AnotherLearningRateCurveIsNoted) {
  const std::vector<std::string> cosine = {"--set", "train.schedule=\"cosine\""};
  LossesOf(RunJob(cosine));
  const auto is_noted = HasSubstr("the learning rate follows another curve from here on");
  const Outcome longer = RunJob(Join(cosine, {"--resume", "--set", "train.steps=4"}));
  EXPECT_EQ(LossesOf(longer).size(), 1u);
  EXPECT_THAT(longer.err, AllOf(HasSubstr("was made with train.steps = 3, not 4"), is_noted));
  // That checkpoint is of the longer run.
  EXPECT_THAT(RunJob(Join(cosine, {"--resume", "--set", "train.steps=4"})).err, Not(is_noted));
}

TEST_F(CheckpointsTest, WithoutACheckpointARunBegins) {
  const Outcome outcome = RunJob({"--resume"});
  EXPECT_EQ(LossesOf(outcome).size(), 3u);
  EXPECT_THAT(outcome.err, HasSubstr("holds no checkpoint; the run begins with step 1"));
}

TEST_F(CheckpointsTest, CheckpointsOfAnotherRunAreNotOverwritten) {
  LossesOf(RunJob({}));
  const Outcome outcome = RunJob({});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("job.toml:19:8: "), HasSubstr("of step 3"),
                                 HasSubstr("`run --resume` continues it")));
  EXPECT_THAT(Steps(), ElementsAre(2, 3));
}

// It writes nothing, so what it says of a job does not depend on what an earlier run has left.
TEST_F(CheckpointsTest, ADryRunMayFollowARun) {
  LossesOf(RunJob({}));
  const Outcome dry = RunJob({"--dry-run"});
  EXPECT_EQ(dry.status, 0) << dry.err;
  EXPECT_THAT(dry.out, HasSubstr("\"dry_run\": true"));
  EXPECT_THAT(dry.err, AllOf(HasSubstr("note: without --dry-run, the job is refused: "),
                             HasSubstr("`run --resume` continues it")));
  const Outcome resumed = RunJob({"--dry-run", "--resume"});
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_THAT(resumed.err, AllOf(HasSubstr("after 3 steps"), Not(HasSubstr("is refused"))));
  EXPECT_THAT(Steps(), ElementsAre(2, 3));
}

TEST_F(CheckpointsTest, AFailedRunPointsToACheckpointOnlyWhereThereIsOne) {
  const std::vector<std::string> job = {"--set", "train.dtype=\"f32\"",
                                        "--set", "train.learning_rate=1e25",
                                        "--set", "train.steps=6"};
  const auto is_hint = HasSubstr("note: continue from the last checkpoint in ");
  const Outcome none = RunJob(Join(job, {"--set", "checkpoint.every=0"}));
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.err, AllOf(HasSubstr("not finite"), Not(is_hint)));
  EXPECT_THAT(Steps(), IsEmpty());
  const Outcome one = RunJob(Join(job, {"--set", "checkpoint.every=1"}));
  EXPECT_EQ(one.status, 1);
  EXPECT_THAT(one.err, AllOf(HasSubstr("not finite"), is_hint));
}

TEST_F(CheckpointsTest, ACheckpointIsNoFolderOfThem) {
  LossesOf(RunJob({}));
  const std::string checkpoint = StrCat(Folder(), "/step-00000003");
  for (const std::string& path : {checkpoint, checkpoint + "/"}) {
    for (const bool resumes : {false, true}) {
      const std::string setting = StrCat("checkpoint.path=\"", path, "\"");
      const Outcome outcome =
          RunJob(resumes ? std::vector<std::string>{"--resume", "--set", setting}
                         : std::vector<std::string>{"--set", setting});
      EXPECT_EQ(outcome.status, 2);
      EXPECT_THAT(outcome.err, HasSubstr(StrCat(path,
                                                ": this is a checkpoint; set checkpoint.path to "
                                                "its parent, ",
                                                Folder(), "\n")));
      EXPECT_EQ(std::distance(fs::directory_iterator(checkpoint), fs::directory_iterator()), 1);
    }
  }
}

// The advice does not lead back to the same error.
TEST_F(CheckpointsTest, ADamagedCheckpointLeavesTheOneBefore) {
  LossesOf(RunJob({}));
  const std::string damaged = StrCat(Folder(), "/step-00000003");
  const std::string file = StrCat(damaged, "/model.safetensors");
  const std::string bytes = Read("checkpoints/step-00000003/model.safetensors");
  const std::string moved = StrCat(Folder(), "/damaged-step-00000003");
  const auto is_advised = AllOf(HasSubstr(StrCat("; ", Folder(), "/step-00000002 is complete: ")),
                                HasSubstr(StrCat("(mv ", damaged, " ", moved, ")")),
                                Not(HasSubstr("continue from the last checkpoint")));
  std::string flipped = bytes;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  for (const std::string& content : {flipped, bytes.substr(0, 100)}) {
    std::ofstream(file, std::ios::binary) << content;
    for (const char* const procs : {"1", "2"}) {
      const Outcome outcome = RunJob(Join(Layout("dp=2"), {"--procs", procs, "--resume"}));
      EXPECT_EQ(outcome.status, 2) << outcome.err;
      EXPECT_THAT(outcome.err, is_advised);
    }
  }
  fs::rename(damaged, moved);
  EXPECT_EQ(LossesOf(RunJob({"--resume"})).size(), 1u);
  fs::remove_all(StrCat(Folder(), "/step-00000002"));
  std::ofstream(file, std::ios::binary) << flipped;
  EXPECT_THAT(RunJob({"--resume"}).err, HasSubstr("; there is no other checkpoint to continue"));
}

TEST_F(CheckpointsTest, ACheckpointThatDoesNotFitIsRefused) {
  LossesOf(RunJob({}));
  Outcome outcome = RunJob({"--resume", "--set", "train.seed=2"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("is of a run with train.seed = 1, not 2"));
  outcome = RunJob({"--resume", "--set", "model.width=32"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("the state "), HasSubstr("model.width = 16, not 32")));
  outcome = RunJob({"--resume", "--set", "train.optimizer=\"sgd\""});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("has no state "), HasSubstr("train.optimizer = adamw, not sgd")));
  outcome = RunJob({"--resume", "--set", "checkpoint.path=\"\""});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("set checkpoint.path"));
  EXPECT_THAT(Steps(), ElementsAre(2, 3));
}

// Flips one bit of a file while it lives.
class FlippedBit {
 public:
  FlippedBit(const std::string& path, size_t bit) : path_(path), bit_(bit) { Flip(); }
  ~FlippedBit() { Flip(); }
  FlippedBit(const FlippedBit&) = delete;
  FlippedBit& operator=(const FlippedBit&) = delete;

 private:
  void Flip() const {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(bit_ / 8));
    const int byte = file.get() ^ (1 << (bit_ % 8));
    file.seekp(static_cast<std::streamoff>(bit_ / 8));
    file.put(static_cast<char>(byte));
    ASSERT_TRUE(file.good()) << path_;
  }

  const std::string path_;
  const size_t bit_;
};

// Where the data of a file begin, behind its header.
size_t DataBegin(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  uint64_t header_bytes = 0;
  file.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
  return sizeof(header_bytes) + header_bytes;
}

// The tensor of a byte of the data.
std::string TensorAt(const actors::SafetensorsFile& file, uint64_t offset) {
  std::string name;
  for (const actors::SafetensorsTensor& tensor : file.header().tensors) {
    if (tensor.offset <= offset) name = tensor.name;
  }
  return name;
}

// Of a checkpoint as a run has written it, every bit counts.
TEST_F(CheckpointsTest, DamageIsRefusedWithTheNameOfTheTensor) {
  LossesOf(RunJob({"--set", "train.steps=1"}));
  const std::string path = StrCat(CheckpointFolder::NewestOr(Folder()), "/model.safetensors");
  const auto file = actors::SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const size_t begin = DataBegin(path);
  const size_t num_data_bits = 8 * (fs::file_size(path) - begin);
  std::mt19937_64 random(3);
  for (int i = 0; i < 1000; ++i) {
    const size_t bit = random() % num_data_bits;
    const std::string name = TensorAt(*file, bit / 8);
    const FlippedBit flipped(path, 8 * begin + bit);
    const Outcome outcome = Call({"checkpoint", "verify", Folder()});
    ASSERT_NE(outcome.status, 0) << "bit " << bit;
    ASSERT_THAT(outcome.err, HasSubstr(StrCat(path, ": tensor ", name, " is damaged")));
    if (i % 100 != 0) continue;
    const Outcome resumed = RunJob({"--resume"});
    ASSERT_NE(resumed.status, 0);
    ASSERT_THAT(resumed.err, HasSubstr(StrCat("tensor ", name, " is damaged")));
  }
  // A damaged header says nothing of tensors that could be trusted: the file is named.
  for (int i = 0; i < 200; ++i) {
    const size_t bit = random() % (8 * begin);
    const FlippedBit flipped(path, bit);
    const Outcome outcome = Call({"checkpoint", "verify", Folder()});
    ASSERT_NE(outcome.status, 0) << "bit " << bit;
    ASSERT_THAT(outcome.err, HasSubstr(path)) << "bit " << bit;
  }
  EXPECT_EQ(Call({"checkpoint", "verify", Folder()}).status, 0);
}

TEST_F(CheckpointsTest, DamageOfOneProcessesPartIsRefusedWithTheNameOfTheTensor) {
  const std::vector<std::string> layout = Join(Layout("tp=2"), {"--procs", "2"});
  LossesOf(RunJob(Join(layout, {"--set", "train.steps=1"})));
  std::vector<std::string> parts;
  for (const auto& entry : fs::directory_iterator(CheckpointFolder::NewestOr(Folder()))) {
    if (entry.path().extension() == ".safetensors") parts.push_back(entry.path().string());
  }
  ASSERT_THAT(parts, SizeIs(2));
  std::mt19937_64 random(4);
  for (int i = 0; i < 50; ++i) {
    const std::string& path = parts[i % 2];
    const auto file = actors::SafetensorsFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    const size_t begin = DataBegin(path);
    const size_t bit = random() % (8 * (fs::file_size(path) - begin));
    const std::string name = TensorAt(*file, bit / 8);
    const FlippedBit flipped(path, 8 * begin + bit);
    const Outcome outcome = Call({"checkpoint", "verify", Folder()});
    ASSERT_NE(outcome.status, 0) << path << " bit " << bit;
    ASSERT_THAT(outcome.err, HasSubstr(StrCat(path, ": tensor ", name, " is damaged")));
    if (i >= 2) continue;
    const Outcome resumed = RunJob(Join(layout, {"--resume"}));
    ASSERT_NE(resumed.status, 0);
    ASSERT_THAT(resumed.err, HasSubstr(StrCat("tensor ", name, " is damaged")));
  }
}

// As when a disk is full, for a while: files have a limit.
TEST_F(CheckpointsTest, TrainingGoesOnWithoutRoomForCheckpoints) {
  LossesOf(RunJob({"--set", "train.steps=2"}));
  signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit tight = {10000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &tight);
  const Outcome outcome = RunJob({"--resume", "--set", "train.steps=5"});
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("error: no checkpoint of step 4: "),
                                 HasSubstr("the run is done, but its last checkpoint was not")));
  EXPECT_THAT(outcome.out, HasSubstr("\"step\": 5"));
  EXPECT_THAT(outcome.out, HasSubstr("\"summary\""));
  EXPECT_THAT(Steps(), ElementsAre(2));
  EXPECT_EQ(Call({"checkpoint", "verify", Folder()}).status, 0);
}

TEST_F(CheckpointsTest, TrainingGoesOnWithoutAFolder) {
  Write("file", "");
  const Outcome outcome =
      RunJob({"--set", StrCat("checkpoint.path=\"", Path("file/checkpoints"), "\"")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("file/checkpoints: cannot be created"),
                                 HasSubstr("error: no checkpoint of step 3")));
  EXPECT_THAT(outcome.out, HasSubstr("\"step\": 3"));
}

TEST_F(CheckpointsTest, TwoRunsDoNotShareAFolder) {
  const auto folder = CheckpointFolder::Open(Folder(), 2);
  ASSERT_TRUE(folder.ok());
  const Outcome outcome = RunJob({});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("job.toml:19:8: "), HasSubstr("another run writes")));
}

TEST_F(CheckpointsTest, StatesThatAreNotFiniteAreNotKept) {
  const Outcome outcome = RunJob({"--set", "train.learning_rate=1e20", "--set", "train.steps=6",
                                  "--set", "train.on_nonfinite=\"continue\"", "--set",
                                  "train.clip_norm=0", "--set", "train.optimizer=\"sgd\""});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\"loss\": null"));
  EXPECT_THAT(Steps(), IsEmpty());
}

// The loss of a step is that of the parameters before its update.
TEST_F(CheckpointsTest, ParametersThatAreNotFiniteDisplaceNoCheckpoint) {
  const std::vector<std::string> more = {"--strategy", "dp=2",
                                         "--set",      "parallel.microbatches=2",
                                         "--set",      "checkpoint.every=1",
                                         "--set",      "checkpoint.keep=1",
                                         "--set",      "train.dtype=\"f32\""};
  LossesOf(RunJob(Join(more, {"--set", "train.steps=2"})));
  for (const bool stops : {false, true}) {
    for (const char* const procs : {"1", "2"}) {
      // Decay by 10^40 times itself leaves no parameter that an f32 holds.
      const Outcome outcome = RunJob(Join(
          more, {"--resume", "--procs", procs, "--set", "train.learning_rate=1e30", "--set",
                 "train.weight_decay=1e10", "--set", stops ? "train.steps=3" : "train.steps=4",
                 "--set", StrCat("train.on_nonfinite=\"", stops ? "stop" : "continue", "\"")}));
      EXPECT_EQ(outcome.status, stops ? 1 : 0) << outcome.err;
      EXPECT_THAT(outcome.err,
                  AllOf(HasSubstr(StrCat(stops ? "error" : "note", ": no checkpoint of step 3: ")),
                        HasSubstr("the parameter wte (f32[256, 16]) is ")));
      EXPECT_THAT(Steps(), ElementsAre(2));
    }
  }
}

// The search for what was not finite first begins where the run has.
TEST_F(CheckpointsTest, WhatARunContinuesFromStaysWhileItMayBeReadAgain) {
  const std::vector<std::string> more = {
      "--set", "checkpoint.keep=1", "--set", "checkpoint.every=1", "--set", "train.dtype=\"f32\""};
  LossesOf(RunJob(Join(more, {"--set", "train.steps=1"})));
  const Outcome outcome = RunJob(
      Join(more, {"--resume", "--set", "train.learning_rate=1e25", "--set", "train.steps=6"}));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("again to find the first result that is not finite"),
                                 HasSubstr("holds "), Not(HasSubstr("cannot be opened"))));
  EXPECT_THAT(Steps(), ElementsAre(1, 2));
}

TEST_F(CheckpointsTest, TracesOfAResumedRunHaveItsSteps) {
  LossesOf(RunJob({}));
  const Outcome resumed =
      RunJob({"--resume", "--set", "train.steps=6", "--trace", Path("trace.json")});
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("\"traced_steps\": {\"first\": 4, \"last\": 6}"));
  EXPECT_THAT(resumed.err, Not(HasSubstr("trace: ")));
}

TEST_F(CheckpointsTest, AFileWithoutChecksumsIsSaidToHaveNone) {
  const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  Write("other.safetensors", file + header + "x");
  const Outcome outcome = Call({"checkpoint", "verify", Path("other.safetensors")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("this file has no checksums: every tensor can be read"));
}

TEST_F(CheckpointsTest, WhatAFileSaysDoesNotReachTheTerminalAsItIs) {
  actors::CheckpointInfo info;
  info.strategy = "dp=1\x1b[2J";
  info.settings = {{"model.name\xc2\x9b", "gpt\r"}};
  const std::string path = Path("model.safetensors");
  ASSERT_TRUE(actors::WriteSafetensors(path, {}, actors::ToMetadata(info)).ok());
  const Outcome shown = Call({"checkpoint", "show", path});
  ASSERT_EQ(shown.status, 0) << shown.err;
  EXPECT_THAT(shown.out,
              AllOf(HasSubstr("dp=1\\x1b[2J"), HasSubstr("model.name\\xc2\\x9b = gpt\\x0d"),
                    Not(HasSubstr("\x1b")), Not(HasSubstr("\x9b"))));
  EXPECT_THAT(Call({"checkpoint", "verify", path}).out, Not(HasSubstr("\x1b")));
  // Nor in an error.
  const std::string header = R"({"a":{"dtype":"\u009b\u007f","shape":[],"data_offsets":[0,0]}})";
  const uint64_t length = header.size();
  std::ofstream(path, std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&length), sizeof(length)) << header;
  const Outcome refused = Call({"checkpoint", "show", path});
  EXPECT_NE(refused.status, 0);
  EXPECT_THAT(refused.err,
              AllOf(HasSubstr("unknown dtype"), Not(HasSubstr("\x9b")), Not(HasSubstr("\x7f"))));
}

TEST_F(CheckpointsTest, ShowAndMerge) {
  LossesOf(RunJob(Layout("tp=2")));
  Outcome outcome = Call({"checkpoint", "show", Folder(), "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const nlohmann::json shown = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(shown["step"], 3);
  bool has_embedding = false;
  for (const nlohmann::json& tensor : shown["tensors"]) {
    has_embedding |=
        tensor == nlohmann::json({{"name", "wte"}, {"dtype", "f64"}, {"shape", {256, 16}}});
  }
  EXPECT_TRUE(has_embedding) << outcome.out;
  outcome = Call({"checkpoint", "show", Folder()});
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("after step 3"), HasSubstr("wte ")));
  // What the model is made with, and nothing that others have.
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("model.heads = "), Not(HasSubstr("model.experts")),
                                 Not(HasSubstr("model.rotary_base"))));

  outcome = Call({"checkpoint", "verify", Folder(), "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["tensors"], shown["tensors"]);
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["has_checksums"], true);
  outcome = Call({"checkpoint", "merge", Folder(), "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["step"], 3);
  const std::string merged = StrCat(CheckpointFolder::NewestOr(Folder()), ".safetensors");
  outcome = Call({"checkpoint", "show", merged, "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["tensors"], shown["tensors"]);
  EXPECT_EQ(Call({"checkpoint", "merge", Folder()}).status, 2);
  EXPECT_EQ(Call({"checkpoint", "merge", Folder(), "-o", Path("merged.safetensors")}).status, 0);
  outcome = Call({"checkpoint", "verify", Path("merged.safetensors")});
  EXPECT_THAT(outcome.out, HasSubstr("every tensor has its checksum"));
  outcome = Call({"checkpoint", "show", Path("none")});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr(StrCat(Path("none"), ": no such checkpoint")));
  outcome = Call({"checkpoint"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("`penstock checkpoint` is followed by show, verify or merge"));
  outcome = Call({"checkpoint", "foo"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("by show, verify or merge, not by 'foo'"));
}

}  // namespace
}  // namespace penstock::cli
