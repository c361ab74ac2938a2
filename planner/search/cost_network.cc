#include "planner/search/cost_network.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/status_macros.h"
#include "planner/search/integer_program.h"

namespace penstock::planner {
namespace {

constexpr double kForbiddenCost = std::numeric_limits<double>::infinity();

// How many prices are tried for weights.
constexpr int kMaxPrices = 24;
constexpr double kLargestPrice = 1e6;

// One way to treat weights: `price` is added to costs for each unit, and, if the limit is a row of
// the integer program, no assignment exceeds it.
struct WeightRule {
  double price = 0;
  bool has_row = false;
};

class Minimizer {
 public:
  Minimizer(const CostNetwork& network, const WeightRule& rule) : network_(network), rule_(rule) {
    const size_t count = network.variables.size();
    neighbours_.resize(count);
    is_eliminated_.assign(count, false);
    for (const CostNetwork::Variable& variable : network.variables) {
      std::vector<double>& costs = costs_.emplace_back(variable.costs);
      for (size_t i = 0; i < variable.weights.size(); ++i) {
        costs[i] += rule.price * variable.weights[i];
      }
    }
    for (const CostNetwork::Pair& pair : network.pairs) {
      AddPair(pair.first, pair.second, pair.costs);
    }
  }

  // The bound is one of the costs with the price of weights.
  absl::StatusOr<std::optional<CostAssignment>> Run(const IntegerOptions& options = {}) {
    Eliminate();
    CostAssignment assignment;
    assignment.options.assign(network_.variables.size(), 0);
    ASSIGN_OR_RETURN(const bool has_solution, Solve(options, &assignment));
    if (!has_solution) return std::optional<CostAssignment>();
    for (auto it = eliminated_.rbegin(); it != eliminated_.rend(); ++it) {
      assignment.options[static_cast<size_t>(it->variable)] = BestOption(*it, assignment.options);
    }
    assignment.cost = CostOf(network_, assignment.options);
    assignment.weight = WeightOf(network_, assignment.options);
    if (assignment.cost == kForbiddenCost) return std::optional<CostAssignment>();
    // Where the solver proved its solution best, the bound is the cost, but for rounding.
    assignment.bound =
        std::min(assignment.bound, assignment.cost + rule_.price * assignment.weight);
    return std::optional<CostAssignment>(std::move(assignment));
  }

 private:
  // A variable and the pairs that it was in when it was eliminated.
  struct Eliminated {
    int variable = 0;
    std::vector<double> costs;
    std::vector<std::pair<int, std::vector<double>>> pairs;  // other; own option major
  };

  int NumOptions(int variable) const {
    return static_cast<int>(costs_[static_cast<size_t>(variable)].size());
  }

  // Costs by option of `first` and, minor, of `second`, added to those that are there.
  void AddPair(int first, int second, const std::vector<double>& costs) {
    std::vector<double>& sum = neighbours_[static_cast<size_t>(first)][second];
    std::vector<double>& transposed = neighbours_[static_cast<size_t>(second)][first];
    sum.resize(costs.size());
    transposed.resize(costs.size());
    const int rows = NumOptions(first);
    const int columns = NumOptions(second);
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < columns; ++j) {
        const double cost = costs[static_cast<size_t>(i * columns + j)];
        sum[static_cast<size_t>(i * columns + j)] += cost;
        transposed[static_cast<size_t>(j * rows + i)] += cost;
      }
    }
  }

  bool MayEliminate(int variable) const {
    if (is_eliminated_[static_cast<size_t>(variable)]) return false;
    if (neighbours_[static_cast<size_t>(variable)].size() > 2) return false;
    const std::vector<double>& weights = network_.variables[static_cast<size_t>(variable)].weights;
    return !rule_.has_row || std::all_of(weights.begin(), weights.end(),
                                         [&](double weight) { return weight == weights[0]; });
  }

  void Eliminate() {
    std::vector<int> queue;
    for (int v = static_cast<int>(costs_.size()) - 1; v >= 0; --v) queue.push_back(v);
    while (!queue.empty()) {
      const int variable = queue.back();
      queue.pop_back();
      if (!MayEliminate(variable)) continue;
      Eliminated record{variable, costs_[static_cast<size_t>(variable)], {}};
      for (auto& [other, costs] : neighbours_[static_cast<size_t>(variable)]) {
        record.pairs.emplace_back(other, std::move(costs));
        neighbours_[static_cast<size_t>(other)].erase(variable);
        queue.push_back(other);
      }
      neighbours_[static_cast<size_t>(variable)].clear();
      is_eliminated_[static_cast<size_t>(variable)] = true;
      Fold(record);
      eliminated_.push_back(std::move(record));
    }
  }

  // The least over the options becomes a cost of the variables that are left.
  void Fold(const Eliminated& record) {
    if (record.pairs.empty()) return;
    const int first = record.pairs[0].first;
    if (record.pairs.size() == 1) {
      for (int i = 0; i < NumOptions(first); ++i) {
        costs_[static_cast<size_t>(first)][static_cast<size_t>(i)] += Least(record, {i}).second;
      }
      return;
    }
    const int second = record.pairs[1].first;
    std::vector<double> costs;
    for (int i = 0; i < NumOptions(first); ++i) {
      for (int j = 0; j < NumOptions(second); ++j) costs.push_back(Least(record, {i, j}).second);
    }
    AddPair(first, second, costs);
  }

  // The best option beside these of the others, and its cost.
  std::pair<int, double> Least(const Eliminated& record, absl::Span<const int> others) const {
    std::pair<int, double> least = {0, kForbiddenCost};
    for (size_t option = 0; option < record.costs.size(); ++option) {
      double cost = record.costs[option];
      for (size_t p = 0; p < others.size(); ++p) {
        const auto columns = static_cast<size_t>(NumOptions(record.pairs[p].first));
        cost += record.pairs[p].second[option * columns + static_cast<size_t>(others[p])];
      }
      if (cost < least.second) least = {static_cast<int>(option), cost};
    }
    return least;
  }

  int BestOption(const Eliminated& record, absl::Span<const int> options) const {
    std::vector<int> others;
    for (const auto& [other, costs] : record.pairs) {
      others.push_back(options[static_cast<size_t>(other)]);
    }
    return Least(record, others).first;
  }

  // The variables that are left, as an integer program. Its columns are the options of each
  // variable, and for each pair the combinations of their options.
  absl::StatusOr<bool> Solve(const IntegerOptions& options, CostAssignment* assignment) {
    IntegerProgram program;
    std::map<int, int> first_column;
    IntegerProgram::Row limit;
    limit.upper = network_.weight_limit;
    double constant_weight = 0;
    for (size_t v = 0; v < costs_.size(); ++v) {
      const std::vector<double>& weights = network_.variables[v].weights;
      if (is_eliminated_[v]) {
        if (!weights.empty()) constant_weight += weights[0];
        continue;
      }
      const auto first = static_cast<int>(program.columns.size());
      first_column[static_cast<int>(v)] = first;
      IntegerProgram::Row one = {{}, 1, 1};
      for (size_t option = 0; option < costs_[v].size(); ++option) {
        const int column = first + static_cast<int>(option);
        program.columns.push_back({costs_[v][option], true});
        one.terms.emplace_back(column, 1);
        if (!weights.empty() && weights[option] > 0) {
          limit.terms.emplace_back(column, weights[option]);
        }
      }
      program.rows.push_back(std::move(one));
    }
    assignment->num_solved = static_cast<int>(first_column.size());
    for (const auto& [variable, column] : first_column) {
      for (const auto& [other, costs] : neighbours_[static_cast<size_t>(variable)]) {
        if (other < variable) continue;
        AddPairColumns(costs, column, NumOptions(variable), first_column.at(other),
                       NumOptions(other), &program);
      }
    }
    if (rule_.has_row) {
      limit.upper -= constant_weight;
      if (limit.upper < 0) return false;
      // Weights in bytes would be far larger than the other coefficients.
      if (limit.upper > 0) {
        for (auto& [column, weight] : limit.terms) weight /= limit.upper;
        limit.upper = 1;
      }
      if (!limit.terms.empty()) program.rows.push_back(std::move(limit));
    }
    IntegerOptions of_rest = options;
    of_rest.cutoff -= EliminatedConstant();
    ASSIGN_OR_RETURN(const std::optional<IntegerSolution> solution,
                     SolveIntegerProgram(program, of_rest));
    if (!solution.has_value()) return false;
    for (const auto& [variable, column] : first_column) {
      for (int option = 0; option < NumOptions(variable); ++option) {
        if (solution->values[static_cast<size_t>(column + option)] > 0.5) {
          assignment->options[static_cast<size_t>(variable)] = option;
        }
      }
    }
    assignment->bound = solution->bound + EliminatedConstant();
    return true;
  }

  // What variables cost that were eliminated last of their component.
  double EliminatedConstant() const {
    double sum = 0;
    for (const Eliminated& record : eliminated_) {
      if (record.pairs.empty()) sum += Least(record, {}).second;
    }
    return sum;
  }

  static void AddPairColumns(const std::vector<double>& costs, int first_column, int num_first,
                             int second_column, int num_second, IntegerProgram* program) {
    const auto base = static_cast<int>(program->columns.size());
    for (const double cost : costs) program->columns.push_back({cost, false});
    for (int i = 0; i < num_first; ++i) {
      IntegerProgram::Row row = {{{first_column + i, -1.0}}, 0, 0};
      for (int j = 0; j < num_second; ++j) row.terms.emplace_back(base + i * num_second + j, 1);
      program->rows.push_back(std::move(row));
    }
    for (int j = 0; j < num_second; ++j) {
      IntegerProgram::Row row = {{{second_column + j, -1.0}}, 0, 0};
      for (int i = 0; i < num_first; ++i) row.terms.emplace_back(base + i * num_second + j, 1);
      program->rows.push_back(std::move(row));
    }
  }

  const CostNetwork& network_;
  const WeightRule rule_;
  std::vector<std::vector<double>> costs_;                      // by variable and option
  std::vector<std::map<int, std::vector<double>>> neighbours_;  // by variable; own option major
  std::vector<bool> is_eliminated_;
  std::vector<Eliminated> eliminated_;
};

}  // namespace

double CostOf(const CostNetwork& network, absl::Span<const int> options) {
  double cost = 0;
  for (size_t v = 0; v < network.variables.size(); ++v) {
    cost += network.variables[v].costs[static_cast<size_t>(options[v])];
  }
  for (const CostNetwork::Pair& pair : network.pairs) {
    const auto second = static_cast<size_t>(pair.second);
    const size_t columns = network.variables[second].costs.size();
    cost += pair.costs[static_cast<size_t>(options[static_cast<size_t>(pair.first)]) * columns +
                       static_cast<size_t>(options[second])];
  }
  return cost;
}

double WeightOf(const CostNetwork& network, absl::Span<const int> options) {
  double weight = 0;
  for (size_t v = 0; v < network.variables.size(); ++v) {
    const std::vector<double>& weights = network.variables[v].weights;
    if (!weights.empty()) weight += weights[static_cast<size_t>(options[v])];
  }
  return weight;
}

absl::StatusOr<std::optional<CostAssignment>> Minimize(const CostNetwork& network, double max_gap) {
  const double limit = network.weight_limit;
  ASSIGN_OR_RETURN(std::optional<CostAssignment> above, Minimizer(network, {}).Run());
  if (!above.has_value() || above->weight <= limit) return above;

  // The best assignments for a price on either side of the limit, and the best bound so far.
  std::optional<CostAssignment> below;
  double bound = above->bound;
  double price = above->cost / std::max(limit, 1.0);
  const double largest_price = price * kLargestPrice;
  for (int i = 0; i < kMaxPrices && price <= largest_price; ++i) {
    ASSIGN_OR_RETURN(const std::optional<CostAssignment> priced,
                     Minimizer(network, {.price = price}).Run());
    if (!priced.has_value()) break;
    bound = std::max(bound, priced->bound - price * limit);
    const bool is_within = priced->weight <= limit;
    std::optional<CostAssignment>& side = is_within ? below : above;
    const bool is_better = !side.has_value() ||
                           (is_within ? priced->cost < side->cost : priced->weight < side->weight);
    if (is_better) side = priced;
    if (below.has_value() && below->cost <= bound * (1 + max_gap)) break;
    if (!below.has_value()) {
      price *= 8;
    } else if (!is_better) {
      break;  // no price separates what lies between
    } else {
      price = (below->cost - above->cost) / (above->weight - below->weight);
    }
  }
  if (below.has_value() && below->cost <= bound * (1 + max_gap)) {
    below->bound = std::min(bound, below->cost);
    return below;
  }
  IntegerOptions options;
  options.max_gap = max_gap;
  if (below.has_value()) options.cutoff = below->cost;
  absl::StatusOr<std::optional<CostAssignment>> exact =
      Minimizer(network, {.has_row = true}).Run(options);
  if (!exact.ok()) {
    if (!below.has_value()) return exact.status();
    below->bound = bound;
    return below;
  }
  std::optional<CostAssignment>& best = *exact;
  if (best.has_value() && (!below.has_value() || best->cost < below->cost)) {
    best->bound = std::max(best->bound, std::min(bound, best->cost));
    return best;
  }
  // Nothing costs less than the cutoff.
  if (below.has_value()) below->bound = below->cost;
  return below;
}

}  // namespace penstock::planner
