#include "planner/draw/graph_blocks.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/strings.h"

namespace penstock::planner {
namespace {

// Of one sequence; thousands of short repeats would take quadratic time.
constexpr size_t kMaxComparisons = 50'000'000;

void AddRepeats(absl::Span<const int> sequence, size_t begin, size_t end, size_t* comparisons,
                std::vector<Repeat>* repeats) {
  if (begin >= end) return;
  Repeat best = {begin, end - begin, 1};
  size_t covered = 0;
  *comparisons += (end - begin) * std::min((end - begin) / 2, kMaxRepeatPeriod);
  if (*comparisons > kMaxComparisons) {
    repeats->push_back(best);
    return;
  }
  for (size_t period = 1; period <= std::min((end - begin) / 2, kMaxRepeatPeriod); ++period) {
    size_t equal = 0;  // positions up to `at` that are as those a period later
    for (size_t at = begin; at + period < end; ++at) {
      equal = sequence[at] == sequence[at + period] ? equal + 1 : 0;
      const size_t count = (equal + period) / period;
      if (count < 2 || count * period <= covered) continue;
      covered = count * period;
      best = {at + 1 - equal, period, count};
    }
  }
  if (covered > 0) AddRepeats(sequence, begin, best.first, comparisons, repeats);
  repeats->push_back(best);
  if (covered > 0) AddRepeats(sequence, best.first + covered, end, comparisons, repeats);
}

class Folder {
 public:
  explicit Folder(const DrawnGraph& graph) : graph_(graph), steps_(graph.boxes.size()) {}

  std::vector<StageBlocks> Run() {
    FillSteps();
    // Boxes of each stage and column, in order.
    std::map<int, std::array<std::vector<size_t>, kNumDrawnColumns>> stages;
    for (size_t b = 0; b < graph_.boxes.size(); ++b) {
      const DrawnBox& box = graph_.boxes[b];
      if (!box.is_junction) stages[box.stage][static_cast<size_t>(box.column)].push_back(b);
    }
    std::vector<StageBlocks> folded;
    std::map<std::vector<int>, size_t> alike;  // by the keys of all steps
    for (const auto& [stage, columns] : stages) {
      std::vector<int> keys;
      for (size_t c = 0; c < columns.size(); ++c) {
        if (c == static_cast<size_t>(DrawnColumn::kUpdate)) continue;
        for (const size_t box : columns[c]) {
          keys.push_back(KeyOf(steps_[box]));
          for (const BlockTransfer& transfer : steps_[box].transfers) {
            keys.push_back(NumberOf(StrCat(transfer.label, " ", transfer.bytes)));
          }
        }
        keys.push_back(-1);
      }
      const auto [it, is_new] = alike.try_emplace(std::move(keys), folded.size());
      if (is_new) folded.push_back(Fold(columns));
      folded[it->second].stages.push_back(stage);
    }
    return folded;
  }

 private:
  void FillSteps() {
    // A junction stands for the box that it comes from.
    std::vector<size_t> sources(graph_.boxes.size());
    for (size_t b = 0; b < sources.size(); ++b) {
      const DrawnBox& box = graph_.boxes[b];
      sources[b] = b;
      steps_[b] = {box.op, box.name, box.type, box.sharding, box.title, box.count, {}};
    }
    for (const DrawnEdge& edge : graph_.edges) {
      const auto to = static_cast<size_t>(edge.to);
      if (graph_.boxes[to].is_junction) sources[to] = sources[static_cast<size_t>(edge.from)];
    }
    for (const DrawnEdge& edge : graph_.edges) {
      if (edge.label.empty()) continue;
      steps_[sources[static_cast<size_t>(edge.from)]].transfers.push_back({edge.label, edge.bytes});
    }
  }

  int KeyOf(const BlockStep& step) {
    return NumberOf(StrCat(step.op, "\n", step.type, "\n", step.sharding, "\n", step.count));
  }

  // Equal texts have equal numbers.
  int NumberOf(std::string text) {
    return keys_.try_emplace(std::move(text), static_cast<int>(keys_.size())).first->second;
  }

  // Adds what is communicated of another copy of the step.
  static void Merge(const std::vector<BlockTransfer>& transfers, BlockStep* step) {
    for (const BlockTransfer& transfer : transfers) {
      const auto same = std::find_if(
          step->transfers.begin(), step->transfers.end(), [&](const BlockTransfer& other) {
            return other.label == transfer.label && other.bytes == transfer.bytes;
          });
      if (same != step->transfers.end()) {
        ++same->copies;
      } else {
        step->transfers.push_back(transfer);
      }
    }
  }

  StageBlocks Fold(const std::array<std::vector<size_t>, kNumDrawnColumns>& columns) {
    StageBlocks stage;
    for (size_t c = 0; c < columns.size(); ++c) {
      const std::vector<size_t>& boxes = columns[c];
      std::vector<int> keys;
      for (const size_t box : boxes) keys.push_back(KeyOf(steps_[box]));
      for (const Repeat& repeat : FindRepeats(keys)) {
        Block& block = stage.columns[c].emplace_back();
        block.count = static_cast<int>(repeat.count);
        block.last_name = steps_[boxes[repeat.first + (repeat.count - 1) * repeat.period]].name;
        for (size_t i = 0; i < repeat.period; ++i) {
          block.steps.push_back(steps_[boxes[repeat.first + i]]);
          for (size_t copy = 1; copy < repeat.count; ++copy) {
            const size_t box = boxes[repeat.first + copy * repeat.period + i];
            Merge(steps_[box].transfers, &block.steps.back());
          }
        }
      }
      if (c == static_cast<size_t>(DrawnColumn::kUpdate)) continue;
      for (const size_t box : boxes) stage.num_steps += steps_[box].count;
    }
    return stage;
  }

  const DrawnGraph& graph_;
  std::vector<BlockStep> steps_;  // by box
  std::map<std::string, int> keys_;
};

}  // namespace

std::vector<StageBlocks> FoldBlocks(const DrawnGraph& graph) { return Folder(graph).Run(); }

std::vector<Repeat> FindRepeats(absl::Span<const int> sequence) {
  std::vector<Repeat> repeats;
  size_t comparisons = 0;
  AddRepeats(sequence, 0, sequence.size(), &comparisons, &repeats);
  return repeats;
}

}  // namespace penstock::planner
