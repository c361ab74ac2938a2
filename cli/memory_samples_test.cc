#include "cli/memory_samples.h"

#include <atomic>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

using ::testing::Each;
using ::testing::Gt;

// Two processes, whose memory grows with each question; the second one never answers.
class GrowingInspector : public actors::Inspector {
 public:
  absl::StatusOr<actors::EngineSnapshot> Inspect(absl::Duration) override {
    if (has_stopped_) return absl::FailedPreconditionError("stopped");
    const uint64_t bytes = ++num_asked_;
    if (num_asked_ >= awaited_) was_asked_.Notify();
    if (num_asked_ >= awaited_) awaited_ = UINT64_MAX;
    actors::EngineSnapshot snapshot;
    snapshot.processes.resize(2);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      snapshot.processes[rank].rank = rank;
      snapshot.processes[rank].resident_bytes = bytes;
    }
    snapshot.processes[1].answers = false;
    return snapshot;
  }
  // Before the first question.
  void Await(uint64_t count) { awaited_ = count; }
  void WaitUntilAsked() { was_asked_.WaitForNotification(); }
  void Stop() { has_stopped_ = true; }

 private:
  std::atomic<bool> has_stopped_ = false;
  uint64_t awaited_ = UINT64_MAX;
  uint64_t num_asked_ = 0;
  absl::Notification was_asked_;
};

TEST(MemorySamplerTest, HasASampleAtTheBeginningAndAtTheEnd) {
  auto inspector = std::make_shared<GrowingInspector>();
  inspector->Await(1);
  MemorySampler sampler(inspector, absl::Hours(1));
  inspector->WaitUntilAsked();
  const MemorySamples samples = sampler.Finish();
  ASSERT_EQ(samples.size(), 1u);
  ASSERT_EQ(samples.at(0).size(), 2u);
  EXPECT_EQ(samples.at(0)[0].value, 1);
  EXPECT_EQ(samples.at(0)[1].value, 2);
  EXPECT_LE(samples.at(0)[0].at_ns, samples.at(0)[1].at_ns);
}

TEST(MemorySamplerTest, SamplesAreBounded) {
  auto inspector = std::make_shared<GrowingInspector>();
  inspector->Await(30);
  MemorySampler sampler(inspector, absl::Microseconds(1), /*max_samples=*/8);
  inspector->WaitUntilAsked();
  inspector->Stop();
  const MemorySamples samples = sampler.Finish();
  EXPECT_LT(samples.at(0).size(), 8u);
  EXPECT_GE(samples.at(0).size(), 4u);
  EXPECT_EQ(samples.at(0)[0].value, 1);
  std::vector<int64_t> steps;
  for (size_t i = 1; i < samples.at(0).size(); ++i) {
    steps.push_back(samples.at(0)[i].value - samples.at(0)[i - 1].value);
  }
  EXPECT_THAT(steps, Each(Gt(0)));
  EXPECT_GT(samples.at(0).back().value, 25);
}

TEST(MemorySamplerTest, OfAnEngineThatHasStoppedThereIsNothing) {
  auto inspector = std::make_shared<GrowingInspector>();
  inspector->Stop();
  EXPECT_TRUE(MemorySampler(inspector, absl::Hours(1)).Finish().empty());
}

}  // namespace
}  // namespace penstock::cli
