#include "planner/plan/plan_peers.h"

#include <map>
#include <utility>

#include "base/status_macros.h"
#include "planner/plan/coordinates.h"

namespace penstock::planner {

absl::StatusOr<PlanPeers> PlanPeers::Create(const FoldedPlan& plan) {
  PlanPeers peers(plan);
  if (plan.is_folded()) {
    RETURN_IF_ERROR(peers.AddFolded());
  } else {
    peers.AddSpelledOut();
  }
  return peers;
}

PlanPeers::PlanPeers(const FoldedPlan& plan)
    : plan_(&plan),
      num_collectives_(static_cast<uint32_t>(plan.is_folded() ? plan.collectives.size()
                                                              : plan.common.collectives.size())) {}

absl::Status PlanPeers::AddFolded() {
  const uint32_t per_stage = plan_->devices_per_stage();
  std::map<std::pair<uint32_t, std::vector<graph::AxisRef>>, uint32_t> set_of_axes;
  for (const FoldedCollective& collective : plan_->collectives) {
    const auto [it, is_new] = set_of_axes.try_emplace({collective.stage, collective.axes},
                                                      static_cast<uint32_t>(sets_.size()));
    if (is_new) {
      GroupSet& set = sets_.emplace_back();
      set.group_of.assign(plan_->num_devices(), kNone);
      set.groups = GroupDevices(plan_->mesh, collective.axes);
      for (uint32_t g = 0; g < set.groups.size(); ++g) {
        for (uint32_t& device : set.groups[g]) {
          device += collective.stage * per_stage;
          set.group_of[device] = g;
        }
      }
    }
    set_of_.push_back(it->second);
  }
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> set_of_stages;
  const std::vector<uint32_t> first_of_classes = plan_->FirstOfClasses();
  for (const FoldedTransfer& transfer : plan_->transfers) {
    const auto [it, is_new] = set_of_stages.try_emplace(
        {transfer.source_stage, transfer.destination_stage}, static_cast<uint32_t>(sets_.size()));
    if (is_new) {
      GroupSet& set = sets_.emplace_back();
      set.group_of.assign(plan_->num_devices(), kNone);
      for (uint32_t d = 0; d < per_stage; ++d) {
        const uint32_t source = transfer.source_stage * per_stage + d;
        const uint32_t destination = transfer.destination_stage * per_stage + d;
        set.groups.push_back({source, destination});
        set.group_of[source] = d;
        set.group_of[destination] = d;
      }
    }
    set_of_.push_back(it->second);
    std::vector<uint64_t>& bytes = message_bytes_.emplace_back();
    for (const uint32_t d : first_of_classes) {
      ASSIGN_OR_RETURN(const TilePlan tile,
                       TileOf(plan_->mesh, plan_->shardings[transfer.sharding], transfer.type, d));
      bytes.push_back(tile.num_bytes());
    }
  }
  return absl::OkStatus();
}

void PlanPeers::AddSpelledOut() {
  std::map<std::pair<bool, std::vector<uint32_t>>, uint32_t> set_of_devices;
  const auto add = [&](bool is_transfer, const std::vector<uint32_t>& devices) {
    const auto [it, is_new] =
        set_of_devices.try_emplace({is_transfer, devices}, static_cast<uint32_t>(sets_.size()));
    if (is_new) {
      GroupSet& set = sets_.emplace_back();
      set.groups = {devices};
      set.group_of.assign(plan_->num_devices(), kNone);
      for (const uint32_t device : devices) set.group_of[device] = 0;
    }
    set_of_.push_back(it->second);
  };
  for (const CollectiveSpec& spec : plan_->common.collectives) add(false, spec.devices);
  for (const TransferPlan& transfer : plan_->common.transfers) {
    add(true, {transfer.source, transfer.destination});
    message_bytes_.push_back({transfer.num_bytes});
  }
}

const CollectiveSpec& PlanPeers::SpecOf(uint32_t collective, uint32_t group) const {
  if (!plan_->is_folded()) return plan_->common.collectives[collective];
  const std::vector<CollectiveSpec>& specs = plan_->collectives[collective].specs;
  return specs[specs.size() == 1 ? 0 : group];
}

uint64_t PlanPeers::MessageBytes(uint32_t meeting, uint32_t group) const {
  const std::vector<uint64_t>& bytes = message_bytes_[meeting - num_collectives_];
  return plan_->is_folded() ? bytes[plan_->class_of[group]] : bytes[0];
}

}  // namespace penstock::planner
