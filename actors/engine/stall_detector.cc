#include "actors/engine/stall_detector.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "actors/engine/stage_exchange.h"

namespace penstock::actors {

using planner::ActorKind;

namespace {

// Whether every member's result depends on data of every other.
bool NeedsAll(const CollectiveSpec& spec) {
  switch (spec.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllToAll:
      return std::all_of(spec.counts.begin(), spec.counts.end(), [](int64_t n) { return n > 0; });
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kPermute:
      return false;
  }
  return false;
}

}  // namespace

bool IsStill(const ActivityReport& before, const ActivityReport& after) {
  if (before.moves != after.moves || before.num_decisions != after.num_decisions ||
      before.communications != after.communications ||
      before.idle_polls.size() != after.idle_polls.size()) {
    return false;
  }
  // A round that was under way at the first look is not one that came after it.
  return std::equal(before.idle_polls.begin(), before.idle_polls.end(), after.idle_polls.begin(),
                    [](int64_t first, int64_t second) { return second > first + 1; });
}

StallDetector::StallDetector(const planner::Plan& plan)
    : communications_(plan.transfers.size() + plan.collectives.size()) {
  size_t count = 0;
  struct Pair {
    size_t communications[2] = {SIZE_MAX, SIZE_MAX};  // of choices and counts
    size_t* begin() { return communications; }
    size_t* end() { return communications + 2; }
  };
  std::map<std::pair<uint32_t, uint32_t>, Pair> first_of_pair;
  for (const planner::DevicePlan& device : plan.devices) {
    first_communication_.push_back(count);
    for (const planner::ActorPlan& actor : device.actors) {
      if (actor.kind == ActorKind::kSend || actor.kind == ActorKind::kRecv) {
        communications_[actor.target].members.push_back(count++);
      } else if (actor.kind == ActorKind::kCollective) {
        Communication& collective = communications_[plan.transfers.size() + actor.target];
        collective.members.push_back(count++);
        collective.needs_all = NeedsAll(plan.collectives[actor.target]);
      }
    }
    // Choices and counts that devices of a stage exchange (stage_exchange.h).
    const auto d = static_cast<uint32_t>(first_communication_.size() - 1);
    for (const uint32_t peer : StagePeersOf(plan, d)) {
      for (size_t& first : first_of_pair[std::minmax(d, peer)]) {
        if (first == SIZE_MAX) {
          first = communications_.size();
          communications_.emplace_back();
        }
        communications_[first].members.push_back(count++);
      }
    }
  }
  first_communication_.push_back(count);
}

size_t StallDetector::NumCommunications(uint32_t first_device, uint32_t num_devices) const {
  return first_communication_[first_device + num_devices] - first_communication_[first_device];
}

bool StallDetector::MayBeUnderWay(const Communication& communication,
                                  const std::vector<uint64_t>& counts) {
  if (communication.members.empty()) return false;
  const auto is_less = [&counts](size_t a, size_t b) { return counts[a] < counts[b]; };
  if (communication.needs_all) {
    // It is under way only if the member with the lowest count has started it; otherwise the others
    // wait for that one.
    const auto& members = communication.members;
    return counts[*std::min_element(members.begin(), members.end(), is_less)] % 2 == 1;
  }
  // It is under way if a member that has started it has a partner that has started or completed the
  // same run.
  uint64_t first_open = UINT64_MAX;
  for (const size_t member : communication.members) {
    if (counts[member] % 2 == 1) first_open = std::min(first_open, counts[member]);
  }
  return std::count_if(communication.members.begin(), communication.members.end(),
                       [&](size_t member) { return counts[member] >= first_open; }) > 1;
}

std::optional<size_t> StallDetector::FindStall(const std::vector<ActivityReport>& before,
                                               const std::vector<ActivityReport>& after) const {
  if (!std::equal(before.begin(), before.end(), after.begin(), after.end(), IsStill)) {
    return std::nullopt;
  }
  std::vector<uint64_t> counts;
  for (const ActivityReport& report : after) {
    counts.insert(counts.end(), report.communications.begin(), report.communications.end());
  }
  for (const Communication& communication : communications_) {
    if (MayBeUnderWay(communication, counts)) return std::nullopt;
  }
  const auto declined = std::find_if(after.begin(), after.end(), [](const ActivityReport& report) {
    return !report.declined.empty();
  });
  if (declined == after.end()) return std::nullopt;
  return static_cast<size_t>(declined - after.begin());
}

}  // namespace penstock::actors
