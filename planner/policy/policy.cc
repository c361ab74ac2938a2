#include "planner/policy/policy.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "base/strings.h"

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

std::string_view Name(PhaseKind kind) {
  switch (kind) {
    case PhaseKind::kForward:
      return "F";
    case PhaseKind::kBackward:
      return "B";
    case PhaseKind::kWeight:
      return "W";
    case PhaseKind::kBeforeStep:
      return "before";
    case PhaseKind::kAfterStep:
      return "after";
    case PhaseKind::kTransfer:
      return "transfer";
  }
  return "unknown";
}

bool StageContext::has_choices() const {
  return std::any_of(chunks.begin(), chunks.end(), [](const PhaseKinds& kinds) {
    return std::find(kinds.begin(), kinds.end(), true) != kinds.end();
  });
}

std::string ToString(const PhaseChoice& choice) {
  std::string text = StrCat(Name(choice.kind), choice.microbatch);
  if (choice.chunk != 0) StrAppend(&text, " of chunk ", choice.chunk);
  return text;
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

// Calls ask(), and turns what it throws into an error.
template <typename Ask>
absl::Status AskPolicy(const Policy& policy, const StageContext& context, const Ask& ask) {
  const auto threw = [&](std::string_view what) {
    return absl::InvalidArgumentError(
        StrCat("policy '", policy.name(), "' threw at stage ", context.stage, ": ", what));
  };
  try {
    ask();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return threw(error.what());
  } catch (...) {
    return threw("something that is no std::exception");
  }
}

}  // namespace

absl::StatusOr<int> ActivationCreditsOf(const Policy& policy, const StageContext& context) {
  int credits = 0;
  RETURN_IF_ERROR(AskPolicy(policy, context, [&] { credits = policy.ActivationCredits(context); }));
  if (credits < 1) {
    return absl::InvalidArgumentError(StrCat("policy '", policy.name(), "' gives stage ",
                                             context.stage, " ", credits,
                                             " activation credits; expected at least 1"));
  }
  return credits;
}

absl::StatusOr<StageSchedule> MakeSchedule(const Policy& policy, const StageContext& context) {
  StageSchedule schedule;
  RETURN_IF_ERROR(AskPolicy(policy, context, [&] {
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

absl::Status PolicyRegistry::Add(std::unique_ptr<const Policy> policy) {
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
