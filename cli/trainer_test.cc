// Trainer's snapshots, and steps that are run again from one.

#include "cli/trainer.h"

#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "cli/environment.h"
#include "cli/find_nonfinite.h"
#include "cli/job_graph.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "tests/support/temp_folder.h"

namespace penstock::cli {
namespace {

using ::testing::HasSubstr;

// A model with dropout: what a step draws depends on its number.
class TrainerTest : public ::testing::Test {
 protected:
  TrainerTest() {
    std::string text;
    for (int i = 0; i < 200; ++i) StrAppend(&text, "the quick brown fox ", i, " jumps; ");
    std::ofstream(folder_.Path("text.txt")) << text;
    absl::StatusOr<Job> job = ParseJob(
        "[model]\nname = \"gpt\"\nlayers = 1\nwidth = 16\nheads = 2\ncontext = 8\ndropout = 0.3\n"
        "[data]\ntext = \"text.txt\"\n[train]\nsteps = 6\nbatch = 4\nlearning_rate = 1e-2\n"
        "[cluster]\nthreads = 1\n",
        "job.toml", folder_.path().string(), {});
    EXPECT_TRUE(job.ok()) << job.status();
    job_ = *std::move(job);
    absl::StatusOr<JobGraph> graph = BuildJobGraph(registries_, job_);
    EXPECT_TRUE(graph.ok()) << graph.status();
    absl::StatusOr<planner::Plan> plan =
        CompileGraph(registries_, std::move(graph->graph), SettingsOf(job_, *graph));
    EXPECT_TRUE(plan.ok()) << plan.status();
    plan_ = *std::move(plan);
    options_.kernels = &registries_.kernels;
    options_.policies = &registries_.policies;
    options_.seed = 1;
  }

  std::unique_ptr<actors::Session> Start() const {
    auto session = actors::Session::Start(plan_, options_);
    EXPECT_TRUE(session.ok()) << session.status();
    return *std::move(session);
  }

  const testing::TempFolder folder_;
  const Registries registries_ = BuiltinRegistries();
  std::ostringstream out_;
  std::ostringstream err_;
  const Environment environment_ = {registries_, out_, err_};
  Job job_;
  planner::Plan plan_;
  actors::SessionOptions options_;
};

TEST_F(TrainerTest, ARunFromASnapshotRepeatsItsStepsBitForBit) {
  const absl::StatusOr<StepFeeds> feeds = StepFeeds::Create(plan_, job_);
  ASSERT_TRUE(feeds.ok()) << feeds.status();
  const std::unique_ptr<actors::Session> session = Start();
  TrainerOptions trainer_options;
  trainer_options.snapshot_seconds = 1e-9;  // before every step
  Interrupts interrupts(err_);
  Trainer trainer(environment_, trainer_options, job_, *session, *feeds, interrupts);
  RunSummary summary;
  ASSERT_TRUE(trainer.Run(&summary).ok());
  EXPECT_EQ(trainer.num_steps(), 6);
  ASSERT_EQ(trainer.snapshot().step, 5);
  session->Stop();

  options_.first_step = 5;
  options_.states = trainer.snapshot().states;
  const std::unique_ptr<actors::Session> again = Start();
  const auto step_feeds = feeds->Get(5);
  ASSERT_TRUE(step_feeds.ok());
  const auto result = again->Run(*step_feeds);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->fetches[0].second.As<float>()[0], static_cast<float>(summary.final_loss));
  // And it is the number of the step that makes the difference.
  options_.first_step = 0;
  const std::unique_ptr<actors::Session> other = Start();
  EXPECT_NE(other->Run(*step_feeds)->fetches[0].second.As<float>()[0],
            static_cast<float>(summary.final_loss));
}

TEST_F(TrainerTest, SnapshotsChangeNothing) {
  const absl::StatusOr<StepFeeds> feeds = StepFeeds::Create(plan_, job_);
  ASSERT_TRUE(feeds.ok()) << feeds.status();
  std::vector<double> losses;
  for (const double seconds : {0.0, 1e-9}) {
    const std::unique_ptr<actors::Session> session = Start();
    TrainerOptions trainer_options;
    trainer_options.snapshot_seconds = seconds;
    Interrupts interrupts(err_);
    Trainer trainer(environment_, trainer_options, job_, *session, *feeds, interrupts);
    RunSummary summary;
    ASSERT_TRUE(trainer.Run(&summary).ok());
    EXPECT_EQ(summary.steps, 6);
    losses.push_back(summary.final_loss);
  }
  EXPECT_EQ(losses[0], losses[1]);
}

TEST_F(TrainerTest, TheOriginIsFoundFromASnapshot) {
  const absl::StatusOr<StepFeeds> feeds = StepFeeds::Create(plan_, job_);
  ASSERT_TRUE(feeds.ok()) << feeds.status();
  const std::unique_ptr<actors::Session> session = Start();
  Snapshot snapshot;
  snapshot.step = 3;
  for (const planner::StatePlan& state : plan_.states) {
    absl::StatusOr<Tensor> value = session->Fetch(state.name);
    ASSERT_TRUE(value.ok()) << value.status();
    if (state.name == "h0.mlp.w1") value->As<float>()[7] = 3e38f;
    if (state.name == "h0.mlp.b1") {
      for (int64_t i = 0; i < value->num_elements(); ++i) value->As<float>()[i] = 3e38f;
    }
    ASSERT_TRUE(session->SetState(state.name, *value).ok());
  }
  const auto kept = session->KeepStates(actors::StateSelection::kAll);
  ASSERT_TRUE(kept.ok()) << kept.status();
  snapshot.states = *kept;
  int num_sessions = 0;
  const absl::Status found =
      FindNonFinite(plan_, options_, *feeds, snapshot, 3,
                    [&](actors::Session* running) { num_sessions += running != nullptr ? 1 : 0; });
  EXPECT_EQ(found.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(ToStd(found.message())), HasSubstr("actor h0.mlp."));
  EXPECT_THAT(std::string(ToStd(found.message())), HasSubstr("step 4, micro-batch 0"));
  EXPECT_EQ(num_sessions, 1);
  // Nothing is found where nothing is wrong.
  EXPECT_TRUE(FindNonFinite(plan_, options_, *feeds, {}, 2, [](actors::Session*) {}).ok());
}

}  // namespace
}  // namespace penstock::cli
