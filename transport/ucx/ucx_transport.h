// The transport between processes, over UCX: shared memory between processes of one host, the
// network between hosts. Messages between devices of one process go through the inproc transport
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
// Channels have an order of priority: if long messages of several channels wait for one link, those
// of the lowest channel go first.
//
// Trust: a transport listens only on the interfaces that its options name. A message must carry the
// generation and the secret key from the receiver's address. Any other message, and a truncated or
// replayed one, is dropped and counted. UCX authenticates and encrypts nothing, and some malformed
// input on its ports aborts the process. So the network has to be private to the job, and addresses
// travel only over the authenticated control plane.
//
// Time limits: every request ends. UCX detects the death of a peer that something was sent to (at
// once over the network; over shared memory within a few 100 ms after the dead process is reaped),
// and FailPeer reports one. Both end the requests of the peer's devices with kUnavailable. So does
// a peer that does not answer a cancel request within `answer_timeout`. All other requests end with
// kDeadlineExceeded after `request_timeout`. A register that UCX is transferring to or from a dead
// peer is free when UCX has let go of it, after `answer_timeout` at the latest.
//
// A process that is killed while it writes into the shared receive queue of another blocks the
// queue for all other writers. So when a peer fails, all others must answer a probe within
// `answer_timeout`, or they fail too. After a death, the job continues in a new generation, with
// new transports.
//
// UCX 1.13 fails an assertion and aborts if a network connection ends while it is being made. So
// connections are not made when the first message is sent, but for all pairs of devices that will
// exchange messages (UcxOptions::peers) at Connect, by a thread of the transport until the owners
// of the endpoints call. Closing waits up to `answer_timeout` for connections that are still being
// made; those that are not finished then are never freed. It also waits a little for peers to
// finish theirs. The remaining risk is a peer that dies in the milliseconds after Connect.
//
// UCX's environment variables override the defaults of the transport, which ucx_transport.cc lists.
// UCX_TLS=tcp, for example, disables shared memory.
//
// Thread rule: LocalAddress, Connect, FailPeer and RegisterMemory from any thread; Connect and
// RegisterMemory before the first message that needs them.
// Invariants: those of transport/transport.h, and: the bytes of requests that are not done stay
// until the transport is gone.

#ifndef PENSTOCK_TRANSPORT_UCX_UCX_TRANSPORT_H_
#define PENSTOCK_TRANSPORT_UCX_UCX_TRANSPORT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
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
