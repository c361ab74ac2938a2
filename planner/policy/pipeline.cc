#include "planner/policy/pipeline.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::planner {
namespace {

// Of the product of groups, micro-batches and chunks of a uniform pipeline: its orders and timeline
// take some hundred bytes for each.
constexpr int64_t kMaxUniformPhases = int64_t{1} << 24;

constexpr double kNotYet = -1;
constexpr double kLeastSeconds = 1e-12;  // less is rounding
constexpr size_t kMaxWaits = 12;         // that an error lists

constexpr auto kForwardPhase = static_cast<size_t>(PhaseKind::kForward);
constexpr auto kBackwardPhase = static_cast<size_t>(PhaseKind::kBackward);
constexpr auto kWeightPhase = static_cast<size_t>(PhaseKind::kWeight);

class PipelineRun {
 public:
  PipelineRun(const Pipeline& pipeline, const PipelineOrders& orders, bool keeps_phases)
      : pipeline_(pipeline),
        orders_(orders),
        keeps_phases_(keeps_phases),
        num_microbatches_(static_cast<size_t>(pipeline.num_microbatches)),
        next_(orders.size(), 0),
        now_(orders.size(), 0),
        held_(orders.size(), 0) {
    for (auto& ends : ends_) ends.assign(pipeline.stages.size() * num_microbatches_, kNotYet);
    for (auto& arrivals : arrivals_) arrivals.resize(pipeline.stages.size());
    readers_[0].resize(pipeline.stages.size());
    readers_[1].resize(pipeline.stages.size());
    for (size_t v = 0; v < pipeline.stages.size(); ++v) {
      for (size_t k = 0; k < kNumPolicyKinds; ++k) {
        before_.push_back(pipeline.stages[v].kind_before(k));
      }
    }
    for (const PipelineEdge& edge : pipeline.edges) {
      if (!pipeline.stages[edge.from].kinds[edge.is_forward ? kForwardPhase : kBackwardPhase])
        continue;
      const bool is_local = pipeline.stages[edge.from].group == pipeline.stages[edge.to].group;
      const size_t kind = edge.is_forward ? kForwardPhase : kBackwardPhase;
      arrivals_[kind][edge.to].push_back(
          is_local ? Arrival{edge.from} : Arrival{edge.from, edge.latency_s, edge.transfer_s});
      readers_[kind][edge.from].push_back(edge.to);
    }
    if (keeps_phases) timeline_.groups.resize(orders.size());
    for (size_t g = 0; g < timeline_.groups.size(); ++g) {
      timeline_.groups[g].reserve(orders[g].size());
    }
    timeline_.peak_activations.assign(orders.size(), 0);
    timeline_.most_in_flight.assign(pipeline.stages.size(), 0);
    in_flight_.assign(pipeline.stages.size(), 0);
  }

  void RunWithOwnCores() {
    std::deque<size_t> to_try;
    for (size_t g = 0; g < orders_.size(); ++g) to_try.push_back(g);
    while (!to_try.empty()) {
      const size_t g = to_try.front();
      to_try.pop_front();
      for (; next_[g] < orders_[g].size();) {
        const double begin = Begin(g);
        if (begin == kNotYet) break;
        const PhaseChoice& phase = Next(g);
        const int stage = StageOf(g, phase);
        End(g, begin, begin + pipeline_.SecondsOf(static_cast<int>(g), phase));
        if (phase.kind == PhaseKind::kWeight) continue;
        for (const int reader : readers_[static_cast<size_t>(phase.kind)][stage]) {
          const auto group = static_cast<size_t>(pipeline_.stages[reader].group);
          if (group != g) to_try.push_back(group);
        }
      }
    }
  }

  // From event to event: a phase ends, or what the next one reads has arrived.
  void RunOnSharedCores() {
    std::vector<double> begin(orders_.size(), kNotYet);  // of the next phase
    std::vector<double> left(orders_.size(), 0);         // seconds of it, at full speed
    double now = 0;
    while (true) {
      for (size_t g = 0; g < orders_.size(); ++g) {
        if (begin[g] != kNotYet || next_[g] == orders_[g].size()) continue;
        begin[g] = Begin(g);
        if (begin[g] != kNotYet) left[g] = pipeline_.SecondsOf(static_cast<int>(g), Next(g));
      }
      const std::vector<double> speeds = Speeds(begin, now);
      double step = kNotYet;
      for (size_t g = 0; g < orders_.size(); ++g) {
        if (begin[g] == kNotYet) continue;
        const double until = begin[g] <= now ? left[g] / speeds[g] : begin[g] - now;
        step = step == kNotYet ? until : std::min(step, until);
      }
      if (step == kNotYet) return;
      const double before = now;
      now += step;
      for (size_t g = 0; g < orders_.size(); ++g) {
        if (begin[g] == kNotYet || begin[g] > before) continue;
        left[g] -= speeds[g] * step;
        if (left[g] > kLeastSeconds) continue;
        End(g, begin[g], now);
        begin[g] = kNotYet;
      }
    }
  }

  absl::StatusOr<Timeline> Take() {
    for (size_t g = 0; g < orders_.size(); ++g) {
      if (next_[g] < orders_[g].size()) return DescribeDeadlock(g);
    }
    for (size_t g = 0; g < orders_.size(); ++g) {
      if (orders_[g].empty()) continue;
      timeline_.makespan_s = std::max(timeline_.makespan_s, now_[g]);
      timeline_.span_s = std::max(timeline_.span_s, now_[g] - first_begin_[g]);
    }
    timeline_.end_s = std::move(now_);
    return std::move(timeline_);
  }

 private:
  struct Arrival {
    int from = 0;
    double latency_s = 0;
    double transfer_s = 0;
    double free_s = 0;  // when the edge is
  };
  // What a phase waits for.
  struct Source {
    size_t kind = 0;
    int stage = 0;
  };

  const PhaseChoice& Next(size_t group) const { return orders_[group][next_[group]]; }
  int StageOf(size_t group, const PhaseChoice& phase) const {
    return pipeline_.StageOf(static_cast<int>(group), phase.chunk);
  }
  double& EndOf(size_t kind, int stage, int microbatch) {
    return ends_[kind][static_cast<size_t>(stage) * num_microbatches_ + microbatch];
  }

  // The kind of phase that one of a stage follows in its micro-batch; -1: none.
  int BeforeOf(int stage, size_t kind) const {
    return before_[static_cast<size_t>(stage) * kNumPolicyKinds + kind];
  }

  // What the next phase of the group reads and nothing has made yet.
  std::optional<Source> Missing(size_t group) {
    const PhaseChoice& phase = Next(group);
    const int stage = StageOf(group, phase);
    const auto kind = static_cast<size_t>(phase.kind);
    const int before = BeforeOf(stage, kind);
    if (before >= 0 && EndOf(before, stage, phase.microbatch) == kNotYet) {
      return Source{static_cast<size_t>(before), stage};
    }
    if (kind == kWeightPhase) return std::nullopt;
    for (const Arrival& arrival : arrivals_[kind][stage]) {
      if (EndOf(kind, arrival.from, phase.microbatch) == kNotYet) return Source{kind, arrival.from};
    }
    return std::nullopt;
  }

  // When the next phase of the group can begin; kNotYet: some of what it reads is not made. Asked
  // once for each phase that can.
  double Begin(size_t group) {
    const PhaseChoice& phase = Next(group);
    const int stage = StageOf(group, phase);
    const auto kind = static_cast<size_t>(phase.kind);
    const int before = BeforeOf(stage, kind);
    if (before >= 0 && EndOf(before, stage, phase.microbatch) == kNotYet) return kNotYet;
    double begin = now_[group];
    if (kind == kWeightPhase) return begin;
    std::vector<Arrival>& arrivals = arrivals_[kind][stage];
    for (const Arrival& arrival : arrivals) {
      if (EndOf(kind, arrival.from, phase.microbatch) == kNotYet) return kNotYet;
    }
    if (kind == kForwardPhase) begin = std::max(begin, pipeline_.stages[stage].ready_s);
    for (Arrival& arrival : arrivals) {
      const double sent = std::max(EndOf(kind, arrival.from, phase.microbatch), arrival.free_s);
      arrival.free_s = sent + arrival.transfer_s;
      begin = std::max(begin, arrival.free_s + arrival.latency_s);
    }
    return begin;
  }

  void End(size_t group, double begin, double end) {
    const PhaseChoice& phase = Next(group);
    const int stage = StageOf(group, phase);
    const VirtualStage& at = pipeline_.stages[stage];
    EndOf(static_cast<size_t>(phase.kind), stage, phase.microbatch) = end;
    if (keeps_phases_) timeline_.groups[group].push_back({phase, stage, begin, end});
    if (next_[group] == 0) first_begin_[group] = begin;
    if (phase.kind == PhaseKind::kForward) {
      double& peak = timeline_.peak_activations[group];
      peak = std::max(peak, held_[group] += at.activation);
      int& most = timeline_.most_in_flight[stage];
      most = std::max(most, ++in_flight_[stage]);
    }
    if (phase.kind == at.last_kind()) {
      held_[group] -= at.activation;
      --in_flight_[stage];
    }
    now_[group] = end;
    ++next_[group];
  }

  // The part of the next phase's time for which it needs a core.
  double CoreShare(size_t group) const {
    const PhaseChoice& phase = Next(group);
    return pipeline_.stages[StageOf(group, phase)].core_shares[static_cast<size_t>(phase.kind)];
  }

  // Of the groups that run phases. All devices of a group wait for the slowest.
  std::vector<double> Speeds(const std::vector<double>& begin, double now) const {
    std::vector<double> speeds(orders_.size(), 1);
    const auto is_active = [&](size_t g) { return begin[g] != kNotYet && begin[g] <= now; };
    for (const SharedCores& cores : pipeline_.cores) {
      double busy = 0;  // devices that have a core, on average
      for (size_t g = 0; g < orders_.size(); ++g) {
        if (is_active(g)) busy += cores.devices_of_group[g] * CoreShare(g);
      }
      for (size_t g = 0; g < orders_.size(); ++g) {
        if (!is_active(g) || cores.devices_of_group[g] == 0) continue;
        const double share = CoreShare(g);
        const double wanted = busy + cores.devices_of_group[g] * (1 - share);
        if (wanted <= cores.at_once) continue;
        speeds[g] = std::min(speeds[g], 1 / (1 - share + share * wanted / cores.at_once));
      }
    }
    return speeds;
  }

  // The groups that wait for each other, from one in the cycle on.
  absl::Status DescribeDeadlock(size_t group) {
    std::vector<bool> is_seen(orders_.size(), false);
    while (!is_seen[group]) {
      is_seen[group] = true;
      group = GroupAwaitedBy(group);
    }
    std::vector<std::string> waits;
    const size_t first = group;
    do {
      const Source source = *Missing(group);
      const PhaseChoice& phase = Next(group);
      waits.push_back(StrCat("group ", group, " waits at ", ToString(phase), " for ",
                             Name(static_cast<PhaseKind>(source.kind)), phase.microbatch,
                             " of virtual stage ", source.stage));
      group = GroupAwaitedBy(group);
    } while (group != first && waits.size() < kMaxWaits);
    return absl::FailedPreconditionError(
        StrCat("the orders of the groups wait for each other: ", StrJoin(waits, "; ")));
  }
  size_t GroupAwaitedBy(size_t group) {
    return static_cast<size_t>(pipeline_.stages[Missing(group)->stage].group);
  }

  const Pipeline& pipeline_;
  const PipelineOrders& orders_;
  const bool keeps_phases_;
  const size_t num_microbatches_;
  std::vector<int> before_;     // see BeforeOf
  std::vector<int> in_flight_;  // micro-batches, of each stage
  // Of each kind: when the phases end, by stage and micro-batch; of F and B: what arrives at a
  // stage, and who reads what it makes.
  std::array<std::vector<double>, kNumPolicyKinds> ends_;
  std::array<std::vector<std::vector<Arrival>>, 2> arrivals_;
  std::array<std::vector<std::vector<int>>, 2> readers_;
  // Of each group.
  std::vector<size_t> next_;
  std::vector<double> now_;
  std::vector<double> held_;
  std::vector<double> first_begin_ = std::vector<double>(orders_.size(), 0);
  Timeline timeline_;
};

}  // namespace

std::string_view Name(Placement placement) {
  switch (placement) {
    case Placement::kLoop:
      return "loop";
    case Placement::kVee:
      return "vee";
    case Placement::kBidirectional:
      return "bidirectional";
  }
  return "unknown";
}

std::optional<Placement> FindPlacement(std::string_view name) {
  for (const Placement placement : {Placement::kLoop, Placement::kVee, Placement::kBidirectional}) {
    if (name == Name(placement)) return placement;
  }
  return std::nullopt;
}

StageContext Pipeline::ContextOf(int group) const {
  StageContext context;
  context.stage = group;
  context.num_stages = num_groups;
  context.num_microbatches = num_microbatches;
  context.chunks.clear();
  for (int c = 0; c < num_chunks(); ++c) context.chunks.push_back(stages[StageOf(group, c)].kinds);
  return context;
}

double Pipeline::LatencyS(int from, int to) const {
  if (stages[from].group == stages[to].group) return 0;
  double latency_s = 0;
  for (const PipelineEdge& edge : edges) {
    if (edge.from != from || edge.to != to) continue;
    latency_s = std::max(latency_s, edge.latency_s + edge.transfer_s);
  }
  return latency_s;
}

std::vector<PipelineEdge> ChainEdges(const StagePlacement& placement, double latency_s) {
  const bool is_bidirectional = placement.placement == Placement::kBidirectional;
  std::vector<PipelineEdge> edges;
  for (int v = 1; v < placement.num_stages(); ++v) {
    // Each chunk is a chain of its own.
    if (is_bidirectional && v % placement.num_groups == 0) continue;
    edges.push_back({v - 1, v, true, latency_s});
    edges.push_back({v, v - 1, false, latency_s});
  }
  return edges;
}

absl::StatusOr<Pipeline> MakePipeline(const UniformPipeline& uniform) {
  const auto check_count = [](std::string_view what, int count, int most) -> absl::Status {
    if (count >= 1 && count <= most) return absl::OkStatus();
    return absl::InvalidArgumentError(StrCat(what, ": ", count, ", expected 1 to ", most));
  };
  RETURN_IF_ERROR(check_count("stages", uniform.num_groups, kMaxGroups));
  RETURN_IF_ERROR(check_count("micro-batches", uniform.num_microbatches, kMaxPipelineMicrobatches));
  RETURN_IF_ERROR(check_count("chunks", uniform.num_chunks, kMaxChunks));
  const int64_t phases =
      int64_t{uniform.num_groups} * uniform.num_microbatches * uniform.num_chunks;
  if (phases > kMaxUniformPhases) {
    return absl::InvalidArgumentError(StrCat("stages x micro-batches x chunks: ", phases,
                                             ", expected at most ", kMaxUniformPhases));
  }
  for (const double seconds :
       {uniform.forward_s, uniform.backward_s, uniform.weight_s, uniform.latency_s}) {
    if (std::isfinite(seconds) && seconds >= 0) continue;
    return absl::InvalidArgumentError(
        StrCat("a time of ", seconds, ": expected a finite number that is not negative"));
  }
  Pipeline pipeline;
  pipeline.num_groups = uniform.num_groups;
  pipeline.num_microbatches = uniform.num_microbatches;
  pipeline.placement = {uniform.num_groups, uniform.num_chunks, uniform.placement};
  double chunks = uniform.num_chunks;
  if (uniform.placement == Placement::kBidirectional) {
    if (uniform.num_chunks != 2 || uniform.num_microbatches % 2 != 0 ||
        uniform.num_groups % 2 != 0) {
      return absl::InvalidArgumentError(
          StrCat("a bidirectional pipeline needs 2 chunks, and even numbers of stages and "
                 "micro-batches; there are ",
                 uniform.num_chunks, ", ", uniform.num_groups, " and ", uniform.num_microbatches));
    }
    pipeline.num_microbatches /= 2;
    chunks = 1;  // each is the stage of a whole group
  }
  for (int v = 0; v < pipeline.placement.num_stages(); ++v) {
    VirtualStage stage;
    stage.group = pipeline.placement.GroupOf(v);
    stage.chunk = pipeline.placement.ChunkOf(v);
    stage.kinds = {true, true, uniform.splits_backward};
    stage.seconds = {uniform.forward_s / chunks, uniform.backward_s / chunks,
                     uniform.weight_s / chunks};
    if (!uniform.splits_backward) {
      stage.seconds[kBackwardPhase] += stage.seconds[kWeightPhase];
      stage.seconds[kWeightPhase] = 0;
    }
    stage.activation = 1 / chunks;
    pipeline.stages.push_back(stage);
  }
  pipeline.edges = ChainEdges(pipeline.placement, uniform.latency_s);
  return pipeline;
}

double BubbleOf(const Timeline& timeline) {
  double busiest = 0;
  for (const std::vector<PhaseRun>& runs : timeline.groups) {
    double busy = 0;
    for (const PhaseRun& run : runs) busy += run.end_s - run.begin_s;
    busiest = std::max(busiest, busy);
  }
  return timeline.span_s > 0 ? (timeline.span_s - busiest) / timeline.span_s : 0;
}

absl::Status CheckOrders(const Pipeline& pipeline, const PipelineOrders& orders) {
  if (orders.size() != static_cast<size_t>(pipeline.num_groups)) {
    return absl::InvalidArgumentError(
        StrCat(orders.size(), " orders for ", pipeline.num_groups, " groups"));
  }
  for (int g = 0; g < pipeline.num_groups; ++g) {
    const absl::Status status = CheckOrder(pipeline.ContextOf(g), orders[g]);
    if (status.ok()) continue;
    return absl::InvalidArgumentError(StrCat("the order of group ", g, " has ", status.message()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Timeline> RunPipeline(const Pipeline& pipeline, const PipelineOrders& orders,
                                     bool keeps_phases) {
  RETURN_IF_ERROR(CheckOrders(pipeline, orders));
  PipelineRun run(pipeline, orders, keeps_phases);
  if (pipeline.cores.empty()) {
    run.RunWithOwnCores();
  } else {
    run.RunOnSharedCores();
  }
  return run.Take();
}

}  // namespace penstock::planner
