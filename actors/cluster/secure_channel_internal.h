// TLS 1.3 on the connections of a job, with both sides authenticated by the job's key.
//
// The key is the job's certificate authority: an Ed25519 key pair is derived from it, which signs
// the certificate that each process makes for itself. Each side accepts certificates of that
// authority alone. So who has the key can take part in the job, and nothing else needs to be
// distributed; the key itself is never sent.
//
// Thread rule: one thread, that of the event loop of the streams.

#ifndef PENSTOCK_ACTORS_CLUSTER_SECURE_CHANNEL_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_SECURE_CHANNEL_INTERNAL_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include <kj/async-io.h>
#include <kj/compat/tls.h>

namespace penstock::actors::control {

enum class ChannelSide { kCoordinator, kNode };

// Of connections over TCP; those through Unix sockets have no TLS in any case.
enum class Encryption : uint8_t { kTls, kNone };  // kNone: on loopback alone

// For a connection of the control plane, with TLS or without. A stream that is no socket of TCP
// stays as it is.
void SetTcpOptions(kj::AsyncIoStream& stream);

// When a certificate counts, relative to when it is made: clocks of hosts may differ.
struct Validity {
  absl::Duration from = -absl::Hours(24);
  absl::Duration to = absl::Hours(24 * 365);
};

class SecureChannel {
 public:
  // REQUIRES: `key` is kJobKeyBytes long.
  static absl::StatusOr<std::unique_ptr<SecureChannel>> Create(std::string_view key,
                                                               ChannelSide side,
                                                               const Validity& validity = {});

  // The stream after a handshake. The handshake fails where the other side does not know the key,
  // which a coordinator may notice only when it reads; the exception is DISCONNECTED only if the
  // other side closed the connection, or it broke. A stream whose other side has ended without a
  // farewell is DISCONNECTED. May outlive the channel.
  kj::Promise<kj::Own<kj::AsyncIoStream>> Secure(kj::Own<kj::AsyncIoStream> stream);

 private:
  SecureChannel(ChannelSide side, kj::TlsContext::Options options)
      : side_(side), context_(kj::mv(options)) {}

  const ChannelSide side_;
  kj::TlsContext context_;
};

// For a node that is about to connect to a coordinator at `address`: making it takes longer than
// the coordinator leaves a silent connection open when many arrive. Null where there is no TLS.
absl::StatusOr<std::shared_ptr<SecureChannel>> NodeChannel(
    std::string_view address, std::string_view key, Encryption encryption = Encryption::kTls);

// What a process that has connected to a coordinator at `address` does first: TLS, but for unix
// sockets, and the hello. `channel` is of NodeChannel; null: it is made where it is needed. The
// stream to go on with, or an error without a text: kUnauthenticated where the other side has
// another key, or closes a connection without TLS, or a unix socket is another user's; kUnavailable
// where it closes the connection before it has shown its key, as one does that too many reach at
// once. The promise does not throw.
kj::Promise<absl::StatusOr<kj::Own<kj::AsyncIoStream>>> Greet(
    kj::Own<kj::AsyncIoStream> stream, std::string_view address, std::string_view key,
    std::shared_ptr<SecureChannel> channel = nullptr, Encryption encryption = Encryption::kTls);

}  // namespace penstock::actors::control

#endif  // PENSTOCK_ACTORS_CLUSTER_SECURE_CHANNEL_INTERNAL_H_
