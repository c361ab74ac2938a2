#include "bench/actors_bench.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "actors/session.h"
#include "actors/spsc_ring.h"
#include "actors/waker.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/kernel.h"
#include "planner/plan.h"

namespace penstock::bench {
namespace {

constexpr std::string_view kOp = "nothing";
// Specs that actors share: about the number of different operators in a large model.
constexpr uint32_t kNumKernels = 64;

int64_t NowNs() { return SteadyClock().NowNs(); }

// Actor i reads what i - 1 and i - 2 wrote.
planner::Plan NullPlan(uint32_t num_actors) {
  planner::Plan plan;
  plan.name = "null";
  plan.stages.push_back({{0}});
  const planner::TilePlan tile = {DType::kF32, {16}, {16}, {0}, {0}};
  for (uint32_t i = 0; i < kNumKernels; ++i) {
    planner::KernelPlan& kernel = plan.kernels.emplace_back();
    kernel.op = kOp;
    kernel.inputs = {tile, tile};
    kernel.outputs = {tile};
  }
  planner::DevicePlan& device = plan.devices.emplace_back();
  constexpr uint32_t kRegisters = 1024;
  device.arena_bytes = kRegisters * 64;
  for (uint32_t i = 0; i < kRegisters; ++i) {
    device.registers.push_back({planner::RegisterClass::kWorkspace, true, 1, i * 64, 64});
  }
  device.actors.resize(num_actors);
  for (uint32_t i = 0; i < num_actors; ++i) {
    planner::ActorPlan& actor = device.actors[i];
    actor.name = StrCat("a", i);
    actor.kernel = i % kNumKernels;
    actor.inputs = {{(i + kRegisters - 1) % kRegisters, 0}, {(i + kRegisters - 2) % kRegisters, 0}};
    actor.outputs = {{i % kRegisters, 0}};
    for (uint32_t back = 1; back <= 2 && back <= i; ++back) {
      device.channels.push_back({i - back, i});
    }
  }
  planner::PhasePlan& phase = device.phases.emplace_back();
  phase.name = "F";
  phase.num_actors = num_actors;
  return plan;
}

double Median(std::vector<int64_t>& values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return static_cast<double>(values[values.size() / 2]);
}

// Answers every number that it is sent.
void Echo(actors::SpscRing<int>& requests, actors::SpscRing<int>& replies, actors::Waker& waker,
          bool sleeps) {
  while (true) {
    const int* request = requests.Front();
    if (request == nullptr && sleeps) {
      waker.PrepareSleep();
      if (requests.Front() == nullptr) {
        waker.Sleep(1000);
      } else {
        waker.CancelSleep();
      }
      continue;
    }
    if (request == nullptr) continue;
    const int value = *request;
    requests.Pop();
    replies.TryPush(value);
    if (value < 0) return;
  }
}

double MeasureRoundTrips(int rounds, bool sleeps) {
  actors::SpscRing<int> requests(4);
  actors::SpscRing<int> replies(4);
  actors::Waker waker;
  std::thread echo([&] { Echo(requests, replies, waker, sleeps); });
  std::vector<int64_t> times;
  for (int i = 0; i <= rounds; ++i) {
    if (sleeps) std::this_thread::sleep_for(std::chrono::microseconds(200));
    const int64_t begin = NowNs();
    requests.TryPush(i < rounds ? i : -1);
    waker.Notify();
    while (replies.Front() == nullptr) {
    }
    times.push_back(NowNs() - begin);
    replies.Pop();
  }
  echo.join();
  // Awake, both ways cost the same; asleep, the way back is a small part.
  return Median(times) / (sleeps ? 1 : 2);
}

}  // namespace

absl::StatusOr<ActorsBenchResult> MeasureActs(const ActorsBenchOptions& options) {
  const std::string_view ops[] = {kOp};
  const kernels::KernelRegistry kernels = kernels::NullKernels(ops);
  actors::SessionOptions session_options;
  session_options.kernels = &kernels;
  ASSIGN_OR_RETURN(const std::unique_ptr<actors::Session> session,
                   actors::Session::Start(NullPlan(options.num_actors), session_options));
  constexpr int kWarmUps = 3;
  for (int i = 0; i < kWarmUps; ++i) RETURN_IF_ERROR(session->Run({}).status());

  ActorsBenchResult result;
  const int64_t begin = NowNs();
  const uint64_t allocations_before = options.count_allocations ? options.count_allocations() : 0;
  int64_t fastest_ns = INT64_MAX;
  int64_t fastest_wall_ns = INT64_MAX;
  int64_t steps = 0;
  for (; static_cast<double>(NowNs() - begin) < options.seconds * 1e9 || steps == 0; ++steps) {
    ASSIGN_OR_RETURN(const actors::StepResult step, session->Run({}));
    const actors::DeviceStepReport& device = step.devices[0];
    fastest_ns = std::min(fastest_ns, device.wall_ns - device.wait_ns);
    fastest_wall_ns = std::min(fastest_wall_ns, step.wall_ns);
  }
  result.ns_per_act = static_cast<double>(fastest_ns) / options.num_actors;
  result.step_us = static_cast<double>(fastest_wall_ns) * 1e-3;
  result.allocations_per_act = -1;
  result.allocations_per_step = -1;
  if (options.count_allocations) {
    result.allocations_per_step =
        static_cast<double>(options.count_allocations() - allocations_before) /
        static_cast<double>(steps);
    result.allocations_per_act = result.allocations_per_step / options.num_actors;
  }
  return result;
}

WakeLatency MeasureWakeLatency(int rounds) {
  WakeLatency latency;
  if (std::thread::hardware_concurrency() > 1)
    latency.polling_ns = MeasureRoundTrips(rounds, false);
  latency.sleeping_ns = MeasureRoundTrips(rounds, true);
  return latency;
}

}  // namespace penstock::bench
