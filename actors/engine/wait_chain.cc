#include "actors/engine/wait_chain.h"

#include <algorithm>
#include <functional>
#include <set>

#include "base/strings.h"

namespace penstock::actors {

using planner::ActorKind;
using planner::kNone;
using State = DeviceSnapshot::State;

namespace {

// One end of a transfer, or one device's part of a collective.
struct Member {
  uint32_t device = 0;
  uint32_t ordinal = 0;  // among the communicating actors of its device
};

// The communications of a plan with all their members, and of each device what they are.
struct Communications {
  std::vector<std::vector<Member>> members;
  std::vector<std::vector<uint32_t>> of_device;                // by ordinal: into `members`
  std::vector<std::vector<const planner::ActorPlan*>> actors;  // likewise

  explicit Communications(const planner::Plan& plan)
      : members(plan.transfers.size() + plan.collectives.size()) {
    for (uint32_t d = 0; d < plan.devices.size(); ++d) {
      std::vector<uint32_t>& ours = of_device.emplace_back();
      std::vector<const planner::ActorPlan*>& names = actors.emplace_back();
      for (const planner::ActorPlan& actor : plan.devices[d].actors) {
        if (!planner::IsCommunication(actor.kind)) continue;
        const size_t index = actor.kind == ActorKind::kCollective
                                 ? plan.transfers.size() + actor.target
                                 : actor.target;
        members[index].push_back({d, static_cast<uint32_t>(ours.size())});
        ours.push_back(static_cast<uint32_t>(index));
        names.push_back(&actor);
      }
    }
  }
};

// "device 3", "devices 1, 2 and 5 more".
std::string DeviceNames(const std::vector<uint32_t>& devices) {
  constexpr size_t kMaxNames = 8;
  const size_t count = std::min(devices.size(), kMaxNames);
  std::string text =
      StrCat(devices.size() == 1 ? "device " : "devices ",
             StrJoin(std::vector<uint32_t>(devices.begin(),
                                           devices.begin() + static_cast<std::ptrdiff_t>(count)),
                     ", "));
  if (devices.size() > count) StrAppend(&text, " and ", devices.size() - count, " more");
  return text;
}

// The strongly connected components of the arrows (Tarjan 1972), each before those that lead to it.
class Components {
 public:
  explicit Components(const std::vector<std::vector<uint32_t>>& arrows)
      : arrows_(arrows), index_(arrows.size(), 0), low_(arrows.size(), 0), of_(arrows.size()) {
    for (uint32_t device = 0; device < arrows.size(); ++device) {
      if (index_[device] == 0) Visit(device);
    }
  }

  const std::vector<std::vector<uint32_t>>& all() const { return all_; }
  size_t Of(uint32_t device) const { return of_[device]; }

 private:
  // Without recursion: a chain may be as long as there are devices.
  void Visit(uint32_t first) {
    struct Frame {
      uint32_t device;
      size_t next;
    };
    std::vector<Frame> frames = {{first, 0}};
    Enter(first);
    while (!frames.empty()) {
      Frame& frame = frames.back();
      const uint32_t device = frame.device;
      if (frame.next < arrows_[device].size()) {
        const uint32_t other = arrows_[device][frame.next++];
        if (index_[other] == 0) {
          Enter(other);
          frames.push_back({other, 0});
        } else if (on_stack_.contains(other)) {
          low_[device] = std::min(low_[device], index_[other]);
        }
        continue;
      }
      if (low_[device] == index_[device]) Leave(device);
      frames.pop_back();
      if (!frames.empty()) {
        const uint32_t parent = frames.back().device;
        low_[parent] = std::min(low_[parent], low_[device]);
      }
    }
  }

  void Enter(uint32_t device) {
    index_[device] = low_[device] = ++last_;
    stack_.push_back(device);
    on_stack_.insert(device);
  }

  void Leave(uint32_t root) {
    std::vector<uint32_t> component;
    do {
      component.push_back(stack_.back());
      on_stack_.erase(stack_.back());
      of_[stack_.back()] = all_.size();
      stack_.pop_back();
    } while (component.back() != root);
    std::sort(component.begin(), component.end());
    all_.push_back(std::move(component));
  }

  const std::vector<std::vector<uint32_t>>& arrows_;
  std::vector<uint32_t> index_;  // 0: not visited
  std::vector<uint32_t> low_;
  std::vector<size_t> of_;
  std::vector<uint32_t> stack_;
  std::set<uint32_t> on_stack_;
  std::vector<std::vector<uint32_t>> all_;
  uint32_t last_ = 0;
};

// How many devices reach `root` by the arrows turned round.
size_t CountWaiting(uint32_t root, const std::vector<std::vector<uint32_t>>& waiting) {
  std::set<uint32_t> seen = {root};
  std::vector<uint32_t> open = {root};
  while (!open.empty()) {
    const uint32_t device = open.back();
    open.pop_back();
    for (const uint32_t other : waiting[device]) {
      if (seen.insert(other).second) open.push_back(other);
    }
  }
  return seen.size() - 1;
}

}  // namespace

WaitChains FindWaitChains(const planner::Plan& plan, absl::Span<const DeviceSnapshot> devices) {
  const Communications communications(plan);
  WaitChains chains;
  const size_t num_devices = std::min(plan.devices.size(), devices.size());
  std::vector<std::set<uint32_t>> waits_for(num_devices);
  // Whether a device says what it has communicated.
  const auto is_known = [&](uint32_t device) {
    return devices[device].state != State::kSilent &&
           devices[device].communications.size() == communications.of_device[device].size();
  };
  for (uint32_t d = 0; d < num_devices; ++d) {
    if (devices[d].state != State::kWaiting) continue;
    for (const DeviceWait& wait : devices[d].waits) {
      ActorWait known{wait.actor, d, wait.what, {}};
      if (wait.communication < communications.of_device[d].size() && is_known(d)) {
        const uint64_t count = devices[d].communications[wait.communication];
        const uint32_t index = communications.of_device[d][wait.communication];
        const planner::ActorPlan& actor = *communications.actors[d][wait.communication];
        for (const Member& member : communications.members[index]) {
          if (member.device == d || member.device >= num_devices) continue;
          const bool has_started = is_known(member.device) &&
                                   devices[member.device].communications[member.ordinal] >= count;
          if (!has_started) known.devices.push_back(member.device);
        }
        std::sort(known.devices.begin(), known.devices.end());
        known.what =
            StrCat(known.devices.empty() ? "data under way" : DeviceNames(known.devices), ", ",
                   actor.kind == ActorKind::kCollective ? Name(plan.collectives[actor.target].kind)
                                                        : planner::Name(actor.kind),
                   " of '", actor.name, "'");
        waits_for[d].insert(known.devices.begin(), known.devices.end());
      }
      chains.waits.push_back(std::move(known));
    }
  }
  std::vector<std::vector<uint32_t>> waiting(num_devices);  // for a device
  for (uint32_t d = 0; d < num_devices; ++d) {
    for (const uint32_t other : waits_for[d]) waiting[other].push_back(d);
    chains.waits_for.emplace_back(waits_for[d].begin(), waits_for[d].end());
  }
  std::vector<std::pair<size_t, uint32_t>> roots;
  const Components components(chains.waits_for);
  for (const std::vector<uint32_t>& component : components.all()) {
    const auto leads_out = [&](uint32_t device) {
      return std::any_of(waits_for[device].begin(), waits_for[device].end(), [&](uint32_t other) {
        return components.Of(other) != components.Of(device);
      });
    };
    if (std::any_of(component.begin(), component.end(), leads_out)) continue;
    if (component.size() > 1) {
      chains.cycles.push_back(component);
    } else if (!waiting[component[0]].empty()) {
      roots.emplace_back(CountWaiting(component[0], waiting), component[0]);
    }
  }
  std::sort(roots.begin(), roots.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  for (const auto& [count, device] : roots) chains.roots.push_back(device);
  std::sort(chains.cycles.begin(), chains.cycles.end());
  return chains;
}

}  // namespace penstock::actors
