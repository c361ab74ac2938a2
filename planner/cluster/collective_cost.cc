#include "planner/cluster/collective_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/divisors.h"

namespace penstock::planner {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Members that exchange data without regard to the hierarchy: a whole group, or one stage of a
// hierarchical collective, where several such groups work side by side.
struct FlatGroup {
  struct Level {
    int64_t num_children = 0;                // that have members
    std::vector<int64_t> members_per_child;  // the different numbers
    int64_t groups = 1;                      // that use the uplinks of a child at once
  };
  int64_t num_members = 1;
  std::vector<Level> levels;          // up to the level at which all meet
  const TorusShape* torus = nullptr;  // where several members are in one torus
};

double Double(int64_t value) { return static_cast<double>(value); }

// What one member exchanges in a pass of a reduce_scatter or an all_gather, as a part of the data.
double PassPart(int64_t n) { return Double(n - 1) / Double(n); }

class FlatCost {
 public:
  FlatCost(const Cluster& cluster, const FlatGroup& group)
      : cluster_(cluster), group_(group), top_(static_cast<int>(group.levels.size()) - 1) {}

  // Reduce-scatters or gathers `num_bytes` of data: each member has a piece for each other one.
  double Direct(double num_bytes) const {
    const int64_t n = group_.num_members;
    if (n < 2) return 0;
    const double piece = num_bytes / Double(n);
    double slowest = 0;
    for (int l = 0; l <= top_; ++l) {
      const FlatGroup::Level& level = group_.levels[l];
      if (IsTorus(l)) {
        slowest =
            std::max(slowest, piece * group_.torus->direct_load / cluster_.level(0).bytes_per_s);
      }
      for (const int64_t members : level.members_per_child) {
        const double rate = cluster_.UplinkBytesPerSOfEach(l, members * level.groups);
        // Within a torus, what stays in it is counted by its links.
        const bool stays = IsTorus(l) && top_ == 0;
        if (!stays) slowest = std::max(slowest, Double(n - members) * piece / rate);
      }
    }
    return Latency(top_) * (1 + kMessageOverhead * Double(n - 2)) + slowest;
  }

  double Ring(double num_bytes) const {
    const int64_t n = group_.num_members;
    if (n < 2) return 0;
    return RingLatency() + num_bytes * PassPart(n) / RingRate(1);
  }

  // `num_rings` leave a child at different members. REQUIRES: one number of members per child.
  double ParallelRings(double num_bytes) const {
    const int64_t n = group_.num_members;
    if (n < 2) return 0;
    double rate = kNever;
    for (int l = 0; l <= top_; ++l) rate = std::min(rate, RingRateAt(l, MembersPerChild(l)));
    return RingLatency() + num_bytes * PassPart(n) / rate;
  }

  double Torus(double num_bytes) const {
    const std::vector<TorusShape::Dimension>& dimensions = group_.torus->dimensions;
    const NetworkLevel& level = cluster_.level(0);
    const size_t num_dimensions = dimensions.size();
    std::vector<double> left(num_dimensions,
                             num_bytes / Double(static_cast<int64_t>(num_dimensions)));
    double seconds = 0;
    for (size_t phase = 0; phase < num_dimensions; ++phase) {
      double slowest = 0;
      for (size_t part = 0; part < num_dimensions; ++part) {
        const TorusShape::Dimension& dimension = dimensions[(part + phase) % num_dimensions];
        const double links = dimension.wraps ? 2 : 1;
        const double rate = links * level.bytes_per_s / Double(dimension.stride);
        const double latency =
            Double(dimension.members - 1) * Double(dimension.stride) * level.latency_s;
        slowest = std::max(slowest, latency + left[part] * PassPart(dimension.members) / rate);
        left[part] /= Double(dimension.members);
      }
      seconds += slowest;
    }
    return seconds;
  }

  // The root sends all of it to everybody.
  double DirectBroadcast(double num_bytes) const {
    const int64_t n = group_.num_members;
    if (n < 2) return 0;
    double slowest = 0;
    for (int l = 0; l <= top_; ++l) {
      const FlatGroup::Level& level = group_.levels[l];
      const double rate = cluster_.UplinkBytesPerSOfEach(l, level.groups);
      slowest = std::max(slowest, Double(n - level.members_per_child.front()) * num_bytes / rate);
    }
    return Latency(top_) * (1 + kMessageOverhead * Double(n - 2)) + slowest;
  }

  // Along a chain in k chunks: the first passes all edges, the others follow one by one. The best k
  // makes the derivative zero; the time is convex in it.
  double ChainBroadcast(double num_bytes) const {
    const int64_t n = group_.num_members;
    if (n < 2) return 0;
    const double rate = RingRate(1);
    const double latency = RingLatency();
    const double step = Latency(top_);
    const auto seconds = [&](double chunks) {
      return latency + (chunks - 1) * step + num_bytes / rate * (Double(n - 2) + chunks) / chunks;
    };
    const auto most = static_cast<double>(kMaxCollectiveMessages);
    double best = most;
    if (step > 0) best = std::sqrt(num_bytes / rate * Double(n - 2) / step);
    best = std::clamp(best, 1.0, most);
    return std::min(seconds(std::floor(best)), seconds(std::ceil(best)));
  }

  // Every member sends to one other, as far away as any is.
  double Permute(double num_bytes) const {
    if (group_.num_members < 2) return 0;
    double rate = kNever;
    for (int l = 0; l <= top_; ++l) {
      const FlatGroup::Level& level = group_.levels[l];
      double here =
          cluster_.UplinkBytesPerSOfEach(l, level.members_per_child.back() * level.groups);
      if (IsTorus(l)) here /= group_.torus->ring_load;
      rate = std::min(rate, here);
    }
    return Latency(top_) + num_bytes / rate;
  }

 private:
  bool IsTorus(int l) const { return l == 0 && group_.torus != nullptr; }

  int64_t MembersPerChild(int l) const { return group_.levels[l].members_per_child.front(); }

  double Latency(int l) const {
    if (!IsTorus(l) || top_ > 0) return cluster_.LatencyAcross(l);
    return Double(group_.torus->diameter) * cluster_.level(0).latency_s;
  }

  // Of the n - 1 edges that a piece passes; it starts behind the fastest one. The edges of level l
  // join the children of one group; that which closes the ring crosses the outermost level.
  double RingLatency() const {
    double total = 0;
    double least = kNever;
    for (int l = 0; l <= top_; ++l) {
      const int64_t groups = l < top_ ? group_.levels[l + 1].num_children : 0;
      const int64_t edges = group_.levels[l].num_children - groups;
      if (edges == 0) continue;
      const double latency = IsTorus(l)
                                 ? Double(group_.torus->ring_links) * cluster_.level(0).latency_s
                                 : cluster_.LatencyAcross(l);
      total += Double(edges) * latency;
      least = std::min(least, latency);
    }
    return total - least;
  }

  double RingRateAt(int l, int64_t num_rings) const {
    double rate =
        Double(num_rings) * cluster_.UplinkBytesPerSOfEach(l, num_rings * group_.levels[l].groups);
    if (IsTorus(l)) rate /= group_.torus->ring_load;
    return rate;
  }

  double RingRate(int64_t num_rings) const {
    double rate = kNever;
    for (int l = 0; l <= top_; ++l) rate = std::min(rate, RingRateAt(l, num_rings));
    return rate;
  }

  const Cluster& cluster_;
  const FlatGroup& group_;
  const int top_;
};

class GroupCost {
 public:
  GroupCost(const Cluster& cluster, const GroupShape& shape, const GroupsAtOnce& groups_at_once,
            const CollectiveMethods& methods)
      : cluster_(cluster), shape_(shape), groups_at_once_(groups_at_once), methods_(methods) {
    whole_.num_members = shape.num_members;
    for (size_t l = 0; l < shape.levels.size(); ++l) {
      whole_.levels.push_back({shape.levels[l].num_children, shape.levels[l].members_per_child,
                               GroupsAt(static_cast<int>(l))});
      if (shape.levels[l].members_per_child.size() != 1) is_even_ = false;
    }
    if (shape.torus) whole_.torus = &*shape.torus;
  }

  CollectiveTime Best(CollectiveKind kind, double num_bytes) const {
    if (shape_.num_members < 2) return {};
    switch (kind) {
      case CollectiveKind::kAllReduce:
        return BestPasses(2, num_bytes);
      case CollectiveKind::kReduceScatter:
      case CollectiveKind::kAllGather:
        return BestPasses(1, num_bytes);
      case CollectiveKind::kAllToAll:
        return {FlatCost(cluster_, whole_).Direct(num_bytes), CollectiveMethod::kDirect};
      case CollectiveKind::kBroadcast:
        return BestBroadcast(num_bytes);
      case CollectiveKind::kPermute:
        return {FlatCost(cluster_, whole_).Permute(num_bytes), CollectiveMethod::kDirect};
    }
    return {};
  }

 private:
  int64_t GroupsAt(int l) const {
    return l < static_cast<int>(groups_at_once_.size()) ? groups_at_once_[l] : 1;
  }

  static void Offer(CollectiveMethod method, double seconds, CollectiveTime* best) {
    if (seconds < best->seconds) *best = {seconds, method};
  }

  // A reduce_scatter and an all_gather move the same data, in opposite directions.
  CollectiveTime BestPasses(double num_passes, double num_bytes) const {
    const FlatCost flat(cluster_, whole_);
    CollectiveTime best = {kNever, CollectiveMethod::kDirect};
    if (methods_.direct) Offer(CollectiveMethod::kDirect, flat.Direct(num_bytes), &best);
    if (methods_.ring) Offer(CollectiveMethod::kRing, flat.Ring(num_bytes), &best);
    if (methods_.parallel_rings && is_even_) {
      Offer(CollectiveMethod::kParallelRings, flat.ParallelRings(num_bytes), &best);
    }
    if (methods_.torus && IsTorusBox(whole_)) {
      Offer(CollectiveMethod::kTorus, flat.Torus(num_bytes), &best);
    }
    if (methods_.hierarchical) {
      ForEachSplit([&](const FlatGroup& inner, const FlatGroup& outer) {
        const double part = num_bytes / Double(inner.num_members);
        Offer(CollectiveMethod::kHierarchical, StagePass(inner, num_bytes) + StagePass(outer, part),
              &best);
      });
    }
    if (best.seconds == kNever) best.seconds = flat.Direct(num_bytes);
    best.seconds *= num_passes;
    return best;
  }

  CollectiveTime BestBroadcast(double num_bytes) const {
    const FlatCost flat(cluster_, whole_);
    CollectiveTime best = {kNever, CollectiveMethod::kDirect};
    if (methods_.direct) Offer(CollectiveMethod::kDirect, flat.DirectBroadcast(num_bytes), &best);
    if (methods_.ring) Offer(CollectiveMethod::kRing, flat.ChainBroadcast(num_bytes), &best);
    if (methods_.hierarchical) {
      ForEachSplit([&](FlatGroup inner, FlatGroup outer) {
        // To the first member of each inner group, then inside them: one outer group is at work.
        for (size_t l = 0; l < outer.levels.size(); ++l) {
          outer.levels[l].groups = GroupsAt(static_cast<int>(l));
        }
        Offer(CollectiveMethod::kHierarchical,
              StageBroadcast(outer, num_bytes) + StageBroadcast(inner, num_bytes), &best);
      });
    }
    if (best.seconds == kNever) best.seconds = flat.DirectBroadcast(num_bytes);
    return best;
  }

  bool IsTorusBox(const FlatGroup& group) const {
    return group.levels.size() == 1 && group.torus != nullptr && group.torus->is_box;
  }

  double StagePass(const FlatGroup& group, double num_bytes) const {
    const FlatCost cost(cluster_, group);
    const double flat = std::min(cost.Direct(num_bytes), cost.Ring(num_bytes));
    return methods_.torus && IsTorusBox(group) ? std::min(flat, cost.Torus(num_bytes)) : flat;
  }

  double StageBroadcast(const FlatGroup& group, double num_bytes) const {
    const FlatCost cost(cluster_, group);
    return std::min(cost.DirectBroadcast(num_bytes), cost.ChainBroadcast(num_bytes));
  }

  // Members of the whole group in each child of level `l`. REQUIRES: is_even_.
  int64_t MembersIn(int l) const {
    return l < static_cast<int>(shape_.levels.size()) ? shape_.levels[l].members_per_child.front()
                                                      : shape_.num_members;
  }

  // Splits the group into stages: runs of p consecutive members, and the members of equal position
  // in all runs. A run is q children of one level with members, so its stages are as uniform as the
  // group. A torus is not split.
  template <typename F>
  void ForEachSplit(const F& use) const {
    if (!is_even_) return;
    for (int l = 0; l < static_cast<int>(shape_.levels.size()); ++l) {
      const int64_t children = MembersIn(l + 1) / MembersIn(l);
      const bool is_torus = l == 0 && shape_.torus.has_value();
      for (const int64_t q : DivisorsOf(children)) {
        const int64_t run = MembersIn(l) * q;
        if (q == 1 || run == shape_.num_members) continue;
        if (is_torus && q != children) continue;
        use(InnerStage(run), OuterStage(run));
      }
    }
  }

  FlatGroup InnerStage(int64_t run) const {
    FlatGroup stage;
    stage.num_members = run;
    for (int l = 0; l < static_cast<int>(shape_.levels.size()) && MembersIn(l) < run; ++l) {
      stage.levels.push_back({run / MembersIn(l), {MembersIn(l)}, GroupsAt(l)});
    }
    if (MembersIn(1) > 1) stage.torus = whole_.torus;
    return stage;
  }

  // Of the members of a child, those of one run are in different outer groups.
  FlatGroup OuterStage(int64_t run) const {
    FlatGroup stage;
    stage.num_members = shape_.num_members / run;
    for (int l = 0; l < static_cast<int>(shape_.levels.size()); ++l) {
      const int64_t members = MembersIn(l);
      const int64_t in_child = std::max<int64_t>(1, members / run);
      stage.levels.push_back(
          {stage.num_members / in_child, {in_child}, GroupsAt(l) * std::min(members, run)});
    }
    return stage;
  }

  const Cluster& cluster_;
  const GroupShape& shape_;
  const GroupsAtOnce& groups_at_once_;
  const CollectiveMethods& methods_;
  FlatGroup whole_;
  bool is_even_ = true;  // every child with members has as many
};

}  // namespace

std::string_view Name(CollectiveMethod method) {
  switch (method) {
    case CollectiveMethod::kDirect:
      return "direct";
    case CollectiveMethod::kRing:
      return "ring";
    case CollectiveMethod::kHierarchical:
      return "hierarchical";
    case CollectiveMethod::kParallelRings:
      return "parallel rings";
    case CollectiveMethod::kTorus:
      return "torus";
  }
  return "unknown";
}

CollectiveTime PredictCollective(const Cluster& cluster, const GroupShape& shape,
                                 CollectiveKind kind, double num_bytes,
                                 const GroupsAtOnce& groups_at_once, CollectiveMethods methods) {
  return GroupCost(cluster, shape, groups_at_once, methods).Best(kind, num_bytes);
}

double PredictPermute(const Cluster& cluster, const GroupShape& shape,
                      absl::Span<const int64_t> crossing, double num_bytes) {
  int top = -1;
  double rate = kNever;
  for (int l = 0; l < static_cast<int>(crossing.size()); ++l) {
    if (crossing[l] == 0) continue;
    top = l;
    double here = cluster.UplinkBytesPerSOfEach(l, crossing[l]);
    if (l == 0 && shape.torus.has_value()) here /= shape.torus->ring_load;
    rate = std::min(rate, here);
  }
  if (top < 0) return 0;
  const double latency = top == 0 && shape.torus.has_value()
                             ? Double(shape.torus->diameter) * cluster.level(0).latency_s
                             : cluster.LatencyAcross(top);
  return latency + num_bytes / rate;
}

double PredictSendSeconds(const Cluster& cluster, int64_t from, int64_t to, double num_bytes,
                          const GroupsAtOnce& groups_at_once) {
  const int meeting = cluster.MeetingLevel(from, to);
  if (meeting < 0) return 0;
  double rate = kNever;
  for (int l = 0; l <= meeting; ++l) {
    const int64_t groups = l < static_cast<int>(groups_at_once.size()) ? groups_at_once[l] : 1;
    rate = std::min(rate, cluster.UplinkBytesPerSOfEach(l, groups));
  }
  return cluster.PathLatencyS(from, to) + num_bytes / rate;
}

}  // namespace penstock::planner
