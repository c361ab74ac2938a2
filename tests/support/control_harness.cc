#include "tests/support/control_harness.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include <kj/async-io.h>
#include <kj/async.h>
#include <kj/timer.h>

#include "actors/cluster/cluster_session_internal.h"
#include "actors/cluster/connection_internal.h"
#include "actors/cluster/control.capnp.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/control_port_internal.h"
#include "actors/cluster/job_key.h"
#include "actors/cluster/node_agent_internal.h"
#include "planner/plan_io.h"
#include "tests/support/engine_plan.h"

namespace penstock::testing {
namespace {

namespace control = actors::control;

constexpr std::string_view kMagic = "PENSTCK2";
constexpr size_t kPipeBytes = 4096;
// More than any bound of the port's.
constexpr int kLongMilliseconds = 60'000;

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
class RecordingStream final : public kj::AsyncIoStream {
 public:
  RecordingStream(kj::Own<kj::AsyncIoStream> inner, std::string* written)
      : inner_(kj::mv(inner)), written_(written) {}

  kj::Promise<size_t> tryRead(void* buffer, size_t min, size_t max) override {
    return inner_->tryRead(buffer, min, max);
  }
  kj::Promise<void> write(const void* buffer, size_t size) override {
    written_->append(static_cast<const char*>(buffer), size);
    return inner_->write(buffer, size);
  }
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    for (const auto piece : pieces) {
      written_->append(reinterpret_cast<const char*>(piece.begin()), piece.size());
    }
    return inner_->write(pieces);
  }
  kj::Promise<void> whenWriteDisconnected() override { return inner_->whenWriteDisconnected(); }
  void shutdownWrite() override { inner_->shutdownWrite(); }

 private:
  kj::Own<kj::AsyncIoStream> inner_;
  std::string* const written_;
};

// Reads whatever comes until the end.
kj::Promise<void> Drain(kj::AsyncIoStream& stream, kj::byte* buffer) {
  return stream.tryRead(buffer, 1, kPipeBytes)
      .then([&stream, buffer](size_t num_bytes) -> kj::Promise<void> {
        if (num_bytes == 0) return kj::READY_NOW;
        return Drain(stream, buffer);
      });
}

// The end of a connection that plays the peer.
struct Puppet {
  Puppet(kj::Own<kj::AsyncIoStream> end, bool reads) : stream(kj::mv(end)) {
    if (!reads) return;
    drain = Drain(*stream, buffer).eagerlyEvaluate([](const kj::Exception&) {});
  }

  kj::Promise<void> Say(std::string_view bytes) {
    return stream->write(bytes.data(), bytes.size()).catch_([this](const kj::Exception&) {
      is_refused = true;
    });
  }
  void HangUp() {
    if (kj::runCatchingExceptions([this] { stream->shutdownWrite(); }) != nullptr) {
      is_refused = true;
    }
  }

  kj::Own<kj::AsyncIoStream> stream;
  kj::byte buffer[kPipeBytes];
  kj::Promise<void> drain = nullptr;
  bool is_refused = false;
};

// The hello, then frames.
std::vector<std::string> Pieces(std::string_view bytes) {
  std::vector<std::string> pieces;
  pieces.emplace_back(bytes.substr(0, kControlHelloBytes));
  bytes.remove_prefix(std::min(bytes.size(), kControlHelloBytes));
  for (std::string& frame : SplitFrames(bytes)) pieces.push_back(std::move(frame));
  return pieces;
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
      auto fetches = done.initFetches(2);
      const std::string bytes(kWidth * sizeof(double), '\0');
      for (uint32_t m = 0; m < 2; ++m) {
        fetches[m].setActor(2);
        fetches[m].setMicrobatch(m);
        fetches[m].setBytes(kj::StringPtr(bytes.data(), bytes.size()).asBytes());
      }
      return error.send().ignoreResult().then(
          [done = kj::mv(done), failure = kj::mv(failure)]() mutable {
            return done.send().ignoreResult().then(
                [failure = kj::mv(failure)]() mutable { return failure.send().ignoreResult(); });
          });
    }
    return kj::READY_NOW;
  }
  kj::Promise<void> describe(DescribeContext context) override {
    context.getResults().initLines(1).set(0, "device 0: idle");
    return kj::READY_NOW;
  }

 private:
  kj::Maybe<control::Observer::Client> observer_;
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

  absl::StatusOr<uint32_t> Admit(uint64_t, control::NodeInfo::Reader info,
                                 control::Node::Client node) override {
    (void)info.getHost().size();
    if (has_joined_) return absl::ResourceExhaustedError("the job has no free node");
    has_joined_ = true;
    session_ = std::make_shared<actors::ClusterSession>(plan_, 2, &observer_);
    session_->Begin({timer_, *tasks_, [](uint32_t) { return std::string("node"); }}, 1);
    Drive(kj::mv(node));
    return 0;
  }
  void OnMemberGone(uint32_t) override { ++num_gone_; }
  void taskFailed(kj::Exception&&) override {}

  // A session's calls, each when the one before was answered. Errors end it.
  void Drive(control::Node::Client node) {
    auto ping = node.pingRequest();
    auto open = node.openRequest();
    auto spec = open.initSession();
    spec.setGeneration(1);
    spec.setPlan(kj::StringPtr("a plan").asBytes());
    spec.setNumDevices(1);
    open.setObserver(session_->MakeObserver(0));
    auto connect = node.connectRequest();
    connect.setGeneration(1);
    auto buffers = std::make_shared<actors::StepBuffers>();
    for (const planner::FetchPlan& fetch : plan_.fetches) {
      buffers->fetches.emplace_back(fetch.type);
    }
    auto submit = node.submitRequest();
    submit.setGeneration(1);
    auto describe = node.describeRequest();
    auto close = node.closeRequest();
    tasks_->add(
        ping.send()
            .ignoreResult()
            .then([open = kj::mv(open)]() mutable { return open.send().ignoreResult(); })
            .then([connect = kj::mv(connect)]() mutable { return connect.send().ignoreResult(); })
            .then([this, buffers, submit = kj::mv(submit)]() mutable {
              session_->Submit(0, buffers);
              return submit.send().ignoreResult();
            })
            .then(
                [describe = kj::mv(describe)]() mutable { return describe.send().ignoreResult(); })
            .then([close = kj::mv(close)]() mutable { return close.send().ignoreResult(); }));
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
    for (const std::string& piece : Pieces(bytes)) {
      if (puppet.is_refused) return;
      bool is_read = false;
      auto said = puppet.Say(piece).then([&is_read] { is_read = true; }).eagerlyEvaluate(nullptr);
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
    if (port_->num_strangers() + port_->num_guests() > 0) Advance(kLongMilliseconds);
    outcome.has_ended = port_->num_strangers() + port_->num_guests() == 0;
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
size_t CoordinatorHarness::num_strangers() const { return impl_->port_->num_strangers(); }
size_t CoordinatorHarness::num_guests() const { return impl_->port_->num_guests(); }
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

class TestObserver final : public control::Observer::Server {};

// All that a coordinator can ask for, each when the one before was answered, in whatever way.
kj::Promise<void> CallAll(control::Node::Client node, const std::string& plan) {
  auto open = node.openRequest();
  auto spec = open.initSession();
  spec.setGeneration(1);
  spec.setPlan({reinterpret_cast<const kj::byte*>(plan.data()), plan.size()});
  spec.setFirstDevice(7);  // there are not as many: no transport is made
  spec.setNumDevices(1);
  open.setObserver(kj::heap<TestObserver>());
  auto connect = node.connectRequest();
  connect.setGeneration(1);
  connect.initProcesses(1)[0].setAddress(kj::StringPtr("somewhere").asBytes());
  auto submit = node.submitRequest();
  submit.setGeneration(1);
  submit.initFeeds(1).set(0, kj::StringPtr("feed").asBytes());
  auto describe = node.describeRequest();
  describe.setGeneration(1);
  auto read = node.readStateRequest();
  read.setGeneration(1);
  auto write = node.writeStateRequest();
  write.setGeneration(1);
  write.setValue(kj::StringPtr("value").asBytes());
  auto trace = node.takeTraceRequest();
  trace.setGeneration(1);
  auto close = node.closeRequest();
  close.setGeneration(1);
  auto exit = node.exitRequest();
  exit.setReason("the job is over");
  const auto any = [](const kj::Exception&) {};
  return node.pingRequest()
      .send()
      .ignoreResult()
      .then([open = kj::mv(open), any]() mutable {
        return open.send().ignoreResult().catch_(kj::cp(any));
      })
      .then([connect = kj::mv(connect), any]() mutable {
        return connect.send().ignoreResult().catch_(kj::cp(any));
      })
      .then([submit = kj::mv(submit), any]() mutable {
        return submit.send().ignoreResult().catch_(kj::cp(any));
      })
      .then([describe = kj::mv(describe), any]() mutable {
        return describe.send().ignoreResult().catch_(kj::cp(any));
      })
      .then([read = kj::mv(read), any]() mutable {
        return read.send().ignoreResult().catch_(kj::cp(any));
      })
      .then([write = kj::mv(write), any]() mutable {
        return write.send().ignoreResult().catch_(kj::cp(any));
      })
      .then([trace = kj::mv(trace), any]() mutable {
        return trace.send().ignoreResult().catch_(kj::cp(any));
      })
      .then([close = kj::mv(close), any]() mutable {
        return close.send().ignoreResult().catch_(kj::cp(any));
      })
      .then([exit = kj::mv(exit), any]() mutable {
        return exit.send().ignoreResult().catch_(kj::cp(any));
      });
}

}  // namespace

class NodeHarness::Impl {
 public:
  Impl() : loop_(control::ControlLoop::Start().value()) {
    options_.kernels = &kernels_;
    options_.policies = &policies_;
    options_.interfaces = "none";
  }

  ControlOutcome Feed(std::string_view bytes) {
    ControlOutcome outcome;
    // Set on the loop's thread before the agent ends, read after.
    bool has_joined = false;
    bool is_in_time = true;
    actors::NodeAgent agent(options_, *loop_, nullptr);
    struct Objects {
      kj::Own<Puppet> puppet;
      kj::Promise<void> join = nullptr;
      kj::Promise<void> talk = nullptr;
      kj::Promise<void> bound = nullptr;
    };
    Objects objects;
    loop_->Post([&] {
      auto pipe = kj::newTwoWayPipe();
      objects.puppet = kj::heap<Puppet>(kj::mv(pipe.ends[1]), true);
      objects.join = agent.Join(kj::mv(pipe.ends[0]), ControlKey())
                         .then([&has_joined] { has_joined = true; })
                         .eagerlyEvaluate([&agent](const kj::Exception& exception) {
                           agent.End(control::FromException(exception));
                         });
      objects.talk = Talk(*objects.puppet, Pieces(bytes), 0).eagerlyEvaluate(nullptr);
      objects.bound = loop_->timer()
                          .afterDelay(20 * kj::SECONDS)
                          .then([&agent, &is_in_time] {
                            is_in_time = false;
                            agent.End(absl::OkStatus());
                          })
                          .eagerlyEvaluate(nullptr);
    });
    (void)agent.Run();
    agent.CloseSession();
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

  std::string Record() {
    std::string bytes;
    actors::NodeAgent agent(options_, *loop_, nullptr);
    const std::string plan = PlanBytes(MakePlan());
    kj::Maybe<control::Node::Client> node;
    kj::Own<control::RpcConnection> rpc;
    kj::Promise<void> join = nullptr;
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
      talk = served.then([&join] { return kj::mv(join); })
                 .then([&node, &plan] { return CallAll(KJ_ASSERT_NONNULL(node), plan); })
                 .eagerlyEvaluate([&agent](const kj::Exception& exception) {
                   agent.End(control::FromException(exception));
                 });
    });
    (void)agent.Run();
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

 private:
  // Each piece when the one before has had its effects on the loop; then hangs up.
  static kj::Promise<void> Talk(Puppet& puppet, std::vector<std::string> pieces, size_t next) {
    if (puppet.is_refused || next == pieces.size()) {
      puppet.HangUp();
      return kj::READY_NOW;
    }
    auto said = puppet.Say(pieces[next]);
    return said.then([] { return kj::evalLast([] {}); })
        .then([&puppet, pieces = std::move(pieces), next]() mutable {
          return Talk(puppet, std::move(pieces), next + 1);
        });
  }

  kernels::KernelRegistry kernels_ = EngineTestKernels();
  planner::PolicyRegistry policies_ = planner::BuiltinPolicies();
  actors::NodeOptions options_;
  std::unique_ptr<control::ControlLoop> loop_;
};

NodeHarness::NodeHarness() : impl_(std::make_unique<Impl>()) {}
NodeHarness::~NodeHarness() = default;
ControlOutcome NodeHarness::Feed(std::string_view bytes) { return impl_->Feed(bytes); }
std::string NodeHarness::Record() { return impl_->Record(); }

}  // namespace penstock::testing
