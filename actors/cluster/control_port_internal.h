// The port that nodes join at. A connection is a stranger until its hello is right, then a guest,
// and a member once it has joined.
//
//   stranger --hello--> guest --join(info, node)--> member
//
// Strangers and guests have kHelloSeconds each for their next step, and there are at most
// kMaxStrangers of either: where more come, the oldest goes, so that those who only hold a place
// keep nobody out who has something to say.
//
// Thread rule: the thread of the event loop that the timer belongs to.
// Invariants: a member's end is told once; nothing is told after the destructor.

#ifndef PENSTOCK_ACTORS_CLUSTER_CONTROL_PORT_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_CONTROL_PORT_INTERNAL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include <kj/async-io.h>
#include <kj/timer.h>

#include "actors/cluster/connection_internal.h"
#include "actors/cluster/control.capnp.h"

namespace penstock::actors::control {

inline constexpr int kHelloSeconds = 5;
inline constexpr size_t kMaxStrangers = 64;

// What a node is told when it may join.
struct Admission {
  uint32_t rank = 0;
  uint32_t first_device = 0;
  uint32_t num_devices = 0;  // 0: not known yet
};

class ControlPort final : private kj::TaskSet::ErrorHandler {
 public:
  // Who decides about guests.
  class Host {
   public:
    virtual ~Host() = default;
    // A guest asks to join, for the first time. Its rank, or why it has none.
    virtual absl::StatusOr<Admission> Admit(uint64_t guest, NodeInfo::Reader info,
                                            Node::Client node) = 0;
    // The connection of an admitted guest has ended.
    virtual void OnMemberGone(uint32_t rank) = 0;
  };

  // `timer` and `host` outlive the port; `key` is kJobKeyBytes long. Members are told to end when
  // they hear nothing for `silence_ms`.
  ControlPort(kj::Timer& timer, std::string key, uint32_t silence_ms, Host& host);
  ~ControlPort();
  ControlPort(const ControlPort&) = delete;
  ControlPort& operator=(const ControlPort&) = delete;

  // Welcomes what connects, from now on.
  void Listen(kj::Own<kj::ConnectionReceiver> receiver);
  void Welcome(kj::Own<kj::AsyncIoStream> stream);

  bool IsConnected(uint64_t guest) const { return guests_.contains(guest); }
  // Ends a guest's connection, which is told to nobody. Not from inside of one of its calls.
  void Close(uint64_t guest) { guests_.erase(guest); }
  void CloseAll() { guests_.clear(); }

  size_t num_strangers() const { return strangers_.size(); }
  size_t num_guests() const { return guests_.size(); }  // members too

 private:
  class CoordinatorServer;

  struct Guest {
    kj::Own<RpcConnection> rpc;
    kj::Promise<void> watch = nullptr;
    kj::Promise<void> join_timeout = nullptr;
    bool has_joined = false;
    uint32_t rank = 0;
  };

  kj::Promise<void> Accept();
  void Serve(kj::Own<kj::AsyncIoStream> stream);
  void Leave(uint64_t guest);
  absl::StatusOr<Admission> Join(uint64_t guest, NodeInfo::Reader info, Node::Client node);
  void taskFailed(kj::Exception&& exception) override;

  kj::Timer& timer_;
  const std::string key_;
  const uint32_t silence_ms_;
  Host& host_;
  uint64_t next_id_ = 1;
  // By age.
  std::map<uint64_t, kj::Promise<void>> strangers_;
  std::map<uint64_t, std::unique_ptr<Guest>> guests_;
  kj::TaskSet tasks_;
  kj::Own<kj::ConnectionReceiver> receiver_;
  kj::Promise<void> accepting_ = nullptr;
};

}  // namespace penstock::actors::control

#endif  // PENSTOCK_ACTORS_CLUSTER_CONTROL_PORT_INTERNAL_H_
