// The transport between processes, over UCX: shared memory within a host's network namespace, the
// network otherwise. Messages between devices of one process go through the inproc transport
// behind the same endpoints.
//
// A process creates its transport, sends LocalAddress to the other processes over the control
// plane, and passes their addresses to Connect. Each local device has a UCX worker of its own, so
// endpoints share nothing. Endpoints make progress only when their owners call. One thread of the
// process sleeps in Wait meanwhile, which also enforces the time limits below.
//
// Registered memory that begins with a huge page, as the arenas of CPU devices do, is moved into
// shared memory (shared_memory.h): peers on the same host read long messages in place, and can view
// them. The memory must be private, and nobody may use it during the call. A process that is forked
// afterwards shares it with this one.
//
// Channels have an order of priority: of the long messages that wait for the network link to this
// process, those of the lowest channel go first, whichever devices they come from and go to
// (transfer_queue.h). A sender answers several receivers at the same time.
//
// Trust: a transport listens only on the interfaces that its options name. A message must carry the
// generation and the secret key from the receiver's address. Any other message, and a truncated or
// replayed one, is dropped and counted. UCX authenticates and encrypts nothing, and some malformed
// input on its ports aborts the process. So the network has to be private to the job, and addresses
// travel only over the authenticated control plane.
//
// Time limits. UCX detects the death of a peer that something was sent to (at once over the
// network; over shared memory within a few 100 ms after the dead process is reaped), and FailPeer
// reports one. Both end the requests of the peer's devices with kUnavailable. So does a peer that
// does not answer a cancel request within `answer_timeout`. All other requests end with
// kDeadlineExceeded after `request_timeout`, except while the receiver has the message and waits
// for its turn to fetch the bytes: a receive does not count that time, and a send goes on when the
// receiver says so (Ack::kTaken).
//
// Cut links. Between hosts that TCP joins, UCX waits about 15 minutes for a link that is cut. So
// while requests wait for a peer from which no message arrives, the transport looks five times a
// second at what the kernel knows of its connections (tcp_links.h), and has TCP retry at least once
// in a quarter of `link_timeout`, or once a second if that is more. If the peer's host has sent
// nothing for `link_timeout`, although something sent to it is not confirmed, the peer fails and
// `on_cut_link` is called, at most half a second later. Before Linux 6.15, where TCP cannot be told
// when to retry, the time is two seconds longer. That the peer computes, is stopped, or is reached
// slowly does not count. A connection may take 20 s longer to be made; then only `on_cut_link` is
// called. Other networks (verbs) bound this themselves.
//
// Memory. A request does not end while UCX reads or writes its bytes, so the caller never reuses
// memory that UCX uses, whatever has become of the peer. When a peer fails, its connection is
// closed by force, which makes UCX let go, usually at the next Progress. If UCX still uses memory
// of a failed peer's requests after `answer_timeout`, as it does while a peer on the same host
// stands still with a full queue, `on_unreleased` is called: these requests may never end, so the
// session has to. Closing forces UCX to let go of everything, waits up to `release_timeout`, and
// then destroys UCX's workers, which shuts down what is left. A worker with an incomplete
// connection cannot be destroyed, see below. If it uses memory of requests, all memory that was
// given to Hold is never freed, and `on_leak` is called.
//
// A peer reads shared memory by itself. One that has been declared dead and is alive may therefore
// still read registers of a session that has failed; what it reads has no meaning. The pages stay
// until it has unmapped them, and nobody but their owner writes them.
//
// A process that is killed while it writes into the shared receive queue of another blocks the
// queue for all other writers. So when a peer fails, all others must answer a probe within
// `answer_timeout`, or they fail too. After a death, the job continues in a new generation, with
// new transports.
//
// Connections. UCX 1.13 fails an assertion, which aborts the process, if a network connection ends
// while it is being made. Connections are therefore made early: Connect starts them for all pairs
// of devices that will exchange messages (UcxOptions::peers), and a thread of the transport
// completes them. The thread ends when the owners of the endpoints have begun to make progress
// themselves. Closing waits up to `answer_timeout` for connections that are still being made, and
// half a second for peers that are still completing theirs. A connection that is not complete by
// then is left open with its worker, and never freed. One risk remains: a peer that dies in the
// milliseconds after Connect.
//
// UCX's environment variables override the defaults of the transport, which ucx_transport.cc lists.
// UCX_TLS=tcp, for example, disables shared memory. UCX's log lines become part of our errors, or
// go to UcxOptions::on_warning; UCX prints them only if UCX_LOG_LEVEL is set (ucx_log.h).
//
// Thread rule: LocalAddress, Connect, FailPeer and RegisterMemory from any thread; Connect and
// RegisterMemory before the first message that needs them.
// Invariants: those of transport/transport.h, and: memory is registered, and its owners are held,
// for as long as UCX uses any of it.

#ifndef PENSTOCK_TRANSPORT_UCX_UCX_TRANSPORT_H_
#define PENSTOCK_TRANSPORT_UCX_UCX_TRANSPORT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "transport/transport.h"

namespace penstock::transport {

struct UcxOptions {
  TransportOptions transport;
  // This process hosts devices first_device .. first_device + num_local_devices - 1.
  uint32_t first_device = 0;
  uint32_t num_local_devices = 1;
  // Of each local device, the devices of other processes that it exchanges messages with: only
  // those are connected. Both sides of a pair have to name it. Empty: all devices.
  std::vector<std::vector<uint32_t>> peers;
  // Names of the network interfaces to listen on, separated by commas.
  std::string interfaces = "lo";
  // Time limits, see above. They are counted in whole seconds and may take one more.
  std::chrono::seconds request_timeout{600};
  std::chrono::seconds answer_timeout{5};
  // How long a link may carry nothing that it should, see above; 0: for ever. A pause that is to
  // end nothing has to be shorter by the time between two retries of TCP.
  std::chrono::milliseconds link_timeout{3300};
  // How long closing waits for UCX to let go of the memory of requests.
  std::chrono::milliseconds release_timeout{200};
  // Called by the thread in Wait, once for each failed peer of a device, if UCX has not let go in
  // time of the memory of the peer's requests.
  std::function<void(const absl::Status&)> on_unreleased;
  // Called by the thread in Wait, once for each peer of a device, if the link to it is cut.
  std::function<void(uint32_t device)> on_cut_link;
  // Called with a line for each thing that UCX warns of, such as a variable that it does not know.
  std::function<void(const std::string& warning)> on_warning;
  // Called when closing has leaked memory, which is never freed: how much its owners have, and a
  // line that says why.
  std::function<void(uint64_t num_bytes, const std::string& why)> on_leak;
};

class UcxTransport : public Transport {
 public:
  // Tells other processes of the same generation how to reach the devices of this one: opaque
  // bytes.
  virtual std::string LocalAddress() const = 0;

  // Connects to the devices of another process, the first of which is `first_device`, as far as
  // UcxOptions::peers has them. Requests to and from others of its devices fail. Refuses bytes
  // that are not an address, or the address of another generation or of other devices. kUnavailable
  // if the process cannot be reached.
  virtual absl::Status Connect(uint32_t first_device, std::string_view address) = 0;

  // The process of `device` is known to be dead: all requests to and from its devices end with
  // kUnavailable and `cause`.
  virtual void FailPeer(uint32_t device, const absl::Status& cause) = 0;
};

absl::StatusOr<std::unique_ptr<UcxTransport>> CreateUcxTransport(const UcxOptions& options);

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_UCX_UCX_TRANSPORT_H_
