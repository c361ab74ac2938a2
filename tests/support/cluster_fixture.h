// Clusters of real processes on this host, which run tests/programs/faulty_node.cc.
//
// Thread rule: one thread.
// Invariants: a test leaves no shared memory behind.

#ifndef PENSTOCK_TESTS_SUPPORT_CLUSTER_FIXTURE_H_
#define PENSTOCK_TESTS_SUPPORT_CLUSTER_FIXTURE_H_

#include <signal.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "actors/cluster/cluster.h"
#include "actors/session/session.h"
#include "base/strings.h"
#include "base/tensor.h"
#include "graph/op.h"
#include "graph/text.h"
#include "kernels/kernel.h"
#include "planner/compile.h"
#include "planner/policy/policy.h"
#include "tests/programs/faulty_node.h"

namespace penstock::testing {

// From a death to the end of the last process.
inline constexpr std::chrono::seconds kBound{5};

// Programs built with a sanitizer start and end slowly.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kSlowdown = 5;
#else
inline constexpr int kSlowdown = 1;
#endif

// Whether the process has not been reaped yet.
inline bool IsAlive(int pid) { return kill(pid, 0) == 0 || errno != ESRCH; }

inline std::set<std::string> SharedMemory() {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", error)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

class ClusterTest : public ::testing::Test {
 protected:
  ClusterTest() : shared_memory_(SharedMemory()) {}

  ~ClusterTest() override {
    unsetenv("FAULTY_NODE_START");
    unsetenv("FAULTY_NODE_STOP");
    unsetenv("FAULTY_NODE_MESSAGE");
    unsetenv("FAULTY_NODE_WITHIN");
    unsetenv("FAULTY_NODE_WAIT");
    unsetenv("FAULTY_NODE_SLOW");
    unsetenv("FAULTY_NODE_MARK");
    unsetenv("UCX_TLS");
    EXPECT_EQ(NewSharedMemory(), "");
  }

  // What has come since the test began and stays: other programs make and remove theirs too.
  std::string NewSharedMemory() const {
    std::set<std::string> added;
    const auto begin = std::chrono::steady_clock::now();
    do {
      const std::set<std::string> now = SharedMemory();
      std::set<std::string> still;
      for (const std::string& name : now) {
        if (!shared_memory_.contains(name) && (added.empty() || added.contains(name))) {
          still.insert(name);
        }
      }
      added = std::move(still);
      if (added.empty()) return "";
      std::this_thread::yield();
    } while (std::chrono::steady_clock::now() - begin < kBound);
    return *added.begin();
  }

  static actors::ClusterOptions Options(uint32_t num_processes) {
    actors::ClusterOptions options;
    options.num_processes = num_processes;
    options.node_command = {PENSTOCK_FAULTY_NODE};
    options.join_timeout = absl::Seconds(10 * kSlowdown);
    options.heartbeat_timeout = absl::Milliseconds(1500 * kSlowdown);
    options.stop_timeout = absl::Seconds(3);
    return options;
  }

  // y = -x over devices of an axis, its sum, and a state that adds it up.
  planner::Plan MakePlan(int num_devices, int size = 8) {
    const std::string type = StrCat("f32[", size, "]");
    const std::string text = StrCat("mesh m = [d=", num_devices,
                                    "]\n"
                                    "graph g {\n"
                                    "  %x = input : ",
                                    type,
                                    " @[d]\n"
                                    "  %c = state : ",
                                    type,
                                    " @[d]\n"
                                    "  %y = neg(%x) : ",
                                    type,
                                    "\n"
                                    "  %n = add(%c, %y) : ",
                                    type,
                                    "\n"
                                    "  assign(%c, %n)\n"
                                    "  %s = reduce_sum(%y) {axes=[0]} : f32[]\n"
                                    "  return %s, %y\n"
                                    "}\n");
    return PlanOf(text);
  }

  planner::Plan PlanOf(const std::string& text) {
    absl::StatusOr<graph::Graph> graph = graph::ParseGraph(text, "test.pst", ops_);
    EXPECT_TRUE(graph.ok()) << graph.status();
    planner::CompileOptions options;
    options.policies = &policies_;
    options.kernels = kernels::TraitsOf(kernels_, 1);
    absl::StatusOr<planner::Plan> plan = planner::Compile(ops_, *std::move(graph), options);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *std::move(plan);
  }

  absl::StatusOr<std::unique_ptr<actors::Session>> StartSession(
      actors::Cluster& cluster, int num_devices,
      absl::Duration timeout = absl::Seconds(20 * kSlowdown)) {
    actors::SessionOptions options;
    options.kernels = &kernels_;
    options.timeout = timeout;
    options.start_engine = cluster.engine_factory();
    return actors::Session::Start(MakePlan(num_devices), options);
  }

  // Ones; where `fault` is given, the first element of the device's part asks for it.
  static actors::Feeds MakeFeeds(int num_devices, int device = 0, Fault fault = Fault::kNone) {
    Tensor x({DType::kF32, {8}});
    for (int i = 0; i < 8; ++i) x.As<float>()[i] = 1;
    if (fault != Fault::kNone) x.As<float>()[device * 8 / num_devices] = ToFeed(fault);
    return {{"x", x}};
  }

  static std::vector<int> Pids(const actors::Cluster& cluster) {
    std::vector<int> pids;
    for (const actors::NodeDescription& node : cluster.nodes()) pids.push_back(node.pid);
    return pids;
  }

  graph::OpRegistry ops_ = graph::BuiltinOps();
  kernels::KernelRegistry kernels_ = kernels::CpuKernels();
  planner::PolicyRegistry policies_ = planner::BuiltinPolicies();
  const std::set<std::string> shared_memory_;
};

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_CLUSTER_FIXTURE_H_
