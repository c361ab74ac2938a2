#include "planner/policy/policy.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/policy/ask_policy_internal.h"
#include "planner/policy/pipeline.h"

namespace penstock::planner {
namespace {

// Hands out a fixed order, whatever the view says.
class PlannedScheduler : public StageScheduler {
 public:
  explicit PlannedScheduler(std::vector<PhaseChoice> order) : order_(std::move(order)) {}

  std::optional<PhaseChoice> Next(const StageView&) override {
    if (next_ == order_.size()) return std::nullopt;
    return order_[next_++];
  }
  void Reset() override { next_ = 0; }

 private:
  std::vector<PhaseChoice> order_;
  size_t next_ = 0;
};

}  // namespace

bool StageContext::has_choices() const {
  return std::any_of(chunks.begin(), chunks.end(), [](const PhaseKinds& kinds) {
    return std::find(kinds.begin(), kinds.end(), true) != kinds.end();
  });
}

std::vector<PhaseChoice> Policy::PlannedOrder(const StageContext& /*context*/) const { return {}; }

absl::StatusOr<PipelineOrders> Policy::PlanOrders(const Pipeline& pipeline) const {
  PipelineOrders orders;
  for (int g = 0; g < pipeline.num_groups; ++g) {
    const StageContext context = pipeline.ContextOf(g);
    orders.push_back(context.has_choices() ? PlannedOrder(context) : std::vector<PhaseChoice>());
  }
  return orders;
}

int Policy::ActivationCredits(const StageContext& context) const {
  return std::max(context.num_microbatches, 1);
}

std::unique_ptr<StageScheduler> Policy::CreateScheduler(const StageContext& context) const {
  std::vector<PhaseChoice> order = PlannedOrder(context);
  if (order.empty()) return nullptr;
  return FollowOrder(std::move(order));
}

std::unique_ptr<StageScheduler> FollowOrder(std::vector<PhaseChoice> order) {
  return std::make_unique<PlannedScheduler>(std::move(order));
}

namespace {

std::string OfChunk(int chunk) { return chunk == 0 ? "" : StrCat(" of chunk ", chunk); }

}  // namespace

absl::StatusOr<int> ActivationCreditsOf(const Policy& policy, const StageContext& context) {
  int credits = 0;
  RETURN_IF_ERROR(internal::AskPolicy(policy, StrCat(" at stage ", context.stage),
                                      [&] { credits = policy.ActivationCredits(context); }));
  if (credits < 1) {
    return absl::InvalidArgumentError(StrCat("policy '", policy.name(), "' gives stage ",
                                             context.stage, " ", credits,
                                             " activation credits; expected at least 1"));
  }
  return credits;
}

absl::Status CheckOrder(const StageContext& context, absl::Span<const PhaseChoice> order) {
  std::vector<std::array<int, kNumPolicyKinds>> counts(context.chunks.size());
  for (const PhaseChoice& choice : order) {
    if (!context.has(choice.kind, choice.chunk)) {
      return absl::InvalidArgumentError(StrCat("a phase of kind ", Name(choice.kind),
                                               OfChunk(choice.chunk),
                                               ", of which the stage has none"));
    }
    int& count = counts[choice.chunk][static_cast<size_t>(choice.kind)];
    if (choice.microbatch != count) {
      return absl::InvalidArgumentError(StrCat(Name(choice.kind), " of micro-batch ",
                                               choice.microbatch, OfChunk(choice.chunk),
                                               ", expected micro-batch ", count));
    }
    ++count;
  }
  for (int chunk = 0; chunk < context.num_chunks(); ++chunk) {
    for (int k = 0; k < kNumPolicyKinds; ++k) {
      const auto kind = static_cast<PhaseKind>(k);
      if (!context.has(kind, chunk) || counts[chunk][k] == context.num_microbatches) continue;
      return absl::InvalidArgumentError(
          StrCat(counts[chunk][k], counts[chunk][k] == 1 ? " phase" : " phases", " of kind ",
                 Name(kind), OfChunk(chunk), ", expected ", context.num_microbatches));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNeeds(const Policy& policy, const Pipeline& pipeline) {
  const PolicyNeeds needs = policy.needs();
  const int chunks = pipeline.num_chunks();
  if (chunks < needs.min_chunks || chunks > needs.max_chunks) {
    const std::string expected =
        needs.max_chunks == kMaxChunks         ? StrCat("at least ", needs.min_chunks)
        : needs.min_chunks == needs.max_chunks ? StrCat(needs.min_chunks)
                                               : StrCat(needs.min_chunks, " to ", needs.max_chunks);
    return absl::InvalidArgumentError(StrCat("policy '", policy.name(), "' orders ", expected,
                                             needs.max_chunks == 1 ? " chunk" : " chunks",
                                             " a group; there are ", chunks));
  }
  // Both are the same for one chunk.
  if (chunks > 1 && needs.placement.has_value() &&
      pipeline.placement.placement != *needs.placement) {
    return absl::InvalidArgumentError(
        StrCat("policy '", policy.name(), "' needs the placement '", Name(*needs.placement),
               "' of virtual stages; there is '", Name(pipeline.placement.placement), "'"));
  }
  return absl::OkStatus();
}

StagePlacement PlacementOf(const Policy& policy, int num_groups, int num_chunks) {
  return {num_groups, num_chunks, policy.needs().placement.value_or(Placement::kLoop)};
}

absl::StatusOr<PipelineOrders> PlanPipeline(const Policy& policy, const Pipeline& pipeline) {
  RETURN_IF_ERROR(CheckNeeds(policy, pipeline));
  absl::StatusOr<PipelineOrders> orders = PipelineOrders();
  RETURN_IF_ERROR(internal::AskPolicy(policy, "", [&] { orders = policy.PlanOrders(pipeline); }));
  if (!orders.ok()) {
    return absl::Status(orders.status().code(),
                        StrCat("policy '", policy.name(), "': ", orders.status().message()));
  }
  if (orders->size() != static_cast<size_t>(pipeline.num_groups)) {
    return absl::InvalidArgumentError(StrCat("policy '", policy.name(), "' gives ", orders->size(),
                                             " orders for ", pipeline.num_groups, " groups"));
  }
  for (int g = 0; g < pipeline.num_groups; ++g) {
    const StageContext context = pipeline.ContextOf(g);
    if (!context.has_choices()) continue;
    if ((*orders)[g].empty()) {
      RETURN_IF_ERROR(MakeSchedule(policy, context).status());
      continue;
    }
    const absl::Status status = CheckOrder(context, (*orders)[g]);
    if (status.ok()) continue;
    return absl::InvalidArgumentError(
        StrCat("policy '", policy.name(), "' orders stage ", g, " wrongly: ", status.message()));
  }
  return orders;
}

absl::StatusOr<StageSchedule> MakeSchedule(const Policy& policy, const StageContext& context) {
  StageSchedule schedule;
  RETURN_IF_ERROR(internal::AskPolicy(policy, StrCat(" at stage ", context.stage), [&] {
    schedule.order = policy.PlannedOrder(context);
    if (context.has_choices()) schedule.scheduler = policy.CreateScheduler(context);
  }));
  if (context.has_choices() && schedule.scheduler == nullptr) {
    return absl::InvalidArgumentError(
        StrCat("policy '", policy.name(), "' chooses nothing for stage ", context.stage,
               ": its PlannedOrder is empty and it creates no scheduler; override PlannedOrder or "
               "CreateScheduler"));
  }
  return schedule;
}

absl::Status PolicyRegistry::Add(std::shared_ptr<const Policy> policy) {
  const std::string_view name = policy->name();
  if (name.empty()) return absl::InvalidArgumentError("a policy needs a name");
  if (policies_.contains(name)) {
    return absl::AlreadyExistsError(StrCat("there is a policy '", name, "' already"));
  }
  policies_.emplace(name, std::move(policy));
  return absl::OkStatus();
}

const Policy* PolicyRegistry::Find(std::string_view name) const {
  const auto it = policies_.find(name);
  return it == policies_.end() ? nullptr : it->second.get();
}

std::vector<std::string_view> PolicyRegistry::Names() const {
  std::vector<std::string_view> names;
  names.reserve(policies_.size());
  for (const auto& [name, policy] : policies_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace penstock::planner
