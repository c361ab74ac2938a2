// The port that nodes connect to. A node authenticates with its hello, then joins.
//
//   unauthenticated --TLS, hello--> authenticated --join(info, node)--> member
//
// Whoever is authenticated may also ask for the status of the job, without joining.
//
// Each of the first two states lasts at most kHelloSeconds, and holds a bounded number of
// connections. When many nodes arrive at once, they wait in the system's queue. A connection makes
// room for them if it has said nothing for kSilentTime, or is unauthenticated after kPatientTime,
// so idle connections cannot block the port: 10,000 of them delay a node by 10 seconds.
//
// What is done for connections that are not authenticated, most of it the cryptography of
// handshakes, is done in turns (turn_queue_internal.h): heartbeats and steps of members wait for a
// few handshakes, however many there are.
//
// Thread rule: the thread of the event loop that the timer belongs to.
// Invariants: a member's end is told once; nothing is told after the destructor.

#ifndef PENSTOCK_ACTORS_CLUSTER_CONTROL_PORT_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_CONTROL_PORT_INTERNAL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include <kj/async-io.h>
#include <kj/timer.h>

#include "actors/cluster/connection_internal.h"
#include "actors/cluster/control.capnp.h"
#include "actors/cluster/job_status.h"
#include "actors/cluster/questions_internal.h"
#include "actors/cluster/secure_channel_internal.h"
#include "actors/cluster/turn_queue_internal.h"

namespace penstock::actors::control {

inline constexpr int kHelloSeconds = 5;
// Each costs tens of kilobytes, most of them OpenSSL's.
inline constexpr size_t kMaxPendingConnections = 1024;
// Connections that know the key and have not joined. From kManyJoiningConnections on no others are
// accepted, so that nodes that come by the thousand are served in turn and none is sent away.
inline constexpr size_t kMaxJoiningConnections = 2048;
inline constexpr size_t kManyJoiningConnections = 512;
static_assert(kManyJoiningConnections + kMaxPendingConnections < kMaxJoiningConnections);
inline constexpr kj::Duration kSilentTime = 1 * kj::SECONDS;
inline constexpr kj::Duration kPatientTime = 2 * kj::SECONDS;

// The answer to a node that may join.
struct Admission {
  uint32_t rank = 0;
  uint32_t first_device = 0;
  uint32_t num_devices = 0;  // 0: not known yet
};

// How the process of a member has ended, as the one that has started it reports.
struct MemberEnd {
  uint32_t rank = 0;
  int pid = 0;
  int wait_status = 0;  // as waitpid tells it
  bool is_out_of_memory = false;
};

class ControlPort final : private kj::TaskSet::ErrorHandler {
 public:
  // Decides who may join.
  class Host {
   public:
    virtual ~Host() = default;
    // A node asks to join. Resolves to its rank or to the reason for a refusal. `info` is valid
    // only during the call.
    virtual kj::Promise<absl::StatusOr<Admission>> Admit(uint64_t connection, NodeInfo::Reader info,
                                                         Node::Client node) = 0;
    // Somebody who knows the key asks what the job does.
    virtual kj::Promise<Questions<actors::JobStatus>::Answer> Status() = 0;
    // The connection of an admitted node has ended.
    virtual void OnMemberGone(uint32_t rank) = 0;
    // Somebody who knows the key says how a member has ended.
    virtual void OnMemberEnd(const MemberEnd& end) = 0;
  };

  // `timer` and `host` outlive the port; `key` is kJobKeyBytes long. Members are told to end when
  // they hear nothing for `silence_ms`, until a ping says another bound. With `channel`,
  // connections speak TLS before all else.
  ControlPort(kj::Timer& timer, std::string key, uint32_t silence_ms, Host& host,
              std::unique_ptr<SecureChannel> channel = nullptr);
  ~ControlPort();
  ControlPort(const ControlPort&) = delete;
  ControlPort& operator=(const ControlPort&) = delete;

  // Members print both if this process is lost: who it is, and how the job goes on then. Called
  // before any has joined.
  void SetFarewell(std::string coordinator, std::string resume_hint) {
    coordinator_ = std::move(coordinator);
    resume_hint_ = std::move(resume_hint);
  }

  // Welcomes what connects, from now on; through a Unix socket, processes of this user and of root.
  void Listen(kj::Own<kj::ConnectionReceiver> receiver);
  void Welcome(kj::Own<kj::AsyncIoStream> stream);

  bool IsConnected(uint64_t connection) const { return authenticated_.contains(connection); }
  // Closes a connection without a call of OnMemberGone. Not to be called from inside one of its
  // own calls.
  void Close(uint64_t connection);
  void CloseAll();

  size_t num_unauthenticated() const { return unauthenticated_.size(); }
  size_t num_authenticated() const { return authenticated_.size(); }  // includes members

 private:
  class CoordinatorServer;

  struct Connection {
    kj::Own<RpcConnection> rpc;
    kj::Promise<void> watch = nullptr;
    kj::Promise<void> join_timeout = nullptr;
    bool has_asked = false;
    bool has_joined = false;
    uint32_t rank = 0;
  };

  class PendingStream;

  // Of a connection until it is authenticated.
  struct Greeting {
    TurnQueue* turns = nullptr;  // in which its bytes are taken; null: it is authenticated
    bool has_spoken = false;
  };

  struct Pending {
    kj::TimePoint since;
    std::shared_ptr<const Greeting> greeting;
    kj::Promise<void> hello = nullptr;
  };

  kj::Promise<void> Accept();
  // Resolves when one more may be accepted.
  kj::Promise<void> MakeRoom();
  void Serve(kj::Own<kj::AsyncIoStream> stream);
  void Leave(uint64_t connection);
  kj::Promise<absl::StatusOr<Admission>> Join(uint64_t connection, NodeInfo::Reader info,
                                              Node::Client node);
  absl::StatusOr<Admission> FinishJoin(uint64_t connection, absl::StatusOr<Admission> admission);
  void taskFailed(kj::Exception&& exception) override;

  kj::Timer& timer_;
  const std::string key_;
  const uint32_t silence_ms_;
  std::string coordinator_;
  std::string resume_hint_;
  Host& host_;
  const std::unique_ptr<SecureChannel> channel_;
  uint64_t next_id_ = 1;
  TurnQueue turns_;
  // By age.
  std::map<uint64_t, Pending> unauthenticated_;
  std::map<uint64_t, std::unique_ptr<Connection>> authenticated_;
  std::set<uint64_t> joining_;  // of them, those that have not joined
  kj::TaskSet tasks_;
  kj::Own<kj::ConnectionReceiver> receiver_;
  kj::Promise<void> accepting_ = nullptr;
};

}  // namespace penstock::actors::control

#endif  // PENSTOCK_ACTORS_CLUSTER_CONTROL_PORT_INTERNAL_H_
