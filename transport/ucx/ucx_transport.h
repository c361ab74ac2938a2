// The transport between processes, over UCX: shared memory between processes of one host, the
// network between hosts. Devices of one process talk through the inproc transport behind the same
// endpoints.
//
// A process makes its transport, hands LocalAddress to the others over the control plane, and gives
// theirs to Connect. Every local device has a UCX worker of its own, so endpoints share nothing.
// The transport has no thread: endpoints move when their owners call, and one thread of the process
// sits in Wait while they do not, which also counts the bounds below.
//
// Registered memory that begins with a huge page, as the arenas of CPU devices do, is moved into
// shared memory (shared_memory.h): peers of the same host read long messages where they lie, and
// can view them. It must be private memory that nobody uses meanwhile; a process forked afterwards
// has it in common with this one.
//
// Channels have an order of priority: where long messages of several wait for one link, those of
// the lowest channel go first.
//
// Trust: a transport listens only on the interfaces asked for, and a message must name its
// generation and the secret key in the receiver's address; one that does not, or is truncated or
// replayed, is dropped and counted. UCX authenticates and encrypts nothing, and some junk on its
// ports aborts the process: the network has to be private to the job, and addresses travel only
// over the authenticated control plane.
//
// Bounds: no request waits for ever. The death of a peer that has been talked to is found by UCX
// (at once over the network; over shared memory within a few 100 ms of the dead process being
// reaped), or reported by FailPeer, and ends the requests of its devices with kUnavailable. So does
// a peer that does not answer a cancellation within `answer_timeout`. All others end with
// kDeadlineExceeded after `request_timeout`. A register that a message to or from a dead peer is
// moving through is free when UCX has let go of it, after `answer_timeout` at the latest.
//
// A process that is killed while it writes into the shared memory of another leaves that queue
// blocked for all (UCX's queues have many writers). So when a peer fails, the others have
// `answer_timeout` to give a sign of life, or fail too. After a death the job goes on in a new
// generation, with new transports.
//
// UCX 1.13 has assertions that abort where a connection over the network ends while it is being
// made. So connections are made at Connect, by a thread of the transport where the owners of the
// endpoints are not there yet, and closing waits for those that are not made yet, for
// `answer_timeout` at most; what is left of them then is not freed. It also waits a little for
// peers to have made theirs. What remains is a peer that dies in the milliseconds after Connect.
//
// UCX's environment variables hold; where one is not set, the values that suit us are taken
// (ucx_transport.cc lists them). UCX_TLS=tcp, for example, keeps off shared memory.
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

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "transport/transport.h"

namespace penstock::transport {

struct UcxOptions {
  TransportOptions transport;
  // This process hosts devices first_device .. first_device + num_local_devices - 1.
  uint32_t first_device = 0;
  uint32_t num_local_devices = 1;
  // Network interfaces to listen on, by name and separated by commas.
  std::string interfaces = "lo";
  // Bounds, see above. Counted in whole seconds: they may take one more.
  std::chrono::seconds request_timeout{600};
  std::chrono::seconds answer_timeout{5};
};

class UcxTransport : public Transport {
 public:
  // How other processes of the same generation reach the devices of this one: opaque bytes.
  virtual std::string LocalAddress() const = 0;

  // Joins the devices of another process, the first of which is `first_device`. Refuses bytes that
  // are no address, are of another generation or of other devices than that; kUnavailable where no
  // transport reaches it.
  virtual absl::Status Connect(uint32_t first_device, std::string_view address) = 0;

  // The process of `device` is known to be dead: all its requests end with kUnavailable and
  // `cause`.
  virtual void FailPeer(uint32_t device, const absl::Status& cause) = 0;
};

absl::StatusOr<std::unique_ptr<UcxTransport>> CreateUcxTransport(const UcxOptions& options);

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_UCX_UCX_TRANSPORT_H_
