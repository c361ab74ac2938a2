#include "planner/sharding/reshard_search.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"

#include "planner/sharding/axis_pieces.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::Mesh;
using graph::PartialSpec;
using graph::Sharding;

constexpr size_t kMaxStates = 4000;  // each way
constexpr uint32_t kNoState = 0xffffffff;

using PieceSet = uint32_t;
PieceSet Bit(int piece) { return PieceSet{1} << piece; }

// Pieces by number, as characters.
using PieceList = std::string;

struct State {
  absl::InlinedVector<PieceList, 4> dims;  // major first
  PieceSet unreduced = 0;                  // pieces that the value is partial over, and will not be

  template <typename H>
  friend H AbslHashValue(H hash, const State& state) {
    return H::combine(std::move(hash), state.dims, state.unreduced);
  }
  friend bool operator==(const State&, const State&) = default;
};

struct Visit {
  State state;
  double cost = 0;
  // Forwards: the state before and the step from it. Backwards: the state after and the step to it.
  uint32_t neighbour = kNoState;
  std::string_view op;
  bool is_settled = false;
};

// The states that one way has reached, the most promising ones settled first (A*: Hart, Nilsson and
// Raphael, 1968).
class Frontier {
 public:
  // `least_left` tells what the rest of the way to `end` costs at least, of a state; it falls by no
  // more than a step costs. A way that costs `bound` is of no use.
  Frontier(const State& start, const State& end, double bound,
           std::function<double(const State&)> least_left)
      : end_(end), bound_(bound), least_left_(std::move(least_left)) {
    Add(start, 0, kNoState, "", least_left_(start));
  }

  void Reach(const State& state, double cost, uint32_t neighbour, std::string_view op) {
    const double least = cost + least_left_(state);
    if (least < bound_) Add(state, cost, neighbour, op, least);
  }

  // The most promising state that was not settled yet; kNoState when there is none, when it is the
  // end, or when there were enough.
  uint32_t Settle() {
    while (!queue_.empty() && num_settled_ < kMaxStates) {
      const auto [least, index] = queue_.top();
      if (least > bound_) return kNoState;
      queue_.pop();
      if (visits_[index].is_settled) continue;
      visits_[index].is_settled = true;
      ++num_settled_;
      return visits_[index].state == end_ ? kNoState : index;
    }
    return kNoState;
  }

  // Ways that cost as much are of no use: the given bound, or what the way found to the end costs.
  double bound() const { return bound_; }
  const std::vector<Visit>& visits() const { return visits_; }
  uint32_t Find(const State& state) const {
    const auto it = indices_.find(state);
    return it == indices_.end() ? kNoState : it->second;
  }

 private:
  using Entry = std::pair<double, uint32_t>;

  void Add(const State& state, double cost, uint32_t neighbour, std::string_view op, double least) {
    const auto [it, is_new] = indices_.try_emplace(state, static_cast<uint32_t>(visits_.size()));
    if (is_new) {
      visits_.push_back({state, cost, neighbour, op});
    } else {
      Visit& visit = visits_[it->second];
      if (visit.is_settled || cost >= visit.cost) return;
      visit.cost = cost;
      visit.neighbour = neighbour;
      visit.op = op;
    }
    queue_.emplace(least, it->second);
    if (state == end_) bound_ = cost;
  }

  const State& end_;
  double bound_;
  const std::function<double(const State&)> least_left_;
  std::vector<Visit> visits_;
  absl::flat_hash_map<State, uint32_t> indices_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
  size_t num_settled_ = 0;
};

class Search {
 public:
  Search(const Mesh& mesh, const Sharding& from, const Sharding& to, double bound)
      : mesh_(mesh), from_(from), bound_(bound) {
    start_ = StateOf(from);
    goal_ = StateOf(to);
    in_from_ = InDims(start_);
    in_goal_ = InDims(goal_);
    PieceSet kept = 0;
    for (const PartialSpec& partial : to.partials) kept |= SetOf(partial.axes);
    for (const PartialSpec& partial : from.partials) start_.unreduced |= SetOf(partial.axes);
    start_.unreduced &= ~kept;
    kept_ = kept;
  }

  std::vector<ReshardStep> Run() {
    // What a device holds more of afterwards was gathered, in a step at least.
    Frontier forwards(start_, goal_, bound_, [this](const State& state) {
      return std::max(Tile(goal_) - Tile(state), 0.0) + (state == goal_ ? 0 : kReshardStepCost);
    });
    for (uint32_t i = forwards.Settle(); i != kNoState; i = forwards.Settle()) {
      const Visit visit = forwards.visits()[i];
      Follow(visit, i, &forwards);
    }
    Frontier backwards(goal_, start_, forwards.bound(), [this](const State& state) {
      return std::max(Tile(state) - Tile(start_), 0.0) + (state == start_ ? 0 : kReshardStepCost);
    });
    for (uint32_t i = backwards.Settle(); i != kNoState; i = backwards.Settle()) {
      const Visit visit = backwards.visits()[i];
      Precede(visit, i, &backwards);
    }
    return Join(forwards, backwards);
  }

 private:
  static size_t Index(char piece) { return static_cast<size_t>(static_cast<unsigned char>(piece)); }
  int64_t SizeOf(char piece) const { return pieces_[Index(piece)].size; }
  int64_t SizeOf(std::string_view list) const {
    int64_t size = 1;
    for (const char piece : list) size *= SizeOf(piece);
    return size;
  }
  bool IsTemporal(char piece) const { return graph::IsTemporal(mesh_, pieces_[Index(piece)]); }
  static PieceSet Bits(std::string_view list) {
    PieceSet set = 0;
    for (const char piece : list) set |= Bit(static_cast<int>(Index(piece)));
    return set;
  }
  static PieceSet InDims(const State& state) {
    PieceSet set = 0;
    for (const PieceList& list : state.dims) set |= Bits(list);
    return set;
  }

  char NumberOf(const AxisRef& piece) {
    const auto it = std::find(pieces_.begin(), pieces_.end(), piece);
    const auto number = it - pieces_.begin();
    if (it == pieces_.end()) pieces_.push_back(piece);
    return static_cast<char>(number);
  }
  PieceSet SetOf(absl::Span<const AxisRef> axes) {
    PieceSet set = 0;
    for (const AxisRef& axis : axes) set |= Bit(static_cast<int>(Index(NumberOf(axis))));
    return set;
  }
  State StateOf(const Sharding& sharding) {
    State state;
    for (const graph::DimSharding& dim : sharding.dims) {
      PieceList& list = state.dims.emplace_back();
      for (const AxisRef& axis : dim.axes) list.push_back(NumberOf(axis));
    }
    return state;
  }

  // What a device holds, as a fraction of the tensor.
  double Tile(const State& state) const {
    double parts = 1;
    for (const PieceList& list : state.dims) {
      for (const char piece : list) {
        if (!IsTemporal(piece)) parts *= static_cast<double>(SizeOf(piece));
      }
    }
    return 1 / parts;
  }
  static double Others(int64_t n) { return static_cast<double>(n - 1) / static_cast<double>(n); }

  // The longest list of spatial pieces at the end of `list`.
  size_t SpatialTail(const PieceList& list) const {
    size_t count = 0;
    while (count < list.size() && !IsTemporal(list[list.size() - 1 - count])) ++count;
    return count;
  }

  // Whether dimension `dim` may be split further over `piece`, which the target has. Micro-batches
  // go exactly where they belong, so that they stay of one size.
  bool MaySlice(const State& state, char piece, size_t dim) const {
    if ((in_goal_ & Bit(static_cast<int>(Index(piece)))) == 0) return false;
    if (!IsTemporal(piece)) return true;
    const size_t place = goal_.dims[dim].find(piece);
    return place != PieceList::npos && state.dims[dim] == goal_.dims[dim].substr(0, place);
  }

  void Follow(const Visit& visit, uint32_t index, Frontier* frontier) const {
    const State& state = visit.state;
    const double tile = Tile(state);
    const auto reach = [&](const State& next, double cost, std::string_view op) {
      frontier->Reach(next, visit.cost + cost + kReshardStepCost, index, op);
    };
    State next = state;
    if (state.unreduced != 0) {
      int64_t n = 1;
      for (PieceSet rest = state.unreduced; rest != 0; rest &= rest - 1) {
        n *= pieces_[static_cast<size_t>(std::countr_zero(rest))].size;
      }
      next.unreduced = 0;
      reach(next, 2 * Others(n) * tile, "all_reduce");
      for (size_t d = 0; d < state.dims.size(); ++d) {
        for (const PieceList& wanted : goal_.dims) {
          next = state;
          n = 1;
          for (const char piece : wanted) {
            const PieceSet bit = Bit(static_cast<int>(Index(piece)));
            if ((next.unreduced & bit) == 0) continue;
            next.unreduced &= ~bit;
            next.dims[d].push_back(piece);
            n *= SizeOf(piece);
            reach(next, Others(n) * tile, "reduce_scatter");
          }
        }
      }
    }
    const PieceSet used = InDims(state) | state.unreduced | kept_;
    for (size_t d = 0; d < state.dims.size(); ++d) {
      for (size_t p = 0; p < pieces_.size(); ++p) {
        const auto piece = static_cast<char>(p);
        if ((used & Bit(static_cast<int>(p))) != 0 || !MaySlice(state, piece, d)) continue;
        next = state;
        next.dims[d].push_back(piece);
        reach(next, 0, "local_slice");
      }
      const PieceList& list = state.dims[d];
      const size_t tail = SpatialTail(list);
      for (size_t k = 1; k <= tail; ++k) {
        const PieceList moved = list.substr(list.size() - k);
        const int64_t n = SizeOf(moved);
        next = state;
        next.dims[d].resize(list.size() - k);
        reach(next, tile * static_cast<double>(n - 1), "all_gather");
        for (size_t to = 0; to < state.dims.size(); ++to) {
          if (to == d) continue;
          State other = next;
          other.dims[to] += moved;
          reach(other, tile * Others(n), "all_to_all");
        }
      }
      if (tail == 0 && !list.empty()) {
        next = state;
        next.dims[d].pop_back();
        reach(next, kGatherMicrobatchesCost, "gather_microbatches");
      }
    }
  }

  // The same steps the other way round.
  void Precede(const Visit& visit, uint32_t index, Frontier* frontier) const {
    const State& state = visit.state;
    const double tile = Tile(state);
    const PieceSet used = InDims(state) | kept_;
    const auto reach = [&](const State& previous, double cost, std::string_view op) {
      frontier->Reach(previous, visit.cost + cost + kReshardStepCost, index, op);
    };
    State previous = state;
    for (size_t d = 0; d < state.dims.size(); ++d) {
      const PieceList& list = state.dims[d];
      previous = state;
      if (!list.empty()) {
        previous.dims[d].pop_back();
        if (MaySlice(previous, list.back(), d)) reach(previous, 0, "local_slice");
      }
      for (size_t p = 0; p < pieces_.size(); ++p) {
        const auto piece = static_cast<char>(p);
        if ((in_from_ & Bit(static_cast<int>(p))) == 0 || (used & Bit(static_cast<int>(p))) != 0) {
          continue;
        }
        previous = state;
        previous.dims[d].push_back(piece);
        if (!IsTemporal(piece)) {
          reach(previous, tile * Others(SizeOf(piece)), "all_gather");
        } else if (start_.dims[d].substr(0, list.size() + 1) == previous.dims[d]) {
          reach(previous, kGatherMicrobatchesCost, "gather_microbatches");
        }
      }
      const size_t tail = SpatialTail(list);
      for (size_t k = 1; k <= tail; ++k) {
        const PieceList moved = list.substr(list.size() - k);
        for (size_t source = 0; source < state.dims.size(); ++source) {
          if (source == d) continue;
          previous = state;
          previous.dims[d].resize(list.size() - k);
          previous.dims[source] += moved;
          reach(previous, tile * Others(SizeOf(moved)), "all_to_all");
        }
      }
    }
  }

  // Equal for states that a permute leads between: the same pieces, and as many parts of each
  // dimension before, between and after the same micro-batches.
  std::string PermuteKey(const State& state) const {
    std::string key = std::to_string(InDims(state));
    for (const PieceList& list : state.dims) {
      int64_t parts = 1;
      key += '|';
      for (const char piece : list) {
        if (IsTemporal(piece)) {
          key += std::to_string(parts) + "t" + std::to_string(Index(piece)) + ",";
          parts = 1;
        } else {
          parts *= SizeOf(piece);
        }
      }
      key += std::to_string(parts);
    }
    return key;
  }

  std::vector<ReshardStep> Join(const Frontier& forwards, const Frontier& backwards) const {
    double best = bound_;
    uint32_t best_forwards = kNoState;
    uint32_t best_backwards = kNoState;
    const auto consider = [&](double cost, uint32_t i, uint32_t j) {
      if (cost >= best) return;
      best = cost;
      best_forwards = i;
      best_backwards = j;
    };
    absl::flat_hash_map<std::string, uint32_t> cheapest;
    for (uint32_t i = 0; i < forwards.visits().size(); ++i) {
      const Visit& visit = forwards.visits()[i];
      if (visit.state.unreduced != 0) continue;
      if (const uint32_t j = backwards.Find(visit.state); j != kNoState) {
        consider(visit.cost + backwards.visits()[j].cost, i, j);
      }
      const auto [it, is_new] = cheapest.try_emplace(PermuteKey(visit.state), i);
      if (!is_new && visit.cost < forwards.visits()[it->second].cost) it->second = i;
    }
    for (uint32_t j = 0; j < backwards.visits().size(); ++j) {
      const Visit& visit = backwards.visits()[j];
      const auto it = cheapest.find(PermuteKey(visit.state));
      if (it == cheapest.end()) continue;
      consider(
          forwards.visits()[it->second].cost + Tile(visit.state) + kReshardStepCost + visit.cost,
          it->second, j);
    }
    if (best_forwards == kNoState) return {};
    return Chain(forwards, backwards, best_forwards, best_backwards);
  }

  std::vector<ReshardStep> Chain(const Frontier& forwards, const Frontier& backwards, uint32_t i,
                                 uint32_t j) const {
    std::vector<std::pair<std::string_view, const State*>> steps;
    for (uint32_t at = i; at != 0; at = forwards.visits()[at].neighbour) {
      steps.emplace_back(forwards.visits()[at].op, &forwards.visits()[at].state);
    }
    std::reverse(steps.begin(), steps.end());
    const State& before = forwards.visits()[i].state;
    if (before != backwards.visits()[j].state) {
      steps.emplace_back("permute", &backwards.visits()[j].state);
    }
    for (uint32_t at = j; at != 0; at = backwards.visits()[at].neighbour) {
      const Visit& visit = backwards.visits()[at];
      steps.emplace_back(visit.op, &backwards.visits()[visit.neighbour].state);
    }
    std::vector<ReshardStep> chain;
    const State* last = &start_;
    for (size_t k = 0; k < steps.size(); ++k) {
      const auto& [op, state] = steps[k];
      if (k + 1 < steps.size() && AreOneStep(op, *last, *state, steps[k + 1])) continue;
      chain.push_back({std::string(op), ShardingOf(*state)});
      last = state;
    }
    return chain;
  }

  // Whether the next step may be taken together with this one, from `before` to `after`.
  static bool AreOneStep(std::string_view op, const State& before, const State& after,
                         const std::pair<std::string_view, const State*>& next) {
    if (op != next.first) return false;
    if (op == "local_slice") return true;
    if (op != "all_gather") return false;
    int num_changed = 0;
    for (size_t d = 0; d < before.dims.size(); ++d) {
      if (before.dims[d] != after.dims[d] || after.dims[d] != next.second->dims[d]) ++num_changed;
    }
    return num_changed == 1;
  }

  Sharding ShardingOf(const State& state) const {
    Sharding sharding = Sharding::Replicated(static_cast<int>(state.dims.size()));
    for (size_t d = 0; d < state.dims.size(); ++d) {
      for (const char piece : state.dims[d]) sharding.dims[d].axes.push_back(pieces_[Index(piece)]);
    }
    for (const PartialSpec& partial : from_.partials) {
      PartialSpec left = partial;
      std::erase_if(left.axes, [&](const AxisRef& axis) {
        const auto piece = std::find(pieces_.begin(), pieces_.end(), axis) - pieces_.begin();
        return ((state.unreduced | kept_) & Bit(static_cast<int>(piece))) == 0;
      });
      if (!left.axes.empty()) sharding.partials.push_back(std::move(left));
    }
    graph::Canonicalize(mesh_, &sharding);
    return sharding;
  }

  const Mesh& mesh_;
  const Sharding& from_;
  const double bound_;
  Pieces pieces_;
  PieceSet in_from_ = 0;
  PieceSet in_goal_ = 0;
  PieceSet kept_ = 0;  // that the target is partial over
  State start_;
  State goal_;
};

}  // namespace

std::vector<ReshardStep> SearchReshard(const Mesh& mesh, const Sharding& from, const Sharding& to,
                                       double bound) {
  return Search(mesh, from, to, bound).Run();
}

}  // namespace penstock::planner
