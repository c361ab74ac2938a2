// What happens when a peer dies or stands still. Peers are this program, started again with a role:
// `ucx_peer_death_test --peer DEVICE ROLE`.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "tests/support/raw_ucx_worker.h"
#include "tests/support/ucx_transports.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_transport.h"
#include "transport/ucx/wire.h"

extern char** environ;

namespace penstock::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using transport::Endpoint;
using transport::kNoFlags;
using transport::Request;
using transport::UcxOptions;
using transport::UcxTransport;

constexpr int kPeerFd = 3;
constexpr uint32_t kSurvivor = 0;
constexpr uint32_t kVictim = 1;
constexpr uint32_t kBystander = 2;
constexpr size_t kLargeBytes = 64 << 20;

bool Await(int fd, short events) {
  pollfd entry = {fd, events, 0};
  return poll(&entry, 1, std::chrono::milliseconds(kPatience).count()) == 1;
}

bool WriteFrame(int fd, const std::string& bytes) {
  const auto size = static_cast<uint32_t>(bytes.size());
  std::string frame(reinterpret_cast<const char*>(&size), sizeof(size));
  frame += bytes;
  return send(fd, frame.data(), frame.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(frame.size());
}

bool ReadFrame(int fd, std::string* bytes) {
  const auto read_all = [fd](void* to, size_t size) {
    auto* at = static_cast<char*>(to);
    while (size > 0) {
      if (!Await(fd, POLLIN)) return false;
      const ssize_t got = read(fd, at, size);
      if (got <= 0) return false;
      at += got;
      size -= static_cast<size_t>(got);
    }
    return true;
  };
  uint32_t size = 0;
  if (!read_all(&size, sizeof(size)) || size > 1 << 20) return false;
  bytes->resize(size);
  return read_all(bytes->data(), size);
}

// A peer that stands still at a certain message of a long transfer in chunks (wire.h).
class ChunkPeer {
 public:
  // Meets the survivor as a transport would; false if that failed.
  bool Meet(uint32_t device) {
    transport::ucx::ProcessAddress mine;
    mine.generation = kGeneration;
    mine.first_device = device;
    mine.devices.push_back({.key = 1, .worker = worker_.Address(), .network = worker_.Address()});
    std::string bytes;
    if (!WriteFrame(kPeerFd, EncodeAddress(mine)) || !ReadFrame(kPeerFd, &bytes)) return false;
    const auto survivor = transport::ucx::DecodeAddress(bytes);
    if (!survivor.ok()) return false;
    for (const unsigned id : {transport::ucx::kAcksId, transport::ucx::kProbeId}) {
      worker_.Handle(id, &Ignore, this);
    }
    worker_.Connect(survivor->devices[0].worker);
    origin_ = {survivor->devices[0].key, kGeneration, device};
    return true;
  }

  // Announces a long message, sends `num_chunks` of it, and stops when it is asked for another one.
  void SendChunksAndStop(int num_chunks) {
    num_chunks_ = num_chunks;
    worker_.Handle(transport::ucx::kFetchRequestId, &OnFetchRequest, this);
    header_.origin = origin_;
    header_.channel = 1;
    header_.num_bytes = kLargeBytes;
    worker_.Send(transport::ucx::kMessageId, &header_, sizeof(header_), nullptr, 0);
    while (true) worker_.Progress();
  }

  // Asks for the first chunk of the message that comes, and stops when that chunk is announced.
  void FetchAChunkAndStop() {
    worker_.Handle(transport::ucx::kMessageId, &OnMessage, this);
    worker_.Handle(transport::ucx::kChunkId, &OnChunk, this);
    while (true) worker_.Progress();
  }

 private:
  static ucs_status_t Ignore(void*, const void*, size_t, void*, size_t,
                             const ucp_am_recv_param_t*) {
    return UCS_OK;
  }
  static ucs_status_t OnFetchRequest(void* self, const void* header, size_t, void*, size_t,
                                     const ucp_am_recv_param_t*) {
    auto& peer = *static_cast<ChunkPeer*>(self);
    if (peer.num_chunks_-- == 0) raise(SIGSTOP);
    transport::ucx::FetchRequest fetch;
    std::memcpy(&fetch, header, sizeof(fetch));
    peer.chunks_.push_back({peer.origin_, fetch.receive, fetch.offset});
    peer.worker_.Send(transport::ucx::kChunkId, &peer.chunks_.back(), sizeof(peer.chunks_.back()),
                      peer.bytes_.data(), peer.bytes_.size());
    return UCS_OK;
  }
  static ucs_status_t OnMessage(void* self, const void* header, size_t header_bytes, void*, size_t,
                                const ucp_am_recv_param_t*) {
    auto& peer = *static_cast<ChunkPeer*>(self);
    if (header_bytes != sizeof(peer.header_)) return UCS_OK;
    std::memcpy(&peer.header_, header, sizeof(peer.header_));
    peer.fetch_ = {peer.origin_, peer.header_.operation, {0, 0}, 0};
    peer.worker_.Send(transport::ucx::kFetchRequestId, &peer.fetch_, sizeof(peer.fetch_), nullptr,
                      0);
    return UCS_OK;
  }
  static ucs_status_t OnChunk(void*, const void*, size_t, void*, size_t,
                              const ucp_am_recv_param_t*) {
    raise(SIGSTOP);
    return UCS_OK;
  }

  RawUcxWorker worker_;
  transport::ucx::Origin origin_;
  transport::ucx::MessageHeader header_;
  transport::ucx::FetchRequest fetch_;
  std::deque<transport::ucx::ChunkHeader> chunks_;
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(transport::ucx::kNetworkChunkBytes, 1);
  int num_chunks_ = 0;
};

// What a peer does; it ends by being killed, or with an exit status that says what went wrong.
int RunPeer(uint32_t device, const std::string& role) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (role == "fetch-a-chunk" || role == "send-no-chunk" || role == "send-three-chunks") {
    ChunkPeer peer;
    if (!peer.Meet(device)) return 20;
    if (role == "fetch-a-chunk") peer.FetchAChunkAndStop();
    peer.SendChunksAndStop(role == "send-no-chunk" ? 0 : 3);
  }
  auto transport = MakeTransport(OptionsOf(device));
  std::string address;
  if (!WriteFrame(kPeerFd, transport->LocalAddress())) return 9;
  if (role == "stop-unconnected") raise(SIGSTOP);
  if (!ReadFrame(kPeerFd, &address)) return 10;
  if (!transport->Connect(kSurvivor, address).ok()) return 11;
  Endpoint& endpoint = **transport->OpenEndpoint(device);
  std::vector<uint8_t> large(kLargeBytes, role == "send-large" ? 1 : 0);
  uint64_t value = 0;
  Request request;
  const auto is_done = [&request] { return request.is_done(); };
  if (role == "echo") {
    for (uint64_t i = 0;; ++i) {
      endpoint.Recv(kSurvivor, {kGeneration, 0, i}, &value, sizeof(value), &request);
      if (!DriveUntil(endpoint, is_done)) return 12;
      endpoint.Send(kSurvivor, {kGeneration, 1, i}, &value, sizeof(value), kNoFlags, &request);
      if (!DriveUntil(endpoint, is_done)) return 13;
    }
  }
  if (role == "receive-first") {
    endpoint.Recv(kSurvivor, {kGeneration, 0, 0}, &value, sizeof(value), &request);
    if (!DriveUntil(endpoint, is_done)) return 14;
  }
  if (role == "receive-large") {
    endpoint.Recv(kSurvivor, {kGeneration, 1, 0}, large.data(), large.size(), &request);
    if (!DriveUntil(endpoint, [&] { return HasBegun(large); })) return 15;
    if (request.is_done()) return 16;
  }
  if (role == "exchange-large") {
    std::vector<uint8_t> sent(kLargeBytes, 1);
    Request send;
    for (uint32_t round = 0;; ++round) {
      endpoint.Send(kSurvivor, {kGeneration, 1, round}, sent.data(), sent.size(), kNoFlags, &send);
      endpoint.Recv(kSurvivor, {kGeneration, 1, round}, large.data(), large.size(), &request);
      if (!DriveUntil(endpoint, [&] { return send.is_done() && request.is_done(); })) return 19;
    }
  }
  if (role == "send-large") {
    endpoint.Send(kSurvivor, {kGeneration, 1, 0}, large.data(), large.size(), kNoFlags, &request);
    DriveUntil(endpoint, is_done);
    return 17;
  }
  // What happens next happens to a process that does not move any more.
  raise(SIGSTOP);
  return 18;
}

class PeerProcess {
 public:
  PeerProcess(uint32_t device, const std::string& role) {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    // dup2 of a descriptor onto itself would keep it closed on exec.
    const int duplicate = fcntl(fds[1], F_DUPFD_CLOEXEC, kPeerFd + 1);
    posix_spawn_file_actions_adddup2(&actions, duplicate, kPeerFd);
    std::string program = "/proc/self/exe", flag = "--peer", number = StrCat(device), name = role;
    char* arguments[] = {program.data(), flag.data(), number.data(), name.data(), nullptr};
    EXPECT_EQ(posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(fds[1]);
    close(duplicate);
    fd_ = fds[0];
  }

  ~PeerProcess() {
    Kill();
    close(fd_);
  }

  void Join(UcxTransport& transport, uint32_t device) {
    std::string address;
    ASSERT_TRUE(ReadFrame(fd_, &address));
    ASSERT_EQ(transport.Connect(device, address), absl::OkStatus());
    ASSERT_TRUE(WriteFrame(fd_, transport.LocalAddress()));
  }

  bool Read(std::string* bytes) { return ReadFrame(fd_, bytes); }

  // Whether it has stopped itself, or ended.
  bool HasStopped() {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG | WUNTRACED) != pid_) return false;
    EXPECT_TRUE(WIFSTOPPED(status)) << "the peer has ended with " << WEXITSTATUS(status);
    return true;
  }

  // Whether it has stopped itself in time.
  bool AwaitStop() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!HasStopped()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }

  // Returns when it stands still.
  void Stop() {
    kill(pid_, SIGSTOP);
    int status = 0;
    ASSERT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
    ASSERT_TRUE(WIFSTOPPED(status)) << "the peer has ended with " << WEXITSTATUS(status);
  }
  void Continue() { kill(pid_, SIGCONT); }

  // Kills and reaps it: to shared memory a zombie is alive.
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  pid_t pid_ = -1;
  int fd_ = -1;
};

// A peer is killed in every phase of a transfer; whatever we wanted of it fails in time, and
// another peer goes on answering.
class PeerDeathTest : public ::testing::TestWithParam<std::string> {
 protected:
  void Start(const std::string& role) {
    const TransportsGuard guard(GetParam());
    transport_ = MakeTransport(options_);
    endpoint_ = *transport_->OpenEndpoint(kSurvivor);
    victim_ = std::make_unique<PeerProcess>(kVictim, role);
    bystander_ = std::make_unique<PeerProcess>(kBystander, "echo");
    ASSERT_NO_FATAL_FAILURE(victim_->Join(*transport_, kVictim));
    ASSERT_NO_FATAL_FAILURE(bystander_->Join(*transport_, kBystander));
    ExpectEcho();
  }

  void TearDown() override {
    if (transport_.has_value() && !HasFatalFailure()) ExpectEcho();
    if (victim_ != nullptr) victim_->Kill();
    victim_.reset();
    bystander_.reset();
    transport_.reset();
  }

  void ExpectEcho() {
    uint64_t sent = 100 + round_, received = 0;
    Request send, recv;
    endpoint_->Recv(kBystander, {kGeneration, 1, round_}, &received, 8, &recv);
    endpoint_->Send(kBystander, {kGeneration, 0, round_}, &sent, 8, kNoFlags, &send);
    ++round_;
    ASSERT_TRUE(DriveUntil(*endpoint_, [&] { return send.is_done() && recv.is_done(); }));
    if (may_block_others_ && !recv.status.ok()) {
      EXPECT_EQ(recv.status.code(), absl::StatusCode::kUnavailable) << recv.status;
      return;
    }
    EXPECT_EQ(recv.status, absl::OkStatus());
    EXPECT_EQ(received, sent);
  }

  void AwaitStop() {
    ASSERT_TRUE(DriveUntil(*endpoint_, [&] { return victim_->HasStopped(); }));
  }

  void ExpectGone(Request& request) {
    ASSERT_TRUE(DriveUntil(*endpoint_, [&] { return request.is_done(); }));
    EXPECT_EQ(request.status.code(), absl::StatusCode::kUnavailable) << request.status;
    EXPECT_THAT(std::string(request.status.message()), HasSubstr("device 1"));
  }

  // A victim of this role is killed where it stops, while a large message to it is under way.
  void SendTo(const std::string& role) {
    ASSERT_NO_FATAL_FAILURE(Start(role));
    std::fill(large_.begin(), large_.end(), 1);
    Request send;
    endpoint_->Send(kVictim, {kGeneration, 1, 0}, large_.data(), large_.size(), kNoFlags, &send);
    ASSERT_NO_FATAL_FAILURE(AwaitStop());
    EXPECT_EQ(send.state, Request::State::kPending);
    victim_->Kill();
    ExpectGone(send);
    ExpectRefusal();
  }

  // Nothing more can be wanted of the dead.
  void ExpectRefusal() {
    Request send, recv;
    endpoint_->Send(kVictim, {kGeneration, 3, 99}, &value_, 8, kNoFlags, &send);
    endpoint_->Recv(kVictim, {kGeneration, 3, 99}, &value_, 8, &recv);
    ExpectGone(send);
    ExpectGone(recv);
  }

  UcxOptions options_ = OptionsOf(kSurvivor);
  WaitedTransport transport_;
  Endpoint* endpoint_ = nullptr;
  std::unique_ptr<PeerProcess> victim_, bystander_;
  uint64_t value_ = 5;
  uint64_t round_ = 0;
  // The victim may have died while it wrote into our queue, see ucx_transport.h.
  bool may_block_others_ = false;
  std::vector<uint8_t> large_ = std::vector<uint8_t>(kLargeBytes);
};

TEST_P(PeerDeathTest, BeforeItHasSentAnything) {
  ASSERT_NO_FATAL_FAILURE(Start("receive-first"));
  Request recv, first;
  endpoint_->Recv(kVictim, {kGeneration, 2, 0}, large_.data(), large_.size(), &recv);
  endpoint_->Send(kVictim, {kGeneration, 0, 0}, &value_, 8, kNoFlags, &first);
  ASSERT_NO_FATAL_FAILURE(AwaitStop());
  EXPECT_EQ(recv.state, Request::State::kPending);
  victim_->Kill();
  ExpectGone(recv);
  ExpectRefusal();
}

TEST_P(PeerDeathTest, BeforeAnythingWasExchanged) {
  ASSERT_NO_FATAL_FAILURE(Start("stop"));
  ASSERT_NO_FATAL_FAILURE(AwaitStop());
  victim_->Kill();
  Request recv, send;
  endpoint_->Recv(kVictim, {kGeneration, 2, 0}, &value_, 8, &recv);
  endpoint_->Send(kVictim, {kGeneration, 2, 0}, &value_, 8, kNoFlags, &send);
  transport_->FailPeer(kVictim, absl::AbortedError("killed"));
  ExpectGone(recv);
  ExpectGone(send);
  ExpectRefusal();
}

// The announcement or the bytes have come, but nothing has asked for them.
TEST_P(PeerDeathTest, WhileSendsWaitForItsReceives) {
  ASSERT_NO_FATAL_FAILURE(Start("receive-first"));
  Request small, large, first;
  endpoint_->Send(kVictim, {kGeneration, 2, 0}, &value_, 8, kNoFlags, &small);
  endpoint_->Send(kVictim, {kGeneration, 2, 1}, large_.data(), large_.size(), kNoFlags, &large);
  endpoint_->Send(kVictim, {kGeneration, 0, 0}, &value_, 8, kNoFlags, &first);
  ASSERT_NO_FATAL_FAILURE(AwaitStop());
  EXPECT_EQ(small.state, Request::State::kPending);
  EXPECT_EQ(large.state, Request::State::kPending);
  victim_->Kill();
  ExpectGone(small);
  ExpectGone(large);
  ExpectRefusal();
}

TEST_P(PeerDeathTest, AmidItsReceive) { SendTo("receive-large"); }

TEST_P(PeerDeathTest, AmidItsSend) {
  ASSERT_NO_FATAL_FAILURE(Start("send-large"));
  Request recv;
  endpoint_->Recv(kVictim, {kGeneration, 1, 0}, large_.data(), large_.size(), &recv);
  ASSERT_TRUE(DriveUntil(*endpoint_, [&] { return HasBegun(large_); }));
  victim_->Kill();
  may_block_others_ = GetParam() != "tcp";
  ASSERT_EQ(recv.state, Request::State::kPending) << "nothing was left to interrupt";
  ExpectGone(recv);
  ExpectRefusal();
}

// Over a network, where the receiver asks for a long message chunk by chunk.
class ChunkDeathTest : public PeerDeathTest {
 protected:
  void ReceiveFrom(const std::string& role) {
    ASSERT_NO_FATAL_FAILURE(Start(role));
    Request recv;
    endpoint_->Recv(kVictim, {kGeneration, 1, 0}, large_.data(), large_.size(), &recv);
    ASSERT_NO_FATAL_FAILURE(AwaitStop());
    EXPECT_EQ(recv.state, Request::State::kPending);
    victim_->Kill();
    ExpectGone(recv);
    ExpectRefusal();
  }
};

TEST_P(ChunkDeathTest, AsItIsAskedForTheFirstChunk) { ReceiveFrom("send-no-chunk"); }

TEST_P(ChunkDeathTest, AsItIsAskedForALaterChunk) {
  ReceiveFrom("send-three-chunks");
  EXPECT_TRUE(HasBegun(large_));
}

TEST_P(ChunkDeathTest, BetweenItsFetchRequestAndTheChunk) { SendTo("fetch-a-chunk"); }

// What it has taken or refused it may have said or not: the send ends either way.
TEST_P(PeerDeathTest, AfterItsReceive) {
  ASSERT_NO_FATAL_FAILURE(Start("receive-first"));
  Request send;
  endpoint_->Send(kVictim, {kGeneration, 0, 0}, &value_, 8, kNoFlags, &send);
  ASSERT_NO_FATAL_FAILURE(AwaitStop());
  victim_->Kill();
  ASSERT_TRUE(DriveUntil(*endpoint_, [&] { return send.is_done(); }));
  Request recv;
  endpoint_->Recv(kVictim, {kGeneration, 2, 0}, &value_, 8, &recv);
  ExpectGone(recv);
  ExpectRefusal();
}

// A peer that stands still is not dead, but it does not answer.
TEST_P(PeerDeathTest, CancelDoesNotWaitForOneThatStandsStill) {
  ASSERT_NO_FATAL_FAILURE(Start("receive-first"));
  Request small, large, recv, first;
  endpoint_->Send(kVictim, {kGeneration, 2, 0}, &value_, 8, kNoFlags, &small);
  endpoint_->Send(kVictim, {kGeneration, 2, 1}, large_.data(), large_.size(), kNoFlags, &large);
  endpoint_->Recv(kVictim, {kGeneration, 2, 0}, &value_, 8, &recv);
  endpoint_->Send(kVictim, {kGeneration, 0, 0}, &value_, 8, kNoFlags, &first);
  ASSERT_NO_FATAL_FAILURE(AwaitStop());
  for (Request* request : {&small, &large, &recv}) endpoint_->Cancel(request);
  EXPECT_EQ(recv.status.code(), absl::StatusCode::kCancelled);
  ExpectGone(small);
  ExpectGone(large);
}

// --- Memory that UCX uses ------------------------------------------------------------------------

// A long send and a long receive are under way when the peer stops moving.
class UsedMemoryTest : public PeerDeathTest {
 protected:
  struct Registers {
    std::vector<uint8_t> sent = std::vector<uint8_t>(kLargeBytes, 1);
    std::vector<uint8_t> received = std::vector<uint8_t>(kLargeBytes);
  };

  void StartExchange() {
    ASSERT_NO_FATAL_FAILURE(Start("exchange-large"));
    registers_ = std::make_shared<Registers>();
    registers_alive_ = registers_;
    transport_->Hold(registers_, 2 * kLargeBytes);
    const auto exchange = [this](uint32_t round) {
      endpoint_->Send(kVictim, {kGeneration, 1, round}, registers_->sent.data(), kLargeBytes,
                      kNoFlags, &send_);
      endpoint_->Recv(kVictim, {kGeneration, 1, round}, registers_->received.data(), kLargeBytes,
                      &recv_);
    };
    uint32_t round = 0;
    exchange(round);
    // On a loaded machine one direction may be done before the other has begun.
    ASSERT_TRUE(DriveUntil(*endpoint_, [&] {
      if (send_.is_done() && recv_.is_done()) exchange(++round);
      return transport_->stats().transferring == 2;
    }));
    victim_->Stop();
    ASSERT_EQ(send_.state, Request::State::kPending);
    ASSERT_EQ(recv_.state, Request::State::kPending);
  }

  std::shared_ptr<Registers> registers_;
  std::weak_ptr<Registers> registers_alive_;
  Request send_, recv_;
};

// Nobody drives the endpoint, so UCX cannot let go; the requests stay, and somebody is told.
TEST_P(UsedMemoryTest, RequestsEndWhenUcxHasLetGo) {
  absl::Mutex mutex;
  absl::Status late;
  options_.on_unreleased = [&](const absl::Status& status) {
    const absl::MutexLock lock(&mutex);
    EXPECT_EQ(late, absl::OkStatus()) << "told twice: " << status;
    late = status;
  };
  ASSERT_NO_FATAL_FAILURE(StartExchange());
  transport_->FailPeer(kVictim, absl::AbortedError("it stands still"));
  {
    const absl::MutexLock lock(&mutex);
    const auto is_told = [&late] { return !late.ok(); };
    ASSERT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&is_told), absl::Seconds(30)));
    EXPECT_EQ(late.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(late.message()),
                AllOf(HasSubstr("device 1 is gone: it stands still"), HasSubstr("2 requests")));
  }
  EXPECT_EQ(transport_->stats().transferring, 2);
  // Over shared memory, UCX cannot let go either before the peer has emptied its queue. Over tcp it
  // can, and would abort the peer in an assertion.
  if (GetParam() != "tcp") victim_->Continue();
  ASSERT_TRUE(DriveUntil(*endpoint_, [&] {
    const uint64_t num_used = transport_->stats().transferring;
    EXPECT_GE(uint64_t{!send_.is_done()} + uint64_t{!recv_.is_done()}, num_used);
    return send_.is_done() && recv_.is_done();
  }));
  // What UCX had moved completely before it let go is done.
  for (Request* request : {&send_, &recv_}) {
    if (request->state != Request::State::kDone) ExpectGone(*request);
  }
  EXPECT_EQ(transport_->stats().transferring, 0);
  registers_.reset();
  EXPECT_FALSE(registers_alive_.expired());
  transport_.reset();
  EXPECT_TRUE(registers_alive_.expired());
}

TEST_P(UsedMemoryTest, IsFreedWhenTheTransportHasClosed) {
  options_.on_leak = [](uint64_t, const std::string& why) { ADD_FAILURE() << why; };
  ASSERT_NO_FATAL_FAILURE(StartExchange());
  registers_.reset();
  EXPECT_FALSE(registers_alive_.expired());
  transport_.reset();
  EXPECT_TRUE(registers_alive_.expired());
}

// The peer never completes the connection, so UCX cannot destroy the worker that has the bytes.
TEST(UcxDeathTest, MemoryStaysIfUcxCannotLetGo) {
#if defined(__SANITIZE_ADDRESS__)
  const __lsan::ScopedDisabler leaves_memory;
#endif
  const TransportsGuard guard("tcp");
  UcxOptions options = OptionsOf(kSurvivor);
  uint64_t num_left = 0;
  std::vector<std::string> log;
  options.on_leak = [&](uint64_t num_bytes, const std::string& why) {
    num_left += num_bytes;
    log.push_back(why);
  };
  auto transport = MakeTransport(options);
  PeerProcess victim(kVictim, "stop-unconnected");
  ASSERT_TRUE(victim.AwaitStop());  // its threads connect otherwise
  ASSERT_NO_FATAL_FAILURE(victim.Join(*transport, kVictim));
  Endpoint& endpoint = **transport->OpenEndpoint(kSurvivor);
  auto sent = std::make_shared<std::vector<uint8_t>>(kLargeBytes);
  const std::weak_ptr<std::vector<uint8_t>> alive = sent;
  transport->Hold(sent, kLargeBytes);
  Request send;
  endpoint.Send(kVictim, {kGeneration, 1, 0}, sent->data(), kLargeBytes, kNoFlags, &send);
  endpoint.Progress();
  sent.reset();
  EXPECT_EQ(transport->stats().transferring, 1);
  transport.reset();
  EXPECT_FALSE(alive.expired());
  EXPECT_EQ(num_left, kLargeBytes);
  ASSERT_EQ(log.size(), 1);
  EXPECT_THAT(log[0],
              AllOf(HasSubstr("64.0 MiB"), HasSubstr("1 request of device 0 with device 1")));
}

INSTANTIATE_TEST_SUITE_P(Ucx, ChunkDeathTest, ::testing::Values("tcp"),
                         [](const auto& info) { return info.param; });

INSTANTIATE_TEST_SUITE_P(Ucx, UsedMemoryTest, ::testing::Values("posix", "tcp", ""),
                         [](const ::testing::TestParamInfo<std::string>& info) {
                           return info.param.empty() ? std::string("chosen") : info.param;
                         });

INSTANTIATE_TEST_SUITE_P(Ucx, PeerDeathTest, ::testing::Values("posix", "tcp", ""),
                         [](const ::testing::TestParamInfo<std::string>& info) {
                           return info.param.empty() ? std::string("chosen") : info.param;
                         });

// --- Closing ------------------------------------------------------------------------------------

void CloseWithoutAConnection() {
  const TransportsGuard guard("tcp");
  PeerProcess peer(1, "stop-unconnected");
  auto mine = MakeTransport(OptionsOf(0));
  std::string address;
  bool is_ok = peer.Read(&address);
  while (is_ok && !peer.HasStopped()) std::this_thread::yield();
  is_ok = is_ok && mine->Connect(1, address).ok();
  mine.reset();
  peer.Kill();
  std::_Exit(is_ok ? 0 : 1);
}

// A peer that stands still does not connect: after the bound the worker is left behind. That is in
// a process of its own, since what is left behind is a leak.
TEST(UcxDeathTest, ClosesWithoutAConnection) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(CloseWithoutAConnection(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace penstock::testing

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--peer") {
    return penstock::testing::RunPeer(static_cast<uint32_t>(std::atoi(argv[2])), argv[3]);
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
