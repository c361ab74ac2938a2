#include "penstock/compile_model.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/compile.h"
#include "planner/strategy/stages.h"
#include "planner/strategy/strategy.h"

namespace penstock {
namespace {

absl::StatusOr<planner::Strategy> ParseGivenStrategy(const std::string& text) {
  ASSIGN_OR_RETURN(const std::optional<planner::Strategy> strategy, planner::ParseStrategy(text));
  if (!strategy.has_value() || strategy->splits_by_cost) {
    return absl::InvalidArgumentError(StrCat(
        "strategy \"", text,
        "\": expected axis sizes, such as \"dp=2,tp=2\"; choosing by cost takes a machine to "
        "choose for (planner/search/search.h, planner/search/split_by_cost.h)"));
  }
  return *strategy;
}

}  // namespace

absl::StatusOr<planner::Plan> CompileModel(const Registries& registries, graph::Graph graph,
                                           const ModelOptions& options) {
  if (options.threads_per_device < 1 || options.microbatches < 0) {
    return absl::InvalidArgumentError(StrCat("threads_per_device = ", options.threads_per_device,
                                             ", microbatches = ", options.microbatches,
                                             ": expected at least 1 thread and 0 micro-batches"));
  }
  planner::CompileOptions compile;
  compile.policy = options.policy;
  compile.policies = &registries.policies;
  compile.kernels = kernels::TraitsOf(registries.kernels, options.threads_per_device);
  compile.threads_per_device = static_cast<uint32_t>(options.threads_per_device);
  if (!options.strategy.empty()) {
    ASSIGN_OR_RETURN(planner::Strategy strategy, ParseGivenStrategy(options.strategy));
    // A policy with several chunks a group has as many virtual stages.
    const planner::Policy* policy = registries.policies.Find(options.policy);
    if (policy != nullptr && strategy.vpp == 1) {
      strategy.vpp = std::max(strategy.vpp, int64_t{policy->needs().min_chunks});
    }
    const int64_t microbatches = options.microbatches > 0
                                     ? options.microbatches
                                     : planner::ChooseMicrobatches(strategy, graph);
    RETURN_IF_ERROR(planner::ApplyStrategy(strategy, microbatches, options.splits, graph));
    RETURN_IF_ERROR(planner::AssignStages(strategy.num_stages(), graph));
    compile.strategy = planner::ToString(strategy);
    compile.chunks_per_group = static_cast<int>(strategy.vpp);
  }
  return planner::Compile(registries.ops, std::move(graph), compile);
}

absl::StatusOr<std::unique_ptr<actors::Session>> StartSession(const Registries& registries,
                                                              planner::Plan plan,
                                                              actors::SessionOptions options) {
  if (options.kernels == nullptr) options.kernels = &registries.kernels;
  if (options.policies == nullptr) options.policies = &registries.policies;
  options.threads_per_device = static_cast<int>(plan.threads_per_device);
  return actors::Session::Start(std::move(plan), options);
}

}  // namespace penstock
