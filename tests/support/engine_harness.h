// Runs a plan's executors and stages on one thread, each moving only when told: which of them is
// polled next is drawn from a seed, so every interleaving that goes wrong can be had again.
//
// Thread rule: one thread.

#ifndef PENSTOCK_TESTS_SUPPORT_ENGINE_HARNESS_H_
#define PENSTOCK_TESTS_SUPPORT_ENGINE_HARNESS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "actors/engine/executor.h"
#include "actors/engine/stage.h"
#include "planner/plan/launch_order.h"
#include "planner/plan/plan.h"
#include "planner/policy/policy.h"
#include "transport/stream_collective.h"
#include "transport/transport.h"

namespace penstock::testing {

struct HarnessOptions {
  uint64_t seed = 0;
  bool is_emulated = false;             // EmulatedDevice without a thread instead of CPU devices
  bool has_stream_collectives = false;  // emulated devices run them, where these have an order
  bool has_stream_messages = false;     // and messages, where these have one
  uint32_t acts_per_poll = 256;
  uint64_t firing_seed = 0;  // see ExecutorOptions
  size_t trace_capacity = 0;
  int64_t trace_every = 1;
  bool captures_graphs = true;
  // Applied to the kernels of emulated devices. REQUIRES: is_emulated.
  std::function<kernels::KernelRegistry(kernels::KernelRegistry)> adapt_kernels = nullptr;
  bool is_split = false;  // devices of a stage as if each were in a process of its own
  std::function<void(const actors::DeviceStepReport&)> on_step_done = nullptr;
};

class EngineHarness : private actors::ExecutorObserver {
 public:
  // `policies` and `kernels` outlive the harness.
  static absl::StatusOr<std::unique_ptr<EngineHarness>> Create(
      planner::Plan plan, const HarnessOptions& options, const kernels::KernelRegistry& kernels,
      const planner::PolicyRegistry& policies);
  ~EngineHarness() override;

  // Feeds by the plan's order. The step's number is returned.
  int64_t Submit(std::vector<Tensor> feeds);

  // Polls in random order until every submitted step is done on every device; false when nothing
  // moves any more.
  bool RunUntilDone();
  // One poll of one random executor or stage.
  bool PollOne();

  // Of a step that is done.
  const Tensor& fetched(int64_t step, size_t fetch) const {
    return buffers_.at(step)->fetches[fetch];
  }
  // First error of a step; OK if it has none. Poisoned steps without an error of their own:
  // unknown.
  absl::Status StepStatus(int64_t step) const;
  const std::vector<std::pair<int64_t, std::string>>& errors() const { return errors_; }

  bool has_launch_order() const { return launch_order_.has_value(); }
  bool launches_messages() const {
    return has_launch_order() && launched_ == planner::Launched::kCollectivesAndMessages;
  }

  // Elements of a register's slot.
  std::vector<double> Read(uint32_t device, uint32_t reg, uint32_t slot = 0);
  std::vector<std::string> Describe() const;
  actors::DeviceExecutor& executor(uint32_t device) { return *executors_[device]; }
  actors::StageController& stage(uint32_t stage) { return *stages_[stage]; }

 private:
  EngineHarness(planner::Plan plan, uint64_t seed);
  void OnStepDone(const actors::DeviceStepReport& report) override;
  void OnError(uint32_t device, int64_t step, const absl::Status& status) override;
  void OnFailure(const absl::Status& status) override;
  bool IsDone() const;

  const planner::Plan plan_;
  std::mt19937_64 random_;
  std::function<void(const actors::DeviceStepReport&)> on_step_done_;
  SteadyClock clock_;
  kernels::KernelRegistry emulated_kernels_;
  std::unique_ptr<transport::Transport> transport_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Memory>> arenas_;
  std::vector<std::unique_ptr<Memory>> host_arenas_;
  std::optional<planner::LaunchOrder> launch_order_;
  planner::Launched launched_ = planner::Launched::kCollectives;  // what it has
  std::vector<bool> tells_failures_;                              // with that
  std::vector<std::unique_ptr<transport::Communicator>> communicators_;
  std::vector<std::unique_ptr<actors::StageLink>> links_;
  std::vector<std::unique_ptr<actors::StageLink>> remote_links_;
  std::vector<std::unique_ptr<actors::StageController>> stages_;
  std::vector<std::unique_ptr<actors::DeviceCommunication>> communications_;
  std::vector<std::unique_ptr<actors::DeviceExecutor>> executors_;
  std::map<int64_t, std::shared_ptr<actors::StepBuffers>> buffers_;
  std::map<int64_t, uint32_t> done_;  // devices that have completed the step
  std::map<int64_t, bool> poisoned_;
  std::vector<std::pair<int64_t, std::string>> errors_;
  int64_t submitted_ = 0;
};

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_ENGINE_HARNESS_H_
