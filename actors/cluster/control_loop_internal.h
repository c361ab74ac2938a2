// The thread that the control plane runs on: an event loop of Cap'n Proto's, entered from other
// threads through a queue; and what both sides of a connection need.
//
// Thread rule: Post and Await from any thread but the loop's; all kj objects belong to the loop.
// Invariants: what is posted runs in order; what is posted after the end is dropped; Await ends
// within its timeout plus a few seconds.

#ifndef PENSTOCK_ACTORS_CLUSTER_CONTROL_LOOP_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_CONTROL_LOOP_INTERNAL_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <kj/async-unix.h>

namespace penstock::actors::control {

// Longest message that is read, in words of 8 bytes; and how much may be unanswered at a time.
inline constexpr uint64_t kMaxMessageWords = uint64_t{64} << 20;
inline constexpr size_t kFlowLimitWords = size_t{128} << 20;
// Longest single Data that is sent: a plan, a feed, a tile.
inline constexpr size_t kMaxDataBytes = size_t{256} << 20;
// Seconds that a connection has to say hello.
inline constexpr int kHelloSeconds = 5;
// Connections that have not said hello yet; more are closed at once.
inline constexpr int kMaxStrangers = 64;

class ControlLoop {
 public:
  static absl::StatusOr<std::unique_ptr<ControlLoop>> Start();
  // Runs what was posted, then ends. What the loop's objects hold must be gone by then.
  ~ControlLoop();
  ControlLoop(const ControlLoop&) = delete;
  ControlLoop& operator=(const ControlLoop&) = delete;

  void Post(std::function<void()> work);

  // Begins something on the loop and waits for its end. kDeadlineExceeded names `what`.
  absl::Status Await(std::function<kj::Promise<void>()> begin, absl::Duration timeout,
                     std::string_view what);

  // On the loop's thread.
  kj::AsyncIoContext& io() { return *io_; }
  kj::Timer& timer() { return io_->provider->getTimer(); }

 private:
  ControlLoop() = default;
  void Main();
  void RunPosted();

  int event_fd_ = -1;
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;  // guarded by mutex_
  bool is_stopping_ = false;                   // guarded by mutex_
  kj::AsyncIoContext* io_ = nullptr;
  std::thread thread_;
};

// Errors of calls: a status travels as the text of an exception.
kj::Exception ToException(const absl::Status& status);
absl::Status FromException(const kj::Exception& exception);

// The hello that begins a connection, before anything is parsed: a fixed number of bytes, which
// hold the job's key. The server answers with its magic only if the key is right.
inline constexpr size_t kKeyBytes = 32;
kj::Promise<void> SayHello(kj::AsyncIoStream& stream, std::string_view key);
// Resolves to whether the peer may go on.
kj::Promise<bool> ReceiveHello(kj::AsyncIoStream& stream, std::string_view key);

// RPC over one stream, with every bound set.
class RpcConnection {
 public:
  RpcConnection(kj::Own<kj::AsyncIoStream> stream, capnp::rpc::twoparty::Side side,
                capnp::Capability::Client bootstrap);
  capnp::Capability::Client Bootstrap();
  kj::Promise<void> OnDisconnect() { return network_.onDisconnect(); }

 private:
  kj::Own<kj::AsyncIoStream> stream_;
  capnp::TwoPartyVatNetwork network_;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> system_;
  capnp::rpc::twoparty::Side peer_side_;
};

}  // namespace penstock::actors::control

#endif  // PENSTOCK_ACTORS_CLUSTER_CONTROL_LOOP_INTERNAL_H_
