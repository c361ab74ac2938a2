#include "planner/chakra/simulate_chakra.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/cluster/group_shape.h"
#include "planner/simulator/link_classes.h"
#include "planner/simulator/machine_resources.h"

namespace penstock::planner {
namespace {

constexpr uint32_t kMostObserved = 64;

using SharedLinks = std::shared_ptr<const std::vector<uint32_t>>;

// Computation of a rank that runs one node at a time.
struct Stream {
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> ready;  // nodes
  uint32_t rank = 0;
  uint32_t trace = 0;
  bool is_busy = false;
  bool is_listed = false;
};

struct Event {
  double time = 0;
  uint64_t number = 0;  // of two at one time, the earlier one is first
  bool is_meeting = false;
  uint32_t index = 0;  // of the meeting or node
  friend bool operator>(const Event& a, const Event& b) {
    return std::pair(a.time, a.number) > std::pair(b.time, b.number);
  }
};

class ChakraRun {
 public:
  ChakraRun(const ChakraTraces& traces, const Machine& machine)
      : traces_(traces),
        machine_(machine),
        resources_(machine, traces.num_ranks),
        group_routes_(traces.groups.size()),
        num_arrived_(traces.meetings.size(), 0),
        activities_(std::min<size_t>(traces.ranks.size(), kMostObserved)) {}

  absl::StatusOr<ChakraSimulation> Run() {
    AddStreams();
    AddLinks();
    for (uint32_t node = 0; node < traces_.nodes.size(); ++node) {
      num_waiting_.push_back(traces_.nodes[node].num_deps);
    }
    for (uint32_t node = 0; node < traces_.nodes.size(); ++node) {
      if (traces_.nodes[node].num_deps == 0) MakeReady(node);
    }
    do {
      Settle();
    } while (TakeEvents());
    if (num_completed_ < traces_.nodes.size()) return Stuck();
    RETURN_IF_ERROR(CheckStepEnds());
    return Describe();
  }

 private:
  void AddStreams() {
    stream_of_.resize(traces_.nodes.size(), kNone);
    uint32_t node = 0;
    for (uint32_t trace = 0; trace < traces_.ranks.size(); ++trace) {
      absl::flat_hash_map<uint32_t, uint32_t> index;
      for (; node < traces_.nodes_end[trace]; ++node) {
        const auto [it, is_new] =
            index.try_emplace(traces_.nodes[node].stream, static_cast<uint32_t>(streams_.size()));
        if (is_new) {
          Stream& stream = streams_.emplace_back();
          stream.rank = traces_.ranks[trace];
          stream.trace = trace;
        }
        stream_of_[node] = it->second;
      }
    }
  }

  // Of all that communicates. There may be as many links as ranks, and they are walked for each
  // communication, so only one is kept of those that are always taken together.
  void AddLinks() {
    LinkTable table(machine_.cluster);
    std::vector<std::vector<uint32_t>> routes;
    std::vector<SharedLinks*> links_of_route;
    for (const TracedMeeting& meeting : traces_.meetings) {
      if (meeting.kind.has_value()) {
        GroupRoute& group = group_routes_[meeting.group];
        if (group.is_added) continue;
        group.is_added = true;
        const std::vector<uint32_t>& ranks = traces_.groups[meeting.group];
        group.shape = ShapeOf(machine_.cluster, std::vector<int64_t>(ranks.begin(), ranks.end()));
        routes.push_back(table.OfCollective(ranks));
        links_of_route.push_back(&group.links);
        continue;
      }
      const uint32_t source = RankOf(meeting.members[0]);
      const uint32_t destination = RankOf(meeting.members[1]);
      const auto [it, is_new] = message_links_.try_emplace({source, destination});
      if (!is_new) continue;
      routes.push_back(table.OfMessage(source, destination));
      links_of_route.push_back(&it->second);
    }
    std::vector<double> bytes_per_s;
    for (uint32_t link = 0; link < table.num_links(); ++link) {
      bytes_per_s.push_back(table.bytes_per_s(link));
    }
    MergeLinks(bytes_per_s, absl::MakeSpan(routes));
    resources_.SetLinkRates(std::move(bytes_per_s));
    for (size_t r = 0; r < routes.size(); ++r) {
      *links_of_route[r] = std::make_shared<const std::vector<uint32_t>>(std::move(routes[r]));
    }
  }

  uint32_t RankOf(uint32_t node) const { return streams_[stream_of_[node]].rank; }

  void MakeReady(uint32_t node) {
    switch (traces_.nodes[node].type) {
      case ChakraNodeType::kInvalid:
      case ChakraNodeType::kMetadata:
        completed_.push_back(node);
        return;
      case ChakraNodeType::kMemoryLoad:
      case ChakraNodeType::kMemoryStore:
      case ChakraNodeType::kCompute:
        streams_[stream_of_[node]].ready.push(node);
        List(stream_of_[node]);
        return;
      case ChakraNodeType::kSend:
      case ChakraNodeType::kReceive:
      case ChakraNodeType::kCollective:
        Arrive(traces_.nodes[node].meeting);
        return;
    }
  }

  void List(uint32_t stream) {
    if (std::exchange(streams_[stream].is_listed, true)) return;
    listed_.push_back(stream);
  }

  // What has ended makes other nodes ready; then streams choose what they run next.
  void Settle() {
    while (!completed_.empty() || !listed_.empty()) {
      while (!completed_.empty()) {
        const uint32_t node = completed_.back();
        completed_.pop_back();
        Complete(node);
      }
      while (!listed_.empty() && completed_.empty()) {
        const uint32_t stream = listed_.back();
        listed_.pop_back();
        streams_[stream].is_listed = false;
        Start(&streams_[stream]);
      }
    }
  }

  void Complete(uint32_t node) {
    ++num_completed_;
    const uint32_t step = traces_.nodes[node].step;
    if (step != kNone) {
      if (step >= step_ends_s_.size()) step_ends_s_.resize(step + 1, 0);
      step_ends_s_[step] = now_s_;
    }
    for (const uint32_t dependent : traces_.DependentsOf(node)) {
      if (--num_waiting_[dependent] == 0) MakeReady(dependent);
    }
  }

  void Start(Stream* stream) {
    if (stream->is_busy || stream->ready.empty()) return;
    const uint32_t node = stream->ready.top();
    stream->ready.pop();
    stream->is_busy = true;
    const MachineResources::Interval interval =
        resources_.Compute(stream->rank, now_s_, traces_.nodes[node].seconds);
    if (stream->trace < activities_.size()) {
      activities_[stream->trace].AddComputation(interval.begin_s, interval.end_s);
    }
    events_.push({interval.end_s, num_events_++, false, node});
  }

  void Arrive(uint32_t meeting) {
    const TracedMeeting& met = traces_.meetings[meeting];
    if (++num_arrived_[meeting] < met.members.size()) return;
    members_.clear();
    for (const uint32_t node : met.members) members_.push_back(RankOf(node));
    const MachineResources::Interval interval =
        resources_.Communicate(RouteOf(met), members_, now_s_);
    for (const uint32_t node : met.members) {
      const uint32_t trace = streams_[stream_of_[node]].trace;
      if (trace >= activities_.size()) continue;
      activities_[trace].AddCommunication(interval.begin_s, interval.end_s);
    }
    events_.push({interval.end_s, num_events_++, true, meeting});
  }

  Route RouteOf(const TracedMeeting& meeting) {
    const auto num_bytes = static_cast<double>(meeting.num_bytes);
    if (!meeting.kind.has_value()) {
      Route route = MessageRoute(machine_, members_[0], members_[1], num_bytes);
      route.links = message_links_.at({members_[0], members_[1]});
      return route;
    }
    const GroupRoute& group = group_routes_[meeting.group];
    const auto num_ranks = static_cast<double>(traces_.groups[meeting.group].size());
    const bool is_gather = *meeting.kind == CollectiveKind::kAllGather;
    Route route = CollectiveRoute(machine_, group.shape, *meeting.kind,
                                  is_gather ? num_bytes * num_ranks : num_bytes);
    route.links = group.links;
    return route;
  }

  // All of one time: which node a stream runs next must not depend on which came first.
  bool TakeEvents() {
    if (events_.empty()) return false;
    now_s_ = events_.top().time;
    while (!events_.empty() && events_.top().time == now_s_) {
      const Event event = events_.top();
      events_.pop();
      if (event.is_meeting) {
        const std::vector<uint32_t>& members = traces_.meetings[event.index].members;
        completed_.insert(completed_.end(), members.begin(), members.end());
      } else {
        streams_[stream_of_[event.index]].is_busy = false;
        List(stream_of_[event.index]);
        completed_.push_back(event.index);
      }
    }
    return true;
  }

  // Steps that overlap end in order nevertheless.
  absl::Status CheckStepEnds() const {
    for (size_t step = 1; step < step_ends_s_.size(); ++step) {
      if (step_ends_s_[step] >= step_ends_s_[step - 1]) continue;
      return absl::InvalidArgumentError(
          StrCat("step ", step, " of the traces ends before step ", step - 1));
    }
    return absl::OkStatus();
  }

  ChakraSimulation Describe() const {
    ChakraSimulation simulation;
    simulation.total_s = now_s_;
    const size_t num_steps = std::max<size_t>(step_ends_s_.size(), 1);
    simulation.num_steps = static_cast<uint32_t>(num_steps);
    const size_t step = num_steps >= 3 ? num_steps - 2 : num_steps - 1;
    const double begin_s = step == 0 ? 0 : step_ends_s_[step - 1];
    const double end_s = step + 1 == num_steps ? now_s_ : step_ends_s_[step];
    simulation.step_s = end_s - begin_s;
    for (const DeviceActivity& activity : activities_) {
      simulation.times.push_back(activity.TimesBetween(begin_s, end_s));
    }
    return simulation;
  }

  // A communication for which someone waits, or else a node that waits for another one.
  absl::Status Stuck() const {
    for (uint32_t m = 0; m < traces_.meetings.size(); ++m) {
      const std::vector<uint32_t>& members = traces_.meetings[m].members;
      if (num_arrived_[m] == 0 || num_arrived_[m] == members.size()) continue;
      const auto has_arrived = [&](uint32_t node) { return num_waiting_[node] == 0; };
      const uint32_t waits = *std::find_if(members.begin(), members.end(), has_arrived);
      const uint32_t missing = *std::find_if_not(members.begin(), members.end(), has_arrived);
      return absl::FailedPreconditionError(StrCat(traces_.Describe(waits), " waits for ",
                                                  traces_.Describe(missing),
                                                  ", which never starts"));
    }
    for (uint32_t node = 0; node < traces_.nodes.size(); ++node) {
      if (num_waiting_[node] == 0) continue;
      return absl::FailedPreconditionError(
          StrCat(traces_.Describe(node),
                 " never starts: it is, or depends on, one of several nodes "
                 "that depend on each other in a circle"));
    }
    return absl::InternalError("the traces do not come to their end");
  }

  struct GroupRoute {
    GroupShape shape;
    SharedLinks links;
    bool is_added = false;
  };

  const ChakraTraces& traces_;
  const Machine& machine_;
  MachineResources resources_;
  std::vector<GroupRoute> group_routes_;
  std::map<std::pair<uint32_t, uint32_t>, SharedLinks> message_links_;  // of the ranks at both ends
  std::vector<Stream> streams_;
  std::vector<uint32_t> stream_of_;    // of each node
  std::vector<uint32_t> num_waiting_;  // of each node: dependencies that have not ended
  std::vector<uint32_t> num_arrived_;  // at each meeting
  std::vector<uint32_t> completed_;    // nodes that have just ended
  std::vector<uint32_t> listed_;       // streams that may start something
  std::vector<uint32_t> members_;      // ranks of the meeting at hand
  std::vector<DeviceActivity> activities_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t num_events_ = 0;
  uint64_t num_completed_ = 0;
  double now_s_ = 0;
  std::vector<double> step_ends_s_;
};

}  // namespace

absl::StatusOr<ChakraSimulation> SimulateChakra(const ChakraTraces& traces,
                                                const Machine& machine) {
  if (traces.num_ranks > machine.cluster.num_devices()) {
    return absl::InvalidArgumentError(
        StrCat("the traces are of ", traces.num_ranks, " ranks, and the cluster ",
               machine.cluster.spec().name, " has ", machine.cluster.num_devices(), " devices"));
  }
  return ChakraRun(traces, machine).Run();
}

}  // namespace penstock::planner
