// What a strategy takes at least, known before it is lowered.
//
// Thread rule: one thread.

#ifndef PENSTOCK_PLANNER_SEARCH_STRATEGY_BOUNDS_H_
#define PENSTOCK_PLANNER_SEARCH_STRATEGY_BOUNDS_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include "absl/status/statusor.h"

#include "planner/search/machine.h"
#include "planner/search/strategy_work.h"
#include "planner/strategy/strategy.h"

namespace penstock::planner {

// Options divide memory, and of the time at most the update: a strategy with them takes no less
// than this part of what it takes without.
inline constexpr double kLeastWithOptions = 0.9;

class StrategyBounds {
 public:
  // Measures the model on one device. Errors are those of StrategyWork::Of.
  static absl::StatusOr<StrategyBounds> Create(const Machine& machine, StrategyWork* work);

  // The work divided evenly, without communication, with the bubble of a pipeline that has as many
  // micro-batches in flight as it wants: the last group waits for the first micro-batch and, unless
  // weight gradients can fill that time, the first one for the last. On shared cores, a pipeline's
  // bubble may cost nothing.
  double StepSeconds(const Strategy& strategy, int64_t microbatches, bool may_split_backward) const;

  // The fewest micro-batches that are of interest for a strategy come first.
  void NoteFewest(const Strategy& strategy, int64_t microbatches);

  // The same with what the strategy communicates in its phases. That is measured with the fewest
  // micro-batches and without options: more and options make it hardly less. 0: not known.
  double CommunicatingSeconds(const Strategy& strategy, int64_t microbatches,
                              bool may_split_backward, StrategyWork* work);

  // Whether a kind of device has times of its kernels, not only rates.
  bool has_measured_kernels() const { return has_measured_kernels_; }

  // Bytes of a device's parameters and states, if all are divided as far as the strategy can.
  double StateBytes(const Strategy& strategy) const;

  // Whether the states alone do not fit.
  bool IsTooLarge(const Strategy& strategy) const;

 private:
  // Of the sizes of axes.
  struct Fewest {
    int64_t microbatches = 1;
    std::optional<double> group_s = {};  // StrategyWork::LeastGroupSeconds, if measured
  };
  static std::array<int64_t, 6> AxesOf(const Strategy& strategy);
  double WithBubble(double group_s, const Strategy& strategy, int64_t microbatches,
                    bool may_split_backward) const;

  std::map<std::array<int64_t, 6>, Fewest> fewest_;
  double serial_s_ = 0;  // of all phases on one device of the fastest kind
  double forward_share_ = 1;
  double parameter_bytes_ = 0;
  double optimizer_bytes_ = 0;
  bool has_own_cores_ = true;
  bool has_measured_kernels_ = false;
  double memory_bytes_ = 0;  // of a device, if all have as much
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_STRATEGY_BOUNDS_H_
