#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "actors/check_plan.h"
#include "actors/cluster/bulk_transfer_internal.h"
#include "actors/cluster/connection_internal.h"
#include "actors/cluster/fetch_tiles.h"
#include "actors/cluster/node_agent_internal.h"
#include "actors/cluster/state_tiles.h"
#include "actors/local_engine.h"
#include "actors/step_name.h"
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
constexpr int64_t kMaxFirstStep = int64_t{1} << 48;
constexpr size_t kTraceEventBytes = 48;  // of a message
// For the answers of stages, which come at once unless a policy is busy.
constexpr absl::Duration kActivityTimeout = absl::Seconds(1);

void SetStatus(const absl::Status& status, control::Status::Builder builder) {
  builder.setCode(static_cast<uint32_t>(status.code()));
  builder.setMessage(std::string(ToStd(status.message())).c_str());
}

template <typename T>
kj::ArrayPtr<const T> AsList(const std::vector<T>& values) {
  return {values.data(), values.size()};
}

uint64_t MemoryLimit(const NodeOptions& options) {
  return options.max_memory_bytes > 0 ? options.max_memory_bytes : MachineMemoryBytes();
}

// Lets go of a capability on the loop's thread, whose it is.
template <typename Client>
struct Holder {
  Holder(ControlLoop& control_loop, Client capability)
      : loop(control_loop), client(std::make_shared<Client>(kj::mv(capability))) {}
  ~Holder() {
    loop.Post([last = std::move(client)] {});
  }

  ControlLoop& loop;
  std::shared_ptr<Client> client;
};

}  // namespace

// What has come with a call, or is still to be read.
struct NodeAgent::Received {
  Received(ControlLoop& loop, control::Bulk::Reader bulk) {
    if (bulk.isThere()) {
      there = std::make_shared<Holder<control::Source::Client>>(loop, bulk.getThere());
    } else {
      here = AsText(bulk.getHere());
    }
  }

  std::string here;
  std::shared_ptr<Holder<control::Source::Client>> there;
};

// What a session asks for.
struct SessionRequest {
  uint32_t generation = 0;
  uint32_t first_device = 0;
  uint32_t num_devices = 0;
  int threads_per_device = 1;
  uint64_t seed = 0;
  absl::Duration timeout;
  uint64_t trace_capacity = 0;
  uint64_t max_memory_bytes = 0;
  kernels::ResultCheck check_results = kernels::ResultCheck::kNone;
  int64_t first_step = 0;
};

// The part of one session that this process runs. Its functions are called by the work thread, the
// observer's by the engine.
class NodeSession : public EngineObserver {
 public:
  // Sends to the coordinator's observer: called with it on the loop's thread.
  using Tell = std::function<void(std::function<void(control::Observer::Client&)>)>;

  // `num_untold` counts, over all sessions, the steps that are done here and that the coordinator
  // has not taken note of.
  NodeSession(const NodeOptions& options, Tell tell,
              std::shared_ptr<std::atomic<int64_t>> num_untold)
      : options_(options), tell_(std::move(tell)), num_untold_(std::move(num_untold)) {}
  ~NodeSession() override {
    if (engine_ != nullptr) engine_->Stop();
  }

  // Makes the transport; its address.
  absl::StatusOr<std::string> Open(const SessionRequest& request, std::string_view plan,
                                   const NodeAgent::TransportFactory& create_transport) {
    request_ = request;
    ASSIGN_OR_RETURN(plan_, planner::PlanFromBytes(plan));
    RETURN_IF_ERROR(CheckPlanSlice(plan_, request.first_device, request.num_devices));
    RETURN_IF_ERROR(CheckStepFits());
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
    ASSIGN_OR_RETURN(transport_, create_transport(ucx));
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
    const uint64_t limit = MemoryLimit(options_);
    local.max_memory_bytes =
        request_.max_memory_bytes > 0 ? std::min(request_.max_memory_bytes, limit) : limit;
    local.trace_capacity = request_.trace_capacity;
    local.check_results = request_.check_results;
    local.first_step = request_.first_step;
    ASSIGN_OR_RETURN(engine_, LocalEngine::Start(plan_, std::move(transport_), this, local));
    return absl::OkStatus();
  }

  // Makes place for the next step, where `fill_feeds` puts its feeds, and submits it.
  absl::Status Submit(int64_t step, const std::function<absl::Status(BulkTarget)>& fill_feeds) {
    RETURN_IF_ERROR(CheckLoaded());
    if (step != num_submitted_) {
      return absl::InvalidArgumentError(
          StrCat(StepName(step), " was submitted where ", StepName(num_submitted_), " is next"));
    }
    if (*num_untold_ >= 2 * kMaxStepsInFlight) {
      return absl::ResourceExhaustedError("the reports of too many steps have not been read");
    }
    auto buffers = std::make_shared<StepBuffers>();
    BulkTarget feeds;
    for (const planner::FeedPlan& feed : plan_.feeds) {
      buffers->feeds.emplace_back(feed.type);
      feeds.Add(buffers->feeds.back().num_bytes(),
                [to = buffers->feeds.back()](uint64_t offset, size_t size,
                                             const std::byte* bytes) mutable {
                  memcpy(static_cast<std::byte*>(to.data()) + offset, bytes, size);
                });
    }
    RETURN_IF_ERROR(fill_feeds(std::move(feeds)));
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

  // Bytes of a state's tile.
  absl::StatusOr<std::string> ReadState(uint32_t state, uint32_t placement, uint64_t offset,
                                        uint32_t size) const {
    RETURN_IF_ERROR(CheckState(state));
    const auto& placements = plan_.states[state].placements;
    const std::byte* place =
        placement < placements.size() ? engine_->PlaceOf(placements[placement]) : nullptr;
    if (place == nullptr) {
      return absl::InvalidArgumentError(StrCat("the state '", plan_.states[state].name,
                                               "' has no placement ", placement, " here"));
    }
    RETURN_IF_ERROR(control::CheckPiece(offset, size, placements[placement].tile.num_bytes()));
    return std::string(reinterpret_cast<const char*>(place) + offset, size);
  }

  // Where the tiles of a state are to go: to all places that hold them.
  absl::StatusOr<BulkTarget> StateTarget(uint32_t state) {
    RETURN_IF_ERROR(CheckState(state));
    const auto& placements = plan_.states[state].placements;
    BulkTarget target;
    for (const StateTile& tile :
         StateTiles(plan_.states[state], request_.first_device, request_.num_devices)) {
      std::vector<std::byte*> places;
      for (const uint32_t placement : tile) {
        places.push_back(engine_->PlaceOf(placements[placement]));
      }
      target.Add(
          placements[tile[0]].tile.num_bytes(),
          [places = std::move(places)](uint64_t offset, size_t size, const std::byte* bytes) {
            for (std::byte* const place : places) memcpy(place + offset, bytes, size);
          });
    }
    return target;
  }

  // Events that were not taken yet, a message's worth of them, and whether there are more.
  absl::StatusOr<std::vector<TraceEvent>> TakeTrace(bool* has_more) {
    RETURN_IF_ERROR(CheckLoaded());
    if (num_taken_ == trace_.size()) {
      ASSIGN_OR_RETURN(trace_, engine_->TakeTrace());
      num_taken_ = 0;
    }
    const size_t count =
        std::min(trace_.size() - num_taken_, control::kPieceBytes / kTraceEventBytes);
    const auto first = trace_.begin() + static_cast<std::ptrdiff_t>(num_taken_);
    num_taken_ += count;
    *has_more = num_taken_ < trace_.size();
    return std::vector<TraceEvent>(first, first + static_cast<std::ptrdiff_t>(count));
  }

  const SessionRequest& request() const { return request_; }
  LocalEngine& engine() { return *engine_; }

  absl::Status CheckLoaded() const {
    if (engine_ == nullptr) return absl::FailedPreconditionError("the session is not loaded");
    return absl::OkStatus();
  }

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
    ++*num_untold_;
    tell_([request = request_, reports = std::move(done.reports), tiles = *fetch_tiles_,
           buffers = std::move(done.buffers),
           num_untold = num_untold_](control::Observer::Client& observer) {
      auto call = observer.stepDoneRequest();
      call.setGeneration(request.generation);
      call.setStep(reports[0].step);
      auto out = call.initReports(static_cast<unsigned>(reports.size()));
      for (unsigned i = 0; i < reports.size(); ++i) {
        out[i].setDevice(reports[i].device);
        out[i].setIsPoisoned(reports[i].is_poisoned);
        out[i].setWallNs(reports[i].wall_ns);
        out[i].setWaitNs(reports[i].wait_ns);
      }
      auto offered = control::Offer(tiles.From(request.first_device, request.num_devices, buffers),
                                    call.initFetches());
      call.send()
          .ignoreResult()
          .attach(std::move(offered), kj::defer([num_untold] { --*num_untold; }))
          .detach([](const kj::Exception&) {});  // the end is seen elsewhere
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

  void OnDeclined() override {
    tell_([generation = request_.generation](control::Observer::Client& observer) {
      auto call = observer.declinedRequest();
      call.setGeneration(generation);
      call.send().ignoreResult().detach([](const kj::Exception&) {});
    });
  }

 private:
  // What a step is fed with and brings has to fit into the memory.
  absl::Status CheckStepFits() const {
    uint64_t available = MemoryLimit(options_);
    const auto take = [&available](const TensorType& type) {
      const uint64_t needed = type.num_bytes();
      const bool fits = needed <= available;
      if (fits) available -= needed;
      return fits;
    };
    const bool fits = std::all_of(plan_.feeds.begin(), plan_.feeds.end(),
                                  [&](const auto& feed) { return take(feed.type); }) &&
                      std::all_of(plan_.fetches.begin(), plan_.fetches.end(),
                                  [&](const auto& fetch) { return take(fetch.type); });
    if (fits) return absl::OkStatus();
    return absl::ResourceExhaustedError("the feeds and fetches of a step do not fit the memory");
  }

  absl::Status CheckState(uint32_t state) const {
    RETURN_IF_ERROR(CheckLoaded());
    if (state >= plan_.states.size()) {
      return absl::InvalidArgumentError(StrCat("there is no state ", state));
    }
    return absl::OkStatus();
  }

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
  const std::shared_ptr<std::atomic<int64_t>> num_untold_;
  std::vector<TraceEvent> trace_;  // of which num_taken_ were told
  size_t num_taken_ = 0;

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
    request.first_device = spec.getFirstDevice();
    request.num_devices = spec.getNumDevices();
    request.threads_per_device =
        static_cast<int>(std::min<uint32_t>(spec.getThreadsPerDevice(), 4096));
    request.seed = spec.getSeed();
    request.timeout = absl::Milliseconds(
        static_cast<int64_t>(std::min<uint64_t>(spec.getTimeoutMs(), uint64_t{1} << 40)));
    request.trace_capacity = std::min<uint64_t>(spec.getTraceCapacity(), uint64_t{1} << 24);
    request.max_memory_bytes = spec.getMaxMemoryBytes();
    request.check_results = static_cast<kernels::ResultCheck>(
        std::min<uint8_t>(spec.getCheckResults(), static_cast<uint8_t>(kernels::kLastResultCheck)));
    request.first_step = std::clamp<int64_t>(spec.getFirstStep(), 0, kMaxFirstStep);
    const auto observer =
        std::make_shared<Holder<control::Observer::Client>>(agent_.loop_, params.getObserver());
    const auto tell = [&loop = agent_.loop_,
                       observer](std::function<void(control::Observer::Client&)> send) {
      loop.Post([client = observer->client, send = std::move(send)] { send(*client); });
    };
    const auto address = std::make_shared<std::string>();
    return Do([&agent = agent_, request, slice = Received(agent_.loop_, spec.getPlan()),
               num_bytes = spec.getPlanBytes(), tell, address]() -> absl::Status {
             if (request.generation <= agent.generation_) {
               return absl::FailedPreconditionError(
                   StrCat("generation ", request.generation, " is over"));
             }
             agent.session_ = nullptr;
             agent.generation_ = request.generation;
             if (num_bytes > MemoryLimit(agent.options_)) {
               return absl::ResourceExhaustedError(
                   StrCat("a plan of ", num_bytes, " bytes is larger than the memory"));
             }
             // Grows as its bytes arrive.
             const auto plan = std::make_shared<std::string>();
             BulkTarget target;
             target.Add(num_bytes, [plan](uint64_t offset, size_t size, const std::byte* bytes) {
               if (plan->size() < offset + size) plan->resize(offset + size);
               memcpy(plan->data() + offset, bytes, size);
             });
             RETURN_IF_ERROR(agent.Take(slice, std::move(target), request.timeout, "the plan"));
             agent.session_ =
                 std::make_unique<NodeSession>(agent.options_, tell, agent.num_untold_);
             absl::StatusOr<std::string> opened =
                 agent.session_->Open(request, *plan, agent.create_transport_);
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
    return InSession(params.getGeneration(),
                     [&agent = agent_, step = params.getStep(),
                      feeds = Received(agent_.loop_, params.getFeeds())](NodeSession& session) {
                       return session.Submit(step, [&](BulkTarget target) {
                         return agent.Take(feeds, std::move(target), session.request().timeout,
                                           StrCat("the feeds of ", StepName(step)));
                       });
                     });
  }

  kj::Promise<void> describe(DescribeContext context) override {
    const auto params = context.getParams();
    if (!agent_.reading_.empty()) {  // which keeps the work thread from answering
      const std::string line = StrCat("a node is being sent ", agent_.reading_);
      context.getResults().initLines(1).set(0, line.c_str());
      return kj::READY_NOW;
    }
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
    const auto bytes = std::make_shared<std::string>();
    return InSession(params.getGeneration(),
                     [state = params.getState(), placement = params.getPlacement(),
                      offset = params.getOffset(), size = params.getSize(),
                      bytes](NodeSession& session) -> absl::Status {
                       ASSIGN_OR_RETURN(*bytes, session.ReadState(state, placement, offset, size));
                       return absl::OkStatus();
                     })
        .then([context, bytes]() mutable {
          context.getResults().setBytes(AsData(bytes->data(), bytes->size()));
        });
  }

  kj::Promise<void> writeState(WriteStateContext context) override {
    const auto params = context.getParams();
    return InSession(
        params.getGeneration(),
        [&agent = agent_, state = params.getState(),
         tiles = Received(agent_.loop_, params.getTiles())](NodeSession& session) -> absl::Status {
          ASSIGN_OR_RETURN(BulkTarget target, session.StateTarget(state));
          return agent.Take(tiles, std::move(target), session.request().timeout,
                            StrCat("state ", state));
        });
  }

  kj::Promise<void> takeTrace(TakeTraceContext context) override {
    const auto events = std::make_shared<std::vector<TraceEvent>>();
    const auto has_more = std::make_shared<bool>(false);
    return InSession(context.getParams().getGeneration(),
                     [events, has_more](NodeSession& session) -> absl::Status {
                       ASSIGN_OR_RETURN(*events, session.TakeTrace(has_more.get()));
                       return absl::OkStatus();
                     })
        .then([context, events, has_more]() mutable {
          context.getResults().setHasMore(*has_more);
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

  kj::Promise<void> reportActivity(ReportActivityContext context) override {
    const auto report = std::make_shared<ActivityReport>();
    return InSession(context.getParams().getGeneration(),
                     [report](NodeSession& session) -> absl::Status {
                       RETURN_IF_ERROR(session.CheckLoaded());
                       ASSIGN_OR_RETURN(*report, session.engine().ReportActivity(kActivityTimeout));
                       return absl::OkStatus();
                     })
        .then([context, report]() mutable {
          auto results = context.getResults();
          results.setMoves(AsList(report->moves));
          results.setIdlePolls(AsList(report->idle_polls));
          results.setNumDecisions(report->num_decisions);
          results.setCommunications(AsList(report->communications));
          results.setDeclined(report->declined.c_str());
        });
  }

  kj::Promise<void> exit(ExitContext context) override {
    const auto failure = context.getParams().getFailure();
    const std::string_view text(failure.begin(), std::min(failure.size(), control::kMaxTextBytes));
    agent_.End(text.empty() ? absl::OkStatus()
                            : absl::UnavailableError(StrCat("the job has failed: ", text)));
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

NodeAgent::NodeAgent(const NodeOptions& options, ControlLoop& loop, std::function<void()> on_end,
                     TransportFactory create_transport)
    : options_(options),
      loop_(loop),
      on_end_(std::move(on_end)),
      create_transport_(std::move(create_transport)) {}

NodeAgent::~NodeAgent() = default;

kj::Promise<void> NodeAgent::Join(kj::Own<kj::AsyncIoStream> stream, const std::string& key) {
  auto hello = control::SayHello(*stream, key).catch_([this](kj::Exception&& exception) {
    // A coordinator closes the connection if the key is wrong; so do other servers at any greeting
    // that they do not know.
    if (exception.getType() != kj::Exception::Type::DISCONNECTED) {
      kj::throwFatalException(kj::mv(exception));
    }
    kj::throwFatalException(control::ToException(absl::PermissionDeniedError(
        StrCat("the connection was closed before the coordinator answered: the key is not the one "
               "that `penstock run` printed (PENSTOCK_KEY or --key-file), or what listens at ",
               options_.coordinator, " is not its coordinator"))));
  });
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

absl::Status NodeAgent::Take(const Received& received, BulkTarget target, absl::Duration timeout,
                             std::string_view what) {
  absl::Status status;
  if (received.there == nullptr) {
    status = control::TakeHere(received.here, target);
  } else {
    const absl::Duration bound = control::BoundOf(timeout, target.num_bytes());
    status = loop_.Await(
        [this, client = received.there->client, target = std::move(target),
         what = std::string(what)]() -> kj::Promise<void> {
          if (has_ended_) return control::ToException(absl::CancelledError("the node has ended"));
          reading_ = what;
          return transfers_.wrap(control::ReadPieces(control::AskSource(client), target))
              .attach(kj::defer([this] { reading_.clear(); }));
        },
        bound, "reading");
  }
  if (status.ok()) return status;
  return absl::Status(status.code(), StrCat(what, ": ", ToStd(status.message())));
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
  NodeDescription self;
  self.pid = getpid();
  self.host = HostName();
  self.num_cores = static_cast<uint32_t>(UsableCores());
  self.host_cores = static_cast<uint32_t>(MachineCores());
  self.interface = options_.interfaces;
  self.memory_bytes = MachineMemoryBytes();
  info.setRank(options_.rank);
  info.setPid(self.pid);
  info.setHost(self.host.c_str());
  info.setNumCores(self.num_cores);
  info.setHostCores(self.host_cores);
  info.setInterface(self.interface.c_str());
  info.setMemoryBytes(self.memory_bytes);
  call.setNode(kj::heap<NodeServer>(*this));
  return call.send().then([this, self = std::move(self)](auto&& response) mutable {
    self.rank = response.getRank();
    self.first_device = response.getFirstDevice();
    self.num_devices = response.getNumDevices();
    if (options_.on_joined) options_.on_joined(self);
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
  has_ended_ = true;
  transfers_.cancel("the node has ended");
  work_.End(status);
}

}  // namespace penstock::actors
