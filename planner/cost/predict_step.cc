#include "planner/cost/predict_step.h"

#include <algorithm>

namespace penstock::planner {
namespace {

struct Times {
  // Per micro-batch.
  double compute = 0;
  double reduced = 0;
  double received = 0;
  double sent = 0;
  // Per step.
  double lanes = 0;
  double floating = 0;
};

Times TimesOf(const DevicePlan& device, uint32_t num_microbatches) {
  Times times;
  for (const PhasePlan& phase : device.phases) {
    const double seconds = phase.predicted_s;
    if (phase.lane != Lane::kFloating) {
      if (phase.lane == Lane::kCompute && phase.per_microbatch) {
        times.compute += seconds;
      } else {
        times.lanes += seconds * (phase.per_microbatch ? num_microbatches : 1);
      }
    } else if (!phase.per_microbatch) {
      times.floating += seconds;
    } else if (phase.num_actors > 0) {
      switch (device.actors[phase.first_actor].kind) {
        case ActorKind::kRecv:
          times.received += seconds;
          break;
        case ActorKind::kSend:
          times.sent += seconds;
          break;
        default:
          times.reduced += seconds;
          break;
      }
    }
  }
  return times;
}

}  // namespace

double PredictStepSeconds(const Plan& plan) {
  double first = 0;
  double round = 0;
  double once = 0;
  uint32_t num_chunks = 1;
  for (const StagePlan& stage : plan.stages) {
    double stage_first = 0;
    for (uint32_t device : stage.devices) {
      for (const PhasePlan& phase : plan.devices[device].phases) {
        num_chunks = std::max(num_chunks, phase.chunk + 1);
      }
      const Times times = TimesOf(plan.devices[device], plan.num_microbatches);
      stage_first = std::max(stage_first, times.received + std::max(times.compute, times.reduced));
      round = std::max({round, times.compute, times.reduced + times.received + times.sent});
      once = std::max({once, times.lanes, times.floating});
    }
    first += stage_first;
  }
  return first / num_chunks + (plan.num_microbatches - 1.0 / num_chunks) * round + once;
}

}  // namespace penstock::planner
