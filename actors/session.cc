#include "actors/session.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "actors/check_plan.h"
#include "actors/host.h"
#include "actors/state_init.h"
#include "actors/tile_copy.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "transport/transport.h"

namespace penstock::actors {
namespace {

// For the answers of a report: they come at once or, from a device inside a kernel, late.
constexpr absl::Duration kDescribeTimeout = absl::Seconds(1);

uint64_t MachineMemoryBytes() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && page_bytes > 0 ? static_cast<uint64_t>(pages) * page_bytes : UINT64_MAX;
}

}  // namespace

const Tensor* StepResult::Find(std::string_view name) const {
  for (const auto& [fetch, tensor] : fetches) {
    if (fetch == name) return &tensor;
  }
  return nullptr;
}

class Session::Impl : private ExecutorObserver {
 public:
  explicit Impl(planner::Plan plan) : plan_(std::move(plan)) {}
  ~Impl() override { Stop(); }

  absl::Status Start(const SessionOptions& options) {
    if (options.kernels == nullptr) return absl::InvalidArgumentError("a session needs kernels");
    RETURN_IF_ERROR(CheckPlan(plan_));
    timeout_ = options.timeout;
    const uint64_t limit =
        options.max_memory_bytes > 0 ? options.max_memory_bytes : MachineMemoryBytes();
    RETURN_IF_ERROR(CheckFits(limit));
    if (options.policies == nullptr) builtin_policies_ = planner::BuiltinPolicies();
    const planner::PolicyRegistry& policies =
        options.policies == nullptr ? builtin_policies_ : *options.policies;
    const planner::Policy* policy = policies.Find(plan_.policy);
    if (policy == nullptr) {
      return absl::NotFoundError(StrCat("there is no policy '", plan_.policy,
                                        "'; known: ", StrJoin(policies.Names(), ", ")));
    }
    const auto num_devices = static_cast<uint32_t>(plan_.devices.size());
    transport::TransportOptions transport_options;
    transport_options.num_devices = num_devices;
    transport_options.num_channels = plan_.num_channels;
    transport_ = transport::CreateInprocTransport(transport_options);
    devices_.resize(num_devices);
    arenas_.resize(num_devices);
    HostParts parts;
    parts.threads_per_device = options.threads_per_device;
    parts.on_failure = [this](const absl::Status& status) { SetFailure(status); };
    for (uint32_t i = 0; i < num_devices; ++i) {
      links_.push_back(std::make_unique<StageLink>());
      wakers_.push_back(std::make_unique<Waker>());
      parts.links.push_back(links_[i].get());
      parts.wakers.push_back(wakers_[i].get());
      ASSIGN_OR_RETURN(transport::Endpoint * endpoint, transport_->OpenEndpoint(i));
      endpoint->SetWakeup([waker = wakers_[i].get()] { waker->Notify(); });
      parts.executors.push_back(
          [this, i, endpoint, options] { return Load(i, endpoint, options); });
    }
    for (uint32_t stage = 0; stage < plan_.stages.size(); ++stage) {
      std::vector<StageLink*> links;
      for (const uint32_t device : plan_.stages[stage].devices) {
        links.push_back(links_[device].get());
      }
      ASSIGN_OR_RETURN(std::unique_ptr<StageController> controller,
                       StageController::Create(plan_, stage, *policy, std::move(links)));
      parts.stages.push_back(std::move(controller));
      parts.stage_devices.push_back(plan_.stages[stage].devices);
    }
    ASSIGN_OR_RETURN(host_, Host::Start(std::move(parts), timeout_));
    return absl::OkStatus();
  }

  const planner::Plan& plan() const { return plan_; }

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
        const bool is_known = std::any_of(plan_.feeds.begin(), plan_.feeds.end(),
                                          [&](const auto& feed) { return feed.name == name; });
        if (!is_known) return absl::InvalidArgumentError(StrCat("there is no feed '", name, "'"));
      }
    }
    for (const planner::FetchPlan& fetch : plan_.fetches) buffers->fetches.emplace_back(fetch.type);

    const std::lock_guard lock(mutex_);
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
    host_->Submit(step, buffers);
    return step;
  }

  absl::StatusOr<StepResult> Wait(int64_t step) {
    std::unique_lock lock(mutex_);
    const auto it = steps_.find(step);
    if (it == steps_.end() || it->second.has_waiter) {
      return absl::NotFoundError(StrCat("step ", step, " is not under way"));
    }
    StepState& state = it->second;
    state.has_waiter = true;
    const bool is_over = changed_.wait_for(
        lock, absl::ToChronoNanoseconds(std::min(timeout_, absl::Hours(24 * 365))),
        [&] { return state.missing_devices == 0 || !failure_.ok() || is_stopped_; });
    if (!is_over) {
      lock.unlock();
      const absl::Status status = DescribeTimeout(step);
      lock.lock();
      if (failure_.ok()) failure_ = status;
      changed_.notify_all();
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
    result.devices = std::move(done.reports);
    for (size_t i = 0; i < plan_.fetches.size(); ++i) {
      result.fetches.emplace_back(plan_.fetches[i].name, std::move(done.buffers->fetches[i]));
    }
    return result;
  }

  absl::StatusOr<Tensor> Fetch(std::string_view name) const {
    const std::lock_guard lock(mutex_);
    ASSIGN_OR_RETURN(const planner::StatePlan* state, FindIdleState(name));
    Tensor value(state->type);
    for (const planner::StatePlacement& placement : state->placements) {
      TileCopy(placement.tile).ToGlobal(PlaceOf(placement), value.data(), 0);
    }
    return value;
  }

  absl::Status SetState(std::string_view name, const Tensor& value) {
    const std::lock_guard lock(mutex_);
    ASSIGN_OR_RETURN(const planner::StatePlan* state, FindIdleState(name));
    if (value.type() != state->type) {
      return absl::InvalidArgumentError(StrCat("the state '", name, "' is ", ToString(state->type),
                                               ", not ", ToString(value.type())));
    }
    for (const planner::StatePlacement& placement : state->placements) {
      TileCopy(placement.tile).FromGlobal(value.data(), PlaceOf(placement), 0);
    }
    return absl::OkStatus();
  }

  std::vector<TraceEvent> TakeTrace() {
    const std::lock_guard lock(mutex_);
    std::vector<TraceEvent> events;
    if (!CheckIdle().ok()) return events;
    for (uint32_t i = 0; i < plan_.devices.size(); ++i) {
      const std::vector<TraceEvent> more = host_->TakeTrace(i);
      events.insert(events.end(), more.begin(), more.end());
    }
    return events;
  }

  void Stop() {
    {
      const std::lock_guard lock(mutex_);
      if (is_stopped_) return;
      is_stopped_ = true;
      changed_.notify_all();
    }
    const std::lock_guard lock(host_mutex_);
    if (host_ != nullptr) host_->Stop();
  }

 private:
  // The devices of a process share its memory. An error names the first one without room.
  absl::Status CheckFits(uint64_t limit) const {
    uint64_t available = limit;
    for (size_t d = 0; d < plan_.devices.size(); ++d) {
      const uint64_t needed = plan_.devices[d].arena_bytes;
      if (needed > available) {
        return absl::ResourceExhaustedError(StrCat("the plan does not fit: device ", d, " needs ",
                                                   needed, " bytes, available are ", available,
                                                   " of the ", limit, " bytes that ",
                                                   plan_.devices.size(), " device(s) share"));
      }
      available -= needed;
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

  // On the device's own thread: memory is touched and kernels are made where they are used.
  absl::StatusOr<std::unique_ptr<DeviceExecutor>> Load(uint32_t index,
                                                       transport::Endpoint* endpoint,
                                                       const SessionOptions& options) {
    if (options.create_device != nullptr) {
      ASSIGN_OR_RETURN(devices_[index], options.create_device(index));
    } else {
      devices_[index] = CreateCpuDevice(std::max(options.threads_per_device, 1));
    }
    Device& device = *devices_[index];
    ASSIGN_OR_RETURN(arenas_[index],
                     device.Allocate(plan_.devices[index].arena_bytes, MemoryKind::kDevice));
    for (const planner::StatePlan& state : plan_.states) {
      for (const planner::StatePlacement& placement : state.placements) {
        if (placement.device != index) continue;
        InitState(state, placement, options.seed, PlaceOf(placement));
      }
    }
    ExecutorParts parts;
    parts.plan = &plan_;
    parts.device_index = index;
    parts.target = {&device, options.kernels, arenas_[index]->data(), endpoint};
    parts.stage = links_[index].get();
    parts.observer = this;
    parts.clock = &clock_;
    ExecutorOptions executor_options;
    executor_options.seed = options.seed;
    executor_options.trace_capacity = options.trace ? options.trace_capacity : 0;
    return DeviceExecutor::Create(parts, executor_options);
  }

  std::byte* PlaceOf(const planner::StatePlacement& placement) const {
    return arenas_[placement.device]->data() +
           plan_.devices[placement.device].registers[placement.reg].offset;
  }

  absl::Status CheckRunning() const {
    if (is_stopped_) return absl::FailedPreconditionError("the session was stopped");
    return failure_;
  }

  absl::Status CheckIdle() const {
    RETURN_IF_ERROR(CheckRunning());
    for (const auto& [step, state] : steps_) {
      if (state.missing_devices > 0) {
        return absl::FailedPreconditionError(StrCat("step ", step, " is under way"));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<const planner::StatePlan*> FindIdleState(std::string_view name) const {
    RETURN_IF_ERROR(CheckIdle());
    for (const planner::StatePlan& state : plan_.states) {
      if (state.name == name) return &state;
    }
    return absl::NotFoundError(StrCat("there is no state '", name, "'"));
  }

  absl::Status DescribeTimeout(int64_t step) {
    const std::lock_guard lock(host_mutex_);
    return absl::DeadlineExceededError(
        StrCat("step ", step, " did not complete in ", absl::FormatDuration(timeout_),
               "; what it waits for:\n  ", StrJoin(host_->Describe(kDescribeTimeout), "\n  ")));
  }

  void SetFailure(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = status;
    changed_.notify_all();
  }

  void OnStepDone(const DeviceStepReport& report) override {
    const std::lock_guard lock(mutex_);
    StepState& state = steps_[report.step];
    state.reports.push_back(report);
    state.is_poisoned |= report.is_poisoned;
    if (--state.missing_devices > 0) return;
    state.end_ns = clock_.NowNs();
    std::sort(state.reports.begin(), state.reports.end(),
              [](const auto& a, const auto& b) { return a.device < b.device; });
    changed_.notify_all();
  }

  void OnError(uint32_t, int64_t step, const absl::Status& status) override {
    const std::lock_guard lock(mutex_);
    StepState& state = steps_[step];
    if (state.error.ok()) state.error = status;
    last_error_ = state.error;
  }

  const planner::Plan plan_;
  const SteadyClock clock_;
  absl::Duration timeout_;
  planner::PolicyRegistry builtin_policies_;
  // An entry a device in each; made on the device's thread while it loads.
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Memory>> arenas_;
  std::vector<std::unique_ptr<StageLink>> links_;
  std::vector<std::unique_ptr<Waker>> wakers_;
  std::unique_ptr<transport::Transport> transport_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, StepState> steps_;  // submitted and not waited for; guarded by mutex_
  int64_t submitted_ = 0;               // guarded by mutex_
  absl::Status failure_;                // what ended the session; guarded by mutex_
  absl::Status last_error_;             // of a step; guarded by mutex_
  bool is_stopped_ = false;             // guarded by mutex_

  std::mutex host_mutex_;       // of questions to the host and its end; taken before mutex_
  std::unique_ptr<Host> host_;  // last: its threads use all of the above
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
std::vector<TraceEvent> Session::TakeTrace() { return impl_->TakeTrace(); }
void Session::Stop() { impl_->Stop(); }

}  // namespace penstock::actors
