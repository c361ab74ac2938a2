// Hand-written plans for engine tests: a builder that fills in what plan.h wants spelled out, and
// kernels on f64 vectors whose results tests can work out by hand.
//
// Thread rule: one thread.

#ifndef PENSTOCK_TESTS_SUPPORT_ENGINE_PLAN_H_
#define PENSTOCK_TESTS_SUPPORT_ENGINE_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "planner/plan/plan.h"

namespace penstock::testing {

// Elements of every tensor of these plans, unless said otherwise; f64.
inline constexpr int64_t kWidth = 4;

class EnginePlanBuilder {
 public:
  explicit EnginePlanBuilder(uint32_t num_microbatches = 1, std::string policy = "1f1b");

  // Returns the device's index; stages are made as needed.
  uint32_t AddDevice(uint32_t stage = 0);

  // A register of `slots` tensors of `width` elements.
  uint32_t AddRegister(uint32_t device, uint32_t slots = 1, bool per_microbatch = true,
                       int64_t width = kWidth);
  // The same in the memory of the device's host. REQUIRES: the device has all others already.
  uint32_t AddHostRegister(uint32_t device, uint32_t slots = 1, bool per_microbatch = true);
  // A state with one placement, its initial value `init`.
  uint32_t AddState(uint32_t device, std::string name, std::string init = "zeros");
  uint32_t AddHostState(uint32_t device, std::string name, std::string init = "zeros");

  // Begins a phase: actors of the device that are added from now on are in it.
  void BeginPhase(uint32_t device, std::string name, planner::PhaseKind kind,
                  planner::Lane lane = planner::Lane::kCompute, bool per_microbatch = true);

  // Actors; registers are operands. Each returns its index.
  uint32_t AddKernel(uint32_t device, std::string name, std::string op,
                     std::vector<uint32_t> inputs, std::vector<uint32_t> outputs,
                     graph::Attributes attributes = {}, bool accumulate = false);
  // Feed `name`, of kWidth elements a micro-batch: [M, kWidth].
  uint32_t AddFeed(uint32_t device, std::string name, uint32_t reg);
  // Fetch `name`: [M, kWidth] in a phase that runs once a micro-batch, else [kWidth].
  uint32_t AddFetch(uint32_t device, std::string name, uint32_t reg);
  // Copies a register to one in the other memory.
  uint32_t AddCopy(uint32_t device, std::string name, uint32_t from, uint32_t to);
  // A transfer of a whole register; call AddSend first.
  uint32_t AddSend(uint32_t device, std::string name, uint32_t reg, uint32_t destination);
  uint32_t AddRecv(uint32_t device, std::string name, uint32_t reg, uint32_t transfer);
  uint32_t last_transfer() const { return static_cast<uint32_t>(plan_.transfers.size()) - 1; }
  // A collective among `devices` on `width` elements in all; the same index on each member.
  uint32_t AddCollectiveSpec(CollectiveKind kind, std::vector<uint32_t> devices,
                             std::vector<int64_t> counts, bool per_microbatch);
  uint32_t AddCollective(uint32_t device, std::string name, uint32_t collective, uint32_t input,
                         uint32_t output);

  void AddChannel(uint32_t device, uint32_t producer, uint32_t consumer, uint32_t produce = 1,
                  uint32_t consume = 1, uint32_t capacity = 1, uint32_t initial = 0);

  planner::Plan& plan() { return plan_; }
  planner::Plan Build();

 private:
  uint32_t AddActor(uint32_t device, planner::ActorPlan actor);
  uint32_t MakeState(uint32_t device, uint32_t reg, std::string name, std::string init);
  bool IsPerMicrobatch(uint32_t device) const;
  uint64_t SlotBytes(uint32_t device, uint32_t reg) const;

  planner::Plan plan_;
};

// Device 1 waits for what device 0 makes with the kernel `op` of one result, and sends.
planner::Plan SendingPlan(const std::string& op);

// f64 kernels for any shape:
//   t.sum     output = sum of the inputs (accumulates if the spec says so)
//   t.affine  output = scale * input 0 + shift (attributes, default 1 and 0)
//   t.iota    output[i] = 100 * step + 10 * microbatch + i
//   t.bump    state += input 1 (inputs: state, amount; output: state)
//   t.fail    fails in `step` and `microbatch` (attributes), else copies
//   t.throw   the same with an exception; t.throw_int with one that is no std::exception
//   t.refuse  cannot be created
kernels::KernelRegistry EngineTestKernels();

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_ENGINE_PLAN_H_
