#include "cli/job_graph.h"

#include <cstddef>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A GPT of eight layers on two hosts with a device each, a stage of the pipeline on each.
Job PipelineOverTwoHosts() {
  absl::StatusOr<Job> job = ParseJob(
      "[model]\nname = \"gpt\"\nlayers = 8\nwidth = 64\nheads = 2\ncontext = 32\n"
      "[train]\nbatch = 8\n[parallel]\nstrategy = \"pp=2\"\nmicrobatches = 4\n"
      "[cluster]\nhosts = 2\nprocesses = 2\nthreads = 1\n",
      "job.toml", ".", {});
  EXPECT_TRUE(job.ok()) << job.status();
  return *std::move(job);
}

// Matrix products of the forward pass on each of the two hosts: as many in each layer.
std::vector<size_t> ProductsOnHosts(const Job& job) {
  const Registries registries = BuiltinRegistries();
  const absl::StatusOr<JobGraph> graph = BuildJobGraph(registries, job);
  EXPECT_TRUE(graph.ok()) << graph.status();
  std::vector<size_t> counts(2);
  if (!graph.ok()) return counts;
  for (const graph::Node& node : graph->graph.nodes()) {
    if (node.op->name() == "matmul" && node.phase == graph::Phase::kForward) {
      const auto stage = static_cast<size_t>(node.stage);
      const std::vector<int>& groups = graph->device_groups;
      ++counts.at(groups.empty() ? stage : static_cast<size_t>(groups.at(stage)));
    }
  }
  return counts;
}

// The strategy and the micro-batches are given: only how fast the hosts are asks for a search.
TEST(JobGraphTest, ASlowHostGetsFewerLayersOfAPipeline) {
  Job job = PipelineOverTwoHosts();
  const std::vector<size_t> alike = ProductsOnHosts(job);
  job.cluster.host_speeds = {1, 0.4};
  const std::vector<size_t> slow_second = ProductsOnHosts(job);
  job.cluster.host_speeds = {0.4, 1};
  const std::vector<size_t> slow_first = ProductsOnHosts(job);
  EXPECT_GT(slow_second[0], alike[0]);
  EXPECT_GT(slow_first[1], alike[1]);
  EXPECT_EQ(slow_second[0] + slow_second[1], alike[0] + alike[1]);
}

TEST(JobGraphTest, HostsThatAreAlikeNeedNoSearch) {
  Job job = PipelineOverTwoHosts();
  const std::vector<size_t> unmeasured = ProductsOnHosts(job);
  job.cluster.host_speeds = {1, 1};
  EXPECT_EQ(ProductsOnHosts(job), unmeasured);
}

// What the strategy of a small GPT is with these keys of [parallel], or the error.
std::string StrategyWith(const std::string& keys) {
  absl::StatusOr<Job> job =
      ParseJob(StrCat("[model]\nname = \"gpt\"\nlayers = 4\nwidth = 32\nheads = 2\ncontext = 16\n"
                      "[train]\nbatch = 8\n[cluster]\ndevices = 2\nthreads = 1\n[parallel]\n",
                      keys),
               "job.toml", ".", {});
  if (!job.ok()) return job.status().ToString();
  const absl::StatusOr<JobGraph> graph = BuildJobGraph(BuiltinRegistries(), *job);
  return graph.ok() ? graph->strategy : graph.status().ToString();
}

TEST(JobGraphTest, RecomputationIsAKeyOfItsOwn) {
  EXPECT_EQ(StrategyWith("strategy = \"dp=2\"\nrecompute = \"full\"\n"),
            "dp=2,tp=1,pp=1,recompute=full");
  EXPECT_EQ(StrategyWith("strategy = \"dp=2,recompute=full\"\nrecompute = \"auto\"\n"),
            "dp=2,tp=1,pp=1,recompute=full");
  EXPECT_THAT(StrategyWith("strategy = \"dp=2,recompute=full\"\nrecompute = \"none\"\n"),
              HasSubstr("recompute = none, but the strategy has recompute = full"));
  // The search keeps to it, where nothing asks for recomputation and where it would be chosen.
  EXPECT_THAT(StrategyWith("recompute = \"selective\"\n"), HasSubstr("recompute=selective"));
  EXPECT_THAT(StrategyWith("recompute = \"auto\"\n"), Not(HasSubstr("recompute")));
  EXPECT_THAT(StrategyWith("recompute = \"some\"\n"), HasSubstr("unknown value \"some\""));
}

}  // namespace
}  // namespace penstock::cli
