// A listening coordinator among hostile connections, over real sockets, and nodes that lie to it.

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/chunked_transfer_internal.h"
#include "actors/cluster/cluster.h"
#include "actors/cluster/connection_internal.h"
#include "actors/cluster/control.capnp.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/control_port_internal.h"
#include "actors/cluster/job_key.h"
#include "actors/cluster/node.h"
#include "actors/session/session.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/text.h"
#include "kernels/kernel.h"
#include "planner/compile.h"
#include "planner/policy/policy.h"
#include "tests/support/control_harness.h"
#include "tests/support/frame_mutator.h"
#include "tests/support/hostile_client.h"
#include "tests/support/sanitizers.h"

namespace penstock::actors {
namespace {

using testing::kHasSanitizer;

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::string_view kAbstract = "unix-abstract:";

// A blocking socket of a peer that says what it likes.
class RawConnection {
 public:
  explicit RawConnection(std::string_view address) {
    if (address.substr(0, kAbstract.size()) == kAbstract) {
      const std::string_view name = address.substr(kAbstract.size());
      sockaddr_un where{};
      where.sun_family = AF_UNIX;
      memcpy(where.sun_path + 1, name.data(), name.size());
      const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
      fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&where), size), 0);
    } else {
      sockaddr_in where{};
      where.sin_family = AF_INET;
      where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      where.sin_port = htons(
          static_cast<uint16_t>(atoi(std::string(address.substr(address.rfind(':') + 1)).c_str())));
      fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&where), sizeof(where)), 0);
    }
    const timeval bound{20, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof(bound));
  }
  RawConnection(RawConnection&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~RawConnection() {
    if (fd_ >= 0) close(fd_);
  }

  void Say(std::string_view bytes) { (void)!send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }

  // Whether the other side says anything before it hangs up.
  bool HearsSomething() {
    char byte = 0;
    return recv(fd_, &byte, 1, 0) == 1;
  }

  // Whether the other side hangs up within the bound.
  bool IsLetGo() {
    char buffer[4096];
    while (true) {
      const ssize_t size = recv(fd_, buffer, sizeof(buffer), 0);
      if (size == 0 || (size < 0 && errno == ECONNRESET)) return true;
      if (size < 0) return false;
    }
  }

 private:
  int fd_ = -1;
};

// As many files as the system lets this process have.
size_t AllowFiles() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

class HostileSocketsTest : public ::testing::TestWithParam<std::string> {
 protected:
  HostileSocketsTest() {
    node_.kernels = &kernels_;
    node_.policies = &policies_;
  }

  std::future<absl::Status> StartNode(const std::string& address, const std::string& key,
                                      int rank = -1) {
    NodeOptions options = node_;
    options.coordinator = address;
    options.key = key;
    options.rank = rank;
    return std::async(std::launch::async, [options] { return RunNode(options); });
  }

  kernels::KernelRegistry kernels_;
  planner::PolicyRegistry policies_;
  NodeOptions node_;
};

TEST_P(HostileSocketsTest, NodesJoinAllTheSame) {
  AllowFiles();
  std::vector<RawConnection> silent;
  std::vector<std::future<absl::Status>> nodes;
  std::string join_address;
  std::string job_key;
  ClusterOptions options;
  options.num_processes = 2;
  options.listen = GetParam();
  options.on_listening = [&](const std::string& address, const std::string& key) {
    join_address = address;
    job_key = key;
    const std::string bytes = ParseJobKey(key).value();
    const std::string hello = testing::NodeHello().substr(0, 8) + bytes.substr(0, 16);
    for (size_t i = 0; i < 3 * control::kMaxPendingConnections; ++i) {
      silent.emplace_back(address);
      if (i % 3 == 1) silent.back().Say(hello.substr(0, i % hello.size()));
    }
    // The oldest had to make room.
    for (size_t i = 0; i < control::kMaxPendingConnections; ++i) EXPECT_TRUE(silent[i].IsLetGo());
    for (int i = 0; i < 200; ++i) {
      RawConnection other(address);
      switch (i % 4) {
        case 0:  // a wrong key
          other.Say(hello.substr(0, 8) + bytes.substr(16));
          break;
        case 1:  // another protocol
          other.Say("GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n");
          break;
        case 2:  // a right hello, then anything
          other.Say(hello + std::string(1000, static_cast<char>(i)));
          break;
        case 3:
          other.Say(hello + std::string("\0\0\0\0\xff\xff\xff\x7f", 8));
          break;
      }
      EXPECT_TRUE(other.IsLetGo()) << i;
    }
    nodes.push_back(StartNode(address, key));
    nodes.push_back(StartNode(address, key));
  };
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();

  // More nodes than there are ranks, and one that has no key.
  EXPECT_THAT(StartNode(join_address, job_key).get().ToString(), HasSubstr("have joined"));
  EXPECT_THAT(StartNode(join_address, job_key, 1).get().ToString(),
              HasSubstr("rank 1 is taken by node 1 (pid "));
  EXPECT_THAT(StartNode(join_address, job_key, 99).get().ToString(),
              HasSubstr("rank 99 is out of range: the job has ranks 0 to 1"));
  EXPECT_FALSE(StartNode(join_address, NewJobKey().value()).get().ok());

  // The silent ones have their time.
  for (RawConnection& connection : silent) EXPECT_TRUE(connection.IsLetGo());
  EXPECT_TRUE((*cluster)->Stop().ok());
  for (std::future<absl::Status>& node : nodes) EXPECT_TRUE(node.get().ok());
}

INSTANTIATE_TEST_SUITE_P(Sockets, HostileSocketsTest, ::testing::Values("127.0.0.1:0", ""),
                         [](const auto& info) {
                           return std::string(info.param.empty() ? "Abstract" : "Tcp");
                         });

// Sockets in the abstract namespace have no permissions.
TEST_P(HostileSocketsTest, OtherUsersOfThisHostAreNotHeard) {
  if (!GetParam().empty()) GTEST_SKIP() << "needs a Unix socket";
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  std::future<absl::Status> node;
  ClusterOptions options;
  options.on_listening = [&](const std::string& address, const std::string& key) {
    const std::string hello =
        testing::NodeHello().substr(0, 8) + ParseJobKey(key).value().substr(0, 16);
    const auto is_answered = [&](uid_t user) {
      // Of this thread alone, where the C library would change all.
      (void)syscall(SYS_setresuid, user, user, user);
      RawConnection connection(address);
      connection.Say(hello);
      return connection.HearsSomething();
    };
    EXPECT_TRUE(std::async(std::launch::async, is_answered, 0).get());
    EXPECT_FALSE(std::async(std::launch::async, is_answered, 65534).get());
    node = StartNode(address, key);
  };
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_TRUE((*cluster)->Stop().ok());
  EXPECT_TRUE(node.get().ok());
}

// --- A job that runs ----------------------------------------------------------------------------

// Connects without waiting until the other side accepts.
int ConnectOnly(std::string_view address) {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  where.sin_port = htons(
      static_cast<uint16_t>(atoi(std::string(address.substr(address.rfind(':') + 1)).c_str())));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  (void)!connect(fd, reinterpret_cast<const sockaddr*>(&where), sizeof(where));
  return fd;
}

planner::Plan MakePlan();

// 10,000 connections that say nothing, or half of what a node says, neither disturb a job nor keep
// somebody out who has the key.
TEST_P(HostileSocketsTest, HalfOpenConnectionsDoNotDisturbAJob) {
  if (GetParam().empty()) GTEST_SKIP() << "needs a port";
  // Sanitizers keep freed memory for long, and take as much again for each connection.
  const size_t count = kHasSanitizer ? 2'000 : 10'000;
  if (const size_t num_files = AllowFiles(); num_files < count + 1'000) {
    GTEST_SKIP() << "a process may have " << num_files << " files open here (ulimit -Hn), not "
                 << count + 1'000;
  }
  const kernels::KernelRegistry kernels = kernels::CpuKernels();
  node_.kernels = &kernels;
  std::future<absl::Status> node;
  std::string join_address;
  std::string job_key;
  ClusterOptions options;
  options.listen = "127.0.0.1:0";
  options.on_listening = [&](const std::string& address, const std::string& key) {
    join_address = address;
    job_key = key;
    node = StartNode(address, key);
  };
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  SessionOptions session_options;
  session_options.kernels = &kernels;
  session_options.start_engine = (*cluster)->engine_factory();
  absl::StatusOr<std::unique_ptr<Session>> session = Session::Start(MakePlan(), session_options);
  ASSERT_TRUE(session.ok()) << session.status();
  const Feeds feeds = {{"x", (*session)->Fetch("c").value()}};
  ASSERT_TRUE((*session)->Run(feeds).ok());
  const size_t before = ResidentBytes();
  size_t peak = before;
  std::vector<int> silent;
  int num_steps = 0;
  const auto run_step = [&] {
    const absl::Status status = (*session)->Run(feeds).status();
    ASSERT_TRUE(status.ok()) << status;
    ++num_steps;
    peak = std::max(peak, ResidentBytes());
  };
  std::string half_hello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
  while (silent.size() < count) {
    for (size_t i = 0; i < 500 && silent.size() < count; ++i) {
      silent.push_back(ConnectOnly(join_address));
      if (i % 2 == 1) {
        (void)!send(silent.back(), half_hello.data(), half_hello.size(), MSG_NOSIGNAL);
      }
    }
    ASSERT_NO_FATAL_FAILURE(run_step());
  }
  // Meanwhile one that has the key says what no node says, another what no client of TLS does,
  // some have wrong certificates, and some say again what one with the key has said.
  {
    testing::HostileClient hostile(join_address, job_key,
                                   testing::NumHostileFrames(kHasSanitizer ? 1'000 : 20'000));
    const int before_frames = num_steps;
    while (!hostile.is_done()) ASSERT_NO_FATAL_FAILURE(run_step());
    EXPECT_GT(hostile.num_handshakes(), hostile.num_connections() / 3);
    EXPECT_GT(hostile.num_replays(), 0u);
    EXPECT_GT(hostile.num_strangers(), 0u);
    EXPECT_EQ(hostile.num_bytes_to_strangers(), 0u);
    printf(
        "%zu changed frames on %zu connections, %zu replayed, %zu with a wrong certificate, "
        "%d steps meanwhile\n",
        hostile.num_said(), hostile.num_connections(), hostile.num_replays(),
        hostile.num_strangers(), num_steps - before_frames);
  }
  std::future<absl::Status> late = StartNode(join_address, job_key);
  while (late.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    ASSERT_NO_FATAL_FAILURE(run_step());
  }
  EXPECT_THAT(late.get().ToString(), HasSubstr("the only node of the job has joined"));
  printf("%zu connections, %d steps meanwhile, %.1f MiB more at the peak\n", silent.size(),
         num_steps, static_cast<double>(peak - before) / (1 << 20));
  // With the ends of the client that says wrong frames, which are in this process.
  EXPECT_LT(peak - before, size_t{kHasSanitizer ? 1024 : 384} << 20);
  for (const int fd : silent) close(fd);
  ASSERT_NO_FATAL_FAILURE(run_step());
  *session = nullptr;
  EXPECT_TRUE((*cluster)->Stop().ok());
  EXPECT_TRUE(node.get().ok());
}

// --- Nodes that lie ------------------------------------------------------------------------------

constexpr int kChunks = 4;  // of a feed, a fetch, a state
constexpr int64_t kNumElements = kChunks * int64_t{control::kChunkBytes} / sizeof(float);

// y = -x, and a state.
planner::Plan MakePlan() {
  const graph::OpRegistry ops = graph::BuiltinOps();
  const kernels::KernelRegistry kernels = kernels::CpuKernels();
  const planner::PolicyRegistry policies = planner::BuiltinPolicies();
  const std::string type = StrCat("f32[", kNumElements, "]");
  absl::StatusOr<graph::Graph> graph = graph::ParseGraph(
      StrCat("mesh m = [d=1]\ngraph g {\n  %x = input : ", type, "\n  %c = state : ", type,
             "\n  %y = neg(%x) : ", type, "\n  %n = add(%c, %y) : ", type,
             "\n  assign(%c, %n)\n  return %y\n}\n"),
      "test.pst", ops);
  EXPECT_TRUE(graph.ok()) << graph.status();
  planner::CompileOptions options;
  options.policies = &policies;
  options.kernels = kernels::TraitsOf(kernels, 1);
  absl::StatusOr<planner::Plan> plan = planner::Compile(ops, *std::move(graph), options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

class LyingNodeTest : public ::testing::Test {
 protected:
  // A member that computes nothing, and does with long data what a test says.
  class Member final : public control::Node::Server {
   public:
    explicit Member(LyingNodeTest& test) : test_(test) {}

    kj::Promise<void> ping(PingContext) override { return kj::READY_NOW; }
    kj::Promise<void> open(OpenContext context) override {
      test_.observer_ = context.getParams().getObserver();
      return kj::READY_NOW;
    }
    kj::Promise<void> connect(ConnectContext) override { return kj::READY_NOW; }
    kj::Promise<void> submit(SubmitContext context) override {
      return test_.on_submit_(context.getParams());
    }
    kj::Promise<void> readState(ReadStateContext context) override {
      const uint32_t size = test_.on_read_(context.getParams());
      if (size == 0) return kj::NEVER_DONE;
      context.getResults().initBytes(size);
      return kj::READY_NOW;
    }
    kj::Promise<void> writeState(WriteStateContext context) override {
      return test_.on_write_(context.getParams());
    }
    kj::Promise<void> keepStates(KeepStatesContext) override { return kj::READY_NOW; }
    kj::Promise<void> dropStates(DropStatesContext) override { return kj::READY_NOW; }
    kj::Promise<void> takeStates(TakeStatesContext context) override {
      const std::vector<uint32_t>& missing = test_.missing_;
      context.getResults().setMissing({missing.data(), missing.size()});
      return kj::READY_NOW;
    }
    kj::Promise<void> openExchange(OpenExchangeContext context) override {
      context.getResults().initAddress(test_.address_bytes_);
      return kj::READY_NOW;
    }
    kj::Promise<void> runExchange(RunExchangeContext context) override {
      if (test_.exchange_status_.ok()) {
        test_.HangUp();
        return kj::NEVER_DONE;
      }
      control::WriteStatus(test_.exchange_status_, context.getResults().initStatus());
      return kj::READY_NOW;
    }
    kj::Promise<void> finishExchange(FinishExchangeContext) override {
      ++test_.num_finished_;
      return kj::READY_NOW;
    }
    kj::Promise<void> close(CloseContext) override { return kj::READY_NOW; }
    kj::Promise<void> exit(ExitContext) override { return kj::READY_NOW; }

   private:
    LyingNodeTest& test_;
  };

  ~LyingNodeTest() noexcept override {
    session_ = nullptr;
    cluster_ = nullptr;
    OnLoop([&] {
      reading_ = nullptr;
      source_ = nullptr;
      observer_ = nullptr;
      rpc_ = nullptr;
    });
  }

  // Does something between two turns of the loop: what a test sets for the member, or reads of it,
  // goes through here, as no lock is shared with the member on the way through the sockets.
  void OnLoop(const std::function<void()>& work) {
    const absl::Status done = loop_->Await(
        [&]() -> kj::Promise<void> {
          work();
          return kj::READY_NOW;
        },
        absl::Seconds(10), "the loop of the member");
    EXPECT_TRUE(done.ok()) << done;
  }

  // A cluster whose first node is the member, with its interface or without.
  absl::Status Start(uint32_t num_processes, bool has_node) {
    ClusterOptions options;
    options.num_processes = num_processes;
    options.heartbeat_interval = absl::Milliseconds(50);
    options.stop_timeout = absl::Milliseconds(100);  // the member does not go by itself
    options.on_listening = [&](const std::string& address, const std::string& key) {
      const absl::Status joined =
          loop_->Await([&] { return Join(address, key, has_node); }, absl::Seconds(10), "the join");
      EXPECT_TRUE(joined.ok()) << joined;
    };
    ASSIGN_OR_RETURN(cluster_, Cluster::Start(options));
    ASSIGN_OR_RETURN(session_, StartSession(nullptr));
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Session>> StartSession(std::shared_ptr<const KeptStates> states) {
    SessionOptions session;
    session.kernels = &kernels_;
    session.timeout = absl::Seconds(30);
    session.start_engine = cluster_->engine_factory();
    session.states = std::move(states);
    return Session::Start(MakePlan(), session);
  }

  kj::Promise<void> Join(const std::string& address, const std::string& key, bool has_node) {
    return loop_->io()
        .provider->getNetwork()
        .parseAddress(address.c_str())
        .then([](kj::Own<kj::NetworkAddress> where) {
          auto connected = where->connect();
          return connected.attach(kj::mv(where));
        })
        .then([this, key, has_node](kj::Own<kj::AsyncIoStream> stream) {
          auto hello = control::SayHello(*stream, ParseJobKey(key).value());
          return hello.then([this, has_node, stream = kj::mv(stream)](absl::Status&&) mutable {
            rpc_ = kj::heap<control::RpcConnection>(
                kj::mv(stream), capnp::rpc::twoparty::Side::CLIENT, nullptr, loop_->timer());
            auto call = rpc_->Bootstrap().castAs<control::Coordinator>().joinRequest();
            auto info = call.initInfo();
            info.setPid(77);
            info.setMemoryBytes(uint64_t{1} << 40);
            info.setHost(std::string(1 << 10, 'h').c_str());
            if (has_node) call.setNode(kj::heap<Member>(*this));
            return call.send().ignoreResult();
          });
        });
  }

  // On the loop, but not from inside of what it ends.
  void HangUp() {
    loop_->Post([this] { rpc_ = nullptr; });
  }

  // Reads a chunk of what the coordinator has offered, and is gone; the call has no answer.
  kj::Promise<void> ReadOneChunkAndHangUp(control::ChunkedBytes::Reader transfer) {
    EXPECT_TRUE(transfer.isSource());
    auto call = transfer.getSource().readRequest();
    call.setOffset(control::kChunkBytes);
    call.setSize(control::kChunkBytes);
    reading_ = call.send()
                   .then([this](auto&& chunk) {
                     EXPECT_EQ(chunk.getBytes().size(), control::kChunkBytes);
                     HangUp();
                   })
                   .eagerlyEvaluate(nullptr);
    return kj::NEVER_DONE;
  }

  static void ExpectLoss(const absl::Status& status, std::string_view when) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(status.ToString(), HasSubstr("node 0 (pid 77 on hhh"));
    EXPECT_THAT(status.ToString(), HasSubstr("has closed its connection"));
    EXPECT_THAT(status.ToString(), HasSubstr(when));
  }

  static Feeds MakeFeeds() { return {{"x", Tensor({DType::kF32, {kNumElements}})}}; }

  const kernels::KernelRegistry kernels_ = kernels::CpuKernels();
  const std::unique_ptr<control::ControlLoop> loop_ = control::ControlLoop::Start().value();
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Session> session_;
  // What the member does; the size of a chunk of the state, 0: it does not answer. They and what
  // they count and note belong to the loop's thread.
  std::function<kj::Promise<void>(control::Node::SubmitParams::Reader)> on_submit_;
  std::function<uint32_t(control::Node::ReadStateParams::Reader)> on_read_;
  std::function<kj::Promise<void>(control::Node::WriteStateParams::Reader)> on_write_;
  // What it says of kept states: those that it lacks, and how their exchange ends; OK: it hangs up.
  std::vector<uint32_t> missing_ = {0};
  unsigned address_bytes_ = 0;
  absl::Status exchange_status_ = absl::DataLossError("what was kept is gone");
  int num_finished_ = 0;
  int num_asked_ = 0;
  std::string errors_;
  kj::Own<control::RpcConnection> rpc_;
  kj::Maybe<control::Observer::Client> observer_;
  kj::Maybe<control::Source::Client> source_;
  kj::Promise<void> reading_ = nullptr;
};

// A member without the interface that it joined with does not count as one that lives.
TEST_F(LyingNodeTest, OneThatAnswersNoPingIsLost) {
  const absl::Status status = Start(2, false);
  EXPECT_THAT(status.ToString(), HasSubstr("answers with errors"));
  EXPECT_LT(status.message().size(), 1000u);
}

TEST_F(LyingNodeTest, OneThatIsGoneWhileItsStateIsReadIsNamed) {
  ASSERT_TRUE(Start(1, true).ok());
  OnLoop([&] {
    on_read_ = [this](const auto& params) -> uint32_t {
      if (++num_asked_ < kChunks) return params.getSize();
      HangUp();
      return 0;
    };
  });
  ExpectLoss(session_->Fetch("c").status(), "while the job was loading");
  OnLoop([&] { EXPECT_EQ(num_asked_, kChunks); });
}

TEST_F(LyingNodeTest, OneThatIsGoneWhileItsStateIsWrittenIsNamed) {
  ASSERT_TRUE(Start(1, true).ok());
  OnLoop([&] {
    on_write_ = [this](const auto& params) { return ReadOneChunkAndHangUp(params.getTiles()); };
  });
  ExpectLoss(session_->SetState("c", Tensor({DType::kF32, {kNumElements}})),
             "while the job was loading");
}

TEST_F(LyingNodeTest, OneThatIsGoneWhileItIsFedIsNamed) {
  ASSERT_TRUE(Start(1, true).ok());
  OnLoop([&] {
    on_submit_ = [this](const auto& params) { return ReadOneChunkAndHangUp(params.getFeeds()); };
  });
  ExpectLoss(session_->Run(MakeFeeds()).status(), "in step 1");
}

// What it has to tell of a step, with results that go as a test says.
class LongResultsTest : public LyingNodeTest {
 protected:
  ~LongResultsTest() noexcept override = default;

  class Results final : public control::Source::Server {
   public:
    explicit Results(std::function<uint32_t(uint32_t size)> on_read)
        : on_read_(std::move(on_read)) {}

    kj::Promise<void> read(ReadContext context) override {
      const uint32_t size = on_read_(context.getParams().getSize());
      if (size == 0) return kj::NEVER_DONE;
      context.getResults().initBytes(size);
      return kj::READY_NOW;
    }

   private:
    const std::function<uint32_t(uint32_t size)> on_read_;
  };

  // `on_read` says how many bytes of a chunk it sends, 0: none, for good.
  void TellSteps(std::function<uint32_t(uint32_t size)> on_read) {
    OnLoop([&] {
      on_submit_ = [this, on_read](const auto& params) -> kj::Promise<void> {
        KJ_IF_MAYBE (observer, observer_) {
          auto done = observer->stepDoneRequest();
          done.setGeneration(params.getGeneration());
          done.setStep(params.getStep());
          done.initReports(1);
          done.initFetches().setSource(kj::heap<Results>(on_read));
          reading_ = done.send().ignoreResult().eagerlyEvaluate([](const kj::Exception&) {});
        }
        return kj::READY_NOW;
      };
    });
  }
};

TEST_F(LongResultsTest, AreRead) {
  ASSERT_TRUE(Start(1, true).ok());
  TellSteps([](uint32_t size) { return size; });
  const absl::StatusOr<StepResult> result = session_->Run(MakeFeeds());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->fetches.size(), 1u);
}

TEST_F(LongResultsTest, OneThatIsGoneWhileTheyAreReadIsNamed) {
  ASSERT_TRUE(Start(1, true).ok());
  TellSteps([this](uint32_t size) -> uint32_t {
    if (++num_asked_ < kChunks) return size;
    HangUp();
    return 0;
  });
  ExpectLoss(session_->Run(MakeFeeds()).status(), "in step 1");
}

TEST_F(LongResultsTest, AChunkOfAnotherLengthIsRefused) {
  ASSERT_TRUE(Start(1, true).ok());
  TellSteps([](uint32_t size) { return size - 1; });
  EXPECT_THAT(session_->Run(MakeFeeds()).status().ToString(),
              AllOf(HasSubstr("node 0 (pid 77"), HasSubstr("reading the results of step 1"),
                    HasSubstr(StrCat("a chunk of ", control::kChunkBytes - 1, " bytes"))));
}

TEST_F(LyingNodeTest, AChunkOfAStateOfAnotherLengthIsRefused) {
  ASSERT_TRUE(Start(1, true).ok());
  for (const uint32_t wrong : {1u, uint32_t{control::kChunkBytes} + 1}) {
    OnLoop([&] { on_read_ = [wrong](const auto&) { return wrong; }; });
    const absl::Status status = session_->Fetch("c").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.ToString(), AllOf(HasSubstr("node 0 (pid 77"),
                                         HasSubstr(StrCat("a chunk of ", wrong, " bytes"))));
  }
}

// It is told of the end all the same.
TEST_F(LyingNodeTest, OneThatFailsInAnExchangeOfStatesIsNamed) {
  ASSERT_TRUE(Start(1, true).ok());
  const auto kept = session_->KeepStates(StateSelection::kAll);
  ASSERT_TRUE(kept.ok()) << kept.status();
  const absl::Status status = StartSession(*kept).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.ToString(),
              AllOf(HasSubstr("node 0 (pid 77"), HasSubstr("what was kept is gone")));
  OnLoop([&] { address_bytes_ = (1 << 20) + 1; });
  EXPECT_THAT(StartSession(*kept).status().ToString(),
              AllOf(HasSubstr("node 0 (pid 77"), HasSubstr("an address of 1048577 bytes")));
  OnLoop([&] { EXPECT_EQ(num_finished_, 2); });
}

TEST_F(LyingNodeTest, ANodeThatNamesWrongMissingStatesIsNamed) {
  ASSERT_TRUE(Start(1, true).ok());
  const auto kept = session_->KeepStates(StateSelection::kAll);
  ASSERT_TRUE(kept.ok()) << kept.status();
  for (const std::vector<uint32_t>& missing :
       std::vector<std::vector<uint32_t>>{{1}, {0, 0}, {0, 1}, {UINT32_MAX}}) {
    OnLoop([&] { missing_ = missing; });
    const absl::Status status = StartSession(*kept).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(status.ToString(), AllOf(HasSubstr("node 0 (pid 77"), HasSubstr("state")));
  }
}

TEST_F(LyingNodeTest, OneThatIsGoneInAnExchangeOfStatesIsNamed) {
  ASSERT_TRUE(Start(1, true).ok());
  const auto kept = session_->KeepStates(StateSelection::kAll);
  ASSERT_TRUE(kept.ok()) << kept.status();
  OnLoop([&] { exchange_status_ = absl::OkStatus(); });
  ExpectLoss(StartSession(*kept).status(), "");
}

// What was offered with a call cannot be read after it, nor what was never offered.
TEST_F(LyingNodeTest, OneThatReadsTooMuchOrTooLateIsRefused) {
  ASSERT_TRUE(Start(1, true).ok());
  OnLoop([&] {
    on_write_ = [this](const auto& params) -> kj::Promise<void> {
      source_ = params.getTiles().getSource();
      auto call = params.getTiles().getSource().readRequest();
      call.setOffset(kChunks * control::kChunkBytes - 1);
      call.setSize(2);
      return call.send().then(
          [this](auto&& chunk) { errors_ = control::ReadStatus(chunk.getStatus()).ToString(); });
    };
  });
  EXPECT_TRUE(session_->SetState("c", Tensor({DType::kF32, {kNumElements}})).ok());
  OnLoop([&] {
    EXPECT_THAT(errors_, HasSubstr("there is no chunk of 2 bytes at 4194303 of 4194304"));
  });
  const absl::Status late = loop_->Await(
      [&] {
        auto call = KJ_ASSERT_NONNULL(source_).readRequest();
        call.setSize(1);
        return control::StatusOf(call.send());
      },
      absl::Seconds(10), "the chunk");
  EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(late.ToString(), HasSubstr("too late"));
}

}  // namespace
}  // namespace penstock::actors
