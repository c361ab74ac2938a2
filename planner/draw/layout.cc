#include "planner/draw/layout.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace penstock::planner {
namespace {

constexpr int kSweeps = 6;
constexpr double kJunctionWidth = 0.7;   // of a box: with room for a label before it
constexpr double kColumnGap = 0.5;       // likewise
constexpr double kForwardColumnGap = 1;  // beside the loops of the next column

class LayoutMaker {
 public:
  explicit LayoutMaker(const DrawnGraph& graph)
      : graph_(graph),
        levels_(graph.boxes.size(), 0),
        neighbours_(graph.boxes.size()),
        source_of_junction_(graph.boxes.size(), -1) {
    for (const DrawnEdge& edge : graph.edges) {
      if (edge.is_loop) continue;
      if (graph.boxes[static_cast<size_t>(edge.to)].is_junction) {
        source_of_junction_[static_cast<size_t>(edge.to)] = edge.from;
      }
      neighbours_[static_cast<size_t>(edge.from)].push_back(edge.to);
      neighbours_[static_cast<size_t>(edge.to)].push_back(edge.from);
    }
  }

  Layout Run() {
    FindLevels();
    layout_.boxes.resize(graph_.boxes.size());
    for (size_t b = 0; b < levels_.size(); ++b) {
      layout_.boxes[b].level = levels_[b];
      layout_.num_levels = std::max(layout_.num_levels, levels_[b] + 1);
      rows_[{ColumnOf(static_cast<int>(b)), levels_[b]}].push_back(static_cast<int>(b));
    }
    PlaceColumns();
    for (int sweep = 0; sweep < kSweeps; ++sweep) Sweep(sweep % 2 == 0);
    return std::move(layout_);
  }

 private:
  int ColumnOf(int box) const {
    return static_cast<int>(graph_.boxes[static_cast<size_t>(box)].column);
  }
  double WidthOf(int box) const {
    return graph_.boxes[static_cast<size_t>(box)].is_junction ? kJunctionWidth : 1;
  }

  // The longest path to each box within its column.
  std::vector<int> Depths() const {
    std::vector<int> depths(graph_.boxes.size(), 0);
    std::vector<std::vector<int>> sources(graph_.boxes.size());
    for (const DrawnEdge& edge : graph_.edges) {
      if (!edge.is_loop && ColumnOf(edge.from) == ColumnOf(edge.to)) {
        sources[static_cast<size_t>(edge.to)].push_back(edge.from);
      }
    }
    // Boxes come after those that they read from.
    for (size_t b = 0; b < depths.size(); ++b) {
      for (const int source : sources[b]) {
        depths[b] = std::max(depths[b], depths[static_cast<size_t>(source)] + 1);
      }
    }
    return depths;
  }

  void FindLevels() {
    const std::vector<int> depths = Depths();
    std::vector<int> deepest(kNumDrawnColumns, -1);
    for (size_t b = 0; b < depths.size(); ++b) {
      int& most = deepest[static_cast<size_t>(ColumnOf(static_cast<int>(b)))];
      most = std::max(most, depths[b]);
    }
    const int bottom = std::max(deepest[0], deepest[1]);
    for (size_t b = 0; b < depths.size(); ++b) {
      switch (graph_.boxes[b].column) {
        case DrawnColumn::kForward:
          levels_[b] = bottom - deepest[0] + depths[b];
          break;
        case DrawnColumn::kBackward:
          levels_[b] = bottom - depths[b];
          break;
        case DrawnColumn::kWeightBackward:
          levels_[b] = -1;
          break;
        case DrawnColumn::kUpdate:
          levels_[b] = depths[b];
          break;
      }
    }
    // Boxes of weight gradients, in order: beside the last backward box that they read, or just
    // above a weight gradient.
    for (const DrawnEdge& edge : SortedByTarget()) {
      const auto to = static_cast<size_t>(edge.to);
      const auto from = static_cast<size_t>(edge.from);
      if (graph_.boxes[to].column != DrawnColumn::kWeightBackward) continue;
      int level = levels_[from];
      if (graph_.boxes[from].column == DrawnColumn::kForward) continue;
      if (graph_.boxes[from].column == DrawnColumn::kWeightBackward &&
          !graph_.boxes[to].is_junction) {
        level = std::max(level - 1, 0);
      }
      levels_[to] = levels_[to] < 0 ? level : std::min(levels_[to], level);
    }
    for (int& level : levels_) level = std::max(level, 0);
  }

  std::vector<DrawnEdge> SortedByTarget() const {
    std::vector<DrawnEdge> edges;
    for (const DrawnEdge& edge : graph_.edges) {
      if (!edge.is_loop) edges.push_back(edge);
    }
    std::stable_sort(edges.begin(), edges.end(),
                     [](const DrawnEdge& a, const DrawnEdge& b) { return a.to < b.to; });
    return edges;
  }

  double RowWidth(const std::vector<int>& row) const {
    return std::accumulate(row.begin(), row.end(), 0.0,
                           [this](double sum, int box) { return sum + WidthOf(box); });
  }

  void PlaceColumns() {
    double at = 0;
    for (int column = 0; column < kNumDrawnColumns; ++column) {
      double width = 0;
      for (const auto& [key, row] : rows_) {
        if (key.first == column) width = std::max(width, RowWidth(row));
      }
      if (width > 0 && at > 0) at += column == 1 ? kForwardColumnGap : kColumnGap;
      layout_.column_begin[column] = at;
      layout_.column_end[column] = at + width;
      at += width;
    }
    layout_.num_slots = at;
    for (auto& [key, row] : rows_) Spread(key.first, row);
  }

  // The row's boxes side by side, in the middle of the column.
  void Spread(int column, const std::vector<int>& row) {
    double at = (layout_.column_begin[column] + layout_.column_end[column] - RowWidth(row)) / 2;
    for (const int box : row) {
      layout_.boxes[static_cast<size_t>(box)].slot = at + WidthOf(box) / 2;
      at += WidthOf(box);
    }
  }

  // Orders each row by the mean slot of what its boxes are joined with.
  void Sweep(bool is_downwards) {
    std::vector<std::pair<const std::pair<int, int>, std::vector<int>>*> rows;
    for (auto& row : rows_) rows.push_back(&row);
    if (!is_downwards) std::reverse(rows.begin(), rows.end());
    for (auto* row : rows) {
      std::map<int, double> means;
      for (const int box : row->second) {
        const std::vector<int>& others = neighbours_[static_cast<size_t>(box)];
        double sum = 0;
        for (const int other : others) sum += layout_.boxes[static_cast<size_t>(other)].slot;
        means[box] = others.empty() ? layout_.boxes[static_cast<size_t>(box)].slot
                                    : sum / static_cast<double>(others.size());
      }
      // A junction stays right after its source where that is in the row.
      const auto leader = [&](int box) {
        const int source = source_of_junction_[static_cast<size_t>(box)];
        const bool is_here =
            std::find(row->second.begin(), row->second.end(), source) != row->second.end();
        return is_here ? source : box;
      };
      std::stable_sort(row->second.begin(), row->second.end(), [&](int a, int b) {
        const int first = leader(a);
        const int second = leader(b);
        if (first == second) return a < b;  // a source before its junction
        return std::pair(means[first], first) < std::pair(means[second], second);
      });
      Spread(row->first.first, row->second);
    }
  }

  const DrawnGraph& graph_;
  std::vector<int> levels_;
  std::vector<std::vector<int>> neighbours_;
  std::vector<int> source_of_junction_;                   // -1: the box is none
  std::map<std::pair<int, int>, std::vector<int>> rows_;  // of a column and level
  Layout layout_;
};

}  // namespace

Layout LayOut(const DrawnGraph& graph) { return LayoutMaker(graph).Run(); }

}  // namespace penstock::planner
