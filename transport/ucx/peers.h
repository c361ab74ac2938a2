// The devices of other processes as one endpoint sees them: the connection to each of them, and
// which of them have failed.
//
// A peer fails when UCX reports an error, when somebody calls Fail, when it does not answer a probe
// in time, or when the link to it is cut (FindCutLinks). Its requests are failed by the owner of
// the endpoint afterwards, who learns of it by has_new_failures. A peer that has failed never
// recovers.
//
// Thread rule: external synchronisation.

#ifndef PENSTOCK_TRANSPORT_UCX_PEERS_H_
#define PENSTOCK_TRANSPORT_UCX_PEERS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include <ucp/api/ucp.h>

#include "transport/ucx/shared_memory.h"
#include "transport/ucx/tcp_links.h"
#include "transport/ucx/ucx_transport.h"
#include "transport/ucx/wire.h"

namespace penstock::transport::ucx {

class Peers;

struct Peer {
  Peers* peers = nullptr;
  uint32_t device = 0;
  uint32_t index = 0;            // among the peers of the endpoint
  ucp_ep_h ep = nullptr;         // null: not connected yet, or closed
  PeerMemory* memory = nullptr;  // null: none of it can be read here
  uint64_t key = 0;
  // Of its host; null: not connected yet.
  std::shared_ptr<const std::vector<NetworkAddress>> network_addresses;
  bool is_excluded = false;    // no messages are exchanged with it, so it is never connected
  bool is_connecting = false;  // UCX has not reported yet that it is connected or has failed
  bool hello_sent = false;     // once connected
  bool has_received = false;   // something has arrived from it, so its own connection is made
  bool is_probed = false;      // and nothing has arrived from it since
  uint32_t seconds_since_probe = 0;
  // How its link is watched, look by look.
  bool has_arrived = false;         // something from it
  bool is_awaited = false;          // by a request
  bool needs_sign_of_life = false;  // is to be asked for one
  bool is_link_cut = false;
  uint32_t num_silent_looks = 0;  // in a row; nothing has arrived, although it is awaited
  std::chrono::milliseconds unconfirmed{0};  // nor has its host confirmed what was sent
  std::chrono::milliseconds connecting{0};
  bool is_failed = false;
  bool is_failure_handled = false;  // its requests have been failed
  absl::Status failure;             // why it has failed
  uint32_t seconds_since_failure = 0;
  bool is_reported = false;  // that UCX still uses memory of its requests
};

// The progress of the connections of an endpoint: that of the slowest.
enum class ConnectionState : uint8_t {
  kConnecting,
  kOneSided,     // made, but nothing has arrived from the peer: it may still need our progress
  kEstablished,  // from both sides, or failed
};

class Peers {
 public:
  // Between two looks at the links.
  static constexpr std::chrono::milliseconds kLookInterval{200};

  // The peers of the endpoint of `device`, which accepts messages with `key`. `options` outlives
  // the result.
  Peers(const UcxOptions& options, uint32_t device, uint64_t key);
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // Whether `device` belongs to this process.
  bool IsLocal(uint32_t device) const {
    return device - options_.first_device < options_.num_local_devices;
  }
  // REQUIRES: a device of another process.
  Peer& operator[](uint32_t device) { return *by_device_[device]; }
  const Peer& operator[](uint32_t device) const { return *by_device_[device]; }
  std::vector<Peer>& all() { return peers_; }
  const std::vector<Peer>& all() const { return peers_; }

  // `address`: UCX's bytes; messages to the device name `key`.
  absl::Status Connect(ucp_worker_h worker, uint32_t device, uint64_t key,
                       const std::string& address, PeerMemory* memory,
                       std::shared_ptr<const std::vector<NetworkAddress>> network_addresses);
  ConnectionState state() const;

  // The beginning of every message to `peer`.
  Origin OriginFor(const Peer& peer) const {
    return {peer.key, options_.transport.generation, device_};
  }
  // The peer that sent a message with this origin; null if the message is not meant for this
  // endpoint, or is not wanted any more.
  Peer* Authenticate(const Origin& origin) {
    if (origin.key != key_ || origin.generation != options_.transport.generation ||
        origin.source >= by_device_.size() || is_closing_) {
      return nullptr;
    }
    Peer* peer = by_device_[origin.source];
    if (peer == nullptr || peer->is_failed) return nullptr;
    peer->is_probed = false;
    peer->has_received = true;
    peer->has_arrived = true;
    return peer;
  }

  void Fail(Peer& peer, const absl::Status& cause);
  // Whether any peer has failed.
  bool has_failed() const { return has_failed_; }
  bool has_new_failures() const { return has_new_failures_; }
  void ClearNewFailures() { has_new_failures_ = false; }

  // A second has passed. Fails the peers that have not answered a probe in time; returns whether
  // there are any.
  bool OnSecondPassed();

  // A look at the links, once the requests have marked the peers that they await, `elapsed` after
  // the last one. Returns whether there are peers that have been silent for so long that
  // FindCutLinks may have something to say.
  bool CountSilence(std::chrono::milliseconds elapsed);
  bool needs_signs_of_life() const { return needs_signs_of_life_; }
  // Peers that have been silent since the last look are asked for a sign of life, so that something
  // is on its way to them: calls ask(peer) for each of them, every other look.
  template <typename Ask>
  void AskSilent(const Ask& ask) {
    if (!std::exchange(needs_signs_of_life_, false)) return;
    for (Peer& peer : peers_) {
      if (!peer.needs_sign_of_life) continue;
      peer.needs_sign_of_life = false;
      if (peer.ep != nullptr && !peer.is_failed) ask(peer);
    }
  }
  // After CountSilence. Fails the peers whose links are cut according to `links`, and returns them.
  // A peer whose connection was never made is returned but not failed, as UCX cannot end such a
  // connection.
  std::vector<Peer*> FindCutLinks(const TcpLinks& links, std::chrono::milliseconds elapsed);

  // The endpoint closes: nothing more is accepted, answered or transferred.
  void BeginClosing() { is_closing_ = true; }
  bool is_closing() const { return is_closing_; }
  // Disconnects. Returns the request of UCX to wait for and to free, or null. If `is_forced`,
  // transfers in flight are abandoned, otherwise what was sent still arrives.
  // REQUIRES: peer.ep is not null.
  static ucs_status_ptr_t Disconnect(Peer& peer, bool is_forced);

 private:
  static void OnConnected(void* request, ucs_status_t status, void* peer);
  static void OnError(void* peer, ucp_ep_h ep, ucs_status_t status);

  const UcxOptions& options_;
  const uint32_t device_;
  const uint64_t key_;
  std::vector<Peer> peers_;
  std::vector<Peer*> by_device_;  // null: a device of this process
  bool has_failed_ = false;
  bool has_new_failures_ = false;
  bool needs_signs_of_life_ = false;  // of any peer
  bool is_closing_ = false;
};

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_PEERS_H_
