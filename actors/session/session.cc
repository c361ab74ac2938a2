#include "actors/session/session.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "actors/engine/check_plan.h"
#include "actors/engine/error_origin.h"
#include "actors/engine/step_name.h"
#include "base/await.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "transport/transport.h"

namespace penstock::actors {
namespace {

// For the answers of a report: they come at once or, from a device inside a kernel, late.
constexpr absl::Duration kDescribeTimeout = absl::Seconds(1);

}  // namespace

const Tensor* StepResult::Find(std::string_view name) const {
  for (const auto& [fetch, tensor] : fetches) {
    if (fetch == name) return &tensor;
  }
  return nullptr;
}

class Session::Impl : private EngineObserver {
 public:
  explicit Impl(planner::Plan plan) : plan_(std::move(plan)) {}
  ~Impl() override { Stop(); }

  absl::Status Start(const SessionOptions& options) {
    if (options.kernels == nullptr) return absl::InvalidArgumentError("a session needs kernels");
    RETURN_IF_ERROR(CheckPlan(plan_));
    timeout_ = options.timeout;
    first_step_ = options.first_step;
    if (options.start_engine != nullptr) {
      ASSIGN_OR_RETURN(engine_, options.start_engine(plan_, this, options));
    } else {
      ASSIGN_OR_RETURN(engine_, StartLocalEngine(options));
    }
    return options.states == nullptr || shares_memory()
               ? absl::OkStatus()
               : FillStates(*options.states, /*needs_all=*/true);
  }

  const planner::Plan& plan() const { return plan_; }
  bool shares_memory() const {
    const auto* const local = dynamic_cast<const LocalEngine*>(engine_.get());
    return local != nullptr && local->shares_memory();
  }

  absl::StatusOr<int64_t> Submit(const Feeds& feeds) {
    auto buffers = std::make_shared<StepBuffers>();
    for (const planner::FeedPlan& feed : plan_.feeds) {
      const auto it = feeds.find(feed.name);
      if (it == feeds.end()) {
        return absl::InvalidArgumentError(StrCat("the feed '", feed.name, "' is missing"));
      }
      if (it->second.type() != feed.type) {
        return absl::InvalidArgumentError(StrCat("the feed '", feed.name, "' is ",
                                                 ToString(it->second.type()), "; the plan wants ",
                                                 ToString(feed.type)));
      }
      buffers->feeds.push_back(it->second);
    }
    if (feeds.size() != plan_.feeds.size()) {
      for (const auto& [name, tensor] : feeds) {
        const bool is_known =
            std::any_of(plan_.feeds.begin(), plan_.feeds.end(),
                        [&name = name](const auto& feed) { return feed.name == name; });
        if (!is_known) return absl::InvalidArgumentError(StrCat("there is no feed '", name, "'"));
      }
    }
    for (const planner::FetchPlan& fetch : plan_.fetches) buffers->fetches.emplace_back(fetch.type);

    const absl::MutexLock engine_lock(&engine_mutex_);  // steps reach the engine in their order
    const absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(CheckRunning());
    if (static_cast<int64_t>(steps_.size()) >= kMaxStepsInFlight) {
      return absl::ResourceExhaustedError(
          StrCat(kMaxStepsInFlight, " steps are under way: wait for one first"));
    }
    const int64_t step = submitted_++;
    StepState& state = steps_[step];
    state.buffers = buffers;
    state.begin_ns = clock_.NowNs();
    state.missing_devices = plan_.devices.size();
    engine_->Submit(step, buffers);
    return step;
  }

  absl::StatusOr<StepResult> Wait(int64_t step) {
    const absl::MutexLock lock(&mutex_);
    const auto it = steps_.find(step);
    if (it == steps_.end() || it->second.has_waiter) {
      return absl::NotFoundError(StrCat(StepName(step, first_step_), " is not under way"));
    }
    StepState& state = it->second;
    state.has_waiter = true;
    const auto is_over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return state.missing_devices == 0 || !failure_.ok() || is_stopped_;
    };
    if (!AwaitFor(absl::Condition(&is_over), timeout_, &mutex_)) {
      mutex_.Unlock();
      const absl::Status status = DescribeTimeout(step);
      mutex_.Lock();
      if (failure_.ok()) failure_ = status;
    }
    if (state.missing_devices > 0) {
      state.has_waiter = false;
      if (!failure_.ok()) return failure_;
      return absl::CancelledError("the session was stopped");
    }
    StepState done = std::move(state);
    steps_.erase(it);
    if (!done.error.ok()) return done.error;
    if (done.is_poisoned) return last_error_;  // the step before it failed
    StepResult result;
    result.step = step;
    result.wall_ns = done.end_ns - done.begin_ns;
    result.end_ns = done.end_ns;
    result.devices = std::move(done.reports);
    for (size_t i = 0; i < plan_.fetches.size(); ++i) {
      result.fetches.emplace_back(plan_.fetches[i].name, std::move(done.buffers->fetches[i]));
    }
    return result;
  }

  absl::StatusOr<Tensor> Fetch(std::string_view name) const {
    const absl::MutexLock engine_lock(&engine_mutex_);
    ASSIGN_OR_RETURN(const planner::StatePlan* state, FindIdleState(name));
    Tensor value(state->type);
    RETURN_IF_ERROR(engine_->ReadState(*state, &value));
    return value;
  }

  absl::Status SetState(std::string_view name, const Tensor& value) {
    const absl::MutexLock engine_lock(&engine_mutex_);
    ASSIGN_OR_RETURN(const planner::StatePlan* state, FindIdleState(name));
    if (value.type() != state->type) {
      return absl::InvalidArgumentError(StrCat("the state '", name, "' is ", ToString(state->type),
                                               ", not ", ToString(value.type())));
    }
    return engine_->WriteState(*state, value);
  }

  absl::StatusOr<std::shared_ptr<const KeptStates>> KeepStates(StateSelection selection) const {
    const absl::MutexLock engine_lock(&engine_mutex_);
    {
      const absl::MutexLock lock(&mutex_);
      RETURN_IF_ERROR(CheckIdle());
    }
    std::vector<uint32_t> states;
    for (uint32_t i = 0; i < plan_.states.size(); ++i) {
      const bool is_parameter = plan_.states[i].is_parameter;
      const bool is_kept = selection == StateSelection::kAll ||
                           is_parameter == (selection == StateSelection::kParameters);
      if (is_kept) states.push_back(i);
    }
    return engine_->KeepStates(states);
  }

  absl::Status TakeStates(const KeptStates& kept, bool needs_all) {
    const absl::MutexLock engine_lock(&engine_mutex_);
    {
      const absl::MutexLock lock(&mutex_);
      RETURN_IF_ERROR(CheckIdle());
    }
    return FillStates(kept, needs_all);
  }

  std::vector<TraceEvent> TakeTrace() {
    const absl::MutexLock engine_lock(&engine_mutex_);
    {
      const absl::MutexLock lock(&mutex_);
      if (engine_ == nullptr || (!is_stopped_ && !CheckIdle().ok())) return {};
    }
    absl::StatusOr<std::vector<TraceEvent>> events = engine_->TakeTrace();
    if (!events.ok()) return {};
    for (TraceEvent& event : *events) event.step += first_step_;
    return *std::move(events);
  }

  void Stop() {
    {
      const absl::MutexLock lock(&mutex_);
      if (is_stopped_) return;
      is_stopped_ = true;
    }
    const absl::MutexLock engine_lock(&engine_mutex_);
    if (engine_ != nullptr) engine_->Stop();
  }

  std::shared_ptr<Inspector> inspector() const { return engine_->inspector(); }
  caf::actor_system& actor_system() const { return engine_->actor_system(); }

 private:
  absl::StatusOr<std::unique_ptr<Engine>> StartLocalEngine(const SessionOptions& options) {
    LocalEngineOptions local;
    local.num_devices = static_cast<uint32_t>(plan_.devices.size());
    local.threads_per_device = options.threads_per_device;
    local.seed = options.seed;
    local.timeout = options.timeout;
    local.kernels = options.kernels;
    const planner::PolicyRegistry builtin_policies = planner::BuiltinPolicies();
    local.policies = options.policies == nullptr ? &builtin_policies : options.policies;
    local.kernels_by_kind = options.kernels_by_kind;
    local.create_device = options.create_device;
    local.create_communicator = options.create_communicator;
    local.max_memory_bytes = options.max_memory_bytes;
    local.trace_capacity = options.trace ? options.trace_capacity : 0;
    local.trace_every = options.trace_every;
    local.check_results = options.check_results;
    local.first_step = options.first_step;
    local.captures_graphs = options.captures_graphs;
    local.firing_seed = options.firing_seed;
    local.init_states = options.states == nullptr;
    if (options.memory_of != nullptr) {
      local.memory_of = dynamic_cast<const LocalEngine*>(options.memory_of->impl_->engine_.get());
    }
    if (options.reserves_state_copy) {
      local.reserved_bytes = KeptTiles::BytesOfAll(plan_, 0, local.num_devices);
    }
    transport::TransportOptions transport_options;
    transport_options.num_devices = local.num_devices;
    transport_options.num_channels = plan_.num_channels;
    return LocalEngine::Start(plan_, transport::CreateInprocTransport(transport_options), this,
                              local);
  }

  // What the engine cannot take goes through this process.
  absl::Status FillStates(const KeptStates& kept, bool needs_all) {
    ASSIGN_OR_RETURN(const std::vector<uint32_t> missing, engine_->TakeStates(kept));
    for (const uint32_t index : missing) {
      const planner::StatePlan& state = plan_.states[index];
      if (!needs_all && !kept.Has(state.name)) continue;
      ASSIGN_OR_RETURN(const Tensor value, kept.Read(state.name));
      if (value.type() != state.type) {
        return absl::InvalidArgumentError(StrCat("the state '", state.name, "' was kept as ",
                                                 ToString(value.type()), "; the plan has ",
                                                 ToString(state.type)));
      }
      RETURN_IF_ERROR(engine_->WriteState(state, value));
    }
    return absl::OkStatus();
  }

  struct StepState {
    std::shared_ptr<StepBuffers> buffers;
    int64_t begin_ns = 0;
    int64_t end_ns = 0;
    size_t missing_devices = 0;
    bool is_poisoned = false;
    bool has_waiter = false;
    absl::Status error;  // the first
    std::vector<DeviceStepReport> reports;
  };

  absl::Status CheckRunning() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (is_stopped_) return absl::FailedPreconditionError("the session was stopped");
    return failure_;
  }

  absl::Status CheckIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    RETURN_IF_ERROR(CheckRunning());
    for (const auto& [step, state] : steps_) {
      if (state.missing_devices > 0) {
        return absl::FailedPreconditionError(StrCat(StepName(step, first_step_), " is under way"));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<const planner::StatePlan*> FindIdleState(std::string_view name) const {
    {
      const absl::MutexLock lock(&mutex_);
      RETURN_IF_ERROR(CheckIdle());
    }
    for (const planner::StatePlan& state : plan_.states) {
      if (state.name == name) return &state;
    }
    return absl::NotFoundError(StrCat("there is no state '", name, "'"));
  }

  absl::Status DescribeTimeout(int64_t step) {
    const absl::MutexLock lock(&engine_mutex_);
    std::vector<WaitDescription> waits = engine_->Describe(kDescribeTimeout);
    std::stable_partition(waits.begin(), waits.end(),
                          [](const WaitDescription& wait) { return wait.may_be_cause; });
    std::vector<std::string> lines;
    for (WaitDescription& wait : waits) lines.push_back(std::move(wait.text));
    return absl::DeadlineExceededError(StrCat(StepName(step, first_step_), " did not complete in ",
                                              absl::FormatDuration(timeout_),
                                              "; what it waits for:\n  ", StrJoin(lines, "\n  ")));
  }

  void OnFailure(const absl::Status& status) override {
    const absl::MutexLock lock(&mutex_);
    if (failure_.ok()) failure_ = status;
  }

  void OnStepDone(const DeviceStepReport& report) override {
    const absl::MutexLock lock(&mutex_);
    StepState& state = steps_[report.step];
    state.reports.push_back(report);
    state.is_poisoned |= report.is_poisoned;
    if (--state.missing_devices > 0) return;
    state.end_ns = clock_.NowNs();
    std::sort(state.reports.begin(), state.reports.end(),
              [](const auto& a, const auto& b) { return a.device < b.device; });
  }

  void OnError(uint32_t device, int64_t step, const absl::Status& status) override {
    const absl::MutexLock lock(&mutex_);
    StepState& state = steps_[step];
    if (state.error.ok()) {
      state.error = status;
      SetOrigin({.device = static_cast<int32_t>(device), .step = step}, &state.error);
    }
    last_error_ = state.error;
  }

  const planner::Plan plan_;
  const SteadyClock clock_;
  int64_t first_step_ = 0;
  absl::Duration timeout_;

  // Of calls of the engine; taken before mutex_, which the engine's own threads want.
  mutable absl::Mutex engine_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);

  mutable absl::Mutex mutex_;
  // Submitted and not waited for.
  std::map<int64_t, StepState> steps_ ABSL_GUARDED_BY(mutex_);
  int64_t submitted_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);     // what ended the session
  absl::Status last_error_ ABSL_GUARDED_BY(mutex_);  // of a step
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;

  std::unique_ptr<Engine> engine_;  // last: its threads use all of the above
};

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;

absl::StatusOr<std::unique_ptr<Session>> Session::Start(planner::Plan plan,
                                                        const SessionOptions& options) {
  auto impl = std::make_unique<Impl>(std::move(plan));
  RETURN_IF_ERROR(impl->Start(options));
  return std::unique_ptr<Session>(new Session(std::move(impl)));
}

const planner::Plan& Session::plan() const { return impl_->plan(); }
bool Session::shares_memory() const { return impl_->shares_memory(); }

absl::StatusOr<StepResult> Session::Run(const Feeds& feeds) {
  ASSIGN_OR_RETURN(const int64_t step, impl_->Submit(feeds));
  return impl_->Wait(step);
}

absl::StatusOr<int64_t> Session::Submit(const Feeds& feeds) { return impl_->Submit(feeds); }
absl::StatusOr<StepResult> Session::Wait(int64_t step) { return impl_->Wait(step); }
absl::StatusOr<Tensor> Session::Fetch(std::string_view state) const { return impl_->Fetch(state); }
absl::Status Session::SetState(std::string_view state, const Tensor& value) {
  return impl_->SetState(state, value);
}
absl::StatusOr<std::shared_ptr<const KeptStates>> Session::KeepStates(
    StateSelection selection) const {
  return impl_->KeepStates(selection);
}
absl::Status Session::TakeStates(const KeptStates& kept) {
  return impl_->TakeStates(kept, /*needs_all=*/true);
}

absl::Status Session::TakeKeptStates(const KeptStates& kept) {
  return impl_->TakeStates(kept, /*needs_all=*/false);
}
std::vector<TraceEvent> Session::TakeTrace() { return impl_->TakeTrace(); }
std::shared_ptr<Inspector> Session::inspector() const { return impl_->inspector(); }
void Session::Stop() { impl_->Stop(); }
caf::actor_system& Session::actor_system() const { return impl_->actor_system(); }

}  // namespace penstock::actors
