// Scheduling policies made of one function, for tests: wrong ones, idle ones, and ones that decide
// as they go.
//
// Thread rule: immutable; the function is called from the thread of any stage.

#ifndef PENSTOCK_TESTS_SUPPORT_TEST_POLICIES_H_
#define PENSTOCK_TESTS_SUPPORT_TEST_POLICIES_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/policy/policy.h"

namespace penstock::testing {

// Has a planned order, which may be wrong or empty, and the default scheduler.
class OrderPolicy : public planner::Policy {
 public:
  using Order = std::function<std::vector<planner::PhaseChoice>(const planner::StageContext&)>;

  OrderPolicy(std::string_view name, Order order) : name_(name), order_(std::move(order)) {}

  std::string_view name() const override { return name_; }
  std::vector<planner::PhaseChoice> PlannedOrder(
      const planner::StageContext& context) const override {
    return order_(context);
  }

 private:
  const std::string name_;
  const Order order_;
};

// Has no planned order: decides by a function of the stage and of what the stage has done.
class DynamicPolicy : public planner::Policy {
 public:
  using Next = std::function<std::optional<planner::PhaseChoice>(const planner::StageContext&,
                                                                 const planner::StageView&)>;

  DynamicPolicy(std::string_view name, Next next) : name_(name), next_(std::move(next)) {}

  std::string_view name() const override { return name_; }
  std::vector<planner::PhaseChoice> PlannedOrder(const planner::StageContext&) const override {
    return {};
  }
  std::unique_ptr<planner::StageScheduler> CreateScheduler(
      const planner::StageContext& context) const override {
    return std::make_unique<Scheduler>(context, next_);
  }

 private:
  class Scheduler : public planner::StageScheduler {
   public:
    Scheduler(const planner::StageContext& context, DynamicPolicy::Next next)
        : context_(context), next_(std::move(next)) {}
    std::optional<planner::PhaseChoice> Next(const planner::StageView& view) override {
      return next_(context_, view);
    }
    void Reset() override {}

   private:
    const planner::StageContext context_;
    const DynamicPolicy::Next next_;
  };

  const std::string name_;
  const Next next_;
};

// "empty": neither an order nor a scheduler.
inline std::unique_ptr<planner::Policy> EmptyPolicy() {
  return std::make_unique<OrderPolicy>(
      "empty", [](const planner::StageContext&) { return std::vector<planner::PhaseChoice>(); });
}

// "silent": a scheduler that never chooses.
inline std::unique_ptr<planner::Policy> SilentPolicy() {
  return std::make_unique<DynamicPolicy>(
      "silent", [](const planner::StageContext&, const planner::StageView&) {
        return std::optional<planner::PhaseChoice>();
      });
}

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_TEST_POLICIES_H_
