// On which cores the executors of a process run, and whether they may poll there.

#include <sched.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "actors/session/local_engine.h"
#include "base/cpu_topology.h"
#include "base/machine.h"
#include "base/strings.h"
#include "planner/policy/policy.h"
#include "tests/support/engine_plan.h"
#include "tests/support/waiting_observer.h"
#include "transport/transport.h"

namespace penstock::actors {
namespace {

using planner::PhaseKind;
using testing::EnginePlanBuilder;
using testing::WaitingObserver;

std::unique_ptr<transport::Transport> Inproc(uint32_t num_devices) {
  return transport::CreateInprocTransport({.num_devices = num_devices, .num_channels = 8});
}

// Keeps this thread, and those that it starts, on one processor.
class OnOneProcessor {
 public:
  OnOneProcessor() {
    CPU_ZERO(&all_);
    EXPECT_EQ(sched_getaffinity(0, sizeof(all_), &all_), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
      if (CPU_ISSET(core, &all_)) CPU_SET(core, &one);
    }
    EXPECT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  }
  ~OnOneProcessor() { EXPECT_EQ(sched_setaffinity(0, sizeof(all_), &all_), 0); }
  OnOneProcessor(const OnOneProcessor&) = delete;
  OnOneProcessor& operator=(const OnOneProcessor&) = delete;

 private:
  cpu_set_t all_;
};

// Two devices whose executors would poll against each other, on one processor or on processors of
// other processes: they look a few times, and sleep.
class WhoMaySpinTest : public ::testing::TestWithParam<bool> {};

TEST_P(WhoMaySpinTest, ExecutorsWithoutACoreOfTheirOwnSleep) {
  std::optional<OnOneProcessor> pinned;
  if (GetParam()) pinned.emplace();
  EnginePlanBuilder b;
  for (const uint32_t d : {0u, 1u}) {
    b.AddDevice();
    b.BeginPhase(d, "F", PhaseKind::kForward);
    b.AddKernel(d, "made", "t.iota", {}, {b.AddRegister(d)});
  }
  const planner::Plan plan = b.Build();
  const kernels::KernelRegistry kernels = testing::EngineTestKernels();
  const planner::PolicyRegistry policies = planner::BuiltinPolicies();
  LocalEngineOptions options;
  options.num_devices = 2;
  options.kernels = &kernels;
  options.policies = &policies;
  options.shares_cores = !GetParam();
  WaitingObserver observer;
  auto engine = LocalEngine::Start(plan, Inproc(2), &observer, options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto report = [&] {
    return *(*engine)->ReportActivity(absl::FromChrono(WaitingObserver::kPatience));
  };
  const ActivityReport before = report();
  // Each question wakes both executors, which have nothing to do but to answer.
  constexpr int kQuestions = 200;
  for (int i = 0; i < kQuestions; ++i) {
    for (const WaitDescription& wait :
         (*engine)->Describe(absl::FromChrono(WaitingObserver::kPatience))) {
      EXPECT_EQ(wait.text.find("does not answer"), std::string::npos) << wait.text;
    }
  }
  const ActivityReport after = report();
  for (const uint32_t d : {0u, 1u}) {
    // Seven each; one that spins for as long as a wake-up takes polls hundreds of times.
    EXPECT_LT(after.idle_polls[d] - before.idle_polls[d], 12 * kQuestions) << "device " << d;
  }
  (*engine)->Stop();
}

INSTANTIATE_TEST_SUITE_P(Cores, WhoMaySpinTest, ::testing::Bool(), [](const auto& info) {
  return info.param ? "OnOneProcessor" : "BesideOtherProcesses";
});

// Adds up on which processors it may run, in threads of the device's pool.
class AffinityKernel final : public kernels::Kernel {
 public:
  AffinityKernel(Device* device, cpu_set_t* to) : device_(*device), to_(to) {}
  absl::Status Run(const kernels::KernelArgs&) override {
    device_.thread_pool()->ParallelFor(device_.thread_pool()->size(), 1,
                                       [this](int64_t, int64_t, int) {
                                         cpu_set_t set;
                                         CPU_ZERO(&set);
                                         const int error = sched_getaffinity(0, sizeof(set), &set);
                                         const absl::MutexLock lock(&mutex_);
                                         EXPECT_EQ(error, 0);
                                         CPU_OR(to_, to_, &set);
                                       });
    return absl::OkStatus();
  }

 private:
  Device& device_;
  absl::Mutex mutex_;
  cpu_set_t* const to_ ABSL_PT_GUARDED_BY(mutex_);
};

// Runs "t.where" on each of the devices; their processors.
std::vector<cpu_set_t> ProcessorsOf(uint32_t num_devices, int threads_per_device) {
  EnginePlanBuilder b;
  for (uint32_t d = 0; d < num_devices; ++d) {
    b.AddDevice();
    b.BeginPhase(d, "F", PhaseKind::kForward);
    b.AddKernel(d, "where", StrCat("t.where", d), {}, {b.AddRegister(d)});
  }
  const planner::Plan plan = b.Build();
  std::vector<cpu_set_t> sets(num_devices);
  kernels::KernelRegistry kernels = testing::EngineTestKernels();
  for (uint32_t d = 0; d < num_devices; ++d) {
    CPU_ZERO(&sets[d]);
    kernels::KernelDef def;
    def.create = [to = &sets[d]](const graph::KernelSpec&, Device& device,
                                 Stream&) -> absl::StatusOr<std::unique_ptr<kernels::Kernel>> {
      return std::make_unique<AffinityKernel>(&device, to);
    };
    EXPECT_EQ(kernels.Add(StrCat("t.where", d), std::move(def)), absl::OkStatus());
  }
  const planner::PolicyRegistry policies = planner::BuiltinPolicies();
  LocalEngineOptions options;
  options.num_devices = num_devices;
  options.threads_per_device = threads_per_device;
  options.kernels = &kernels;
  options.policies = &policies;
  WaitingObserver observer;
  auto engine = LocalEngine::Start(plan, Inproc(num_devices), &observer, options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  if (!engine.ok()) return sets;
  (*engine)->Submit(0, std::make_shared<StepBuffers>());
  EXPECT_TRUE(observer.AwaitDone(static_cast<int>(num_devices)));
  EXPECT_EQ(observer.failure(), absl::OkStatus());
  (*engine)->Stop();
  return sets;
}

TEST(PlacementTest, DevicesHaveProcessorsOfTheirOwnWhereThereAreEnough) {
  const int num_processors = CpuTopology::Load().num_processors();
  if (num_processors < 2 || UsableCores() < num_processors) {
    GTEST_SKIP() << "two devices would share a processor";
  }
  cpu_set_t all;
  CPU_ZERO(&all);
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);

  const int num_threads = num_processors / 2;
  std::vector<cpu_set_t> sets = ProcessorsOf(2, num_threads);
  EXPECT_GE(CPU_COUNT(&sets[0]), num_threads);
  EXPECT_GE(CPU_COUNT(&sets[1]), num_threads);
  cpu_set_t shared;
  CPU_AND(&shared, &sets[0], &sets[1]);
  EXPECT_EQ(CPU_COUNT(&shared), 0);

  // One device has all, and devices that would have to share are left to the system.
  sets = ProcessorsOf(1, 1);
  EXPECT_TRUE(CPU_EQUAL(&sets[0], &all));
  for (const cpu_set_t& set : ProcessorsOf(2, num_processors)) {
    EXPECT_TRUE(CPU_EQUAL(&set, &all));
  }
}

}  // namespace
}  // namespace penstock::actors
