// What is said of a strategy that lost is done to the machine, and the search is run again.

#include "planner/search/winning_change.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "graph/text.h"
#include "planner/search/explain_candidate.h"
#include "planner/search/rank_candidates.h"
#include "planner/search/schedules.h"
#include "tests/support/search_fixture.h"

namespace penstock::planner {
namespace {

using Kind = WinningChange::Kind;
using testing::FreeComputation;
using testing::MlpHints;
using testing::MlpText;

constexpr int64_t kPlenty = int64_t{1} << 40;

struct Case {
  std::string name;
  int64_t layers = 2;
  int64_t width = 64;
  int64_t context = 32;
  int64_t batch = 8;
  double link_bytes_per_s = 1e9;
  // Of what the fastest strategy needs where memory is plenty; 0: there is plenty.
  double memory_share = 0;
  bool with_all_schedules = false;
};

class WinningChangeTest : public testing::SearchFixture,
                          public ::testing::WithParamInterface<Case> {
 protected:
  static Machine MachineOf(double link_bytes_per_s, int64_t memory_bytes) {
    ClusterSpec spec = FreeComputation(4, memory_bytes).cluster.spec();
    spec.kinds[0].peak_flops_per_s.fill(1e11);
    spec.kinds[0].memory_bytes_per_s = 1e10;
    spec.levels[0].bytes_per_s = link_bytes_per_s;
    spec.levels[0].latency_s = 1e-6;
    return {*Cluster::Create(std::move(spec))};
  }

  SearchResult Search(const SearchProblem& problem, const Machine& machine) {
    SearchProblem changed = problem;
    changed.machine = &machine;
    absl::StatusOr<SearchResult> result = FindStrategy(changed);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : SearchResult();
  }

  static bool IsSame(const Candidate& a, const Candidate& b) {
    return a.strategy == b.strategy && a.microbatches == b.microbatches && a.policy == b.policy;
  }

  // A smaller change of the same kind, which is not enough.
  static WinningChange Smaller(const WinningChange& change) {
    const double part = 2 * kChangePrecision;
    const bool is_slower = change.kind == Kind::kLinkRate && change.amount < 1;
    return {change.kind, change.amount * (is_slower ? 1 + part : 1 - part)};
  }

  // How many of the statements were of each kind.
  std::vector<WinningChange> CheckStatements(const SearchProblem& problem) {
    const SearchResult result = Search(problem, *problem.machine);
    const std::vector<const Candidate*> others = RunnersUp(result);
    const absl::StatusOr<std::vector<WinningChange>> changes =
        FindWinningChanges(problem, result, others);
    EXPECT_TRUE(changes.ok()) << changes.status();
    if (!changes.ok()) return {};
    EXPECT_EQ(changes->size(), others.size());
    const CandidateOrder order(problem);
    for (size_t i = 0; i < others.size(); ++i) {
      const Candidate& other = *others[i];
      const WinningChange& change = (*changes)[i];
      SCOPED_TRACE(StrCat("instead of ", Describe(result.best), ", ", Describe(other), ": ",
                          Describe(change), " (", change.amount, ")"));
      switch (change.kind) {
        case Kind::kNone:
          EXPECT_FALSE(result.best.estimate.fits());
          break;
        case Kind::kTies:
          EXPECT_LE(order.Seconds(other), order.Seconds(result.best) * (1 + kTieTolerance));
          break;
        case Kind::kNoMemory:
          EXPECT_FALSE(other.estimate.fits());
          break;
        case Kind::kNoLinkRate:
          for (const double rate : {0.25, 0.5, 4.0}) {
            const Machine machine = WithChange(*problem.machine, {Kind::kLinkRate, rate});
            const SearchResult after = Search(problem, machine);
            EXPECT_FALSE(IsSame(after.best, other)) << rate << " times as fast";
          }
          break;
        case Kind::kDeviceMemory:
        case Kind::kHostMemory:
        case Kind::kLinkRate: {
          EXPECT_TRUE(change.is_confirmed);
          const SearchResult after = Search(problem, WithChange(*problem.machine, change));
          EXPECT_EQ(after.best.strategy, other.strategy) << "now " << Describe(after.best);
          EXPECT_TRUE(after.best.estimate.fits());
          const SearchResult before =
              Search(problem, WithChange(*problem.machine, Smaller(change)));
          EXPECT_FALSE(IsSame(before.best, other));
          break;
        }
      }
    }
    return *changes;
  }
};

TEST_P(WinningChangeTest, StatementsHold) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "slow with a sanitizer";
#endif
  const Case& param = GetParam();
  graph::ModelConfig config;
  config.layers = param.layers;
  config.heads = 4;
  config.width = param.width;
  config.context = param.context;
  config.dropout = 0;
  const graph::Graph forward = *graph::BuildModelGraph(ops_, *models_.FindModel("gpt"), config,
                                                       graph::ModelUse::kTrain, param.batch);
  Machine machine = MachineOf(param.link_bytes_per_s, kPlenty);
  SearchProblem problem = Problem(forward, gpt_hints(), machine, 4);
  if (param.with_all_schedules) problem.policies = SchedulesToTry(policies_);
  problem.limits.vpp = param.memory_share > 0 ? 1 : 2;
  if (param.memory_share > 0) {
    const StepEstimate fastest = Search(problem, machine).best.estimate;
    const double needed = fastest.groups[fastest.fullest_group()].used_bytes();
    machine = MachineOf(param.link_bytes_per_s, static_cast<int64_t>(param.memory_share * needed));
  }
  const std::vector<WinningChange> changes = CheckStatements(problem);
  ASSERT_FALSE(changes.empty());
  // Where memory is short, what would be faster says how much it wants.
  const bool wants_memory =
      std::any_of(changes.begin(), changes.end(),
                  [](const WinningChange& change) { return change.kind == Kind::kDeviceMemory; });
  EXPECT_EQ(wants_memory, param.memory_share > 0);
}

INSTANTIATE_TEST_SUITE_P(
    Gpt, WinningChangeTest,
    ::testing::Values(Case{.name = "FastLinks", .link_bytes_per_s = 1e10},
                      Case{.name = "Links", .layers = 4},
                      Case{.name = "SlowLinks", .layers = 4, .link_bytes_per_s = 1e8},
                      Case{.name = "LongSequences", .context = 128, .batch = 4},
                      Case{.name = "Schedules", .layers = 4, .with_all_schedules = true},
                      Case{.name = "LittleMemory", .memory_share = 0.8},
                      Case{.name = "LessMemory", .layers = 4, .memory_share = 0.5}),
    [](const auto& info) { return info.param.name; });

// Where computation takes no time, all steps are as many times shorter as links are faster.
TEST_F(WinningChangeTest, NoRateOfLinksMattersWhereOnlyLinksDo) {
  const Machine machine = FreeComputation(4);
  const graph::Graph forward = *graph::ParseGraph(MlpText(256, 32), "mlp.pst", ops_);
  SearchProblem problem = Problem(forward, MlpHints(), machine, 4);
  problem.training.clip_norm = 0;
  problem.limits = {.pp = 1, .zero = 0, .sp = false};
  const SearchResult result = Search(problem, machine);
  const std::vector<const Candidate*> others = RunnersUp(result);
  ASSERT_FALSE(others.empty());
  const absl::StatusOr<std::vector<WinningChange>> changes =
      FindWinningChanges(problem, result, others);
  ASSERT_TRUE(changes.ok()) << changes.status();
  for (const WinningChange& change : *changes) {
    EXPECT_EQ(change.kind, Kind::kNoLinkRate) << Describe(change);
  }
}

TEST(DescribeWinningChange, AmountsAreEnough) {
  EXPECT_EQ(Describe(WinningChange{Kind::kDeviceMemory, 12.31 * (1 << 30), true}),
            "a device had 12.4 GiB");
  EXPECT_EQ(Describe(WinningChange{Kind::kHostMemory, 3 << 20, true}),
            "a device had 3.0 MiB on its host");
  EXPECT_EQ(Describe(WinningChange{Kind::kLinkRate, 1.301, true}), "links were 1.31 times as fast");
  EXPECT_EQ(Describe(WinningChange{Kind::kLinkRate, 0.2587}),
            "links had 25.8 % of their rate (not confirmed by a search)");
  EXPECT_EQ(Describe(WinningChange()), "");
}

TEST(WithChangeTest, OnlyWhatIsLessGetsMore) {
  ClusterSpec spec = FreeComputation(4).cluster.spec();
  spec.kinds.push_back(spec.kinds[0]);
  spec.kinds[0].memory_bytes = 1 << 20;
  spec.kinds[1].memory_bytes = 1 << 30;
  spec.kinds[1].name = "larger";
  spec.devices = {{2, 0}, {2, 1}};
  const Machine machine = {*Cluster::Create(spec)};
  const Machine changed = WithChange(machine, {Kind::kDeviceMemory, 1 << 25});
  EXPECT_EQ(changed.cluster.KindOf(0).memory_bytes, 1 << 25);
  EXPECT_EQ(changed.cluster.KindOf(3).memory_bytes, 1 << 30);
  EXPECT_EQ(changed.cluster.level(0).bytes_per_s, 1e9);
  EXPECT_EQ(WithChange(machine, {Kind::kLinkRate, 0.5}).cluster.level(0).bytes_per_s, 5e8);
}

}  // namespace
}  // namespace penstock::planner
