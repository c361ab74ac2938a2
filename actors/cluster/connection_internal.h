// One connection of the control plane: the hello that begins it, and RPC within bounds.
//
// Until the hello is right, a fixed number of bytes is read and nothing is parsed. After it, a peer
// that lies can make this side keep little:
//   - a message is no longer than kMaxMessageWords, before it joined kMaxUnauthenticatedWords. Its
//   memory is
//     asked for when its header is there, and used as its bytes arrive;
//   - the questions that the peer has asked and not finished, and the answers that it does not
//     read, are counted, with their bytes; so are the capabilities of a message;
//   - messages that this control plane does not use end the connection, as all that is malformed.
//
// Thread rule: the loop's thread.

#ifndef PENSTOCK_ACTORS_CLUSTER_CONNECTION_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_CONNECTION_INTERNAL_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <capnp/capability.h>
#include <capnp/rpc-twoparty.h>
#include <capnp/rpc.h>
#include <kj/async-io.h>
#include <kj/timer.h>

#include "actors/cluster/wire_status_internal.h"

namespace penstock::actors::control {

// Longest message that is read, in words of 8 bytes; and how much may be unanswered at a time. Long
// data travel in chunks (chunked_transfer_internal.h): the longest messages are lists of addresses
// and of lines.
inline constexpr uint64_t kMaxMessageWords = uint64_t{8} << 20;
inline constexpr size_t kFlowLimitWords = size_t{16} << 20;
inline constexpr uint64_t kMaxUnauthenticatedWords = 4096;
// Questions that a peer has not finished, and messages that it has not read.
inline constexpr size_t kMaxOpenMessages = size_t{1} << 16;
inline constexpr size_t kMaxUnauthenticatedOpenMessages = 16;
inline constexpr size_t kMaxUnreadBytes = size_t{128} << 20;
// Longest text that is taken over from a peer: an error, a line, a name.
inline constexpr size_t kMaxTextBytes = size_t{16} << 10;

// The hello: the peer that connects sends one half of the job's key, and the other answers with the
// second half only if that was right. So both have shown that they know the key.
// kPermissionDenied where the answer is another; a connection that closes is an exception.
StatusPromise SayHello(kj::AsyncIoStream& stream, std::string_view key);
// Resolves to whether the peer may go on.
kj::Promise<bool> ReceiveHello(kj::AsyncIoStream& stream, std::string_view key);

// Of a side that was stopped itself: what has come meanwhile is looked at before the other side's
// silence counts.
inline constexpr kj::Duration kSecondLook = 200 * kj::MILLISECONDS;

inline capnp::Data::Reader AsData(const void* data, size_t num_bytes) {
  return {static_cast<const kj::byte*>(data), num_bytes};
}
inline std::string_view AsText(capnp::Data::Reader data) {
  return {reinterpret_cast<const char*>(data.begin()), data.size()};
}

class BoundedMessages;

// RPC over one stream, with every bound set.
class RpcConnection {
 public:
  // `bootstrap` is what the peer can ask for, if anything. `timer` outlives the connection.
  RpcConnection(kj::Own<kj::AsyncIoStream> stream, capnp::rpc::twoparty::Side side,
                kj::Maybe<capnp::Capability::Client> bootstrap, kj::Timer& timer);
  ~RpcConnection();

  // The peer has become one that may send long messages; the side that connects knows that at once.
  void Trust();

  capnp::Capability::Client Bootstrap();

  // Resolves once the peer is gone or was refused, whether or not it takes what is still unsent.
  kj::Promise<void> OnDisconnect();

 private:
  kj::Own<kj::AsyncIoStream> stream_;
  kj::Own<BoundedMessages> messages_;
  capnp::TwoPartyVatNetwork network_;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> system_;
  capnp::rpc::twoparty::Side peer_side_;
  kj::Timer& timer_;
};

}  // namespace penstock::actors::control

#endif  // PENSTOCK_ACTORS_CLUSTER_CONNECTION_INTERNAL_H_
