#include "tests/support/control_harness.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <utility>

#include <capnp/message.h>
#include <capnp/rpc.capnp.h>
#include <capnp/serialize.h>
#include <kj/async-io.h>
#include <kj/async.h>
#include <kj/timer.h>
#include <xxhash.h>

#include "actors/cluster/chunked_transfer_internal.h"
#include "actors/cluster/cluster_session_internal.h"
#include "actors/cluster/connection_internal.h"
#include "actors/cluster/control.capnp.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/control_port_internal.h"
#include "actors/cluster/forwarding_stream_internal.h"
#include "actors/cluster/job_key.h"
#include "actors/cluster/node_agent_internal.h"
#include "actors/cluster/plan_slice.h"
#include "planner/plan/plan_io.h"
#include "tests/support/engine_plan.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_transport.h"

namespace penstock::testing {
namespace {

namespace control = actors::control;

constexpr std::string_view kMagic = "PENSTCK4";
constexpr size_t kPipeBytes = 4096;
// More than any bound of the port's.
constexpr int kLongMilliseconds = 60'000;

// Of one device: kWidth in each of two micro-batches. A state has half as many.
constexpr size_t kFetchBytes = 2 * kWidth * sizeof(double);
constexpr size_t kStateBytes = kWidth * sizeof(double);

// Two devices that double x.
planner::Plan MakePlan() {
  EnginePlanBuilder b(2);
  for (int i = 0; i < 2; ++i) {
    const uint32_t d = b.AddDevice();
    b.AddState(d, i == 0 ? "w" : "v");
    const uint32_t x = b.AddRegister(d);
    const uint32_t y = b.AddRegister(d);
    b.BeginPhase(d, "F", planner::PhaseKind::kForward);
    const uint32_t feed = b.AddFeed(d, "x", x);
    const uint32_t f = b.AddKernel(d, "f", "t.affine", {x}, {y}, {{"scale", 2.0}});
    const uint32_t fetch = b.AddFetch(d, i == 0 ? "y" : "z", y);
    b.AddChannel(d, feed, f);
    b.AddChannel(d, f, fetch);
  }
  return b.Build();
}

std::string PlanBytes(const planner::Plan& plan) { return planner::PlanToBytes(plan).value(); }

// Passes on what is written, and keeps a copy.
class RecordingStream final : public actors::ForwardingStream {
 public:
  RecordingStream(kj::Own<kj::AsyncIoStream> inner, std::string* written)
      : ForwardingStream(kj::mv(inner)), written_(written) {}

  kj::Promise<void> write(const void* buffer, size_t size) override {
    written_->append(static_cast<const char*>(buffer), size);
    return ForwardingStream::write(buffer, size);
  }
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> chunks) override {
    for (const auto chunk : chunks) {
      written_->append(reinterpret_cast<const char*>(chunk.begin()), chunk.size());
    }
    return ForwardingStream::write(chunks);
  }

 private:
  std::string* const written_;
};

// The end of a connection that plays the peer.
class Puppet {
 public:
  Puppet(kj::Own<kj::AsyncIoStream> end, bool reads) : stream_(kj::mv(end)) {
    if (!reads) return;
    drain_ = Drain().eagerlyEvaluate([](const kj::Exception&) {});
  }

  kj::Promise<void> Say(std::string_view bytes) {
    return stream_->write(bytes.data(), bytes.size()).catch_([this](const kj::Exception&) {
      is_refused = true;
    });
  }
  void HangUp() {
    if (kj::runCatchingExceptions([this] { stream_->shutdownWrite(); }) != nullptr) {
      is_refused = true;
    }
  }

  // Resolves when the other side has asked so, or asks nothing for a while; from then on at once.
  kj::Promise<void> AwaitQuestion(uint32_t question, kj::Timer& timer) {
    awaited_ = question;
    if (is_impatient_ || IsAsked()) return kj::READY_NOW;
    auto asked = kj::newPromiseAndFulfiller<void>();
    asked_ = kj::mv(asked.fulfiller);
    return asked.promise.exclusiveJoin(
        timer.afterDelay(kPatience).then([this] { is_impatient_ = true; }));
  }

  bool is_refused = false;

 private:
  static constexpr kj::Duration kPatience = 20 * kj::MILLISECONDS;

  // Reads whatever comes until the end.
  kj::Promise<void> Drain() {
    return stream_->tryRead(buffer_, 1, kPipeBytes)
        .then([this](size_t num_bytes) -> kj::Promise<void> {
          if (num_bytes == 0) return kj::READY_NOW;
          Hear({reinterpret_cast<const char*>(buffer_), num_bytes});
          return Drain();
        });
  }

  // The questions among what the other side says, which is a hello and right messages.
  void Hear(std::string_view bytes) {
    heard_ += bytes;
    if (!has_hello_ && heard_.size() < kControlHelloBytes) return;
    size_t at = has_hello_ ? 0 : kControlHelloBytes;
    has_hello_ = true;
    while (at < heard_.size()) {
      const std::vector<std::string> frames = SplitFrames(std::string_view(heard_).substr(at));
      if (!IsWhole(frames[0])) break;
      at += frames[0].size();
      kj::runCatchingExceptions([&] {
        auto words = kj::heapArray<capnp::word>(frames[0].size() / sizeof(capnp::word));
        memcpy(words.begin(), frames[0].data(), words.asBytes().size());
        capnp::FlatArrayMessageReader reader(words);
        const auto message = reader.getRoot<capnp::rpc::Message>();
        if (message.isCall()) questions_.insert(message.getCall().getQuestionId());
        if (message.isBootstrap()) questions_.insert(message.getBootstrap().getQuestionId());
      });
    }
    heard_.erase(0, at);
    if (asked_.get() != nullptr && IsAsked()) asked_->fulfill();
  }

  static bool IsWhole(std::string_view frame) {
    uint32_t words = 0;
    if (frame.size() < 8) return false;
    memcpy(&words, frame.data() + 4, sizeof(words));
    return frame[0] != 0 || frame.size() == 8 + 8 * uint64_t{words};
  }

  bool IsAsked() { return questions_.erase(awaited_) > 0; }

  kj::Own<kj::AsyncIoStream> stream_;
  kj::byte buffer_[kPipeBytes];
  std::string heard_;
  bool has_hello_ = false;
  std::set<uint32_t> questions_;  // that were asked and not awaited
  uint32_t awaited_ = 0;
  bool is_impatient_ = false;
  kj::Own<kj::PromiseFulfiller<void>> asked_;
  kj::Promise<void> drain_ = nullptr;
};

// The hello, then frames.
std::vector<std::string> Chunks(std::string_view bytes) {
  std::vector<std::string> chunks;
  chunks.emplace_back(bytes.substr(0, kControlHelloBytes));
  bytes.remove_prefix(std::min(bytes.size(), kControlHelloBytes));
  for (std::string& frame : SplitFrames(bytes)) chunks.push_back(std::move(frame));
  return chunks;
}

class CountingObserver final : public actors::EngineObserver {
 public:
  void OnStepDone(const actors::DeviceStepReport&) override { ++num_reports; }
  void OnError(uint32_t, int64_t, const absl::Status&) override { ++num_errors; }
  void OnFailure(const absl::Status&) override { ++num_failures; }

  size_t num_reports = 0;
  size_t num_errors = 0;
  size_t num_failures = 0;
};

// Bytes that can be read, however short they are.
class TestSource final : public control::Source::Server {
 public:
  explicit TestSource(std::string bytes) : bytes_(std::move(bytes)) {}

  kj::Promise<void> read(ReadContext context) override {
    const auto params = context.getParams();
    KJ_REQUIRE(control::CheckChunk(params.getOffset(), params.getSize(), bytes_.size()).ok());
    context.getResults().setBytes(
        control::AsData(bytes_.data() + params.getOffset(), params.getSize()));
    return kj::READY_NOW;
  }

 private:
  const std::string bytes_;
};

// A node that behaves and computes nothing.
class TestNode final : public control::Node::Server {
 public:
  kj::Promise<void> ping(PingContext) override { return kj::READY_NOW; }
  kj::Promise<void> open(OpenContext context) override {
    observer_ = context.getParams().getObserver();
    context.getResults().setAddress(kj::StringPtr("somewhere").asBytes());
    return kj::READY_NOW;
  }
  kj::Promise<void> connect(ConnectContext) override { return kj::READY_NOW; }
  kj::Promise<void> submit(SubmitContext context) override {
    const auto params = context.getParams();
    KJ_IF_MAYBE (observer, observer_) {
      auto error = observer->errorRequest();
      error.setGeneration(params.getGeneration());
      error.setDevice(0);
      error.initStatus().setMessage("a kernel's error");
      auto failure = observer->failureRequest();
      failure.setGeneration(params.getGeneration());
      failure.initStatus().setCode(14);
      failure.getStatus().setMessage("a peer is gone");
      auto done = observer->stepDoneRequest();
      done.setGeneration(params.getGeneration());
      done.setStep(params.getStep());
      auto reports = done.initReports(1);
      reports[0].setWallNs(5);
      const std::string bytes(kFetchBytes, '\0');
      auto declined = observer->declinedRequest();
      declined.setGeneration(params.getGeneration());
      if (params.getStep() == 0) {
        done.initFetches().setEmbedded(control::AsData(bytes.data(), bytes.size()));
        return error.send().ignoreResult().then(
            [done = kj::mv(done)]() mutable { return done.send().ignoreResult(); });
      }
      done.initFetches().setSource(kj::heap<TestSource>(bytes));
      return done.send()
          .ignoreResult()
          .then([failure = kj::mv(failure)]() mutable { return failure.send().ignoreResult(); })
          .then([declined = kj::mv(declined)]() mutable { return declined.send().ignoreResult(); });
    }
    return kj::READY_NOW;
  }
  kj::Promise<void> describe(DescribeContext context) override {
    context.getResults().initWaits(1)[0].setText("device 0: idle");
    return kj::READY_NOW;
  }
  kj::Promise<void> reportActivity(ReportActivityContext context) override {
    const int64_t idle_polls[] = {10 * ++num_reports_};
    auto results = context.getResults();
    results.initMoves(1);
    results.setIdlePolls(idle_polls);
    results.initCommunications(2);  // none of the choices and counts that a stage exchanges
    results.setDeclined("a stage");
    return kj::READY_NOW;
  }
  kj::Promise<void> readState(ReadStateContext context) override {
    context.getResults().initBytes(context.getParams().getSize());
    return kj::READY_NOW;
  }

 private:
  kj::Maybe<control::Observer::Client> observer_;
  int64_t num_reports_ = 0;
};

}  // namespace

std::string ControlKey() {
  std::string key(actors::kJobKeyBytes, '\0');
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<char>('A' + i);
  return key;
}
std::string NodeHello() { return std::string(kMagic) + ControlKey().substr(0, 16); }
std::string CoordinatorHello() { return std::string(kMagic) + ControlKey().substr(16); }

std::vector<std::string> SplitFrames(std::string_view bytes) {
  std::vector<std::string> frames;
  while (!bytes.empty()) {
    size_t size = bytes.size();
    uint32_t num_segments = 0;
    if (bytes.size() >= 8) {
      memcpy(&num_segments, bytes.data(), 4);
      const uint64_t header = (uint64_t{num_segments} + 1 + 2) / 2 * 8;
      if (num_segments < 512 && header <= bytes.size()) {
        uint64_t total = header;
        for (uint32_t i = 0; i <= num_segments; ++i) {
          uint32_t words = 0;
          memcpy(&words, bytes.data() + 4 + 4 * i, 4);
          total += uint64_t{words} * 8;
        }
        size = static_cast<size_t>(std::min<uint64_t>(total, size));
      }
    }
    frames.emplace_back(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return frames;
}

std::string JoinFrames(const std::vector<std::string>& frames) {
  std::string bytes;
  for (const std::string& frame : frames) bytes += frame;
  return bytes;
}

std::string RehashPlans(std::string bytes) {
  constexpr std::string_view kPlanMagic = "PSTKPLAN";
  constexpr size_t kLengthAt = 16;
  constexpr size_t kHashAt = 24;
  constexpr size_t kHeaderBytes = 32;
  for (size_t at = bytes.find(kPlanMagic); at != std::string::npos;
       at = bytes.find(kPlanMagic, at + 1)) {
    if (bytes.size() - at < kHeaderBytes) break;
    uint64_t length = 0;
    memcpy(&length, bytes.data() + at + kLengthAt, sizeof(length));
    if (length > bytes.size() - at - kHeaderBytes) continue;
    const uint64_t seed = XXH64(bytes.data() + at, kHashAt, 0);
    const uint64_t hash = XXH64(bytes.data() + at + kHeaderBytes, length, seed);
    memcpy(bytes.data() + at + kHashAt, &hash, sizeof(hash));
  }
  return bytes;
}

// --- The coordinator -----------------------------------------------------------------------------

class CoordinatorHarness::Impl final : public control::ControlPort::Host,
                                       public kj::TaskSet::ErrorHandler {
 public:
  Impl()
      : scope_(loop_),
        timer_(kj::origin<kj::TimePoint>()),
        plan_(MakePlan()),
        tasks_(kj::heap<kj::TaskSet>(*this)),
        port_(kj::heap<control::ControlPort>(timer_, ControlKey(), 1000, *this)) {}

  ~Impl() noexcept override {
    lingering_.clear();
    port_ = nullptr;
    Forget();
  }

  kj::Promise<absl::StatusOr<control::Admission>> Admit(uint64_t, control::NodeInfo::Reader info,
                                                        control::Node::Client node) override {
    using Result = absl::StatusOr<control::Admission>;
    (void)info.getHost().size();
    if (has_joined_) return Result(absl::ResourceExhaustedError("the job has no free node"));
    has_joined_ = true;
    session_ = std::make_shared<actors::ClusterSession>(plan_, 2, &observer_);
    session_->Begin({timer_, *tasks_, [](uint32_t) { return std::string("node"); },
                     [client = std::make_shared<control::Node::Client>(node)](
                         uint32_t) -> kj::Maybe<control::Node::Client> {
                       return control::Node::Client(*client);
                     }},
                    1);
    Drive(kj::mv(node));
    return Result(control::Admission());
  }
  kj::Promise<control::Questions<actors::JobStatus>::Answer> Status() override {
    return std::make_shared<const absl::StatusOr<actors::JobStatus>>(actors::JobStatus());
  }
  void OnMemberGone(uint32_t) override { ++num_gone_; }
  void OnMemberEnd(const control::MemberEnd&) override {}
  void taskFailed(kj::Exception&&) override {}

  // A session's calls, each when the one before was answered. Errors end it.
  void Drive(control::Node::Client node) {
    auto ping = node.pingRequest();
    auto open = node.openRequest();
    auto spec = open.initSession();
    spec.setGeneration(1);
    spec.initPlan().setEmbedded(kj::StringPtr("a plan").asBytes());
    spec.setNumDevices(1);
    open.setObserver(session_->MakeObserver(0));
    auto connect = node.connectRequest();
    connect.setGeneration(1);
    auto describe = node.describeRequest();
    auto close = node.closeRequest();
    tasks_->add(
        ping.send()
            .ignoreResult()
            .then([open = kj::mv(open)]() mutable { return open.send().ignoreResult(); })
            .then([connect = kj::mv(connect)]() mutable { return connect.send().ignoreResult(); })
            .then([this, node]() mutable { return Submit(node, 0); })
            .then([this, node]() mutable { return Submit(node, 1); })
            .then(
                [describe = kj::mv(describe)]() mutable { return describe.send().ignoreResult(); })
            .then([node]() mutable {
              actors::ByteTarget state;
              state.Add(kStateBytes, [](uint64_t, size_t, const std::byte*) {});
              return control::ReadChunks(
                         [client = std::make_shared<control::Node::Client>(node)](uint64_t offset,
                                                                                  uint32_t size) {
                           auto call = client->readStateRequest();
                           call.setGeneration(1);
                           call.setOffset(offset);
                           call.setSize(size);
                           return call.send();
                         },
                         std::move(state))
                  .ignoreResult();
            })
            .then([close = kj::mv(close)]() mutable { return close.send().ignoreResult(); }));
  }

  kj::Promise<void> Submit(control::Node::Client& node, int64_t step) {
    auto buffers = std::make_shared<actors::StepBuffers>();
    for (const planner::FetchPlan& fetch : plan_.fetches) {
      buffers->fetches.emplace_back(fetch.type);
    }
    session_->Submit(step, buffers);
    auto submit = node.submitRequest();
    submit.setGeneration(1);
    submit.setStep(step);
    return submit.send().ignoreResult();
  }

  void Forget() {
    if (session_ != nullptr) session_->End();
    tasks_ = kj::heap<kj::TaskSet>(*this);
    session_ = nullptr;
    has_joined_ = false;
  }

  void Poll() { scope_.poll(); }
  void Advance(int milliseconds) {
    timer_.advanceTo(timer_.now() + milliseconds * kj::MILLISECONDS);
    Poll();
  }

  kj::Own<Puppet> Connect(bool reads = true) {
    auto pipe = kj::newTwoWayPipe();
    port_->Welcome(kj::mv(pipe.ends[0]));
    return kj::heap<Puppet>(kj::mv(pipe.ends[1]), reads);
  }

  void Say(Puppet& puppet, std::string_view bytes) {
    for (const std::string& chunk : Chunks(bytes)) {
      if (puppet.is_refused) return;
      bool is_read = false;
      auto said = puppet.Say(chunk).then([&is_read] { is_read = true; }).eagerlyEvaluate(nullptr);
      Poll();
      if (!is_read) return;  // it is not read any more
    }
  }

  ControlOutcome Feed(std::string_view bytes) {
    ControlOutcome outcome;
    {
      kj::Own<Puppet> puppet = Connect();
      Say(*puppet, bytes);
      outcome.has_joined = has_joined_;
      puppet->HangUp();
      Poll();
    }
    Poll();
    if (port_->num_unauthenticated() + port_->num_authenticated() > 0) Advance(kLongMilliseconds);
    outcome.has_ended = port_->num_unauthenticated() + port_->num_authenticated() == 0;
    Forget();
    return outcome;
  }

  std::string Record() {
    std::string bytes;
    {
      auto pipe = kj::newTwoWayPipe();
      port_->Welcome(kj::mv(pipe.ends[0]));
      auto stream = kj::heap<RecordingStream>(kj::mv(pipe.ends[1]), &bytes);
      auto hello = control::SayHello(*stream, ControlKey()).eagerlyEvaluate(nullptr);
      Poll();
      control::RpcConnection rpc(kj::mv(stream), capnp::rpc::twoparty::Side::CLIENT, nullptr,
                                 timer_);
      auto call = rpc.Bootstrap().castAs<control::Coordinator>().joinRequest();
      call.initInfo().setHost("here");
      call.setNode(kj::heap<TestNode>());
      auto joined = call.send().ignoreResult().eagerlyEvaluate(nullptr);
      Poll();
      Advance(2000);  // what was held for a peer's loss
    }
    Poll();
    Advance(kLongMilliseconds);
    Forget();
    return bytes;
  }

  kj::EventLoop loop_;
  kj::WaitScope scope_;
  kj::TimerImpl timer_;
  const planner::Plan plan_;
  CountingObserver observer_;
  std::shared_ptr<actors::ClusterSession> session_;
  kj::Own<kj::TaskSet> tasks_;
  kj::Own<control::ControlPort> port_;
  std::vector<kj::Own<Puppet>> lingering_;
  bool has_joined_ = false;
  size_t num_gone_ = 0;
};

CoordinatorHarness::CoordinatorHarness() : impl_(std::make_unique<Impl>()) {}
CoordinatorHarness::~CoordinatorHarness() = default;
ControlOutcome CoordinatorHarness::Feed(std::string_view bytes) { return impl_->Feed(bytes); }
std::string CoordinatorHarness::Record() { return impl_->Record(); }

void CoordinatorHarness::Linger(std::string_view bytes, bool reads) {
  impl_->lingering_.push_back(impl_->Connect(reads));
  impl_->Say(*impl_->lingering_.back(), bytes);
}
size_t CoordinatorHarness::num_unauthenticated() const {
  return impl_->port_->num_unauthenticated();
}
size_t CoordinatorHarness::num_authenticated() const { return impl_->port_->num_authenticated(); }
void CoordinatorHarness::Advance(int milliseconds) { impl_->Advance(milliseconds); }
void CoordinatorHarness::HangUp() {
  impl_->lingering_.clear();
  impl_->Poll();
  impl_->Advance(kLongMilliseconds);
  impl_->Forget();
}
size_t CoordinatorHarness::num_reports() const { return impl_->observer_.num_reports; }
size_t CoordinatorHarness::num_errors() const { return impl_->observer_.num_errors; }
size_t CoordinatorHarness::num_failures() const { return impl_->observer_.num_failures; }

// --- The node ------------------------------------------------------------------------------------

namespace {

// A coordinator that behaves, for one node.
class TestCoordinator final : public control::Coordinator::Server {
 public:
  explicit TestCoordinator(kj::Maybe<control::Node::Client>* node) : node_(node) {}

  kj::Promise<void> join(JoinContext context) override {
    *node_ = context.getParams().getNode();
    context.getResults().setSilenceMs(1000);
    return kj::READY_NOW;
  }

 private:
  kj::Maybe<control::Node::Client>* const node_;
};

class TestObserver final : public control::Observer::Server {
 public:
  kj::Promise<void> stepDone(StepDoneContext) override { return kj::READY_NOW; }
};

// A transport whose devices are all in this process, as nothing is sent to others.
class LocalTransport final : public transport::UcxTransport {
 public:
  explicit LocalTransport(const transport::UcxOptions& options)
      : inner_(transport::CreateInprocTransport(options.transport)) {}

  std::string name() const override { return inner_->name(); }
  uint32_t num_devices() const override { return inner_->num_devices(); }
  absl::StatusOr<transport::Endpoint*> OpenEndpoint(uint32_t device) override {
    return inner_->OpenEndpoint(device);
  }
  transport::TransportStats stats() const override { return inner_->stats(); }
  std::string LocalAddress() const override { return "somewhere"; }
  absl::Status Connect(uint32_t, std::string_view) override { return absl::OkStatus(); }
  void FailPeer(uint32_t, const absl::Status&) override {}

 private:
  const std::unique_ptr<transport::Transport> inner_;
};

void SetBulk(control::ChunkedBytes::Builder transfer, const std::string& bytes, bool is_here) {
  if (is_here) {
    transfer.setEmbedded(control::AsData(bytes.data(), bytes.size()));
  } else {
    transfer.setSource(kj::heap<TestSource>(bytes));
  }
}

using Calls = std::vector<std::function<control::StatusPromise(control::Node::Client&)>>;

// A session of two steps, with what is long in the calls, or to be read.
void AddSession(uint32_t generation, const std::string& plan, uint32_t first_device, bool is_here,
                Calls* calls) {
  calls->push_back([=](control::Node::Client& node) {
    auto open = node.openRequest();
    auto spec = open.initSession();
    spec.setGeneration(generation);
    SetBulk(spec.initPlan(), plan, is_here);
    spec.setPlanBytes(plan.size());
    spec.setFirstDevice(first_device);
    spec.setNumDevices(1);
    spec.setTimeoutMs(10'000);
    spec.setTraceCapacity(64);
    open.setObserver(kj::heap<TestObserver>());
    return control::StatusOf(open.send());
  });
  calls->push_back([=](control::Node::Client& node) {
    auto connect = node.connectRequest();
    connect.setGeneration(generation);
    auto processes = connect.initProcesses(2);
    for (uint32_t i = 0; i < 2; ++i) {
      processes[i].setFirstDevice(i);
      processes[i].setAddress(kj::StringPtr("somewhere").asBytes());
    }
    return control::StatusOf(connect.send());
  });
  for (int64_t step = 0; step < 2; ++step) {
    calls->push_back([=](control::Node::Client& node) {
      auto submit = node.submitRequest();
      submit.setGeneration(generation);
      submit.setStep(step);
      SetBulk(submit.initFeeds(), std::string(kFetchBytes, '\0'), is_here);
      return control::StatusOf(submit.send());
    });
  }
  calls->push_back([=](control::Node::Client& node) {
    auto describe = node.describeRequest();
    describe.setGeneration(generation);
    describe.setTimeoutMs(100);
    return control::StatusOf(describe.send());
  });
  calls->push_back([=](control::Node::Client& node) {
    auto activity = node.reportActivityRequest();
    activity.setGeneration(generation);
    return control::StatusOf(activity.send());
  });
  calls->push_back([=](control::Node::Client& node) {
    auto read = node.readStateRequest();
    read.setGeneration(generation);
    read.setOffset(kStateBytes / 2);
    read.setSize(kStateBytes / 2);
    return control::StatusOf(read.send());
  });
  calls->push_back([=](control::Node::Client& node) {
    auto write = node.writeStateRequest();
    write.setGeneration(generation);
    SetBulk(write.initTiles(), std::string(kStateBytes, '\1'), is_here);
    return control::StatusOf(write.send());
  });
  calls->push_back([=](control::Node::Client& node) {
    auto trace = node.takeTraceRequest();
    trace.setGeneration(generation);
    return control::StatusOf(trace.send());
  });
  calls->push_back([=](control::Node::Client& node) {
    auto close = node.closeRequest();
    close.setGeneration(generation);
    return control::StatusOf(close.send());
  });
}

// Each when the one before was answered, in whatever way, which is counted.
kj::Promise<void> CallAll(control::Node::Client node, std::shared_ptr<const Calls> calls,
                          size_t next, size_t* num_errors) {
  if (next == calls->size()) return kj::READY_NOW;
  return (*calls)[next](node)
      .catch_([](kj::Exception&& exception) { return control::FromException(exception); })
      .then([node, calls, next, num_errors](absl::Status&& status) mutable {
        if (!status.ok()) ++*num_errors;
        return CallAll(kj::mv(node), std::move(calls), next + 1, num_errors);
      });
}

}  // namespace

class NodeHarness::Impl {
 public:
  Impl() : loop_(control::ControlLoop::Start().value()) {
    options_.kernels = &kernels_;
    options_.policies = &policies_;
    options_.interfaces = "none";
    options_.coordinator = "unix-abstract:a test";  // the pipes carry no TLS
    options_.max_memory_bytes = size_t{16} << 20;
  }

  ControlOutcome Feed(std::string_view bytes) {
    ControlOutcome outcome;
    // Set on the loop's thread before the agent ends, read after.
    bool has_joined = false;
    bool is_in_time = true;
    actors::NodeAgent agent(options_, *loop_, nullptr, MakeTransport());
    struct Objects {
      kj::Own<Puppet> puppet;
      kj::Promise<void> join = nullptr;
      kj::Promise<void> talk = nullptr;
      kj::Promise<void> bound = nullptr;
    };
    Objects objects;
    const auto chunks = std::make_shared<const std::vector<std::string>>(Chunks(bytes));
    loop_->Post([&] {
      auto pipe = kj::newTwoWayPipe();
      objects.puppet = kj::heap<Puppet>(kj::mv(pipe.ends[1]), true);
      objects.join = agent.Join(kj::mv(pipe.ends[0]), ControlKey())
                         .then([&agent, &has_joined](absl::Status&& status) {
                           has_joined = status.ok();
                           if (!status.ok()) agent.End(status);
                         })
                         .eagerlyEvaluate([&agent](const kj::Exception& exception) {
                           agent.End(control::FromException(exception));
                         });
      objects.talk = Talk(*objects.puppet, chunks, 0).eagerlyEvaluate(nullptr);
      objects.bound = loop_->timer()
                          .afterDelay(20 * kj::SECONDS)
                          .then([&agent, &is_in_time] {
                            is_in_time = false;
                            agent.End(absl::OkStatus());
                          })
                          .eagerlyEvaluate(nullptr);
    });
    (void)agent.Run();
    agent.CloseSessions();
    const absl::Status status = loop_->Await(
        [&]() -> kj::Promise<void> {
          objects.bound = nullptr;
          objects.talk = nullptr;
          objects.join = nullptr;
          objects.puppet = nullptr;
          agent.Disconnect();
          return kj::READY_NOW;
        },
        absl::Seconds(20), "the end of the connection");
    if (!status.ok()) abort();  // what the loop refers to is about to go
    outcome.has_joined = has_joined;
    outcome.has_ended = is_in_time;
    return outcome;
  }

  std::string Record(bool is_whole) {
    std::string bytes;
    actors::NodeAgent agent(options_, *loop_, nullptr, MakeTransport());
    const std::string plan = PlanBytes(actors::SlicePlan(MakePlan(), 0, 1));
    const auto calls = std::make_shared<Calls>();
    calls->push_back([](control::Node::Client& to) {
      return control::ToStatus(to.pingRequest().send().ignoreResult());
    });
    if (is_whole) {
      AddSession(1, plan, 0, false, calls.get());
      AddSession(2, plan, 0, true, calls.get());
    } else {
      AddSession(1, plan, 7, true, calls.get());  // there are not as many: nothing is made
    }
    calls->push_back([](control::Node::Client& to) {
      return control::ToStatus(to.exitRequest().send().ignoreResult());
    });
    num_errors_ = 0;
    kj::Maybe<control::Node::Client> node;
    kj::Own<control::RpcConnection> rpc;
    control::StatusPromise join = nullptr;
    kj::Promise<void> talk = nullptr;
    loop_->Post([&] {
      auto pipe = kj::newTwoWayPipe();
      auto stream = kj::heap<RecordingStream>(kj::mv(pipe.ends[1]), &bytes);
      auto hello = control::ReceiveHello(*stream, ControlKey());
      auto& timer = loop_->timer();
      auto served = hello.then([&rpc, &node, &timer, stream = kj::mv(stream)](bool) mutable {
        rpc = kj::heap<control::RpcConnection>(
            kj::mv(stream), capnp::rpc::twoparty::Side::SERVER,
            capnp::Capability::Client(kj::heap<TestCoordinator>(&node)), timer);
        rpc->Trust();
      });
      join = agent.Join(kj::mv(pipe.ends[0]), ControlKey());
      talk = served.then([&join] { return kj::mv(join).ignoreResult(); })
                 .then([this, &node, calls] {
                   return CallAll(KJ_ASSERT_NONNULL(node), calls, 0, &num_errors_);
                 })
                 .eagerlyEvaluate([&agent](const kj::Exception& exception) {
                   agent.End(control::FromException(exception));
                 });
    });
    (void)agent.Run();
    agent.CloseSessions();
    (void)loop_->Await(
        [&]() -> kj::Promise<void> {
          talk = nullptr;
          join = nullptr;
          node = nullptr;
          rpc = nullptr;
          agent.Disconnect();
          return kj::READY_NOW;
        },
        absl::Seconds(20), "the end of the connection");
    return bytes;
  }

  // Calls of the last recorded session that failed.
  size_t num_errors() const { return num_errors_; }
  size_t num_opened() const { return num_opened_; }

 private:
  // Called by the thread that feeds.
  actors::NodeAgent::TransportFactory MakeTransport() {
    return [this](const transport::UcxOptions& options) {
      ++num_opened_;
      return std::make_unique<LocalTransport>(options);
    };
  }

  // Each chunk when the one before has had its effects on the loop, an answer when it was asked
  // for; then hangs up.
  kj::Promise<void> Talk(Puppet& puppet, std::shared_ptr<const std::vector<std::string>> chunks,
                         size_t next) {
    if (puppet.is_refused || next == chunks->size()) {
      puppet.HangUp();
      return kj::READY_NOW;
    }
    return AwaitQuestion(puppet, (*chunks)[next])
        .then([&puppet, chunks, next] { return puppet.Say((*chunks)[next]); })
        .then([] { return kj::evalLast([] {}); })
        .then([this, &puppet, chunks, next] { return Talk(puppet, chunks, next + 1); });
  }

  // The work of a node takes its time, and what it asks for comes of that. Where nothing is asked
  // any more, for the frames were changed, the rest is said without waiting.
  kj::Promise<void> AwaitQuestion(Puppet& puppet, std::string_view chunk) {
    constexpr size_t kMessage = 16;  // a frame of one segment, behind the pointer to its root
    constexpr uint16_t kReturn = 3;
    uint16_t which = 0;
    uint32_t question = 0;
    if (chunk.size() < kMessage + 32) return kj::READY_NOW;
    memcpy(&which, chunk.data() + kMessage, sizeof(which));
    if (which != kReturn) return kj::READY_NOW;
    // The pointer behind one word of data tells where the answer begins.
    uint32_t pointer = 0;
    memcpy(&pointer, chunk.data() + kMessage + 8, sizeof(pointer));
    const uint64_t at = kMessage + 16 + uint64_t{pointer >> 2} * 8;
    if (at + sizeof(question) > chunk.size()) return kj::READY_NOW;
    memcpy(&question, chunk.data() + at, sizeof(question));
    return puppet.AwaitQuestion(question, loop_->timer());
  }

  kernels::KernelRegistry kernels_ = EngineTestKernels();
  planner::PolicyRegistry policies_ = planner::BuiltinPolicies();
  actors::NodeOptions options_;
  size_t num_errors_ = 0;
  size_t num_opened_ = 0;
  std::unique_ptr<control::ControlLoop> loop_;
};

NodeHarness::NodeHarness() : impl_(std::make_unique<Impl>()) {}
NodeHarness::~NodeHarness() = default;
ControlOutcome NodeHarness::Feed(std::string_view bytes) { return impl_->Feed(bytes); }
std::string NodeHarness::Record() { return impl_->Record(false); }
std::string NodeHarness::RecordWhole() { return impl_->Record(true); }
size_t NodeHarness::num_errors() const { return impl_->num_errors(); }
size_t NodeHarness::num_opened() const { return impl_->num_opened(); }

}  // namespace penstock::testing
