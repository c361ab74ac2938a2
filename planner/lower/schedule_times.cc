#include "planner/lower/schedule_times.h"

#include <algorithm>
#include <limits>

namespace penstock::planner {

std::optional<ScheduleTimes> ScheduleTimes::Of(const std::vector<std::vector<PhaseChoice>>& orders,
                                               int num_microbatches, const PhaseReads& reads) {
  constexpr double kNotYet = -1;
  ScheduleTimes times;
  times.num_microbatches_ = num_microbatches;
  const auto phase_of = [](size_t stage, const PhaseChoice& choice) {
    return StagePhase{static_cast<int>(stage), {choice.chunk, choice.kind}};
  };
  for (size_t s = 0; s < orders.size(); ++s) {
    for (const PhaseChoice& choice : orders[s]) {
      if (choice.microbatch < 0 || choice.microbatch >= num_microbatches) return std::nullopt;
      times.times_[phase_of(s, choice)].resize(num_microbatches, {kNotYet, kNotYet});
    }
  }
  std::map<StagePhase, std::vector<const std::vector<Interval>*>> sources;
  for (const auto& [from, to] : reads) {
    const auto source = times.times_.find(from);
    if (source != times.times_.end()) sources[to].push_back(&source->second);
  }
  std::vector<size_t> next(orders.size(), 0);
  std::vector<double> now(orders.size(), 0);
  // When the next phase of a stage can begin; kNotYet: what it reads is not made.
  const auto ready_at = [&](size_t s, const PhaseChoice& choice) {
    double time = now[s];
    const auto it = sources.find(phase_of(s, choice));
    if (it == sources.end()) return time;
    for (const std::vector<Interval>* source : it->second) {
      const double end = (*source)[choice.microbatch].end;
      if (end == kNotYet) return kNotYet;
      time = std::max(time, end);
    }
    return time;
  };
  for (bool has_moved = true; has_moved;) {
    has_moved = false;
    for (size_t s = 0; s < orders.size(); ++s) {
      for (; next[s] < orders[s].size(); ++next[s]) {
        const PhaseChoice& choice = orders[s][next[s]];
        const double begin = ready_at(s, choice);
        if (begin == kNotYet) break;
        now[s] = begin + (choice.kind == PhaseKind::kBackward ? 2 : 1);
        times.times_[phase_of(s, choice)][choice.microbatch] = {begin, now[s]};
        has_moved = true;
      }
    }
  }
  for (size_t s = 0; s < orders.size(); ++s) {
    if (next[s] < orders[s].size()) return std::nullopt;
  }
  return times;
}

int ScheduleTimes::MostHeld(int stage, const std::set<ChunkPhase>& readers,
                            const std::optional<StagePhase>& source) const {
  const std::vector<Interval>* made = nullptr;
  if (source.has_value()) {
    const auto it = times_.find(*source);
    if (it == times_.end()) return num_microbatches_;
    made = &it->second;
  }
  std::vector<std::pair<double, int>> changes;
  for (int m = 0; m < num_microbatches_; ++m) {
    Interval held = {std::numeric_limits<double>::infinity(), 0};
    for (const ChunkPhase& reader : readers) {
      const auto it = times_.find({stage, reader});
      if (it == times_.end()) return num_microbatches_;
      held.begin = std::min(held.begin, it->second[m].begin);
      held.end = std::max(held.end, it->second[m].end);
    }
    if (made != nullptr) held.begin = (*made)[m].end;
    if (held.begin >= held.end) continue;
    changes.emplace_back(held.begin, 1);
    changes.emplace_back(held.end, -1);
  }
  // What ends makes room for what begins at the same time.
  std::sort(changes.begin(), changes.end());
  int now = 0;
  int most = 1;
  for (const auto& [time, change] : changes) most = std::max(most, now += change);
  return most;
}

}  // namespace penstock::planner
