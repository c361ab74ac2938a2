#include "cli/report_operators.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "actors/trace/communication_times.h"
#include "actors/trace/computation_times.h"
#include "base/strings.h"
#include "base/tensor.h"
#include "planner/cost/kernel_cost.h"
#include "planner/draw/drawn_graph.h"
#include "planner/draw/layer_names.h"

namespace penstock::cli {
namespace {

using planner::ActorKind;
using planner::ActorPlan;
using planner::PhaseKind;

constexpr size_t kMaxShapes = 8;  // of an operator

std::string OpOf(const planner::Plan& plan, const ActorPlan& actor) {
  if (actor.kind == ActorKind::kCollective) {
    return std::string(Name(plan.collectives[actor.target].kind));
  }
  if (actor.kernel != planner::kNone) return plan.kernels[actor.kernel].op;
  return std::string(planner::Name(actor.kind));
}

// What one act computes or moves.
graph::OpCost CostOf(const planner::Plan& plan, const graph::OpRegistry& ops,
                     const ActorPlan& actor) {
  switch (actor.kind) {
    case ActorKind::kCollective: {
      graph::OpCost cost;
      const CollectiveSpec& spec = plan.collectives[actor.target];
      for (size_t rank = 0; rank < spec.devices.size(); ++rank) {
        cost.bytes = std::max(
            cost.bytes, static_cast<double>(planner::ReceivedBytes(spec, static_cast<int>(rank))));
      }
      return cost;
    }
    case ActorKind::kSend:
    case ActorKind::kRecv: {
      graph::OpCost cost;
      cost.bytes = static_cast<double>(plan.transfers[actor.target].num_bytes);
      return cost;
    }
    default:
      return actor.kernel == planner::kNone ? graph::OpCost()
                                            : planner::KernelCost(ops, plan.kernels[actor.kernel]);
  }
}

// "f32[8, 16], f32[16, 4] to f32[8, 4]".
std::string ShapesOf(const planner::Plan& plan, const ActorPlan& actor) {
  if (actor.kernel == planner::kNone) return "";
  const auto list = [](const std::vector<planner::TilePlan>& tiles) {
    std::vector<std::string> texts;
    for (const planner::TilePlan& tile : tiles) {
      texts.push_back(ToString(TensorType{tile.dtype, tile.shape}));
    }
    return StrJoin(texts, ", ");
  };
  const planner::KernelPlan& kernel = plan.kernels[actor.kernel];
  return StrCat(list(kernel.inputs), " to ", list(kernel.outputs));
}

// "h12.mlp.w1.grad_7" as "h*.mlp.w1.grad_*": the passes number names that they make up.
std::string Folded(std::string_view name) {
  const size_t end = name.find_last_not_of("0123456789");
  const bool is_numbered = end != std::string_view::npos && end + 1 < name.size() && end > 0 &&
                           (name[end] == '_' || name[end] == ' ');
  const std::string folded = planner::WithoutLayer(is_numbered ? name.substr(0, end + 1) : name);
  return is_numbered ? folded + "*" : folded;
}

std::string_view PhaseName(PhaseKind kind) {
  switch (kind) {
    case PhaseKind::kBeforeStep:
      return "before the step";
    case PhaseKind::kAfterStep:
      return "update";
    case PhaseKind::kTransfer:
      return "between phases";
    default:
      return planner::Name(kind);
  }
}

struct Sum {
  ReportOperator op;
  double flops = 0;
  double bytes = 0;
};

}  // namespace

void CollectOperators(const planner::Plan& plan, absl::Span<const actors::TraceEvent> events,
                      const graph::OpRegistry& ops, std::optional<actors::StepRange> traced,
                      Report* report) {
  if (!traced.has_value()) return;
  const int64_t first = traced->first + (traced->last > traced->first ? 1 : 0);
  const auto num_steps = static_cast<double>(traced->last - first + 1);
  const std::vector<actors::TraceEvent> serial = actors::SerializeComputations(plan, events);
  const std::vector<actors::TransferTime> transfers = actors::TransferTimes(plan, events);
  // What an actor is part of; sums by operator, name, stage and kind of phase.
  std::map<std::tuple<std::string, std::string, uint32_t, PhaseKind>, size_t> indices;
  std::map<std::pair<uint32_t, uint32_t>, std::pair<size_t, graph::OpCost>> actors;
  std::vector<Sum> sums;
  double total_s = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    const actors::TraceEvent& event = events[i];
    const bool moves = actors::IsCommunication(plan, event);
    if (event.step < first || event.step > traced->last) continue;
    if (!moves && !actors::IsComputation(plan, event)) continue;
    const planner::DevicePlan& device = plan.devices[event.device];
    if (event.phase >= device.phases.size()) continue;
    const auto [it, is_new] = actors.try_emplace({event.device, event.actor});
    if (is_new) {
      const ActorPlan& actor = device.actors[event.actor];
      const PhaseKind kind = device.phases[event.phase].kind;
      const std::string op = OpOf(plan, actor);
      const std::string name = Folded(actor.name);
      const auto [index, is_first] =
          indices.try_emplace({op, name, device.stage, kind}, sums.size());
      if (is_first) {
        Sum& sum = sums.emplace_back();
        sum.op.op = op;
        sum.op.name = name;
        sum.op.where = StrCat("stage ", device.stage, ", ", PhaseName(kind));
      }
      it->second = {index->second, CostOf(plan, ops, actor)};
      std::vector<std::string>& shapes = sums[index->second].op.shapes;
      std::string shape = ShapesOf(plan, actor);
      if (!shape.empty() && shapes.size() < kMaxShapes &&
          std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) {
        shapes.push_back(std::move(shape));
      }
    }
    const auto& [index, cost] = it->second;
    Sum& sum = sums[index];
    const int64_t ns = moves ? transfers[i].moving_ns : serial[i].end_ns - serial[i].begin_ns;
    const double seconds = 1e-9 * static_cast<double>(ns);
    sum.op.calls += 1;
    sum.op.seconds += seconds;
    sum.flops += cost.flops;
    sum.bytes += cost.bytes;
    total_s += seconds;
  }
  std::stable_sort(sums.begin(), sums.end(),
                   [](const Sum& a, const Sum& b) { return a.op.seconds > b.op.seconds; });
  report->num_operators = static_cast<int64_t>(sums.size());
  sums.resize(std::min(sums.size(), kMaxReportOperators));
  for (Sum& sum : sums) {
    if (sum.op.seconds > 0) {
      if (sum.flops > 0) sum.op.flops_per_s = sum.flops / sum.op.seconds;
      if (sum.bytes > 0) sum.op.bytes_per_s = sum.bytes / sum.op.seconds;
    }
    sum.op.share = total_s > 0 ? sum.op.seconds / total_s : 0;
    sum.op.calls /= num_steps;
    sum.op.seconds /= num_steps;
    report->operators.push_back(std::move(sum.op));
  }
}

}  // namespace penstock::cli
