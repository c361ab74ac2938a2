// Trainer's snapshots, and steps that are run again from one.

#include "cli/trainer.h"

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/compile_job.h"
#include "cli/environment.h"
#include "cli/find_nonfinite.h"
#include "cli/inference.h"
#include "cli/job_graph.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/session/local_engine.h"
#include "base/machine.h"
#include "base/strings.h"
#include "tests/support/temp_folder.h"
#include "transport/transport.h"

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

// The devices of this process, without memory for copies of states while a validator has a session.
class ShortOfMemory final : public actors::Engine {
 public:
  ShortOfMemory(std::unique_ptr<actors::Engine> inner, const Validator* validator)
      : inner_(std::move(inner)), validator_(*validator) {}

  absl::StatusOr<std::shared_ptr<const actors::KeptStates>> KeepStates(
      const std::vector<uint32_t>& states) override {
    if (validator_.is_open()) return absl::ResourceExhaustedError("no memory");
    return inner_->KeepStates(states);
  }
  void Submit(int64_t step, const std::shared_ptr<actors::StepBuffers>& buffers) override {
    inner_->Submit(step, buffers);
  }
  std::shared_ptr<actors::Inspector> inspector() const override { return inner_->inspector(); }
  std::vector<actors::WaitDescription> Describe(absl::Duration timeout) override {
    return inner_->Describe(timeout);
  }
  absl::Status ReadState(const planner::StatePlan& state, Tensor* value) override {
    return inner_->ReadState(state, value);
  }
  absl::Status WriteState(const planner::StatePlan& state, const Tensor& value) override {
    return inner_->WriteState(state, value);
  }
  absl::StatusOr<std::vector<uint32_t>> TakeStates(const actors::KeptStates& kept) override {
    return inner_->TakeStates(kept);
  }
  absl::StatusOr<std::vector<actors::TraceEvent>> TakeTrace() override {
    return inner_->TakeTrace();
  }
  void Stop() override { inner_->Stop(); }
  caf::actor_system& actor_system() override { return inner_->actor_system(); }

 private:
  const std::unique_ptr<actors::Engine> inner_;
  const Validator& validator_;
};

class ValidatorTest : public TrainerTest {
 protected:
  static constexpr std::string_view kNote = "each validation loads it again";

  ValidatorTest() {
    absl::StatusOr<JobGraph> graph = BuildJobGraph(registries_, job_);
    EXPECT_TRUE(graph.ok()) << graph.status();
    model_ = std::move(graph->model);
    feeds_ = StepFeeds::Create(plan_, job_);
    EXPECT_TRUE(feeds_.ok()) << feeds_.status();
    job_.train.validation_every = 1;
  }

  Validator MakeValidator(uint64_t memory_bytes = MachineMemoryBytes()) {
    ForwardLayout layout;
    layout.sequences_per_step = 4;
    return {environment_, model_,
            HeldOutText(feeds_->corpus()->validation_tokens(), model_.config.context, 4), layout,
            memory_bytes};
  }

  // The losses that a validator measures after each step but the last.
  std::vector<double> Train(Validator& validator, TrainerOptions options = {}) {
    std::vector<double> losses;
    options.validate = [&](const actors::Session& trained) -> absl::StatusOr<double> {
      const auto loss = validator.LossOf(trained);
      EXPECT_TRUE(loss.ok()) << loss.status();
      losses.push_back(loss.value_or(0));
      return loss;
    };
    const std::unique_ptr<actors::Session> session = Start();
    Interrupts interrupts(err_);
    Trainer trainer(environment_, options, job_, *session, *feeds_, interrupts);
    RunSummary summary;
    EXPECT_TRUE(trainer.Run(&summary).ok());
    last_snapshot_ = trainer.snapshot().step;
    return losses;
  }

  // Starts engines that have no memory for copies of states while the validator has a session.
  static actors::EngineFactory EngineWithout(const Validator& validator) {
    return [&validator](const planner::Plan& plan, actors::EngineObserver* observer,
                        const actors::SessionOptions& options)
               -> absl::StatusOr<std::unique_ptr<actors::Engine>> {
      actors::LocalEngineOptions local;
      local.num_devices = static_cast<uint32_t>(plan.devices.size());
      local.seed = options.seed;
      local.kernels = options.kernels;
      local.policies = options.policies;
      auto engine = actors::LocalEngine::Start(
          plan, transport::CreateInprocTransport({local.num_devices, 0, plan.num_channels}),
          observer, local);
      if (!engine.ok()) return engine.status();
      return std::make_unique<ShortOfMemory>(*std::move(engine), &validator);
    };
  }

  size_t NumNotes() const {
    size_t count = 0;
    const std::string text = err_.str();
    for (size_t at = text.find(kNote); at != std::string::npos; at = text.find(kNote, at + 1)) {
      ++count;
    }
    return count;
  }

  JobModel model_;
  absl::StatusOr<StepFeeds> feeds_ = absl::UnknownError("not made");
  int64_t last_snapshot_ = 0;
};

TEST_F(ValidatorTest, MeasuresTheSameWhetherItStaysOpenOrNot) {
  Validator open = MakeValidator();
  const std::vector<double> losses = Train(open);
  EXPECT_TRUE(open.is_open());
  EXPECT_EQ(NumNotes(), 0u);
  ASSERT_EQ(losses.size(), 5u);
  for (size_t i = 1; i < losses.size(); ++i) EXPECT_NE(losses[i], losses[i - 1]);

  Validator closing = MakeValidator(/*memory_bytes=*/1);
  EXPECT_EQ(Train(closing), losses);
  EXPECT_FALSE(closing.is_open());
  EXPECT_EQ(NumNotes(), 1u);
}

TEST_F(ValidatorTest, GivesWayToTheParametersThatItNeeds) {
  Validator validator = MakeValidator();
  const std::vector<double> losses = Train(validator);
  Validator other = MakeValidator();
  options_.start_engine = EngineWithout(other);
  EXPECT_EQ(Train(other), losses);
  EXPECT_EQ(NumNotes(), 1u);
}

TEST_F(ValidatorTest, GivesWayToSnapshots) {
  Validator validator = MakeValidator();
  TrainerOptions options;
  options.snapshot_seconds = 1e-9;  // before every step
  int num_released = 0;
  options.release_memory = [&] {
    ++num_released;
    return validator.Release();
  };
  options_.start_engine = EngineWithout(validator);
  EXPECT_EQ(Train(validator, options).size(), 5u);
  EXPECT_EQ(last_snapshot_, 5);
  EXPECT_EQ(num_released, 1);
  EXPECT_EQ(NumNotes(), 1u);
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
