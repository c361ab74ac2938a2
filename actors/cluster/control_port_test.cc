// Hostile peers on both sides of the control plane. No bytes may crash a process, hang it, or make
// it keep much memory; and those who behave are served all the same.

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <capnp/message.h>
#include <capnp/rpc.capnp.h>
#include <capnp/serialize.h>

#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/control_port_internal.h"
#include "actors/cluster/node_agent_internal.h"
#include "tests/support/control_harness.h"
#include "tests/support/frame_mutator.h"
#include "tests/support/sanitizers.h"

namespace penstock::actors {
namespace {

using testing::ControlOutcome;
using testing::CoordinatorHarness;
using testing::FrameMutator;
using testing::kHasSanitizer;
using testing::NodeHarness;

// Frames that each side is fed with; a node has threads, which take their time.
constexpr size_t kNumNodeFrames = kHasSanitizer ? 50'000 : 900'000;
constexpr size_t kNumCoordinatorFrames = kHasSanitizer ? 10'000 : 200'000;
constexpr size_t kNumSessionFrames = kHasSanitizer ? 20'000 : 300'000;
// What the process may grow by meanwhile. A sanitizer keeps what was freed.
constexpr size_t kMaxGrowthBytes = size_t{kHasSanitizer ? 1024 : 128} << 20;

size_t PeakBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) << 10;
}

template <typename Harness>
void FeedMany(Harness& harness, FrameMutator& mutator, size_t num_frames) {
  const size_t before = PeakBytes();
  const auto begin = std::chrono::steady_clock::now();
  size_t num_connections = 0;
  size_t num_joined = 0;
  for (size_t fed = 0; fed < num_frames; ++num_connections) {
    const std::string bytes = mutator.Next();
    const size_t hello = std::min(bytes.size(), testing::kControlHelloBytes);
    fed += 1 + testing::SplitFrames(std::string_view(bytes).substr(hello)).size();
    const ControlOutcome outcome = harness.Feed(bytes);
    ASSERT_TRUE(outcome.has_ended) << "connection " << num_connections;
    num_joined += outcome.has_joined ? 1 : 0;
  }
  EXPECT_GT(num_joined, num_connections / 10) << "most bytes have to get past the hello";
  const size_t growth = PeakBytes() - before;
  EXPECT_LT(growth, kMaxGrowthBytes);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  printf("%zu frames on %zu connections, %zu of which joined: %.1f s, %.1f MiB more at the peak\n",
         num_frames, num_connections, num_joined, seconds, static_cast<double>(growth) / (1 << 20));
}

// --- Any bytes -----------------------------------------------------------------------------------

TEST(HostileBytesTest, ARightSessionIsServedToItsEnd) {
  CoordinatorHarness coordinator;
  const std::string node_bytes = coordinator.Record();
  EXPECT_EQ(coordinator.num_reports(), 2u);
  EXPECT_EQ(coordinator.num_errors(), 1u);
  EXPECT_EQ(coordinator.num_failures(), 2u);  // a peer is gone, and a policy stalls
  const ControlOutcome joined = coordinator.Feed(node_bytes);
  EXPECT_TRUE(joined.has_joined);
  EXPECT_TRUE(joined.has_ended);
  EXPECT_EQ(coordinator.num_reports(), 4u);
  EXPECT_GE(testing::SplitFrames(std::string_view(node_bytes).substr(24)).size(), 10u);

  NodeHarness node;
  const std::string coordinator_bytes = node.Record();
  const ControlOutcome served = node.Feed(coordinator_bytes);
  EXPECT_TRUE(served.has_joined);
  EXPECT_TRUE(served.has_ended);
  EXPECT_GE(testing::SplitFrames(std::string_view(coordinator_bytes).substr(24)).size(), 12u);
  const std::string whole_bytes = node.RecordWhole();
  EXPECT_EQ(node.num_errors(), 0u);
  EXPECT_TRUE(node.Feed(whole_bytes).has_ended);
  EXPECT_GE(testing::SplitFrames(std::string_view(whole_bytes).substr(24)).size(), 40u);
}

// After all of that a right session is served as before.
template <typename Harness>
void BearsAnyPeer(Harness& harness, uint64_t seed, std::vector<std::string> sessions,
                  size_t num_frames) {
  const std::string right = sessions[0];
  ASSERT_GT(right.size(), testing::kControlHelloBytes) << "no session was recorded";
  FrameMutator mutator(seed, std::move(sessions));
  FeedMany(harness, mutator, num_frames);
  const ControlOutcome after = harness.Feed(right);
  EXPECT_TRUE(after.has_joined);
  EXPECT_TRUE(after.has_ended);
}

TEST(HostileBytesTest, ACoordinatorBearsAnyNode) {
  CoordinatorHarness harness;
  BearsAnyPeer(harness, 1, {harness.Record()}, kNumNodeFrames);
}

TEST(HostileBytesTest, ANodeBearsAnyCoordinator) {
  NodeHarness harness;
  BearsAnyPeer(harness, 2, {harness.Record()}, kNumCoordinatorFrames);
}

// Sessions that are opened, with plans that are not what was planned: they have threads of their
// own, and some of them work until the bound of a step.
TEST(HostileBytesTest, ANodeBearsAnySession) {
  NodeHarness harness;
  BearsAnyPeer(harness, 3, {harness.RecordWhole()}, kNumSessionFrames);
  printf("%zu sessions were opened\n", harness.num_opened());
  EXPECT_GT(harness.num_opened(), kNumSessionFrames / 1000);
}

// --- The fuzz target's seeds ---------------------------------------------------------------------

// Seeds that were recorded before a change of the protocol or of the plan's format end early:
// record them again, as tests/fuzz/README.md says.
TEST(FuzzSeedsTest, SeedsRunSessionsOnBothSides) {
  constexpr int kToNode = 1;  // as in tests/fuzz/control_port_fuzz.cc
  constexpr int kAfterHello = 2;
  constexpr int kRehash = 4;
  CoordinatorHarness coordinator;
  NodeHarness node;
  for (const auto& entry :
       std::filesystem::directory_iterator(PENSTOCK_SOURCE_DIR "/tests/fuzz/seeds/control_port")) {
    std::ifstream file(entry.path(), std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(file)), {});
    ASSERT_FALSE(bytes.empty()) << entry.path();
    const int mode = bytes[0];
    bytes.erase(0, 1);
    if ((mode & kAfterHello) != 0) {
      bytes.insert(0, (mode & kToNode) != 0 ? testing::CoordinatorHello() : testing::NodeHello());
    }
    if ((mode & kRehash) != 0) bytes = testing::RehashPlans(std::move(bytes));
    const ControlOutcome outcome =
        (mode & kToNode) != 0 ? node.Feed(bytes) : coordinator.Feed(bytes);
    EXPECT_TRUE(outcome.has_ended) << entry.path();
  }
  EXPECT_GT(node.num_opened(), 0u);
  EXPECT_GT(coordinator.num_reports(), 0u);
}

// --- What a connection costs ---------------------------------------------------------------------

std::string ToFrame(capnp::MallocMessageBuilder& message) {
  const auto words = capnp::messageToFlatArray(message);
  const auto bytes = words.asBytes();
  return {reinterpret_cast<const char*>(bytes.begin()), bytes.size()};
}

std::string BootstrapFrame(uint32_t question) {
  capnp::MallocMessageBuilder message;
  message.initRoot<capnp::rpc::Message>().initBootstrap().setQuestionId(question);
  return ToFrame(message);
}

std::string FinishFrame(uint32_t question) {
  capnp::MallocMessageBuilder message;
  message.initRoot<capnp::rpc::Message>().initFinish().setQuestionId(question);
  return ToFrame(message);
}

// A join whose message comes with many capabilities.
std::string CapabilitiesFrame(unsigned count) {
  capnp::MallocMessageBuilder message;
  auto call = message.initRoot<capnp::rpc::Message>().initCall();
  call.initTarget().setImportedCap(0);
  call.setInterfaceId(capnp::typeId<control::Coordinator>());
  auto capabilities = call.initParams().initCapTable(count);
  for (unsigned i = 0; i < count; ++i) capabilities[i].setSenderPromise(i);
  return ToFrame(message);
}

// The header of a message of one segment.
std::string Header(uint32_t num_words) {
  std::string header(8, '\0');
  memcpy(header.data() + 4, &num_words, 4);
  return header;
}

class ControlPortTest : public ::testing::Test {
 protected:
  void ExpectServes() {
    const ControlOutcome outcome = coordinator_.Feed(right_);
    EXPECT_TRUE(outcome.has_joined);
  }

  CoordinatorHarness coordinator_;
  const std::string right_ = coordinator_.Record();
  const std::string hello_ = testing::NodeHello();
};

TEST_F(ControlPortTest, UnauthenticatedConnectionsTimeOut) {
  coordinator_.Linger("");
  coordinator_.Linger("PEN");
  coordinator_.Linger(hello_.substr(0, hello_.size() - 1));
  EXPECT_EQ(coordinator_.num_unauthenticated(), 3u);
  coordinator_.Advance(control::kHelloSeconds * 1000 - 1);
  EXPECT_EQ(coordinator_.num_unauthenticated(), 3u);
  coordinator_.Advance(1);
  EXPECT_EQ(coordinator_.num_unauthenticated(), 0u);
}

TEST_F(ControlPortTest, AWrongHelloEndsAtOnce) {
  std::string wrong_key = hello_;
  wrong_key.back() ^= 1;
  std::string wrong_magic = hello_;
  wrong_magic[0] ^= 1;
  // The half of the key that is the coordinator's to say.
  const std::string other_half = testing::CoordinatorHello();
  for (const std::string& wrong : {wrong_key, wrong_magic, other_half}) {
    coordinator_.Linger(wrong);
    EXPECT_EQ(coordinator_.num_unauthenticated(), 0u);
    EXPECT_EQ(coordinator_.num_authenticated(), 0u);
  }
}

// Many silent connections keep nobody out, before the hello and after it.
TEST_F(ControlPortTest, PlacesAreNotHeldBySilence) {
  for (const std::string& said : {std::string(), hello_}) {
    for (int i = 0; i < 3000; ++i) coordinator_.Linger(said);
    if (said.empty()) {
      EXPECT_EQ(coordinator_.num_unauthenticated(), control::kMaxPendingConnections);
    } else {
      EXPECT_EQ(coordinator_.num_authenticated(), control::kMaxJoiningConnections);
    }
    ExpectServes();
    coordinator_.Advance(control::kHelloSeconds * 1000);
    EXPECT_EQ(coordinator_.num_unauthenticated(), 0u);
    EXPECT_EQ(coordinator_.num_authenticated(), 0u);
  }
}

TEST_F(ControlPortTest, MessagesBeforeJoiningAreShort) {
  coordinator_.Linger(hello_ + Header(control::kMaxUnauthenticatedWords) + "a few bytes");
  EXPECT_EQ(coordinator_.num_authenticated(), 1u);
  coordinator_.HangUp();
  coordinator_.Linger(hello_ + Header(control::kMaxUnauthenticatedWords + 1) + "a few bytes");
  EXPECT_EQ(coordinator_.num_authenticated(), 0u);
}

// A member may announce the longest message there is; its memory is used as it comes.
TEST_F(ControlPortTest, AHeaderTakesNoMemory) {
  if (kHasSanitizer) GTEST_SKIP() << "allocates in its own way";
  // The hello and the frames of the beginning, the join among them.
  std::string joined = hello_;
  const std::vector<std::string> frames =
      testing::SplitFrames(std::string_view(right_).substr(hello_.size()));
  for (size_t i = 0; i < 6; ++i) joined += frames[i];
  const size_t before = PeakBytes();
  for (int i = 0; i < 20; ++i) {
    coordinator_.Linger(joined + Header(uint32_t{control::kMaxMessageWords} - 1) + "a few bytes");
    EXPECT_EQ(coordinator_.num_authenticated(), 1u);
    coordinator_.HangUp();
  }
  coordinator_.Linger(joined + Header(uint32_t{control::kMaxMessageWords} + 1) + "a few bytes");
  coordinator_.Advance(1000);
  EXPECT_EQ(coordinator_.num_authenticated(), 0u);
  EXPECT_LT(PeakBytes() - before, size_t{16} << 20);
}

TEST_F(ControlPortTest, QuestionsAreCounted) {
  std::string few = hello_;
  for (uint32_t i = 0; i < control::kMaxUnauthenticatedOpenMessages; ++i) few += BootstrapFrame(i);
  coordinator_.Linger(few);
  EXPECT_EQ(coordinator_.num_authenticated(), 1u);
  coordinator_.HangUp();
  coordinator_.Linger(few + BootstrapFrame(99));
  coordinator_.Advance(1000);
  EXPECT_EQ(coordinator_.num_authenticated(), 0u);
  // Those that are finished do not count.
  std::string many = hello_;
  for (uint32_t i = 0; i < 1000; ++i) many += BootstrapFrame(i) + FinishFrame(i);
  coordinator_.Linger(many);
  coordinator_.Advance(1000);
  EXPECT_EQ(coordinator_.num_authenticated(), 1u);
}

TEST_F(ControlPortTest, WhoReadsNoAnswersIsLetGo) {
  std::string many = hello_;
  for (uint32_t i = 0; i < 1000; ++i) many += BootstrapFrame(i) + FinishFrame(i);
  coordinator_.Linger(many, /*reads=*/false);
  coordinator_.Advance(1000);
  EXPECT_EQ(coordinator_.num_authenticated(), 0u);
  ExpectServes();
}

TEST_F(ControlPortTest, CapabilitiesAreCounted) {
  coordinator_.Linger(hello_ + BootstrapFrame(0) + CapabilitiesFrame(100));
  coordinator_.Advance(1000);
  EXPECT_EQ(coordinator_.num_authenticated(), 0u);
}

TEST(NodeAgentTest, ACoordinatorHasToKnowTheKey) {
  NodeHarness node;
  std::string right = node.Record();
  EXPECT_TRUE(node.Feed(right).has_joined);
  right[testing::kControlHelloBytes - 1] ^= 1;
  EXPECT_FALSE(node.Feed(right).has_joined);
}

// A node has nothing to ask for: a crash in Cap'n Proto 0.9.
TEST(NodeAgentTest, ANodeIsAskedForNoInterface) {
  NodeHarness node;
  const ControlOutcome outcome =
      node.Feed(node.Record().substr(0, testing::kControlHelloBytes) + BootstrapFrame(0));
  EXPECT_TRUE(outcome.has_ended);
  EXPECT_TRUE(node.Feed(node.Record()).has_joined);
}

TEST(NodeAgentTest, CallsThatWaitAreCounted) {
  WorkQueue queue;
  for (size_t i = 0; i < WorkQueue::kMaxWork; ++i) EXPECT_TRUE(queue.Push([] {}));
  EXPECT_FALSE(queue.Push([] {}));
  // What closes something finds room all the same.
  for (size_t i = 0; i < WorkQueue::kMaxClosing; ++i) {
    EXPECT_TRUE(queue.Push([] {}, WorkQueue::Kind::kClosing));
  }
  EXPECT_FALSE(queue.Push([] {}, WorkQueue::Kind::kClosing));
  EXPECT_FALSE(queue.Push([] {}));
}

TEST(ControlErrorTest, TheTextOfAnErrorIsBounded) {
  const std::string text(1 << 20, 'x');
  const kj::Exception exception(kj::Exception::Type::FAILED, "", 0, kj::heapString(text.c_str()));
  EXPECT_LE(control::FromException(exception).message().size(), control::kMaxTextBytes);
}

}  // namespace
}  // namespace penstock::actors
