#include "planner/policy/load_policy.h"

#include <dlfcn.h>

#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "base/strings.h"
#include "planner/policy/greedy_policy.h"
#include "planner/policy/pipeline.h"
#include "planner/policy/policy_plugin.h"

namespace penstock::planner {
namespace {

constexpr char kSymbol[] = "penstock_policy_plugin";

// A pipeline in the types of the plug-in.
class PluginPipeline {
 public:
  explicit PluginPipeline(const Pipeline& pipeline) {
    for (const VirtualStage& stage : pipeline.stages) {
      penstock_stage& to = stages_.emplace_back();
      to.group = stage.group;
      to.chunk = stage.chunk;
      for (int k = 0; k < kNumPolicyKinds; ++k) {
        to.has_kind[k] = stage.kinds[k] ? 1 : 0;
        to.seconds[k] = stage.seconds[k];
      }
      to.activation = stage.activation;
    }
    for (const PipelineEdge& edge : pipeline.edges) {
      edges_.push_back(
          {edge.from, edge.to, edge.is_forward ? 1 : 0, edge.latency_s + edge.transfer_s});
    }
    view_.num_groups = pipeline.num_groups;
    view_.num_chunks = pipeline.num_chunks();
    view_.num_microbatches = pipeline.num_microbatches;
    view_.stages = stages_.data();
    view_.num_stages = stages_.size();
    view_.edges = edges_.data();
    view_.num_edges = edges_.size();
    view_.memory_limit = pipeline.memory_limit;
  }
  PluginPipeline(const PluginPipeline&) = delete;
  PluginPipeline& operator=(const PluginPipeline&) = delete;

  const penstock_pipeline& view() const { return view_; }

 private:
  std::vector<penstock_stage> stages_;
  std::vector<penstock_edge> edges_;
  penstock_pipeline view_ = {};
};

// A group in the types of the plug-in.
class PluginGroup {
 public:
  explicit PluginGroup(const StageContext& context) : chunks_(context.chunks.size()) {
    for (size_t c = 0; c < chunks_.size(); ++c) {
      for (int k = 0; k < kNumPolicyKinds; ++k) {
        chunks_[c].has_kind[k] = context.chunks[c][k] ? 1 : 0;
      }
    }
    view_ = {context.stage, context.num_stages, context.num_microbatches, chunks_.data(),
             context.num_chunks()};
  }
  PluginGroup(const PluginGroup&) = delete;
  PluginGroup& operator=(const PluginGroup&) = delete;

  void Set(const StageView& view) {
    for (size_t c = 0; c < chunks_.size(); ++c) {
      for (int k = 0; k < kNumPolicyKinds; ++k) {
        chunks_[c].issued[k] = view.chunks[c].issued[k];
        chunks_[c].completed[k] = view.chunks[c].completed[k];
        chunks_[c].ready[k] = view.chunks[c].ready[k];
        chunks_[c].mean_ns[k] = view.chunks[c].mean_ns[k];
      }
    }
  }
  const penstock_group_view& view() const { return view_; }

 private:
  std::vector<penstock_chunk_view> chunks_;
  penstock_group_view view_ = {};
};

// Asks `next`.
class PluginScheduler : public StageScheduler {
 public:
  PluginScheduler(std::shared_ptr<void> library, const penstock_policy& plugin,
                  const StageContext& context)
      : library_(std::move(library)), plugin_(plugin), group_(context) {}

  std::optional<PhaseChoice> Next(const StageView& view) override {
    group_.Set(view);
    penstock_phase phase = {};
    if (plugin_.next(&group_.view(), &phase) == 0) return std::nullopt;
    if (phase.kind < 0 || phase.kind >= kNumPolicyKinds) {
      throw std::out_of_range(StrCat("it chooses a phase of kind ", phase.kind));
    }
    return PhaseChoice{static_cast<PhaseKind>(phase.kind), phase.microbatch, phase.chunk};
  }
  void Reset() override {}

 private:
  const std::shared_ptr<void> library_;
  const penstock_policy plugin_;
  PluginGroup group_;
};

struct Collected {
  PipelineOrders orders;
  std::optional<std::string> error;
};

class PluginPolicy : public Policy {
 public:
  PluginPolicy(std::string name, std::shared_ptr<void> library, const penstock_policy& plugin)
      : name_(std::move(name)), library_(std::move(library)), plugin_(plugin) {}
  std::string_view name() const override { return name_; }
  PolicyNeeds needs() const override {
    return {plugin_.placement == PENSTOCK_PLACEMENT_VEE ? Placement::kVee : Placement::kLoop,
            plugin_.splits_backward != 0, plugin_.min_chunks, plugin_.max_chunks};
  }

  std::unique_ptr<StageScheduler> CreateScheduler(const StageContext& context) const override {
    if (plugin_.next == nullptr) return Policy::CreateScheduler(context);
    return std::make_unique<PluginScheduler>(library_, plugin_, context);
  }

  int ActivationCredits(const StageContext& context) const override {
    if (plugin_.most_microbatches == nullptr) return Policy::ActivationCredits(context);
    return plugin_.most_microbatches(&PluginGroup(context).view());
  }

  absl::StatusOr<PipelineOrders> PlanOrders(const Pipeline& pipeline) const override {
    if (plugin_.next != nullptr) return PipelineOrders(pipeline.num_groups);
    const PluginPipeline described(pipeline);
    if (plugin_.plan == nullptr) return PlanByComparing(pipeline, described);
    Collected collected;
    collected.orders.resize(pipeline.num_groups);
    const penstock_orders orders = {
        &collected,
        [](void* state, int32_t group, penstock_phase phase) {
          auto& to = *static_cast<Collected*>(state);
          if (group < 0 || group >= static_cast<int32_t>(to.orders.size()) || phase.kind < 0 ||
              phase.kind >= kNumPolicyKinds) {
            if (!to.error.has_value()) {
              to.error = StrCat("it appends a phase of kind ", phase.kind, " to group ", group,
                                ", which there is not");
            }
            return;
          }
          to.orders[group].push_back(
              {static_cast<PhaseKind>(phase.kind), phase.microbatch, phase.chunk});
        },
        [](void* state, const char* message) {
          auto& to = *static_cast<Collected*>(state);
          if (!to.error.has_value()) to.error = message == nullptr ? "it fails" : message;
        }};
    plugin_.plan(&described.view(), &orders);
    if (collected.error.has_value()) return absl::InvalidArgumentError(*collected.error);
    for (int g = 0; g < pipeline.num_groups; ++g) {
      if (!collected.orders[g].empty() || !pipeline.ContextOf(g).has_choices()) continue;
      return absl::InvalidArgumentError(StrCat("its plan appends nothing for group ", g));
    }
    return std::move(collected.orders);
  }

 private:
  absl::StatusOr<PipelineOrders> PlanByComparing(const Pipeline& pipeline,
                                                 const PluginPipeline& described) const {
    const auto to_plugin = [&](const ReadyPhase& ready) {
      return penstock_ready_phase{
          {static_cast<int32_t>(ready.phase.kind), ready.phase.microbatch, ready.phase.chunk},
          pipeline.stages[ready.stage].group,
          ready.stage,
          ready.ready_s,
          ready.duration_s};
    };
    const PhaseBefore before = [&](const ReadyPhase& a, const ReadyPhase& b) {
      const penstock_ready_phase first = to_plugin(a);
      const penstock_ready_phase second = to_plugin(b);
      return plugin_.before(&first, &second) != 0;
    };
    std::vector<double> most_held(pipeline.num_groups, pipeline.memory_limit);
    for (int g = 0; plugin_.most_held != nullptr && g < pipeline.num_groups; ++g) {
      const double most = plugin_.most_held(&described.view(), g);
      if (!(most >= 0)) {
        return absl::InvalidArgumentError(
            StrCat("its most_held is ", most, " for group ", g, ", expected at least 0"));
      }
      if (most > 0 && (most_held[g] <= 0 || most < most_held[g])) most_held[g] = most;
    }
    return PlanGreedily(pipeline, before, most_held);
  }

  const std::string name_;
  const std::shared_ptr<void> library_;
  const penstock_policy plugin_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Policy>> LoadPolicy(const std::string& path) {
  // Without a slash, the name would be looked up in the system's folders.
  const std::string file = path.find('/') == std::string::npos ? StrCat("./", path) : path;
  std::shared_ptr<void> library(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL), [](void* handle) {
    if (handle != nullptr) dlclose(handle);
  });
  if (library == nullptr) {
    const char* reason = dlerror();
    return absl::InvalidArgumentError(
        StrCat(path, ": the policy cannot be loaded: ", reason == nullptr ? "unknown" : reason));
  }
  using Entry = const penstock_policy* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library.get(), kSymbol));
  const penstock_policy* plugin = nullptr;
  try {
    if (entry != nullptr) plugin = entry();
  } catch (...) {
    return absl::InvalidArgumentError(StrCat(path, ": its ", kSymbol, " threw"));
  }
  if (plugin == nullptr) {
    return absl::InvalidArgumentError(
        StrCat(path, ": the library exports no policy; expected a function ", kSymbol,
               " as planner/policy/policy_plugin.h says"));
  }
  if (plugin->version != PENSTOCK_POLICY_VERSION) {
    return absl::InvalidArgumentError(
        StrCat(path, ": a policy for version ", plugin->version, " of policy_plugin.h, expected ",
               static_cast<int>(PENSTOCK_POLICY_VERSION), "; build it again"));
  }
  if (plugin->plan == nullptr && plugin->before == nullptr && plugin->next == nullptr) {
    return absl::InvalidArgumentError(
        StrCat(path, ": the policy has none of `before`, `plan` and `next`"));
  }
  const bool has_placement =
      plugin->placement == PENSTOCK_PLACEMENT_LOOP || plugin->placement == PENSTOCK_PLACEMENT_VEE;
  if (!has_placement || plugin->min_chunks < 1 || plugin->max_chunks < plugin->min_chunks) {
    return absl::InvalidArgumentError(StrCat(path, ": placement ", plugin->placement, ", ",
                                             plugin->min_chunks, " to ", plugin->max_chunks,
                                             " chunks: expected a placement of policy_plugin.h "
                                             "and at least 1 chunk"));
  }
  return std::make_unique<PluginPolicy>(path, std::move(library), *plugin);
}

}  // namespace penstock::planner
