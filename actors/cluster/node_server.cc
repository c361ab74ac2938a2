#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <capnp/message.h>

#include "actors/cluster/chunked_transfer_internal.h"
#include "actors/cluster/compute_probe.h"
#include "actors/cluster/connection_internal.h"
#include "actors/cluster/node_dispatch_internal.h"
#include "actors/cluster/node_server_internal.h"
#include "actors/cluster/state_write_internal.h"
#include "actors/cluster/wire_job_status_internal.h"
#include "actors/engine/error_origin.h"
#include "actors/engine/step_name.h"
#include "base/device.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using control::AsData;
using control::AsText;

// Far more than any plan has.
constexpr unsigned kMaxProcesses = 65536;
constexpr unsigned kMaxStates = 1 << 20;
constexpr uint32_t kMaxGroupIds = 1 << 16;
constexpr size_t kMinExchangeChunk = size_t{1} << 12;
constexpr size_t kMaxExchangeChunk = size_t{1} << 24;
constexpr int64_t kMaxFirstStep = int64_t{1} << 48;
// For the answers of stages, which come at once unless a policy is busy.
constexpr absl::Duration kActivityTimeout = absl::Seconds(1);
constexpr uint32_t kMaxInspectionMs = 10'000;
constexpr kj::Duration kInspectionPoll = 2 * kj::MILLISECONDS;

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

// Takes calls on the loop's thread and has them done on the work thread.
// That work, which may outlive the server, uses the parts of the node.
class NodeServer final : public control::Node::Server {
 public:
  explicit NodeServer(NodeParts node)
      : node_(std::move(node)), dispatch_(node_.loop, node_.work, node_.sessions) {}

  kj::Promise<void> ping(PingContext context) override {
    node_.on_ping(context.getParams().getSilenceMs());
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
    request.trace_every = std::max<int64_t>(spec.getTraceEvery(), 1);
    request.max_memory_bytes = spec.getMaxMemoryBytes();
    request.check_results = static_cast<kernels::ResultCheck>(
        std::min<uint8_t>(spec.getCheckResults(), static_cast<uint8_t>(kernels::kLastResultCheck)));
    request.first_step = std::clamp<int64_t>(spec.getFirstStep(), 0, kMaxFirstStep);
    request.init_states = spec.getInitStates();
    request.captures_graphs = spec.getCapturesGraphs();
    request.shares_cores = spec.getSharesCores();
    request.link_timeout = std::chrono::milliseconds(spec.getLinkTimeoutMs());
    const auto observer =
        std::make_shared<Holder<control::Observer::Client>>(node_.loop, params.getObserver());
    const auto tell = [&loop = node_.loop,
                       observer](std::function<void(control::Observer::Client&)> send) {
      loop.Post([client = observer->client, send = std::move(send)] { send(*client); });
    };
    const auto address = std::make_shared<std::string>();
    const auto communicators = std::make_shared<NodeCommunicators>();
    return dispatch_
        .Do([&receiver = node_.receiver, &sessions = node_.sessions, request,
             slice = Received(node_.loop, spec.getPlan()), num_bytes = spec.getPlanBytes(), tell,
             address, communicators]() -> absl::Status {
          RETURN_IF_ERROR(sessions.Admit(request.generation, num_bytes));
          // Grows as its bytes arrive.
          const auto plan = std::make_shared<std::string>();
          ByteTarget target;
          target.Add(num_bytes, [plan](uint64_t offset, size_t size, const std::byte* bytes) {
            if (plan->size() < offset + size) plan->resize(offset + size);
            memcpy(plan->data() + offset, bytes, size);
          });
          RETURN_IF_ERROR(receiver.Take(slice, std::move(target), request.timeout, "the plan"));
          ASSIGN_OR_RETURN(*address, sessions.Open(request, *plan, tell));
          ASSIGN_OR_RETURN(NodeSession * session, sessions.Find(request.generation));
          *communicators = session->Communicators();
          return absl::OkStatus();
        })
        .then([context, address, communicators](absl::Status&& status) mutable {
          auto results = context.getResults();
          results.setAddress(AsData(address->data(), address->size()));
          WriteCommunicators(*communicators, results.initCommunicators());
          control::WriteStatus(status, results.initStatus());
        });
  }

  kj::Promise<void> createGroupIds(CreateGroupIdsContext context) override {
    const auto params = context.getParams();
    const auto ids = std::make_shared<std::vector<std::string>>();
    return dispatch_
        .InSession(params.getGeneration(),
                   [&options = node_.options, count = params.getCount(),
                    ids](NodeSession&) -> absl::Status {
                     if (options.communicators == nullptr || count > kMaxGroupIds) {
                       return absl::InvalidArgumentError(
                           StrCat("this node makes no ids of ", count, " groups"));
                     }
                     for (uint32_t i = 0; i < count; ++i) {
                       ASSIGN_OR_RETURN(ids->emplace_back(),
                                        options.communicators->CreateGroupId());
                     }
                     return absl::OkStatus();
                   })
        .then([context, ids](absl::Status&& status) mutable {
          auto results = context.getResults();
          auto out = results.initIds(static_cast<unsigned>(ids->size()));
          for (unsigned i = 0; i < out.size(); ++i) {
            out.set(i, AsData((*ids)[i].data(), (*ids)[i].size()));
          }
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
    // The message may be gone when the work thread comes to the call.
    std::shared_ptr<capnp::MallocMessageBuilder> collectives;
    if (context.getParams().hasCollectives()) {
      collectives = std::make_shared<capnp::MallocMessageBuilder>();
      collectives->setRoot(context.getParams().getCollectives());
    }
    auto connected = dispatch_.InSession(
        context.getParams().getGeneration(),
        [&sessions = node_.sessions, processes = std::move(processes),
         collectives = std::move(collectives)](NodeSession& session) -> absl::Status {
          std::optional<NodeCollectives> read;
          if (collectives != nullptr) {
            ASSIGN_OR_RETURN(
                read, ReadCollectives(collectives->getRoot<control::StreamCollectives>().asReader(),
                                      session.devices(), session.num_plan_devices()));
          }
          RETURN_IF_ERROR(session.Connect(processes, std::move(read), sessions.BytesInUse()));
          sessions.AddInspector(session.request().generation, session.engine().local_inspector());
          return absl::OkStatus();
        });
    return Answer(context, kj::mv(connected));
  }

  kj::Promise<void> submit(SubmitContext context) override {
    const auto params = context.getParams();
    auto submitted = dispatch_.InSession(
        params.getGeneration(),
        [&receiver = node_.receiver, step = params.getStep(),
         feeds = Received(node_.loop, params.getFeeds())](NodeSession& session) {
          return session.Submit(step, [&](ByteTarget target) {
            return receiver.Take(
                feeds, std::move(target), session.request().timeout,
                StrCat("the feeds of ", StepName(step, session.request().first_step)));
          });
        });
    return Answer(context, kj::mv(submitted));
  }

  kj::Promise<void> describe(DescribeContext context) override {
    const auto params = context.getParams();
    if (!node_.receiver.reading().empty()) {  // which keeps the work thread from answering
      const std::string text = StrCat("a node is being sent ", node_.receiver.reading());
      context.getResults().initWaits(1)[0].setText(text.c_str());
      return kj::READY_NOW;
    }
    const auto waits = std::make_shared<std::vector<WaitDescription>>();
    const absl::Duration timeout =
        absl::Milliseconds(std::min<uint32_t>(params.getTimeoutMs(), 60'000));
    return dispatch_
        .InSession(params.getGeneration(),
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

  // On the loop's thread, whatever the work thread does.
  kj::Promise<void> inspect(InspectContext context) override {
    const auto params = context.getParams();
    const std::shared_ptr<LocalInspector> inspector =
        node_.sessions.FindInspector(params.getGeneration());
    absl::StatusOr<std::shared_ptr<Inspection>> begun =
        absl::FailedPreconditionError("the session is not loaded");
    if (inspector != nullptr) begun = inspector->Begin();
    if (!begun.ok()) {
      control::WriteStatus(begun.status(), context.getResults().initStatus());
      return kj::READY_NOW;
    }
    const kj::TimePoint deadline =
        node_.loop.timer().now() +
        std::min<uint32_t>(params.getTimeoutMs(), kMaxInspectionMs) * kj::MILLISECONDS;
    context.getResults().setResidentBytes(ResidentBytes());
    return AwaitInspection(*begun, deadline).then([context, inspection = *begun]() mutable {
      control::WriteDevices(inspection->Take(absl::ZeroDuration()), context.getResults());
    });
  }

  kj::Promise<void> readState(ReadStateContext context) override {
    const auto params = context.getParams();
    const auto bytes = std::make_shared<std::string>();
    return dispatch_
        .InSession(params.getGeneration(),
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
    auto written = dispatch_.InSession(
        params.getGeneration(),
        [&receiver = node_.receiver, state = params.getState(),
         tiles = Received(node_.loop, params.getTiles())](NodeSession& session) -> absl::Status {
          const auto status = std::make_shared<absl::Status>();
          ASSIGN_OR_RETURN(ByteTarget target, session.StateTarget(state, status));
          RETURN_IF_ERROR(receiver.Take(tiles, std::move(target), session.request().timeout,
                                        StrCat("state ", state)));
          return *status;
        });
    return Answer(context, kj::mv(written));
  }

  kj::Promise<void> takeTrace(TakeTraceContext context) override {
    const auto events = std::make_shared<std::vector<TraceEvent>>();
    const auto has_more = std::make_shared<bool>(false);
    return dispatch_
        .InSession(context.getParams().getGeneration(),
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

  kj::Promise<void> readClock(ReadClockContext context) override {
    context.getResults().setNowNs(SteadyClock().NowNs());
    return kj::READY_NOW;
  }

  kj::Promise<void> close(CloseContext context) override {
    auto closed = dispatch_.Close(
        [&sessions = node_.sessions, generation = context.getParams().getGeneration()] {
          sessions.Close(generation);
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
    auto done = dispatch_.InSession(
        params.getGeneration(),
        [&sessions = node_.sessions, number = params.getKept(), states = std::move(states)](
            NodeSession& session) { return sessions.Keep(number, states, session); });
    return Answer(context, kj::mv(done));
  }

  kj::Promise<void> takeStates(TakeStatesContext context) override {
    const auto params = context.getParams();
    const auto missing = std::make_shared<std::vector<uint32_t>>();
    return dispatch_
        .InSession(params.getGeneration(),
                   [&sessions = node_.sessions, number = params.getKept(),
                    missing](NodeSession& session) -> absl::Status {
                     const KeptTiles nothing;
                     const std::shared_ptr<const KeptTiles> kept = sessions.FindKept(number);
                     ASSIGN_OR_RETURN(*missing,
                                      session.TakeStates(kept == nullptr ? nothing : *kept));
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
    return dispatch_
        .Do([&sessions = node_.sessions, number = params.getKept(), state = params.getState(),
             tile = params.getTile(), offset = params.getOffset(), size = params.getSize(),
             bytes]() -> absl::Status {
          const std::shared_ptr<const KeptTiles> kept = sessions.FindKept(number);
          const KeptTiles::Tile* const from = kept == nullptr ? nullptr : kept->Find(state, tile);
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
    auto dropped =
        dispatch_.Close([&sessions = node_.sessions, number = context.getParams().getKept()] {
          sessions.Drop(number);
        });
    return Answer(context, kj::mv(dropped));
  }

  // The work thread finds what is kept; another one, which may wait for the disk, writes it.
  kj::Promise<void> writeStates(WriteStatesContext context) override {
    const auto params = context.getParams();
    absl::StatusOr<StateWrite> read = ReadStateWrite(params);
    if (!read.ok()) {
      control::WriteStatus(read.status(), context.getResults().initStatus());
      return kj::READY_NOW;
    }
    const auto write = std::make_shared<StateWrite>(*std::move(read));
    return dispatch_
        .Do([&sessions = node_.sessions, number = params.getKept(), write] {
          write->kept = sessions.FindKept(number);
          return absl::OkStatus();
        })
        .then([this, write](absl::Status&& status) -> control::StatusPromise {
          if (!status.ok()) return std::move(status);
          return dispatch_.DoOn(node_.files, [write, &files = node_.files]() -> absl::Status {
            ASSIGN_OR_RETURN(write->checksum,
                             WriteStates(*write, [&files] { return files.has_ended(); }));
            return absl::OkStatus();
          });
        })
        .then([context, write](absl::Status&& status) mutable {
          auto results = context.getResults();
          control::WriteStatus(status, results.initStatus());
          results.setChecksum(write->checksum);
        });
  }

  kj::Promise<void> openExchange(OpenExchangeContext context) override {
    const auto params = context.getParams();
    const uint32_t number = params.getExchange();
    const absl::Status status = node_.exchanges.CheckNew(params);
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
    options.interfaces = node_.options.interfaces;
    options.request_timeout = std::chrono::seconds(
        std::clamp<int64_t>(absl::ToInt64Seconds(Timeout(params.getTimeoutMs())), 1, 1'000'000));
    options.link_timeout = std::chrono::milliseconds(params.getLinkTimeoutMs());
    options.on_leak = [count = node_.sessions.CountLeaks()](uint64_t bytes,
                                                            const std::string& why) {
      count(bytes);
      std::fprintf(stderr, "%s\n", why.c_str());
    };
    const auto exchange = std::make_shared<NodeExchange>(node_.options.wrap_transport);
    node_.exchanges.Add(number, exchange);
    const auto address = std::make_shared<std::string>();
    return dispatch_
        .Do([&sessions = node_.sessions, exchange, options = std::move(options),
             address]() -> absl::Status {
          ASSIGN_OR_RETURN(*address, exchange->Open(options, sessions.create_transport()));
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
    const std::shared_ptr<NodeExchange> found = node_.exchanges.Find(params.getExchange());
    absl::StatusOr<std::vector<NodeExchange::Peer>> peers = ReadExchangePeers(params.getPeers());
    if (found == nullptr || !peers.ok()) {
      control::WriteStatus(
          peers.ok() ? absl::FailedPreconditionError("there is no such exchange") : peers.status(),
          context.getResults().initStatus());
      return kj::READY_NOW;
    }
    ByteExchange::Options options;
    options.chunk_bytes =
        std::clamp<size_t>(params.getChunkBytes(), kMinExchangeChunk, kMaxExchangeChunk);
    options.timeout = Timeout(params.getTimeoutMs());
    auto done = dispatch_.Do(
        [&sessions = node_.sessions, exchange = found, number = params.getKept(),
         generation = params.getGeneration(), peers = *std::move(peers), options]() {
          return exchange->Run(peers, sessions.FindKept(number).get(),
                               sessions.Find(generation).value_or(nullptr), options);
        },
        [exchange = found, timeout = options.timeout](const absl::Status& status) {
          if (status.ok()) exchange->Linger(timeout);
          exchange->Close();
        });
    return Answer(context, kj::mv(done));
  }

  kj::Promise<void> probe(ProbeContext context) override {
    const auto params = context.getParams();
    const std::shared_ptr<NodeExchange> exchange = node_.exchanges.Find(params.getExchange());
    if (exchange == nullptr || params.getAddresses().size() > kMaxProbedNodes) {
      control::WriteStatus(absl::FailedPreconditionError("there is no such exchange"),
                           context.getResults().initStatus());
      return kj::READY_NOW;
    }
    std::vector<std::string> addresses;
    for (const auto address : params.getAddresses()) addresses.emplace_back(AsText(address));
    LinkProbeOptions options;
    options.timeout = Timeout(params.getTimeoutMs());
    const auto flops_per_s = std::make_shared<double>(0);
    const auto links = std::make_shared<std::vector<LinkFigures>>();
    return dispatch_
        .Do(
            [exchange, addresses = std::move(addresses), options, flops_per_s,
             links]() -> absl::Status {
              *flops_per_s = MeasureComputeRate(UsableCores());
              ASSIGN_OR_RETURN(*links, exchange->Probe(addresses, options));
              return absl::OkStatus();
            },
            [exchange, timeout = options.timeout](const absl::Status& status) {
              if (status.ok()) exchange->Linger(timeout);
              exchange->Close();
            })
        .then([context, flops_per_s, links](absl::Status&& status) mutable {
          auto results = context.getResults();
          control::WriteStatus(status, results.initStatus());
          results.setFlopsPerS(*flops_per_s);
          auto out = results.initLinks(static_cast<unsigned>(links->size()));
          for (unsigned i = 0; i < out.size(); ++i) {
            out[i].setRank((*links)[i].peer);
            out[i].setBytesPerS((*links)[i].bytes_per_s);
            out[i].setLatencyS((*links)[i].latency_s);
          }
        });
  }

  kj::Promise<void> measureCompute(MeasureComputeContext context) override {
    const auto flops_per_s = std::make_shared<double>(0);
    return dispatch_
        .Do([flops_per_s] {
          *flops_per_s = MeasureComputeRate(UsableCores());
          return absl::OkStatus();
        })
        .then([context, flops_per_s](absl::Status&& status) mutable {
          auto results = context.getResults();
          control::WriteStatus(status, results.initStatus());
          results.setFlopsPerS(*flops_per_s);
        });
  }

  kj::Promise<void> finishExchange(FinishExchangeContext context) override {
    const uint32_t number = context.getParams().getExchange();
    const std::shared_ptr<NodeExchange> exchange = node_.exchanges.Find(number);
    if (exchange == nullptr) return kj::READY_NOW;
    exchange->Stop();
    node_.exchanges.Remove(number);
    // Closed by the work thread, which may have to wait.
    return dispatch_.Close([exchange] { exchange->Close(); }).ignoreResult();
  }

  kj::Promise<void> reportActivity(ReportActivityContext context) override {
    const auto report = std::make_shared<ActivityReport>();
    return dispatch_
        .InSession(context.getParams().getGeneration(),
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
    node_.on_exit(cause, context.getParams().getJoinsAgain());
    return kj::READY_NOW;
  }

 private:
  kj::Promise<void> AwaitInspection(std::shared_ptr<Inspection> inspection,
                                    kj::TimePoint deadline) {
    if (inspection->IsComplete() || node_.loop.timer().now() >= deadline) return kj::READY_NOW;
    return node_.loop.timer()
        .afterDelay(kInspectionPoll)
        .then([this, inspection = std::move(inspection), deadline]() mutable {
          return AwaitInspection(std::move(inspection), deadline);
        });
  }

  const NodeParts node_;
  const NodeDispatch dispatch_;
};

}  // namespace

kj::Own<control::Node::Server> CreateNodeServer(NodeParts node) {
  return kj::heap<NodeServer>(std::move(node));
}

}  // namespace penstock::actors
