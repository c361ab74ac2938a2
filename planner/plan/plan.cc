#include "planner/plan/plan.h"

namespace penstock::planner {

std::string_view Name(ActorKind kind) {
  switch (kind) {
    case ActorKind::kKernel:
      return "kernel";
    case ActorKind::kFeed:
      return "feed";
    case ActorKind::kFetch:
      return "fetch";
    case ActorKind::kCollective:
      return "collective";
    case ActorKind::kSend:
      return "send";
    case ActorKind::kRecv:
      return "recv";
  }
  return "unknown";
}

PlanCounts Count(const Plan& plan) {
  PlanCounts counts;
  for (const DevicePlan& device : plan.devices) {
    counts.actors += device.actors.size();
    counts.channels += device.channels.size();
  }
  counts.channels += plan.transfers.size();
  counts.collectives = plan.collectives.size();
  return counts;
}

}  // namespace penstock::planner
