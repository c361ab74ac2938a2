// A plug-in policy that misbehaves as the environment variable PENSTOCK_POLICY_FAULT says.

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "planner/policy/policy_plugin.h"

namespace {

std::string Fault() {
  const char* fault = std::getenv("PENSTOCK_POLICY_FAULT");
  return fault == nullptr ? "none" : fault;
}

// Two groups and two micro-batches, F, B and W.
void Plan(const penstock_pipeline* pipeline, const penstock_orders* orders) {
  const std::string fault = Fault();
  if (fault == "nothing") return;
  if (fault == "fail") return orders->fail(orders->state, "not today");
  if (fault == "throw") throw std::runtime_error("oops");
  if (fault == "group") orders->append(orders->state, 5, {PENSTOCK_FORWARD, 0, 0});
  for (int32_t g = 0; g < pipeline->num_groups; ++g) {
    const auto append = [&](int32_t kind, int32_t microbatch) {
      orders->append(orders->state, g, {kind, microbatch, 0});
    };
    if (fault == "twice") append(PENSTOCK_FORWARD, 0);
    append(PENSTOCK_FORWARD, 0);
    // Group 0 wants the gradient of micro-batch 0 before it makes micro-batch 1, which group 1
    // wants before it makes that gradient.
    if (fault == "deadlock" && g == 0) append(PENSTOCK_BACKWARD, 0);
    append(PENSTOCK_FORWARD, 1);
    if (fault != "deadlock" || g != 0) append(PENSTOCK_BACKWARD, 0);
    append(PENSTOCK_BACKWARD, 1);
    append(PENSTOCK_WEIGHT, 0);
    append(PENSTOCK_WEIGHT, 1);
  }
}

int32_t ThrowingNext(const penstock_group_view*, penstock_phase*) {
  throw std::runtime_error("oops");
}

int32_t NextOfNoKind(const penstock_group_view*, penstock_phase* phase) {
  *phase = {9, 0, 0};
  return 1;
}

}  // namespace

extern "C" const penstock_policy* penstock_policy_plugin() {
  static penstock_policy policy;
  const std::string fault = Fault();
  if (fault == "null") return nullptr;
  if (fault == "entry") throw std::runtime_error("oops");
  policy = {PENSTOCK_POLICY_VERSION,
            PENSTOCK_PLACEMENT_LOOP,
            1,
            1,
            1,
            nullptr,
            Plan,
            nullptr,
            nullptr,
            nullptr};
  if (fault == "version") policy.version = 7;
  if (fault == "empty") policy.plan = nullptr;
  if (fault == "placement") policy.placement = 9;
  if (fault == "next throws") policy.next = ThrowingNext;
  if (fault == "next kind") policy.next = NextOfNoKind;
  return &policy;
}
