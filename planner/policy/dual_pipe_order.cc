#include "planner/policy/dual_pipe_order.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <utility>

namespace penstock::planner::internal {
namespace {

class OrderBuilder {
 public:
  // Micro-batches from `num_microbatches` on are counted, but left out of the order.
  explicit OrderBuilder(int num_microbatches) : num_microbatches_(num_microbatches) {}

  void AddForward(int side) { Add({PhaseKind::kForward, num_forwards_[side]++, side}); }

  // W follows its B at once.
  void AddFullBackward(int side) {
    const int microbatch = num_backwards_[side]++;
    Add({PhaseKind::kBackward, microbatch, side});
    Add({PhaseKind::kWeight, microbatch, side});
  }

  // W waits for AddWeight.
  void AddInputBackward(int side) {
    const int microbatch = num_backwards_[side]++;
    Add({PhaseKind::kBackward, microbatch, side});
    weights_.push_back({PhaseKind::kWeight, microbatch, side});
  }

  // The W that has waited longest.
  void AddWeight() {
    Add(weights_.front());
    weights_.pop_front();
  }

  std::vector<PhaseChoice> Take() { return std::move(order_); }

 private:
  void Add(const PhaseChoice& phase) {
    if (phase.microbatch < num_microbatches_) order_.push_back(phase);
  }

  const int num_microbatches_;
  std::array<int, 2> num_forwards_ = {};
  std::array<int, 2> num_backwards_ = {};
  std::deque<PhaseChoice> weights_;
  std::vector<PhaseChoice> order_;
};

}  // namespace

std::vector<PhaseChoice> DualPipeOrder(int position, int num_positions, int num_microbatches) {
  // The pattern needs two micro-batches a position on each side. If there are fewer, it is made for
  // so many, and those that do not exist are left out, which keeps the rest in a valid order.
  const int num_planned = std::max(num_microbatches, 2 * num_positions);
  const int before = position + 1;
  const int after = num_positions - before;  // positions nearer to where the sides meet
  OrderBuilder builder(num_microbatches);
  // Warm-up: F of side 0 until the first of side 1 arrives, then of both in turn.
  for (int i = 0; i < 2 * after; ++i) builder.AddForward(0);
  for (int i = 0; i < before; ++i) {
    builder.AddForward(0);
    builder.AddForward(1);
  }
  // The first B of side 1 return; W fill the time until its next F arrive.
  for (int i = 0; i < after; ++i) {
    builder.AddInputBackward(1);
    builder.AddWeight();
    builder.AddForward(1);
  }
  // Steady state: F of one side with B of the other.
  for (int i = 0; i < num_planned - 2 * num_positions + before; ++i) {
    builder.AddForward(0);
    builder.AddFullBackward(1);
    builder.AddForward(1);
    builder.AddFullBackward(0);
  }
  // Side 0 has no F left.
  for (int i = 0; i < after; ++i) {
    builder.AddFullBackward(1);
    builder.AddForward(1);
    builder.AddFullBackward(0);
  }
  // Nor has side 1. W of the second half of these B wait for the end.
  for (int i = 0; i < 2 * before; ++i) {
    const int side = 1 - i % 2;
    if (i < before) {
      builder.AddFullBackward(side);
    } else {
      builder.AddInputBackward(side);
    }
  }
  // W fill the time until the last B of side 0 arrive.
  for (int i = 0; i < after; ++i) {
    builder.AddWeight();
    builder.AddInputBackward(0);
  }
  for (int i = 0; i < before; ++i) builder.AddWeight();
  return builder.Take();
}

}  // namespace penstock::planner::internal
