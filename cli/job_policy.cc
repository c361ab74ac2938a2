#include "cli/job_policy.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/files.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/op.h"
#include "planner/policy/load_policy.h"
#include "planner/policy/order_csv.h"
#include "planner/strategy/directions.h"

namespace penstock::cli {
namespace {

constexpr size_t kMaxPolicyCsvBytes = size_t{1} << 28;

}  // namespace

bool IsPolicyFile(std::string_view text) {
  return HasSuffix(text, ".csv") || HasSuffix(text, ".so");
}

void OverridePolicy(const std::string& policy, Job* job) {
  if (policy.empty()) return;
  job->parallel.schedule =
      IsPolicyFile(policy) ? std::filesystem::absolute(policy).lexically_normal().string() : policy;
  job->locations["parallel.schedule"] = StrCat("--policy ", policy);
}

absl::StatusOr<std::unique_ptr<const planner::Policy>> ReadPolicyFile(const std::string& path) {
  if (HasSuffix(path, ".so")) return planner::LoadPolicy(path);
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxPolicyCsvBytes));
  ASSIGN_OR_RETURN(planner::CsvOrders orders, planner::ParseOrdersCsv(text, path));
  return planner::MakeOrdersPolicy(path, std::move(orders));
}

absl::StatusOr<planner::PolicyRegistry> PoliciesOf(const Registries& registries, const Job& job) {
  const std::string& schedule = job.parallel.schedule;
  planner::PolicyRegistry policies = registries.policies;
  if (IsPolicyFile(schedule)) {
    absl::StatusOr<std::unique_ptr<const planner::Policy>> policy = ReadPolicyFile(schedule);
    if (!policy.ok()) return AtKey(job, {"parallel.schedule"}, policy.status());
    RETURN_IF_ERROR(policies.Add(*std::move(policy)));
    return policies;
  }
  if (policies.Find(schedule) != nullptr) return policies;
  const std::vector<std::string_view> names = policies.Names();
  const std::string nearest = graph::NearestName(schedule, names);
  return AtKey(
      job, {"parallel.schedule"},
      absl::InvalidArgumentError(
          StrCat("unknown schedule '", schedule, "'",
                 nearest.empty() ? "; known: " : StrCat("; did you mean '", nearest, "'? Known: "),
                 StrJoin(names, ", "), ", or a file that ends in .csv or .so")));
}

std::string PolicyLibraryOf(const Job& job, const planner::Plan& plan) {
  const bool decides_later =
      plan.policy == job.parallel.schedule && HasSuffix(plan.policy, ".so") &&
      std::any_of(plan.stages.begin(), plan.stages.end(),
                  [](const planner::StagePlan& stage) { return stage.order.empty(); });
  return decides_later ? plan.policy : "";
}

absl::Status SetRecompute(const Job& job, planner::Strategy* strategy) {
  if (!job.parallel.recompute.has_value()) return absl::OkStatus();
  const planner::Recompute recompute = *job.parallel.recompute;
  if (strategy->recompute != planner::Recompute::kNone && strategy->recompute != recompute) {
    return AtKey(job, {"parallel.recompute"},
                 absl::InvalidArgumentError(StrCat(
                     "recompute = ", planner::Name(recompute),
                     ", but the strategy has recompute = ", planner::Name(strategy->recompute),
                     "; leave out either")));
  }
  strategy->recompute = recompute;
  return absl::OkStatus();
}

absl::Status SetChunks(const Job& job, const planner::Policy& policy, planner::Strategy* strategy) {
  const planner::PolicyNeeds needs = policy.needs();
  const int64_t chunks = job.parallel.chunks;
  if (chunks > 0 && strategy->vpp > 1 && strategy->vpp != chunks) {
    return AtKey(job, {"parallel.chunks"},
                 absl::InvalidArgumentError(StrCat("chunks = ", chunks,
                                                   ", but the strategy has vpp = ", strategy->vpp,
                                                   "; leave out either")));
  }
  if (chunks > 0) strategy->vpp = chunks;
  if (needs.placement == planner::Placement::kBidirectional) {
    if (strategy->vpp == 1) return absl::OkStatus();
    return AtKey(job, {"parallel.chunks", "parallel.schedule"},
                 absl::InvalidArgumentError(StrCat(
                     "schedule '", std::string(policy.name()),
                     "' runs each pipeline stage on two groups of devices, as a chunk of each; "
                     "leave out chunks and vpp")));
  }
  if (strategy->vpp == 1) strategy->vpp = planner::StagesPerGroup(policy);
  if (strategy->vpp >= needs.min_chunks && strategy->vpp <= needs.max_chunks) {
    return absl::OkStatus();
  }
  return AtKey(
      job, {"parallel.chunks", "parallel.schedule"},
      absl::InvalidArgumentError(StrCat(
          "schedule '", std::string(policy.name()), "' has ",
          needs.min_chunks == needs.max_chunks ? "" : "at most ", needs.max_chunks,
          needs.max_chunks == 1 ? " chunk" : " chunks", " a pipeline stage, not ", strategy->vpp)));
}

}  // namespace penstock::cli
