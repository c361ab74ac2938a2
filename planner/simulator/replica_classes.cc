#include "planner/simulator/replica_classes.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"

#include "planner/cluster/collective_cost.h"
#include "planner/cluster/group_shape.h"

namespace penstock::planner {
namespace {

// Numbers signatures as they occur.
class Numbering {
 public:
  uint32_t Of(const std::vector<uint32_t>& signature) {
    return numbers_.try_emplace(signature, static_cast<uint32_t>(numbers_.size())).first->second;
  }
  size_t size() const { return numbers_.size(); }

 private:
  absl::flat_hash_map<std::vector<uint32_t>, uint32_t> numbers_;
};

void Append(double value, std::vector<uint32_t>* signature) {
  const auto bits = std::bit_cast<uint64_t>(value);
  signature->push_back(static_cast<uint32_t>(bits));
  signature->push_back(static_cast<uint32_t>(bits >> 32));
}

std::vector<uint32_t> FirstNumbers(size_t size) {
  std::vector<uint32_t> numbers(size);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

class Refinement {
 public:
  Refinement(const FoldedPlan& plan, const PlanPeers& peers, const GroupPlaces& places,
             const Machine& machine)
      : peers_(peers), places_(places) {
    MachineResources resources(machine, plan.num_devices());
    std::map<double, uint32_t> rates;
    for (const double rate : places.link_bytes_per_s) {
      of_link_.push_back(rates.try_emplace(rate, rates.size()).first->second);
    }
    std::map<const DeviceKind*, uint32_t> kinds;
    Numbering numbers;
    for (uint32_t d = 0; d < plan.num_devices(); ++d) {
      const auto kind = kinds.try_emplace(&machine.cluster.KindOf(d), kinds.size()).first->second;
      // Devices that share cores take turns, and so differ.
      const uint32_t own = resources.SharesCores(d) ? d + 1 : 0;
      const uint32_t program = plan.is_folded() ? plan.ProgramOf(d) : d;
      of_device_.push_back(numbers.Of({program, static_cast<uint32_t>(kind), own}));
    }
    sets_of_device_.resize(plan.num_devices());
    for (uint32_t s = 0; s < peers.sets().size(); ++s) {
      of_group_.emplace_back(peers.sets()[s].groups.size(), 0);
      for (uint32_t d = 0; d < plan.num_devices(); ++d) {
        if (peers.sets()[s].group_of[d] != kNone) sets_of_device_[d].push_back(s);
      }
    }
    AddSizes();
  }

  ReplicaClasses Run() {
    size_t num_classes = 0;
    while (true) {
      const size_t groups = RefineGroups();
      const size_t links = RefineLinks();
      const size_t devices = RefineDevices();
      if (groups + links + devices == num_classes) break;
      num_classes = groups + links + devices;
    }
    ReplicaClasses classes;
    classes.of_device = std::move(of_device_);
    classes.of_link = std::move(of_link_);
    classes.num_devices = Renumber(&classes.of_device);
    Renumber(&classes.of_link);
    classes.of_group = std::move(of_group_);
    for (std::vector<uint32_t>& of_set : classes.of_group) {
      classes.num_groups.push_back(Renumber(&of_set));
    }
    return classes;
  }

 private:
  // Of collectives whose sizes differ from group to group; those of messages follow from programs.
  void AddSizes() {
    sizes_.resize(of_group_.size());
    for (size_t s = 0; s < of_group_.size(); ++s) sizes_[s].resize(of_group_[s].size());
    for (uint32_t m = 0; m < peers_.num_collectives(); ++m) {
      if (!peers_.DiffersByGroup(m)) continue;
      const uint32_t s = peers_.SetOf(m);
      for (uint32_t g = 0; g < of_group_[s].size(); ++g) {
        Append(CollectiveBytes(peers_.SpecOf(m, g), peers_.DevicesOf(m, g).size()), &sizes_[s][g]);
      }
    }
    for (std::vector<std::vector<uint32_t>>& of_set : sizes_) {
      Numbering numbers;
      for (std::vector<uint32_t>& sizes : of_set) sizes = {numbers.Of(sizes)};
    }
  }

  size_t RefineGroups() {
    Numbering numbers;
    std::vector<uint32_t> signature;
    absl::flat_hash_map<std::pair<uint32_t, uint32_t>, uint32_t> num_at_link;
    for (uint32_t s = 0; s < of_group_.size(); ++s) {
      const PlanPeers::GroupSet& set = peers_.sets()[s];
      num_at_link.clear();
      for (uint32_t g = 0; g < set.groups.size(); ++g) {
        signature = {s, of_group_[s][g], places_.shapes[s][g], sizes_[s][g][0]};
        const auto begin = static_cast<ptrdiff_t>(signature.size());
        for (const uint32_t device : set.groups[g]) signature.push_back(of_device_[device]);
        std::sort(signature.begin() + begin, signature.end());
        signature.push_back(kNone);
        const auto links = static_cast<ptrdiff_t>(signature.size());
        for (const uint32_t link : places_.links[s][g]) signature.push_back(of_link_[link]);
        std::sort(signature.begin() + links, signature.end());
        of_group_[s][g] = numbers.Of(signature);
      }
      // Of those of a class that meet at a link, one comes after the other.
      for (uint32_t g = 0; g < set.groups.size(); ++g) {
        uint32_t place = 0;
        for (const uint32_t link : places_.links[s][g]) {
          place = std::max(place, num_at_link[{link, of_group_[s][g]}]);
        }
        for (const uint32_t link : places_.links[s][g]) {
          num_at_link[{link, of_group_[s][g]}] = place + 1;
        }
        places_at_links_.push_back(place);
      }
    }
    Numbering placed;
    size_t next = 0;
    for (std::vector<uint32_t>& of_set : of_group_) {
      for (uint32_t& group : of_set) group = placed.Of({group, places_at_links_[next++]});
    }
    places_at_links_.clear();
    return placed.size();
  }

  size_t RefineLinks() {
    std::vector<std::vector<uint32_t>> users(of_link_.size());
    for (uint32_t s = 0; s < of_group_.size(); ++s) {
      for (uint32_t g = 0; g < of_group_[s].size(); ++g) {
        for (const uint32_t link : places_.links[s][g]) users[link].push_back(of_group_[s][g]);
      }
    }
    Numbering numbers;
    for (uint32_t l = 0; l < of_link_.size(); ++l) {
      std::sort(users[l].begin(), users[l].end());
      users[l].push_back(of_link_[l]);
      of_link_[l] = numbers.Of(users[l]);
    }
    return numbers.size();
  }

  size_t RefineDevices() {
    Numbering numbers;
    std::vector<uint32_t> signature;
    for (uint32_t d = 0; d < of_device_.size(); ++d) {
      signature = {of_device_[d]};
      for (const uint32_t s : sets_of_device_[d]) {
        signature.push_back(of_group_[s][peers_.sets()[s].group_of[d]]);
      }
      of_device_[d] = numbers.Of(signature);
    }
    return numbers.size();
  }

  // By their first occurrence; how many there are.
  static uint32_t Renumber(std::vector<uint32_t>* classes) {
    absl::flat_hash_map<uint32_t, uint32_t> numbers;
    for (uint32_t& c : *classes) {
      c = numbers.try_emplace(c, static_cast<uint32_t>(numbers.size())).first->second;
    }
    return static_cast<uint32_t>(numbers.size());
  }

  const PlanPeers& peers_;
  const GroupPlaces& places_;
  std::vector<uint32_t> of_device_;
  std::vector<std::vector<uint32_t>> of_group_;
  std::vector<uint32_t> of_link_;
  std::vector<std::vector<uint32_t>> sets_of_device_;
  std::vector<std::vector<std::vector<uint32_t>>> sizes_;  // by set and group: a number
  std::vector<uint32_t> places_at_links_;                  // of all groups
};

}  // namespace

GroupPlaces PlaceGroups(const PlanPeers& peers, const Cluster& cluster) {
  GroupPlaces places;
  LinkTable links(cluster);
  Numbering message_shapes;
  std::vector<bool> is_message(peers.sets().size(), false);
  for (uint32_t m = 0; m < peers.num_meetings(); ++m) {
    is_message[peers.SetOf(m)] = peers.IsTransfer(m);
  }
  // Shapes are compared one by one: a cluster has few.
  const auto index_of = [&](GroupShape shape) {
    const auto found = std::find(places.shape_of.begin(), places.shape_of.end(), shape);
    const auto index = static_cast<uint32_t>(found - places.shape_of.begin());
    if (found == places.shape_of.end()) places.shape_of.push_back(std::move(shape));
    return index;
  };
  for (size_t s = 0; s < peers.sets().size(); ++s) {
    std::vector<std::vector<uint32_t>>& of_set = places.links.emplace_back();
    std::vector<uint32_t>& shapes = places.shapes.emplace_back();
    for (const std::vector<uint32_t>& devices : peers.sets()[s].groups) {
      if (!is_message[s]) {
        of_set.push_back(links.OfCollective(devices));
        shapes.push_back(
            index_of(ShapeOf(cluster, std::vector<int64_t>(devices.begin(), devices.end()))));
        continue;
      }
      of_set.push_back(links.OfMessage(devices[0], devices[1]));
      std::vector<uint32_t> cost;
      Append(cluster.PathLatencyS(devices[0], devices[1]), &cost);
      Append(PredictSendSeconds(cluster, devices[0], devices[1], 1e9), &cost);
      shapes.push_back(message_shapes.Of(cost));
    }
  }
  for (uint32_t l = 0; l < links.num_links(); ++l) {
    places.link_bytes_per_s.push_back(links.bytes_per_s(l));
  }
  return places;
}

ReplicaClasses SeparateClasses(const FoldedPlan& plan, const PlanPeers& peers,
                               const GroupPlaces& places) {
  ReplicaClasses classes;
  classes.num_devices = plan.num_devices();
  classes.of_device = FirstNumbers(plan.num_devices());
  for (const PlanPeers::GroupSet& set : peers.sets()) {
    classes.num_groups.push_back(static_cast<uint32_t>(set.groups.size()));
    classes.of_group.push_back(FirstNumbers(set.groups.size()));
  }
  classes.of_link = FirstNumbers(places.num_links());
  return classes;
}

ReplicaClasses FindReplicas(const FoldedPlan& plan, const PlanPeers& peers,
                            const GroupPlaces& places, const Machine& machine) {
  return Refinement(plan, peers, places, machine).Run();
}

}  // namespace penstock::planner
