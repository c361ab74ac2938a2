#include "transport/ucx/peers.h"

#include <chrono>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/strings.h"
#include "transport/ucx/ucx_log.h"
#include "transport/ucx/ucx_status.h"

namespace penstock::transport::ucx {
namespace {

using std::chrono::milliseconds;

// How much longer a connection may take to be made, while hosts are busy with starting a job.
constexpr std::chrono::seconds kConnectPatience{20};
// How much longer a link may be silent where TCP takes up to as long again as a pause to go on.
constexpr std::chrono::seconds kLateRetries{2};

}  // namespace

Peers::Peers(const UcxOptions& options, uint32_t device, uint64_t key)
    : options_(options),
      device_(device),
      key_(key),
      peers_(options.transport.num_devices - options.num_local_devices),
      by_device_(options.transport.num_devices) {
  uint32_t index = 0;
  for (uint32_t i = 0; i < options.transport.num_devices; ++i) {
    if (IsLocal(i)) continue;
    Peer& peer = peers_[index];
    peer.peers = this;
    peer.device = i;
    peer.index = index++;
    by_device_[i] = &peer;
  }
}

absl::Status Peers::Connect(ucp_worker_h worker, uint32_t device, uint64_t key,
                            const std::string& address, PeerMemory* memory,
                            std::shared_ptr<const std::vector<NetworkAddress>> network_addresses) {
  Peer& peer = (*this)[device];
  if (peer.ep != nullptr || peer.is_failure_handled) {
    return absl::AlreadyExistsError(StrCat("device ", device, " is connected already"));
  }
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &OnError;
  params.err_handler.arg = &peer;
  ucp_ep_h ep = nullptr;
  const LogScope log;
  if (const ucs_status_t status = ucp_ep_create(worker, &params, &ep); status != UCS_OK) {
    std::string remedy = EnvironmentRemedy();
    if (std::getenv("UCX_NET_DEVICES") == nullptr) {
      remedy = StrCat("give both nodes the interface (--interface) of a network that joins them",
                      remedy.empty() ? "" : "; ", remedy);
    }
    return absl::UnavailableError(
        StrCat("device ", device, " cannot be reached over ",
               DescribeInterfaces(options_.interfaces), ": ", remedy,
               " (UCX: ", log.error().empty() ? ucs_status_string(status) : log.error(), ")"));
  }
  peer.ep = ep;
  peer.key = key;
  peer.memory = memory;
  peer.network_addresses = std::move(network_addresses);
  // A flush completes once there is a connection to flush.
  peer.is_connecting = true;
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &OnConnected;
  param.user_data = &peer;
  ucs_status_ptr_t request = ucp_ep_flush_nbx(ep, &param);
  if (!UCS_PTR_IS_PTR(request)) peer.is_connecting = false;
  return absl::OkStatus();
}

void Peers::OnConnected(void* request, ucs_status_t /*status*/, void* peer) {
  ucp_request_free(request);
  static_cast<Peer*>(peer)->is_connecting = false;
}

ConnectionState Peers::state() const {
  ConnectionState state = ConnectionState::kEstablished;
  for (const Peer& peer : peers_) {
    if (peer.is_connecting) return ConnectionState::kConnecting;
    if (peer.ep != nullptr && !peer.has_received && !peer.is_failed)
      state = ConnectionState::kOneSided;
  }
  return state;
}

void Peers::OnError(void* peer, ucp_ep_h /*ep*/, ucs_status_t status) {
  auto* failed = static_cast<Peer*>(peer);
  failed->peers->Fail(*failed, absl::UnavailableError(ucs_status_string(status)));
}

void Peers::Fail(Peer& peer, const absl::Status& cause) {
  if (peer.is_failed) return;
  peer.is_failed = true;
  peer.failure =
      absl::UnavailableError(StrCat("device ", peer.device, " is gone: ", ToStd(cause.message())));
  has_failed_ = has_new_failures_ = true;
}

bool Peers::OnSecondPassed() {
  const int64_t answer_seconds = options_.answer_timeout.count();
  bool has_failed = false;
  for (Peer& peer : peers_) {
    if (peer.is_failed) {
      ++peer.seconds_since_failure;
    } else if (peer.is_probed && ++peer.seconds_since_probe > answer_seconds) {
      Fail(peer, absl::DeadlineExceededError("it is silent since another peer has failed"));
      has_failed = true;
    }
  }
  return has_failed;
}

bool Peers::CountSilence(milliseconds elapsed) {
  bool is_any_silent = false;
  for (Peer& peer : peers_) {
    const bool is_awaited = std::exchange(peer.is_awaited, false);
    const bool has_arrived = std::exchange(peer.has_arrived, false);
    if (peer.is_failed || peer.is_link_cut || peer.ep == nullptr) continue;
    if (peer.is_connecting) peer.connecting += elapsed;
    if (has_arrived || !is_awaited) {
      peer.num_silent_looks = 0;
      peer.unconfirmed = milliseconds(0);
      peer.needs_sign_of_life = false;
      continue;
    }
    // Repeatedly: the link may be cut after an earlier request was confirmed.
    peer.needs_sign_of_life |= ++peer.num_silent_looks % 2 == 1 && !peer.is_connecting;
    needs_signs_of_life_ |= peer.needs_sign_of_life;
    is_any_silent |= peer.num_silent_looks > 1;
  }
  return is_any_silent;
}

std::vector<Peer*> Peers::FindCutLinks(const TcpLinks& links, milliseconds elapsed) {
  std::vector<Peer*> cut;
  for (Peer& peer : peers_) {
    // At the first look, it is only asked.
    if (peer.num_silent_looks <= 1 || peer.is_failed || peer.is_link_cut) continue;
    if (peer.is_connecting) {
      if (peer.connecting <= options_.link_timeout + kConnectPatience) continue;
      peer.is_link_cut = true;
      cut.push_back(&peer);
      continue;
    }
    TcpLink link;
    for (const NetworkAddress& address : *peer.network_addresses) {
      if (const auto it = links.find(address); it != links.end()) link.Add(it->second);
    }
    const bool is_silent = link.has_unconfirmed || link.has_unanswered;
    if (!is_silent || link.silence < elapsed) {
      peer.unconfirmed = milliseconds(0);
      continue;
    }
    // Counted from look to look. Of a connection that has received nothing yet, the kernel does not
    // say when it was made; and where a peer was not awaited, its silence was none.
    peer.unconfirmed += elapsed;
    const milliseconds timeout =
        options_.link_timeout + (link.is_retried_late ? kLateRetries : milliseconds(0));
    // The look at which it was asked came after one interval of silence.
    if (peer.unconfirmed + kLookInterval < timeout || link.silence <= timeout) continue;
    peer.is_link_cut = true;
    cut.push_back(&peer);
    Fail(peer, absl::DeadlineExceededError(
                   StrCat("for ", link.silence.count() / 1000,
                          " s, its host has sent nothing, not even a confirmation of what was sent "
                          "to it; the link between the hosts is probably cut")));
  }
  return cut;
}

ucs_status_ptr_t Peers::Disconnect(Peer& peer, bool is_forced) {
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = is_forced ? UCP_EP_CLOSE_FLAG_FORCE : 0;
  ucs_status_ptr_t request = ucp_ep_close_nbx(std::exchange(peer.ep, nullptr), &param);
  return UCS_PTR_IS_PTR(request) ? request : nullptr;
}

}  // namespace penstock::transport::ucx
