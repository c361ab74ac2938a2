#include "planner/strategy/stated_shardings.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"

#include "base/counted.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/op.h"
#include "graph/text.h"

namespace penstock::planner {
namespace {

using graph::Mesh;
using graph::Sharding;
using graph::SplitHint;
using graph::ValueId;

// The mesh with the axes of strategies that it lacks behind its own.
Mesh WithAllAxes(Mesh mesh) {
  for (const char* name : {"mb", "dp", "ep", "cp", "tp"}) {
    if (mesh.FindAxis(name) < 0) mesh.axes.push_back({name, 1, std::string_view(name) == "mb"});
  }
  return mesh;
}

// Without the axes from `num_axes` on.
void DropAxes(size_t num_axes, Sharding* sharding) {
  const auto drop = [num_axes](std::vector<graph::AxisRef>* axes) {
    std::erase_if(*axes, [num_axes](const graph::AxisRef& axis) {
      return static_cast<size_t>(axis.axis) >= num_axes;
    });
  };
  for (graph::DimSharding& dim : sharding->dims) drop(&dim.axes);
  for (graph::PartialSpec& partial : sharding->partials) drop(&partial.axes);
  std::erase_if(sharding->partials,
                [](const graph::PartialSpec& partial) { return partial.axes.empty(); });
  drop(&sharding->replicated);
}

// Entries of the brackets.
size_t RankOf(std::string_view sharding) {
  const size_t begin = sharding.find('[');
  const size_t end = sharding.find(']');
  if (begin == std::string_view::npos || end == std::string_view::npos || end < begin) return 0;
  const std::string_view entries = sharding.substr(begin + 1, end - begin - 1);
  if (entries.find_first_not_of(' ') == std::string_view::npos) return 0;
  return 1 + static_cast<size_t>(std::count(entries.begin(), entries.end(), ','));
}

bool IsFor(const SplitHint& hint, const graph::Value& value) {
  return value.type.shape.size() == RankOf(hint.sharding) &&
         graph::MatchesPattern(hint.pattern, value.name);
}

std::string Describe(const SplitHint& hint) {
  return StrCat("hint \"", hint.pattern, " ", hint.sharding, "\"");
}

absl::Status ErrorOf(const SplitHint& hint, absl::StatusCode code, const std::string& message) {
  absl::Status status(code, message);
  status.SetPayload(kStatedShardingPayload, absl::Cord(Describe(hint)));
  return status;
}

}  // namespace

absl::StatusOr<SplitHint> ParseStatedSharding(std::string_view text) {
  const size_t at = text.find('@');
  SplitHint hint;
  hint.axis.clear();
  if (at != std::string_view::npos) {
    hint.pattern = std::string(ToStd(absl::StripAsciiWhitespace(ToAbsl(text.substr(0, at)))));
    hint.sharding = std::string(ToStd(absl::StripAsciiWhitespace(ToAbsl(text.substr(at)))));
  }
  if (!hint.pattern.empty() && hint.pattern[0] == '%') hint.pattern.erase(0, 1);
  const bool has_brackets =
      hint.sharding.substr(0, 2) == "@[" && hint.sharding.find(']') != std::string::npos;
  if (hint.pattern.empty() || !has_brackets) {
    return absl::InvalidArgumentError(
        StrCat("'", text, "' is no hint; expected a pattern of values and a sharding, such as ",
               "\"h*.mlp.w1 @[_, tp]\""));
  }
  return hint;
}

absl::Status CheckStatedShardings(absl::Span<const SplitHint> hints, const graph::Graph& graph) {
  for (const SplitHint& hint : hints) {
    if (hint.sharding.empty()) continue;
    bool matches = false;
    std::vector<std::string_view> names;
    for (ValueId id = 0; id < graph.num_values() && !matches; ++id) {
      const graph::Value& value = graph.value(id);
      if (value.type.shape.size() == RankOf(hint.sharding)) names.push_back(value.name);
      matches = IsFor(hint, value);
    }
    if (matches) continue;
    const std::string nearest = graph::NearestName(hint.pattern, names);
    return ErrorOf(hint, absl::StatusCode::kInvalidArgument,
                   StrCat(Describe(hint), " matches no value of the training step that has ",
                          Counted(RankOf(hint.sharding), "dimension"),
                          nearest.empty() ? "" : StrCat("; did you mean '", nearest, "'?")));
  }
  return absl::OkStatus();
}

absl::Status ApplyStatedShardings(absl::Span<const SplitHint> hints, graph::Graph& graph,
                                  bool only_forward) {
  const size_t num_axes = graph.meshes()[0].axes.size();
  const Mesh mesh = WithAllAxes(graph.meshes()[0]);
  for (const SplitHint& hint : hints) {
    if (hint.sharding.empty()) continue;
    for (ValueId id = 0; id < graph.num_values(); ++id) {
      graph::Value& value = graph.mutable_value(id);
      if (!IsFor(hint, value)) continue;
      const graph::Node& producer = graph.node(value.producer);
      const bool is_forward =
          producer.phase == graph::Phase::kForward && producer.op->role() != graph::OpRole::kState;
      if (only_forward && !is_forward) continue;
      absl::StatusOr<Sharding> sharding =
          graph::ParseSharding(hint.sharding, Describe(hint), mesh, value.type.shape);
      if (!sharding.ok()) {
        return ErrorOf(hint, sharding.status().code(),
                       StrCat("for %", value.name, " : ", penstock::ToString(value.type), ", ",
                              ToStd(sharding.status().message())));
      }
      DropAxes(num_axes, &*sharding);
      value.sharding = *std::move(sharding);
    }
  }
  return absl::OkStatus();
}

std::vector<bool> HaveStatedShardings(absl::Span<const SplitHint> hints,
                                      const graph::Graph& graph) {
  std::vector<bool> have(static_cast<size_t>(graph.num_values()), false);
  for (const SplitHint& hint : hints) {
    if (hint.sharding.empty()) continue;
    for (ValueId id = 0; id < graph.num_values(); ++id) {
      if (IsFor(hint, graph.value(id))) have[static_cast<size_t>(id)] = true;
    }
  }
  return have;
}

}  // namespace penstock::planner
