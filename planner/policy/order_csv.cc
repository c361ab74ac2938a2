#include "planner/policy/order_csv.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::planner {
namespace {

constexpr int kMaxNumber = 1 << 20;  // of a stage or a micro-batch

struct Action {
  int stage = 0;
  PhaseKind kind = PhaseKind::kForward;
  bool is_whole_backward = false;
  int microbatch = 0;
};

// And where it stands.
struct PlacedAction {
  Action action;
  size_t line = 0;
  size_t column = 0;
};

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

constexpr std::string_view kBlanks = " \t\r";

std::string_view WithoutLeadingBlanks(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kBlanks), text.size()));
}
std::string_view WithoutTrailingBlanks(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

class CsvParser {
 public:
  CsvParser(std::string_view text, std::string_view file) : text_(text), file_(file) {}

  absl::StatusOr<CsvOrders> Parse() {
    RETURN_IF_ERROR(ReadRows());
    RETURN_IF_ERROR(FindPlacement());
    FindKinds();
    for (size_t g = 0; g < rows_.size(); ++g) {
      std::vector<PhaseChoice>& order = result_.orders.emplace_back();
      for (const PlacedAction& placed : rows_[g]) {
        ASSIGN_OR_RETURN(const PhaseChoice phase, ToPhase(static_cast<int>(g), placed));
        order.push_back(phase);
        if (!placed.action.is_whole_backward || !result_.splits_backward) continue;
        order.push_back({PhaseKind::kWeight, phase.microbatch, phase.chunk});
      }
      RETURN_IF_ERROR(CheckRow(static_cast<int>(g)));
    }
    return std::move(result_);
  }

 private:
  absl::Status Error(size_t line, size_t column, std::string_view what) const {
    return absl::InvalidArgumentError(StrCat(file_, ":", line, ":", column, ": ", what));
  }

  absl::Status ReadRows() {
    size_t line_number = 0;
    for (std::string_view line : Split(text_, '\n')) {
      ++line_number;
      line = WithoutTrailingBlanks(line);
      if (line.empty()) continue;
      std::vector<PlacedAction>& row = rows_.emplace_back();
      size_t column = 1;
      for (const std::string_view cell : Split(line, ',')) {
        RETURN_IF_ERROR(ReadCell(cell, line_number, column, &row));
        column += cell.size() + 1;
      }
    }
    if (rows_.empty()) return Error(1, 1, "no rows; expected one for each group of devices");
    if (rows_.size() > static_cast<size_t>(kMaxGroups)) {
      return Error(1, 1, StrCat(rows_.size(), " rows, expected at most ", kMaxGroups));
    }
    return absl::OkStatus();
  }

  absl::Status ReadCell(std::string_view cell, size_t line, size_t column,
                        std::vector<PlacedAction>* row) {
    const std::string_view trimmed = WithoutLeadingBlanks(cell);
    column += cell.size() - trimmed.size();
    const std::string_view text = WithoutTrailingBlanks(trimmed);
    if (text.empty()) return absl::OkStatus();
    if (text[0] != '(') return ReadAction(text, line, column, row);
    const size_t end = text.find(')');
    if (end == std::string_view::npos || text.substr(end + 1) != "OVERLAP_F_B") {
      return Error(line, column, StrCat("'", text, "': expected '(ACTION;ACTION)OVERLAP_F_B'"));
    }
    result_.has_pairs = true;
    size_t place = column + 1;
    for (const std::string_view part : Split(text.substr(1, end - 1), ';')) {
      RETURN_IF_ERROR(ReadAction(part, line, place, row));
      place += part.size() + 1;
    }
    return absl::OkStatus();
  }

  absl::Status ReadAction(std::string_view text, size_t line, size_t column,
                          std::vector<PlacedAction>* row) {
    const auto bad = [&] {
      return Error(line, column,
                   StrCat("'", text,
                          "': expected an action such as 0F3: a stage, F, B, I or W, and "
                          "a micro-batch"));
    };
    std::string_view rest = text;
    const std::optional<int> stage = TakeNumber(&rest);
    if (!stage.has_value()) return bad();
    const size_t name_end = std::min(rest.find_first_of("0123456789"), rest.size());
    const std::string_view name = rest.substr(0, name_end);
    rest.remove_prefix(name_end);
    const std::optional<int> microbatch = TakeNumber(&rest);
    if (!rest.empty()) return bad();
    for (const std::string_view other :
         {"SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD"}) {
      if (name == other) return absl::OkStatus();
    }
    Action action = {.stage = *stage};
    if (name == "F") {
      action.kind = PhaseKind::kForward;
    } else if (name == "B" || name == "I") {
      action.kind = PhaseKind::kBackward;
      action.is_whole_backward = name == "B";
    } else if (name == "W") {
      action.kind = PhaseKind::kWeight;
    } else {
      return bad();
    }
    if (!microbatch.has_value()) return bad();
    action.microbatch = *microbatch;
    row->push_back({action, line, column});
    return absl::OkStatus();
  }

  static std::optional<int> TakeNumber(std::string_view* text) {
    int number = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
    if (error != std::errc() || number < 0 || number >= kMaxNumber) return std::nullopt;
    text->remove_prefix(static_cast<size_t>(end - text->data()));
    return number;
  }

  // The placement under which each stage lies on the groups that run it.
  absl::Status FindPlacement() {
    int num_stages = 0;
    int num_microbatches = 0;
    std::vector<std::set<int>> groups_of_stage;
    for (size_t g = 0; g < rows_.size(); ++g) {
      for (const PlacedAction& placed : rows_[g]) {
        num_stages = std::max(num_stages, placed.action.stage + 1);
        num_microbatches = std::max(num_microbatches, placed.action.microbatch + 1);
        groups_of_stage.resize(num_stages);
        groups_of_stage[placed.action.stage].insert(static_cast<int>(g));
      }
    }
    const auto num_groups = static_cast<int>(rows_.size());
    if (num_stages == 0) return Error(1, 1, "no phases");
    result_.num_microbatches = num_microbatches;
    if (num_stages == num_groups && num_groups % 2 == 0 && num_microbatches % 2 == 0 &&
        groups_of_stage[0] == std::set<int>{0, num_groups - 1}) {
      result_.placement = {num_groups, 2, Placement::kBidirectional};
      result_.num_microbatches /= 2;
      return absl::OkStatus();
    }
    if (num_stages % num_groups != 0 || num_stages / num_groups > kMaxChunks) {
      return Error(1, 1,
                   StrCat("there are ", num_stages, " stages on ", num_groups,
                          " groups; expected a multiple, at most ", kMaxChunks, " times"));
    }
    for (const Placement placement : {Placement::kLoop, Placement::kVee}) {
      result_.placement = {num_groups, num_stages / num_groups, placement};
      bool fits = true;
      for (int v = 0; v < num_stages && fits; ++v) {
        fits = groups_of_stage[v] == std::set<int>{result_.placement.GroupOf(v)};
      }
      if (fits) return absl::OkStatus();
    }
    return Error(1, 1,
                 "the stages lie on the groups in no known way; expected stage v on group v % "
                 "groups, or back and forth, or each stage on two groups from both ends");
  }

  void FindKinds() {
    for (const std::vector<PlacedAction>& row : rows_) {
      for (const PlacedAction& placed : row) {
        if (placed.action.kind == PhaseKind::kForward) continue;
        result_.has_backward = true;
        if (!placed.action.is_whole_backward) result_.splits_backward = true;
      }
    }
  }

  absl::StatusOr<PhaseChoice> ToPhase(int group, const PlacedAction& placed) const {
    const Action& action = placed.action;
    PhaseChoice phase = {action.kind, action.microbatch, result_.placement.ChunkOf(action.stage)};
    if (result_.placement.placement != Placement::kBidirectional) return phase;
    phase.chunk = action.microbatch < result_.num_microbatches ? 0 : 1;
    phase.microbatch %= result_.num_microbatches;
    if (result_.placement.StageOf(group, phase.chunk) % result_.placement.num_groups !=
        action.stage) {
      return Error(
          placed.line, placed.column,
          StrCat("stage ", action.stage, " of micro-batch ", action.microbatch, " on group ", group,
                 "; expected the first half of the micro-batches on "
                 "group ",
                 action.stage, ", the others on group ",
                 result_.placement.num_groups - 1 - action.stage));
    }
    return phase;
  }

  absl::Status CheckRow(int group) const {
    StageContext context;
    context.stage = group;
    context.num_stages = result_.placement.num_groups;
    context.num_microbatches = result_.num_microbatches;
    context.chunks.assign(result_.placement.num_chunks,
                          {true, result_.has_backward, result_.splits_backward});
    const absl::Status status = CheckOrder(context, result_.orders[group]);
    if (status.ok()) return status;
    const size_t line = rows_[group].empty() ? 1 : rows_[group][0].line;
    return Error(line, 1, StrCat("the order of group ", group, " has ", status.message()));
  }

  const std::string_view text_;
  const std::string_view file_;
  std::vector<std::vector<PlacedAction>> rows_;
  CsvOrders result_;
};

class OrdersPolicy : public Policy {
 public:
  OrdersPolicy(std::string name, CsvOrders csv) : name_(std::move(name)), csv_(std::move(csv)) {}
  std::string_view name() const override { return name_; }
  PolicyNeeds needs() const override {
    return {.placement = csv_.placement.placement,
            .splits_backward = csv_.splits_backward,
            .min_chunks = csv_.placement.num_chunks,
            .max_chunks = csv_.placement.num_chunks,
            .pairs_phases = csv_.has_pairs};
  }
  absl::StatusOr<PipelineOrders> PlanOrders(const Pipeline& pipeline) const override {
    if (pipeline.num_groups == csv_.placement.num_groups &&
        pipeline.num_microbatches == csv_.num_microbatches) {
      return csv_.orders;
    }
    return absl::InvalidArgumentError(StrCat(
        "its orders are for ", csv_.placement.num_groups, " stages and ", csv_.num_microbatches,
        " micro-batches; there are ", pipeline.num_groups, " and ", pipeline.num_microbatches));
  }

 private:
  const std::string name_;
  const CsvOrders csv_;
};

// "0F3". `is_whole`: of a B, with the W that follows it.
std::string ActionText(const Pipeline& pipeline, const PhaseRun& run, bool is_whole = false) {
  const bool is_copy =
      pipeline.placement.placement == Placement::kBidirectional && run.phase.chunk == 1;
  const int stage = is_copy ? run.stage - pipeline.num_groups : run.stage;
  const int microbatch = run.phase.microbatch + (is_copy ? pipeline.num_microbatches : 0);
  const bool is_split = pipeline.stages[run.stage].kinds[2] && !is_whole;
  const std::string_view kind = run.phase.kind == PhaseKind::kForward  ? "F"
                                : run.phase.kind == PhaseKind::kWeight ? "W"
                                : is_split                             ? "I"
                                                                       : "B";
  return StrCat(stage, kind, microbatch);
}

// How many phases from `first` on a pair takes; 0: none begins there.
size_t NumPairedFrom(const Pipeline& pipeline, const std::vector<PhaseRun>& runs, size_t first) {
  if (runs[first].phase.kind != PhaseKind::kForward || first + 1 >= runs.size()) return 0;
  const PhaseRun& backward = runs[first + 1];
  if (backward.phase.kind != PhaseKind::kBackward ||
      backward.phase.chunk == runs[first].phase.chunk) {
    return 0;
  }
  if (!pipeline.stages[backward.stage].kinds[2]) return 2;
  const PhaseChoice weight = {PhaseKind::kWeight, backward.phase.microbatch, backward.phase.chunk};
  return first + 2 < runs.size() && runs[first + 2].phase == weight ? 3 : 0;
}

}  // namespace

std::unique_ptr<const Policy> MakeOrdersPolicy(std::string name, CsvOrders orders) {
  return std::make_unique<OrdersPolicy>(std::move(name), std::move(orders));
}

absl::StatusOr<CsvOrders> ParseOrdersCsv(std::string_view text, std::string_view file) {
  return CsvParser(text, file).Parse();
}

std::string OrdersToCsv(const Pipeline& pipeline, const PipelineOrders& orders, bool pairs) {
  Pipeline in_steps = pipeline;
  for (VirtualStage& stage : in_steps.stages) {
    stage.seconds = {1, 1, 1};
    stage.ready_s = 0;
  }
  for (PipelineEdge& edge : in_steps.edges) edge.latency_s = edge.transfer_s = 0;
  in_steps.cores.clear();
  const absl::StatusOr<Timeline> timeline = RunPipeline(in_steps, orders);
  if (!timeline.ok()) return "";
  const auto num_steps = static_cast<size_t>(std::lround(timeline->makespan_s));
  std::string csv;
  for (const std::vector<PhaseRun>& runs : timeline->groups) {
    std::vector<std::string> cells(num_steps);
    for (size_t i = 0; i < runs.size(); ++i) {
      std::string& cell = cells[static_cast<size_t>(std::lround(runs[i].begin_s))];
      const size_t num_paired = pairs ? NumPairedFrom(pipeline, runs, i) : 0;
      if (num_paired == 0) {
        cell = ActionText(pipeline, runs[i]);
        continue;
      }
      cell = StrCat("(", ActionText(pipeline, runs[i]), ";",
                    ActionText(pipeline, runs[i + 1], /*is_whole=*/true), ")OVERLAP_F_B");
      i += num_paired - 1;
    }
    StrAppend(&csv, StrJoin(cells, ","), "\n");
  }
  return csv;
}

}  // namespace penstock::planner
