#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "actors/cluster/chunked_transfer_internal.h"
#include "actors/cluster/connection_internal.h"
#include "actors/cluster/node_agent_internal.h"
#include "actors/engine/error_origin.h"
#include "actors/engine/step_name.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"

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
constexpr unsigned kMaxStates = 1 << 20;
// A transport takes some bytes for each pair of them.
constexpr uint32_t kMaxExchangeRanks = 4096;
constexpr size_t kMinExchangeChunk = size_t{1} << 12;
constexpr size_t kMaxExchangeChunk = size_t{1} << 24;
constexpr int64_t kMaxFirstStep = int64_t{1} << 48;
// For the answers of stages, which come at once unless a policy is busy.
constexpr absl::Duration kActivityTimeout = absl::Seconds(1);

absl::Duration Timeout(uint64_t milliseconds) {
  return absl::Milliseconds(
      static_cast<int64_t>(std::min<uint64_t>(milliseconds, uint64_t{1} << 40)));
}

template <typename T>
kj::ArrayPtr<const T> AsList(const std::vector<T>& values) {
  return {values.data(), values.size()};
}

// What RunNode returns where the job has failed or was cancelled. Other codes than these two would
// say that this node was called wrongly.
absl::Status EndOfJob(const absl::Status& cause) {
  if (absl::IsCancelled(cause)) return WithPrefix("the job was ended: ", cause);
  const absl::Status failed = WithPrefix("the job has failed: ", cause);
  if (absl::IsUnavailable(failed)) return failed;
  absl::Status aborted = absl::AbortedError(failed.message());
  SetOrigin(OriginOf(failed), &aborted);
  return aborted;
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

// Data embedded in a call, or the source to read them from.
struct NodeAgent::Received {
  Received(ControlLoop& loop, control::ChunkedBytes::Reader transfer) {
    if (transfer.isSource()) {
      source = std::make_shared<Holder<control::Source::Client>>(loop, transfer.getSource());
    } else {
      embedded = AsText(transfer.getEmbedded());
    }
  }

  std::string embedded;
  std::shared_ptr<Holder<control::Source::Client>> source;
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
    request.timeout = Timeout(spec.getTimeoutMs());
    request.trace_capacity = std::min<uint64_t>(spec.getTraceCapacity(), uint64_t{1} << 24);
    request.max_memory_bytes = spec.getMaxMemoryBytes();
    request.check_results = static_cast<kernels::ResultCheck>(
        std::min<uint8_t>(spec.getCheckResults(), static_cast<uint8_t>(kernels::kLastResultCheck)));
    request.first_step = std::clamp<int64_t>(spec.getFirstStep(), 0, kMaxFirstStep);
    request.init_states = spec.getInitStates();
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
             agent.generation_ = request.generation;
             if (agent.sessions_.size() >= kMaxSessions) {
               return absl::ResourceExhaustedError("too many sessions are open");
             }
             if (num_bytes > MemoryLimit(agent.options_)) {
               return absl::ResourceExhaustedError(
                   StrCat("a plan of ", num_bytes, " bytes is larger than the memory"));
             }
             // Grows as its bytes arrive.
             const auto plan = std::make_shared<std::string>();
             ByteTarget target;
             target.Add(num_bytes, [plan](uint64_t offset, size_t size, const std::byte* bytes) {
               if (plan->size() < offset + size) plan->resize(offset + size);
               memcpy(plan->data() + offset, bytes, size);
             });
             RETURN_IF_ERROR(agent.Take(slice, std::move(target), request.timeout, "the plan"));
             auto session = std::make_unique<NodeSession>(agent.options_, tell, agent.num_untold_,
                                                          agent.bytes_left_);
             ASSIGN_OR_RETURN(*address, session->Open(request, *plan, agent.create_transport_));
             agent.sessions_[request.generation] = std::move(session);
             return absl::OkStatus();
           })
        .then([context, address](absl::Status&& status) mutable {
          auto results = context.getResults();
          results.setAddress(AsData(address->data(), address->size()));
          control::WriteStatus(status, results.initStatus());
        });
  }

  kj::Promise<void> connect(ConnectContext context) override {
    std::vector<std::pair<uint32_t, std::string>> processes;
    // A list's elements may take no bytes in the message that counts them.
    if (context.getParams().getProcesses().size() > kMaxProcesses) {
      control::WriteStatus(absl::InvalidArgumentError("too many processes"),
                           context.getResults().initStatus());
      return kj::READY_NOW;
    }
    for (const auto process : context.getParams().getProcesses()) {
      processes.emplace_back(process.getFirstDevice(), AsText(process.getAddress()));
    }
    auto connected =
        InSession(context.getParams().getGeneration(),
                  [&agent = agent_, processes = std::move(processes)](NodeSession& session) {
                    return session.Connect(processes, agent.BytesInUse());
                  });
    return Answer(context, kj::mv(connected));
  }

  kj::Promise<void> submit(SubmitContext context) override {
    const auto params = context.getParams();
    auto submitted =
        InSession(params.getGeneration(),
                  [&agent = agent_, step = params.getStep(),
                   feeds = Received(agent_.loop_, params.getFeeds())](NodeSession& session) {
                    return session.Submit(step, [&](ByteTarget target) {
                      return agent.Take(feeds, std::move(target), session.request().timeout,
                                        StrCat("the feeds of ", StepName(step)));
                    });
                  });
    return Answer(context, kj::mv(submitted));
  }

  kj::Promise<void> describe(DescribeContext context) override {
    const auto params = context.getParams();
    if (!agent_.reading_.empty()) {  // which keeps the work thread from answering
      const std::string text = StrCat("a node is being sent ", agent_.reading_);
      context.getResults().initWaits(1)[0].setText(text.c_str());
      return kj::READY_NOW;
    }
    const auto waits = std::make_shared<std::vector<WaitDescription>>();
    const absl::Duration timeout =
        absl::Milliseconds(std::min<uint32_t>(params.getTimeoutMs(), 60'000));
    return InSession(params.getGeneration(),
                     [waits, timeout](NodeSession& session) {
                       const absl::Status status = session.CheckLoaded();
                       if (status.ok()) *waits = session.engine().Describe(timeout);
                       return status;
                     })
        .then([context, waits](absl::Status&& status) mutable {
          auto results = context.getResults();
          auto out = results.initWaits(static_cast<unsigned>(waits->size()));
          for (unsigned i = 0; i < waits->size(); ++i) {
            out[i].setText((*waits)[i].text.c_str());
            out[i].setMayBeCause((*waits)[i].may_be_cause);
          }
          control::WriteStatus(status, results.initStatus());
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
        .then([context, bytes](absl::Status&& status) mutable {
          auto results = context.getResults();
          results.setBytes(AsData(bytes->data(), bytes->size()));
          control::WriteStatus(status, results.initStatus());
        });
  }

  kj::Promise<void> writeState(WriteStateContext context) override {
    const auto params = context.getParams();
    auto written = InSession(
        params.getGeneration(),
        [&agent = agent_, state = params.getState(),
         tiles = Received(agent_.loop_, params.getTiles())](NodeSession& session) -> absl::Status {
          const auto status = std::make_shared<absl::Status>();
          ASSIGN_OR_RETURN(ByteTarget target, session.StateTarget(state, status));
          RETURN_IF_ERROR(agent.Take(tiles, std::move(target), session.request().timeout,
                                     StrCat("state ", state)));
          return *status;
        });
    return Answer(context, kj::mv(written));
  }

  kj::Promise<void> takeTrace(TakeTraceContext context) override {
    const auto events = std::make_shared<std::vector<TraceEvent>>();
    const auto has_more = std::make_shared<bool>(false);
    return InSession(context.getParams().getGeneration(),
                     [events, has_more](NodeSession& session) -> absl::Status {
                       ASSIGN_OR_RETURN(*events, session.TakeTrace(has_more.get()));
                       return absl::OkStatus();
                     })
        .then([context, events, has_more](absl::Status&& status) mutable {
          auto results = context.getResults();
          control::WriteStatus(status, results.initStatus());
          results.setHasMore(*has_more);
          auto out = results.initEvents(static_cast<unsigned>(events->size()));
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
    auto closed = Do([&agent = agent_, generation = context.getParams().getGeneration()] {
      agent.sessions_.erase(generation);
      return absl::OkStatus();
    });
    return Answer(context, kj::mv(closed));
  }

  kj::Promise<void> keepStates(KeepStatesContext context) override {
    const auto params = context.getParams();
    // A list's elements may take no bytes in the message that counts them.
    if (params.getStates().size() > kMaxStates) {
      control::WriteStatus(absl::InvalidArgumentError("too many states"),
                           context.getResults().initStatus());
      return kj::READY_NOW;
    }
    std::vector<uint32_t> states;
    for (const uint32_t state : params.getStates()) states.push_back(state);
    auto done = InSession(
        params.getGeneration(),
        [&agent = agent_, number = params.getKept(),
         states = std::move(states)](NodeSession& session) -> absl::Status {
          if (agent.kept_.contains(number)) return absl::AlreadyExistsError("kept before");
          if (agent.kept_.size() >= kMaxKept) {
            return absl::ResourceExhaustedError("too many copies of states are kept");
          }
          const uint64_t limit = MemoryLimit(agent.options_);
          ASSIGN_OR_RETURN(KeptTiles kept,
                           session.KeepStates(states, limit - std::min(limit, agent.BytesInUse())));
          agent.kept_.emplace(number, std::move(kept));
          return absl::OkStatus();
        });
    return Answer(context, kj::mv(done));
  }

  kj::Promise<void> takeStates(TakeStatesContext context) override {
    const auto params = context.getParams();
    const auto missing = std::make_shared<std::vector<uint32_t>>();
    return InSession(params.getGeneration(),
                     [&agent = agent_, number = params.getKept(),
                      missing](NodeSession& session) -> absl::Status {
                       const KeptTiles nothing;
                       const auto kept = agent.kept_.find(number);
                       ASSIGN_OR_RETURN(
                           *missing,
                           session.TakeStates(kept == agent.kept_.end() ? nothing : kept->second));
                       return absl::OkStatus();
                     })
        .then([context, missing](absl::Status&& status) mutable {
          auto results = context.getResults();
          results.setMissing(AsList(*missing));
          control::WriteStatus(status, results.initStatus());
        });
  }

  kj::Promise<void> readKept(ReadKeptContext context) override {
    const auto params = context.getParams();
    const auto bytes = std::make_shared<std::string>();
    return Do([&agent = agent_, number = params.getKept(), state = params.getState(),
               tile = params.getTile(), offset = params.getOffset(), size = params.getSize(),
               bytes]() -> absl::Status {
             const auto kept = agent.kept_.find(number);
             const KeptTiles::Tile* from =
                 kept == agent.kept_.end() ? nullptr : kept->second.Find(state, tile);
             if (from == nullptr) {
               return absl::NotFoundError(
                   StrCat("tile ", tile, " of state ", state, " is not kept here"));
             }
             RETURN_IF_ERROR(control::CheckChunk(offset, size, from->desc.num_bytes()));
             bytes->assign(reinterpret_cast<const char*>(from->bytes.get()) + offset, size);
             return absl::OkStatus();
           })
        .then([context, bytes](absl::Status&& status) mutable {
          auto results = context.getResults();
          results.setBytes(AsData(bytes->data(), bytes->size()));
          control::WriteStatus(status, results.initStatus());
        });
  }

  kj::Promise<void> dropStates(DropStatesContext context) override {
    auto dropped = Do([&agent = agent_, number = context.getParams().getKept()] {
      agent.kept_.erase(number);
      return absl::OkStatus();
    });
    return Answer(context, kj::mv(dropped));
  }

  kj::Promise<void> openExchange(OpenExchangeContext context) override {
    const auto params = context.getParams();
    const uint32_t number = params.getExchange();
    const absl::Status status = CheckNewExchange(params);
    if (!status.ok()) {
      control::WriteStatus(status, context.getResults().initStatus());
      return kj::READY_NOW;
    }
    transport::UcxOptions options;
    options.transport.num_devices = params.getNumRanks();
    options.transport.generation = number;
    options.transport.num_channels = 1;
    options.first_device = params.getRank();
    const std::set<uint32_t> peers(params.getPeers().begin(), params.getPeers().end());
    options.peers.emplace_back(peers.begin(), peers.end());
    options.interfaces = agent_.options_.interfaces;
    options.request_timeout = std::chrono::seconds(
        std::clamp<int64_t>(absl::ToInt64Seconds(Timeout(params.getTimeoutMs())), 1, 1'000'000));
    options.on_left = [bytes_left = agent_.bytes_left_](uint64_t bytes, const std::string& why) {
      *bytes_left += bytes;
      std::fprintf(stderr, "%s\n", why.c_str());
    };
    const auto exchange = std::make_shared<NodeExchange>(agent_.options_.wrap_transport);
    agent_.last_exchange_ = number;
    agent_.exchanges_[number] = exchange;
    const auto address = std::make_shared<std::string>();
    return Do([&agent = agent_, exchange, options = std::move(options), address]() -> absl::Status {
             ASSIGN_OR_RETURN(*address, exchange->Open(options, agent.create_transport_));
             return absl::OkStatus();
           })
        .then([context, address](absl::Status&& opened) mutable {
          auto results = context.getResults();
          results.setAddress(AsData(address->data(), address->size()));
          control::WriteStatus(opened, results.initStatus());
        });
  }

  kj::Promise<void> runExchange(RunExchangeContext context) override {
    const auto params = context.getParams();
    const auto found = agent_.exchanges_.find(params.getExchange());
    absl::StatusOr<std::vector<NodeExchange::Peer>> peers = ReadExchangePeers(params.getPeers());
    if (found == agent_.exchanges_.end() || !peers.ok()) {
      control::WriteStatus(
          peers.ok() ? absl::FailedPreconditionError("there is no such exchange") : peers.status(),
          context.getResults().initStatus());
      return kj::READY_NOW;
    }
    ByteExchange::Options options;
    options.chunk_bytes =
        std::clamp<size_t>(params.getChunkBytes(), kMinExchangeChunk, kMaxExchangeChunk);
    options.timeout = Timeout(params.getTimeoutMs());
    auto done = Do(
        [&agent = agent_, exchange = found->second, number = params.getKept(),
         generation = params.getGeneration(), peers = *std::move(peers), options]() {
          const auto kept = agent.kept_.find(number);
          const auto session = agent.sessions_.find(generation);
          return exchange->Run(peers, kept == agent.kept_.end() ? nullptr : &kept->second,
                               session == agent.sessions_.end() ? nullptr : session->second.get(),
                               options);
        },
        [exchange = found->second, timeout = options.timeout](const absl::Status& status) {
          if (status.ok()) exchange->Linger(timeout);
          exchange->Close();
        });
    return Answer(context, kj::mv(done));
  }

  kj::Promise<void> finishExchange(FinishExchangeContext context) override {
    const auto found = agent_.exchanges_.find(context.getParams().getExchange());
    if (found == agent_.exchanges_.end()) return kj::READY_NOW;
    found->second->Stop();
    // Closed by the work thread, which may have to wait.
    const std::shared_ptr<NodeExchange> exchange = std::move(found->second);
    agent_.exchanges_.erase(found);
    return Do([exchange] {
             exchange->Close();
             return absl::OkStatus();
           })
        .ignoreResult();
  }

  kj::Promise<void> reportActivity(ReportActivityContext context) override {
    const auto report = std::make_shared<ActivityReport>();
    return InSession(context.getParams().getGeneration(),
                     [report](NodeSession& session) -> absl::Status {
                       RETURN_IF_ERROR(session.CheckLoaded());
                       ASSIGN_OR_RETURN(*report, session.engine().ReportActivity(kActivityTimeout));
                       return absl::OkStatus();
                     })
        .then([context, report](absl::Status&& status) mutable {
          auto results = context.getResults();
          control::WriteStatus(status, results.initStatus());
          results.setMoves(AsList(report->moves));
          results.setIdlePolls(AsList(report->idle_polls));
          results.setNumDecisions(report->num_decisions);
          results.setCommunications(AsList(report->communications));
          results.setDeclined(report->declined.c_str());
        });
  }

  kj::Promise<void> exit(ExitContext context) override {
    const auto reader = context.getParams().getCause();
    absl::Status cause = control::ReadStatus(reader);
    if (!cause.ok()) {
      SetOrigin({.rank = reader.getRank()}, &cause);
      cause = EndOfJob(cause);
    }
    agent_.End(cause);
    return kj::READY_NOW;
  }

 private:
  absl::Status CheckNewExchange(control::Node::OpenExchangeParams::Reader params) const {
    if (agent_.has_ended_) return absl::CancelledError("the node has ended");
    if (params.getExchange() <= agent_.last_exchange_) {
      return absl::FailedPreconditionError(StrCat("exchange ", params.getExchange(), " is over"));
    }
    if (agent_.exchanges_.size() >= kMaxExchanges) {
      return absl::ResourceExhaustedError("too many exchanges of states are under way");
    }
    const uint32_t num_ranks = params.getNumRanks();
    if (num_ranks > kMaxExchangeRanks || params.getRank() >= num_ranks ||
        params.getPeers().size() >= num_ranks) {
      return absl::InvalidArgumentError("an exchange of too many processes");
    }
    for (const uint32_t peer : params.getPeers()) {
      if (peer >= num_ranks || peer == params.getRank()) {
        return absl::InvalidArgumentError(StrCat("node ", peer, " is no peer of an exchange"));
      }
    }
    return absl::OkStatus();
  }

  // Has the work thread run `work`, and ends with its status. The work thread then goes on with
  // `after`.
  control::StatusPromise Do(std::function<absl::Status()> work,
                            std::function<void(const absl::Status&)> after = nullptr) {
    auto pair = kj::newPromiseAndFulfiller<absl::Status>();
    auto fulfiller =
        std::make_shared<kj::Own<kj::PromiseFulfiller<absl::Status>>>(kj::mv(pair.fulfiller));
    const bool is_taken =
        agent_.work_.Push([&loop = agent_.loop_, fulfiller = std::move(fulfiller),
                           work = std::move(work), after = std::move(after)]() mutable {
          const absl::Status status = work();
          // The fulfiller is the loop's, to the end.
          loop.Post([fulfiller = std::move(fulfiller), status] {
            (*fulfiller)->fulfill(absl::Status(status));
          });
          if (after) after(status);
        });
    if (!is_taken) return absl::ResourceExhaustedError("too many calls are under way");
    return kj::mv(pair.promise);
  }

  // The answer to a call whose result is a status alone.
  template <typename Context>
  static kj::Promise<void> Answer(Context context, control::StatusPromise promise) {
    return promise.then([context](absl::Status&& status) mutable {
      control::WriteStatus(status, context.getResults().initStatus());
    });
  }

  control::StatusPromise InSession(uint32_t generation,
                                   std::function<absl::Status(NodeSession&)> work) {
    return Do([&agent = agent_, generation, work = std::move(work)]() -> absl::Status {
      const auto session = agent.sessions_.find(generation);
      if (session == agent.sessions_.end()) {
        return absl::FailedPreconditionError(
            StrCat("there is no session of generation ", generation));
      }
      return work(*session->second);
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

control::StatusPromise NodeAgent::Join(kj::Own<kj::AsyncIoStream> stream, const std::string& key) {
  auto hello =
      control::SayHello(*stream, key).catch_([this](kj::Exception&& exception) -> absl::Status {
        // A coordinator closes the connection if the key is wrong; so do other servers at any
        // greeting that they do not know.
        if (exception.getType() != kj::Exception::Type::DISCONNECTED) {
          return control::FromException(exception);
        }
        return absl::PermissionDeniedError(
            StrCat("the connection was closed before the coordinator answered: the key is not the "
                   "one that `penstock run` printed (PENSTOCK_KEY or --key-file), or what listens "
                   "at ",
                   options_.coordinator, " is not its coordinator"));
      });
  return hello
      .then([this, stream = kj::mv(stream)](absl::Status&& greeted) mutable {
        return greeted.ok() ? JoinOver(kj::mv(stream)) : control::StatusPromise(std::move(greeted));
      })
      .exclusiveJoin(loop_.timer().afterDelay(kGreetingTimeout).then([]() -> absl::Status {
        return absl::DeadlineExceededError(
            "what listens there does not answer as a coordinator; use the address that `penstock "
            "run --listen` prints, and check that the job still runs");
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

absl::Status NodeAgent::Take(const Received& received, ByteTarget target, absl::Duration timeout,
                             std::string_view what) {
  absl::Status status;
  if (received.source == nullptr) {
    status = control::TakeEmbedded(received.embedded, target);
  } else {
    const absl::Duration bound = control::BoundOf(timeout, target.num_bytes());
    status = loop_.Await(
        [this, client = received.source->client, target = std::move(target),
         what = std::string(what)]() -> control::StatusPromise {
          if (has_ended_) return absl::CancelledError("the node has ended");
          reading_ = what;
          return transfers_.wrap(control::ReadChunks(control::AskSource(client), target))
              .attach(kj::defer([this] { reading_.clear(); }));
        },
        bound, "reading");
  }
  return status.ok() ? status : WithPrefix(StrCat(what, ": "), status);
}

control::StatusPromise NodeAgent::JoinOver(kj::Own<kj::AsyncIoStream> stream) {
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
  return control::StatusOf(call.send(), [this, self = std::move(self)](auto&& response) mutable {
    self.rank = response.getRank();
    self.first_device = response.getFirstDevice();
    self.num_devices = response.getNumDevices();
    if (options_.on_joined) options_.on_joined(self);
    const auto silence_ms = std::min(response.getSilenceMs(), kMaxSilenceMs);
    listen_ =
        ListenForPings(silence_ms * kj::MILLISECONDS).eagerlyEvaluate([](const kj::Exception&) {});
    return absl::OkStatus();
  });
}

void NodeAgent::Disconnect() {
  work_.Clear();
  exchanges_.clear();
  listen_ = nullptr;
  watch_ = nullptr;
  connection_ = nullptr;
}

uint64_t NodeAgent::BytesInUse() const {
  uint64_t num_bytes = *bytes_left_;
  for (const auto& [generation, session] : sessions_) num_bytes += session->num_bytes();
  for (const auto& [number, kept] : kept_) num_bytes += kept.num_bytes();
  return num_bytes;
}

void NodeAgent::End(const absl::Status& status) {
  if (on_end_) on_end_();
  has_ended_ = true;
  transfers_.cancel("the node has ended");
  for (const auto& [number, exchange] : exchanges_) exchange->Stop();
  work_.End(status);
}

}  // namespace penstock::actors
