#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "actors/check_plan.h"
#include "actors/cluster/connection_internal.h"
#include "actors/cluster/fetch_tiles.h"
#include "actors/cluster/node_agent_internal.h"
#include "actors/local_engine.h"
#include "actors/tile_copy.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan_io.h"
#include "transport/ucx/ucx_transport.h"

namespace penstock::actors {
namespace {

using control::AsData;
using control::AsText;
using control::ControlLoop;

// From the first byte to the rank; the coordinator has nothing to wait for.
constexpr kj::Duration kGreetingTimeout = 4 * kj::SECONDS;
constexpr uint32_t kMaxSilenceMs = 3'600'000;
// Far more than any plan has.
constexpr unsigned kMaxProcesses = 65536;
constexpr unsigned kMaxFeeds = 65536;
constexpr size_t kTraceEventBytes = 48;  // of a message

void SetStatus(const absl::Status& status, control::Status::Builder builder) {
  builder.setCode(static_cast<uint32_t>(status.code()));
  builder.setMessage(std::string(ToStd(status.message())).c_str());
}

// Lets go of a capability on the loop's thread, whose it is.
struct ObserverHolder {
  ObserverHolder(ControlLoop& control_loop, control::Observer::Client observer)
      : loop(control_loop), client(std::make_shared<control::Observer::Client>(kj::mv(observer))) {}
  ~ObserverHolder() {
    loop.Post([last = std::move(client)] {});
  }

  ControlLoop& loop;
  std::shared_ptr<control::Observer::Client> client;
};

}  // namespace

// What a session asks for.
struct SessionRequest {
  uint32_t generation = 0;
  std::string plan;
  uint32_t first_device = 0;
  uint32_t num_devices = 0;
  int threads_per_device = 1;
  uint64_t seed = 0;
  absl::Duration timeout;
  uint64_t trace_capacity = 0;
  uint64_t max_memory_bytes = 0;
};

// The part of one session that this process runs. Its functions are called by the work thread, the
// observer's by the engine.
class NodeSession : public EngineObserver {
 public:
  // Sends to the coordinator's observer: called with it on the loop's thread.
  using Tell = std::function<void(std::function<void(control::Observer::Client&)>)>;

  NodeSession(const NodeOptions& options, Tell tell) : options_(options), tell_(std::move(tell)) {}
  ~NodeSession() override {
    if (engine_ != nullptr) engine_->Stop();
  }

  // Makes the transport; its address.
  absl::StatusOr<std::string> Open(const SessionRequest& request) {
    request_ = request;
    ASSIGN_OR_RETURN(plan_, planner::PlanFromBytes(request.plan));
    request_.plan.clear();
    RETURN_IF_ERROR(CheckPlanSlice(plan_, request.first_device, request.num_devices));
    fetch_tiles_.emplace(plan_);
    transport::UcxOptions ucx;
    ucx.transport.num_devices = static_cast<uint32_t>(plan_.devices.size());
    ucx.transport.generation = request.generation;
    ucx.transport.num_channels = plan_.num_channels;
    ucx.first_device = request.first_device;
    ucx.num_local_devices = request.num_devices;
    ucx.interfaces = options_.interfaces;
    ucx.request_timeout = std::chrono::seconds(
        std::clamp<int64_t>(absl::ToInt64Seconds(request.timeout), 1, 1'000'000));
    ASSIGN_OR_RETURN(transport_, transport::CreateUcxTransport(ucx));
    return transport_->LocalAddress();
  }

  // Connects to the devices of the other processes and loads the executors.
  absl::Status Connect(const std::vector<std::pair<uint32_t, std::string>>& processes) {
    if (transport_ == nullptr) return absl::FailedPreconditionError("connected before");
    for (const auto& [first_device, address] : processes) {
      if (first_device == request_.first_device) continue;
      RETURN_IF_ERROR(transport_->Connect(first_device, address));
    }
    LocalEngineOptions local;
    local.first_device = request_.first_device;
    local.num_devices = request_.num_devices;
    local.threads_per_device = request_.threads_per_device;
    local.seed = request_.seed;
    local.generation = request_.generation;
    local.timeout = request_.timeout;
    local.kernels = options_.kernels;
    local.policies = options_.policies;
    local.max_memory_bytes = request_.max_memory_bytes;
    local.trace_capacity = request_.trace_capacity;
    ASSIGN_OR_RETURN(engine_, LocalEngine::Start(plan_, std::move(transport_), this, local));
    return absl::OkStatus();
  }

  absl::Status Submit(int64_t step, std::vector<Tensor> feeds) {
    RETURN_IF_ERROR(CheckLoaded());
    if (step != num_submitted_) {
      return absl::InvalidArgumentError(
          StrCat("step ", step, " was submitted where ", num_submitted_, " is next"));
    }
    auto buffers = std::make_shared<StepBuffers>();
    buffers->feeds = std::move(feeds);
    for (const planner::FetchPlan& fetch : plan_.fetches) buffers->fetches.emplace_back(fetch.type);
    {
      const std::lock_guard lock(mutex_);
      if (static_cast<int64_t>(steps_.size()) >= kMaxStepsInFlight) {
        return absl::ResourceExhaustedError("too many steps are under way");
      }
      steps_[step].buffers = buffers;
    }
    ++num_submitted_;
    engine_->Submit(step, buffers);
    return absl::OkStatus();
  }

  absl::Status CheckLoaded() const {
    if (engine_ == nullptr) return absl::FailedPreconditionError("the session is not loaded");
    return absl::OkStatus();
  }
  absl::Status CheckState(uint32_t state) const {
    RETURN_IF_ERROR(CheckLoaded());
    if (state >= plan_.states.size()) {
      return absl::InvalidArgumentError(StrCat("there is no state ", state));
    }
    return absl::OkStatus();
  }

  const planner::Plan& plan() const { return plan_; }
  LocalEngine& engine() { return *engine_; }

  void OnStepDone(const DeviceStepReport& report) override {
    StepState done;
    {
      const std::lock_guard lock(mutex_);
      StepState& state = steps_[report.step];
      state.reports.push_back(report);
      if (state.reports.size() < request_.num_devices) return;
      done = std::move(state);
      steps_.erase(report.step);
    }
    const auto tiles = std::make_shared<std::vector<FetchTiles::Bytes>>(
        fetch_tiles_->Read(request_.first_device, request_.num_devices, done.buffers->fetches));
    size_t num_bytes = 0;
    for (const FetchTiles::Bytes& tile : *tiles) num_bytes += tile.bytes.size();
    if (num_bytes > control::kMaxDataBytes) {
      OnFailure(absl::ResourceExhaustedError(StrCat("the results of step ", report.step, " have ",
                                                    num_bytes, " bytes; a process sends at most ",
                                                    control::kMaxDataBytes)));
      return;
    }
    tell_([generation = request_.generation, reports = std::move(done.reports),
           tiles](control::Observer::Client& observer) {
      auto call = observer.stepDoneRequest();
      call.setGeneration(generation);
      call.setStep(reports[0].step);
      auto out = call.initReports(static_cast<unsigned>(reports.size()));
      for (unsigned i = 0; i < reports.size(); ++i) {
        out[i].setDevice(reports[i].device);
        out[i].setIsPoisoned(reports[i].is_poisoned);
        out[i].setWallNs(reports[i].wall_ns);
        out[i].setWaitNs(reports[i].wait_ns);
      }
      auto fetches = call.initFetches(static_cast<unsigned>(tiles->size()));
      for (unsigned i = 0; i < tiles->size(); ++i) {
        const FetchTiles::Bytes& tile = (*tiles)[i];
        fetches[i].setDevice(tile.device);
        fetches[i].setActor(tile.actor);
        fetches[i].setMicrobatch(tile.microbatch);
        fetches[i].setBytes(AsData(tile.bytes.data(), tile.bytes.size()));
      }
      call.send().ignoreResult().detach([](const kj::Exception&) {});  // the end is seen elsewhere
    });
  }

  void OnError(uint32_t device, int64_t step, const absl::Status& status) override {
    tell_([generation = request_.generation, device, step,
           status](control::Observer::Client& observer) {
      auto call = observer.errorRequest();
      call.setGeneration(generation);
      call.setDevice(device);
      call.setStep(step);
      SetStatus(status, call.initStatus());
      call.send().ignoreResult().detach([](const kj::Exception&) {});
    });
  }

  void OnFailure(const absl::Status& status) override {
    tell_([generation = request_.generation, status](control::Observer::Client& observer) {
      auto call = observer.failureRequest();
      call.setGeneration(generation);
      SetStatus(status, call.initStatus());
      call.send().ignoreResult().detach([](const kj::Exception&) {});
    });
  }

 private:
  struct StepState {
    std::shared_ptr<StepBuffers> buffers;
    std::vector<DeviceStepReport> reports;
  };

  const NodeOptions& options_;
  const Tell tell_;
  SessionRequest request_;
  planner::Plan plan_;
  std::optional<FetchTiles> fetch_tiles_;
  std::unique_ptr<transport::UcxTransport> transport_;  // until it is the engine's
  int64_t num_submitted_ = 0;

  std::mutex mutex_;
  std::map<int64_t, StepState> steps_;  // guarded by mutex_

  std::unique_ptr<LocalEngine> engine_;  // last: its threads use all of the above
};

// Takes calls on the loop's thread and has them done on the work thread.
class NodeAgent::NodeServer final : public control::Node::Server {
 public:
  explicit NodeServer(NodeAgent& agent) : agent_(agent) {}

  kj::Promise<void> ping(PingContext) override {
    ++agent_.num_pings_;
    return kj::READY_NOW;
  }

  kj::Promise<void> open(OpenContext context) override {
    const auto params = context.getParams();
    const auto spec = params.getSession();
    SessionRequest request;
    request.generation = spec.getGeneration();
    request.plan = AsText(spec.getPlan());
    request.first_device = spec.getFirstDevice();
    request.num_devices = spec.getNumDevices();
    request.threads_per_device =
        static_cast<int>(std::min<uint32_t>(spec.getThreadsPerDevice(), 4096));
    request.seed = spec.getSeed();
    request.timeout = absl::Milliseconds(
        static_cast<int64_t>(std::min<uint64_t>(spec.getTimeoutMs(), uint64_t{1} << 40)));
    request.trace_capacity = std::min<uint64_t>(spec.getTraceCapacity(), uint64_t{1} << 24);
    request.max_memory_bytes = spec.getMaxMemoryBytes();
    const auto observer = std::make_shared<ObserverHolder>(agent_.loop_, params.getObserver());
    const auto tell = [&loop = agent_.loop_,
                       observer](std::function<void(control::Observer::Client&)> send) {
      loop.Post([client = observer->client, send = std::move(send)] { send(*client); });
    };
    const auto address = std::make_shared<std::string>();
    return Do([&agent = agent_, request = std::move(request), tell, address]() -> absl::Status {
             if (request.generation <= agent.generation_) {
               return absl::FailedPreconditionError(
                   StrCat("generation ", request.generation, " is over"));
             }
             agent.generation_ = request.generation;
             agent.session_ = std::make_unique<NodeSession>(agent.options_, tell);
             absl::StatusOr<std::string> opened = agent.session_->Open(request);
             if (!opened.ok()) {
               agent.session_ = nullptr;
               return opened.status();
             }
             *address = *std::move(opened);
             return absl::OkStatus();
           })
        .then([context, address]() mutable {
          context.getResults().setAddress(AsData(address->data(), address->size()));
        });
  }

  kj::Promise<void> connect(ConnectContext context) override {
    std::vector<std::pair<uint32_t, std::string>> processes;
    // A list's elements may take no bytes in the message that counts them.
    if (context.getParams().getProcesses().size() > kMaxProcesses) {
      return control::ToException(absl::InvalidArgumentError("too many processes"));
    }
    for (const auto process : context.getParams().getProcesses()) {
      processes.emplace_back(process.getFirstDevice(), AsText(process.getAddress()));
    }
    return InSession(context.getParams().getGeneration(),
                     [processes = std::move(processes)](NodeSession& session) {
                       return session.Connect(processes);
                     });
  }

  kj::Promise<void> submit(SubmitContext context) override {
    const auto params = context.getParams();
    std::vector<std::string> feeds;
    if (params.getFeeds().size() > kMaxFeeds) {
      return control::ToException(absl::InvalidArgumentError("too many feeds"));
    }
    for (const auto feed : params.getFeeds()) feeds.emplace_back(AsText(feed));
    return InSession(
        params.getGeneration(),
        [step = params.getStep(), feeds = std::move(feeds)](NodeSession& session) -> absl::Status {
          const std::vector<planner::FeedPlan>& plans = session.plan().feeds;
          if (feeds.size() != plans.size()) {
            return absl::InvalidArgumentError(
                StrCat(feeds.size(), " feeds where the plan has ", plans.size()));
          }
          std::vector<Tensor> tensors;
          for (size_t i = 0; i < feeds.size(); ++i) {
            Tensor tensor(plans[i].type);
            if (tensor.num_bytes() != feeds[i].size()) {
              return absl::InvalidArgumentError(StrCat("the feed '", plans[i].name, "' came with ",
                                                       feeds[i].size(), " of ", tensor.num_bytes(),
                                                       " bytes"));
            }
            memcpy(tensor.data(), feeds[i].data(), feeds[i].size());
            tensors.push_back(std::move(tensor));
          }
          return session.Submit(step, std::move(tensors));
        });
  }

  kj::Promise<void> describe(DescribeContext context) override {
    const auto params = context.getParams();
    const auto lines = std::make_shared<std::vector<std::string>>();
    const absl::Duration timeout =
        absl::Milliseconds(std::min<uint32_t>(params.getTimeoutMs(), 60'000));
    return InSession(params.getGeneration(),
                     [lines, timeout](NodeSession& session) {
                       const absl::Status status = session.CheckLoaded();
                       if (status.ok()) *lines = session.engine().Describe(timeout);
                       return status;
                     })
        .then([context, lines]() mutable {
          auto out = context.getResults().initLines(static_cast<unsigned>(lines->size()));
          for (unsigned i = 0; i < lines->size(); ++i) out.set(i, (*lines)[i].c_str());
        });
  }

  kj::Promise<void> readState(ReadStateContext context) override {
    const auto params = context.getParams();
    const auto tiles = std::make_shared<std::vector<std::pair<uint32_t, std::string>>>();
    return InSession(params.getGeneration(),
                     [state = params.getState(), tiles](NodeSession& session) -> absl::Status {
                       RETURN_IF_ERROR(session.CheckState(state));
                       const auto& placements = session.plan().states[state].placements;
                       size_t total_bytes = 0;
                       for (uint32_t i = 0; i < placements.size(); ++i) {
                         const std::byte* place = session.engine().PlaceOf(placements[i]);
                         if (place == nullptr) continue;
                         // Replicas are equal: one of each tile is enough.
                         const auto is_same = [&](const auto& sent) {
                           return placements[sent.first].tile == placements[i].tile;
                         };
                         if (std::any_of(tiles->begin(), tiles->end(), is_same)) continue;
                         const size_t num_bytes = placements[i].tile.num_bytes();
                         total_bytes += num_bytes;
                         if (total_bytes > control::kMaxDataBytes) {
                           return absl::ResourceExhaustedError(
                               StrCat("tiles of ", total_bytes, " bytes are too much to be read"));
                         }
                         tiles->emplace_back(
                             i, std::string(reinterpret_cast<const char*>(place), num_bytes));
                       }
                       return absl::OkStatus();
                     })
        .then([context, tiles]() mutable {
          auto out = context.getResults().initTiles(static_cast<unsigned>(tiles->size()));
          for (unsigned i = 0; i < tiles->size(); ++i) {
            const auto& [placement, bytes] = (*tiles)[i];
            out[i].setPlacement(placement);
            out[i].setBytes(AsData(bytes.data(), bytes.size()));
          }
        });
  }

  kj::Promise<void> writeState(WriteStateContext context) override {
    const auto params = context.getParams();
    return InSession(params.getGeneration(),
                     [state = params.getState(), bytes = std::string(AsText(params.getValue()))](
                         NodeSession& session) -> absl::Status {
                       RETURN_IF_ERROR(session.CheckState(state));
                       const planner::StatePlan& plan = session.plan().states[state];
                       Tensor value(plan.type);
                       if (bytes.size() != value.num_bytes()) {
                         return absl::InvalidArgumentError(
                             StrCat("the state '", plan.name, "' came with ", bytes.size(), " of ",
                                    value.num_bytes(), " bytes"));
                       }
                       memcpy(value.data(), bytes.data(), bytes.size());
                       return session.engine().WriteState(plan, value);
                     });
  }

  kj::Promise<void> takeTrace(TakeTraceContext context) override {
    const auto events = std::make_shared<std::vector<TraceEvent>>();
    return InSession(context.getParams().getGeneration(),
                     [events](NodeSession& session) -> absl::Status {
                       RETURN_IF_ERROR(session.CheckLoaded());
                       ASSIGN_OR_RETURN(*events, session.engine().TakeTrace());
                       events->resize(
                           std::min(events->size(), control::kMaxDataBytes / kTraceEventBytes));
                       return absl::OkStatus();
                     })
        .then([context, events]() mutable {
          auto out = context.getResults().initEvents(static_cast<unsigned>(events->size()));
          for (unsigned i = 0; i < events->size(); ++i) {
            const TraceEvent& event = (*events)[i];
            out[i].setDevice(event.device);
            out[i].setActor(event.actor);
            out[i].setPhase(event.phase);
            out[i].setMicrobatch(event.microbatch);
            out[i].setStep(event.step);
            out[i].setBeginNs(event.begin_ns);
            out[i].setEndNs(event.end_ns);
          }
        });
  }

  kj::Promise<void> close(CloseContext context) override {
    return Do([&agent = agent_, generation = context.getParams().getGeneration()] {
      if (generation == agent.generation_) agent.session_ = nullptr;
      return absl::OkStatus();
    });
  }

  kj::Promise<void> exit(ExitContext) override {
    agent_.End(absl::OkStatus());
    return kj::READY_NOW;
  }

 private:
  // Has the work thread run `work`; its error is the call's.
  kj::Promise<void> Do(std::function<absl::Status()> work) {
    auto pair = kj::newPromiseAndFulfiller<void>();
    auto fulfiller = std::make_shared<kj::Own<kj::PromiseFulfiller<void>>>(kj::mv(pair.fulfiller));
    const bool is_taken = agent_.work_.Push(
        [&loop = agent_.loop_, fulfiller = std::move(fulfiller), work = std::move(work)]() mutable {
          const absl::Status status = work();
          // The fulfiller is the loop's, to the end.
          loop.Post([fulfiller = std::move(fulfiller), status] {
            if (status.ok()) {
              (*fulfiller)->fulfill();
            } else {
              (*fulfiller)->reject(control::ToException(status));
            }
          });
        });
    if (!is_taken) {
      return control::ToException(absl::ResourceExhaustedError("too many calls are under way"));
    }
    return kj::mv(pair.promise);
  }

  kj::Promise<void> InSession(uint32_t generation, std::function<absl::Status(NodeSession&)> work) {
    return Do([&agent = agent_, generation, work = std::move(work)]() -> absl::Status {
      if (agent.session_ == nullptr || generation != agent.generation_) {
        return absl::FailedPreconditionError(
            StrCat("there is no session of generation ", generation));
      }
      return work(*agent.session_);
    });
  }

  NodeAgent& agent_;
};

NodeAgent::NodeAgent(const NodeOptions& options, ControlLoop& loop, std::function<void()> on_end)
    : options_(options), loop_(loop), on_end_(std::move(on_end)) {}

NodeAgent::~NodeAgent() = default;

kj::Promise<void> NodeAgent::Join(kj::Own<kj::AsyncIoStream> stream, const std::string& key) {
  auto hello = control::SayHello(*stream, key);
  return hello.then([this, stream = kj::mv(stream)]() mutable { return JoinOver(kj::mv(stream)); })
      .exclusiveJoin(loop_.timer().afterDelay(kGreetingTimeout).then([] {
        kj::throwFatalException(
            control::ToException(absl::DeadlineExceededError("the coordinator does not answer")));
      }));
}

// Ends the node when no ping has come for `bound`. Whoever was stopped itself first looks at what
// has come meanwhile.
kj::Promise<void> NodeAgent::ListenForPings(kj::Duration bound) {
  return loop_.timer()
      .afterDelay(bound)
      .then([this] { return loop_.timer().afterDelay(control::kSecondLook); })
      .then([this, bound, before = num_pings_]() -> kj::Promise<void> {
        if (num_pings_ > before) return ListenForPings(bound);
        End(absl::UnavailableError("the coordinator has gone silent"));
        return kj::READY_NOW;
      });
}

kj::Promise<void> NodeAgent::JoinOver(kj::Own<kj::AsyncIoStream> stream) {
  connection_ = kj::heap<control::RpcConnection>(kj::mv(stream), capnp::rpc::twoparty::Side::CLIENT,
                                                 nullptr, loop_.timer());
  watch_ = connection_->OnDisconnect()
               .then([this] { End(absl::UnavailableError("the coordinator is gone")); })
               .eagerlyEvaluate([this](const kj::Exception& exception) {
                 End(control::FromException(exception));
               });
  auto call = connection_->Bootstrap().castAs<control::Coordinator>().joinRequest();
  auto info = call.initInfo();
  info.setRank(options_.rank);
  info.setPid(getpid());
  info.setHost(HostName().c_str());
  info.setNumCores(std::thread::hardware_concurrency());
  info.setMemoryBytes(MachineMemoryBytes());
  call.setNode(kj::heap<NodeServer>(*this));
  return call.send().then([this](auto&& response) {
    const auto silence_ms = std::min(response.getSilenceMs(), kMaxSilenceMs);
    listen_ =
        ListenForPings(silence_ms * kj::MILLISECONDS).eagerlyEvaluate([](const kj::Exception&) {});
  });
}

void NodeAgent::Disconnect() {
  work_.Clear();
  listen_ = nullptr;
  watch_ = nullptr;
  connection_ = nullptr;
}

void NodeAgent::CloseSession() { session_ = nullptr; }

void NodeAgent::End(const absl::Status& status) {
  if (on_end_) on_end_();
  work_.End(status);
}

}  // namespace penstock::actors
