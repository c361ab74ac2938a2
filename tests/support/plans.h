// Plans written by hand, and large ones made by rule, for the tests of what reads plans.
//
// Thread rule: pure functions; a builder belongs to one thread.

#ifndef PENSTOCK_TESTS_SUPPORT_PLANS_H_
#define PENSTOCK_TESTS_SUPPORT_PLANS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "planner/plan/plan.h"

namespace penstock::testing {

// Builds one device of a plan. Registers are laid out one after another: state, channels and
// workspace in the order in which they are added, nothing shared.
class DeviceBuilder {
 public:
  DeviceBuilder(planner::Plan* plan, uint32_t device) : plan_(plan), device_(device) {}

  uint32_t AddRegister(planner::RegisterClass register_class, uint64_t slot_bytes,
                       uint32_t slots = 1, bool per_microbatch = true);

  // The same in the memory of the device's host. Call it after the last AddRegister.
  uint32_t AddHostRegister(planner::RegisterClass register_class, uint64_t slot_bytes,
                           uint32_t slots = 1, bool per_microbatch = true);

  // Actors added from now on belong to the phase.
  void AddPhase(std::string name, planner::PhaseKind kind, planner::Lane lane, bool per_microbatch);

  // A kernel on whole registers, each operand a vector of f32 that fills its slot.
  uint32_t AddKernel(std::string name, std::vector<uint32_t> inputs, std::vector<uint32_t> outputs);
  uint32_t AddCollective(std::string name, uint32_t collective, uint32_t input, uint32_t output);
  uint32_t AddSend(std::string name, uint32_t transfer, uint32_t input);
  uint32_t AddRecv(std::string name, uint32_t transfer, uint32_t output);
  // Of a whole register to one in the other memory.
  uint32_t AddCopy(std::string name, uint32_t input, uint32_t output);

  // A token within a phase.
  void Join(uint32_t producer, uint32_t consumer, uint32_t reg);
  void AddChannel(planner::ChannelPlan channel);

 private:
  planner::DevicePlan& device() { return plan_->devices[device_]; }
  uint32_t AddActor(planner::ActorPlan actor);

  planner::Plan* plan_;
  uint32_t device_;
};

// `num_stages` stages of `devices_per_stage` devices each, without actors.
planner::Plan EmptyPlan(uint32_t num_stages, uint32_t devices_per_stage, uint32_t num_microbatches);

// An all_reduce of f32 over the devices, with the next free channel.
uint32_t AddAllReduce(planner::Plan* plan, std::vector<uint32_t> devices, int64_t num_elements,
                      bool per_microbatch);
uint32_t AddTransfer(planner::Plan* plan, uint32_t source, uint32_t destination, uint64_t num_bytes,
                     bool per_microbatch);

// A training step over 2 stages of 2 devices: feed, F with an all_reduce, floating sends and
// receives between the stages, B with accumulated gradients, an update with an all_reduce, and a
// fetched loss. Activations have `credits` slots. Verifies when credits >= 1.
planner::Plan TrainingPlan(uint32_t num_microbatches, uint32_t credits);

// A training step of one device: F puts its activations on the host, B takes them from there, the
// update works on a state that lives on the host. Verifies.
planner::Plan OffloadPlan(uint32_t num_microbatches);

// F, B and update of `actors_per_device` small actors in all, on devices of one stage, with two
// channels an actor and an all_reduce over all devices at every 50th actor of F. Verifies.
planner::Plan LargePlan(uint32_t num_devices, uint32_t actors_per_device,
                        uint32_t num_microbatches);

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_PLANS_H_
