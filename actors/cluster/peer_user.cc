#include <sys/socket.h>
#include <unistd.h>

#include <kj/exception.h>

#include "actors/cluster/peer_user_internal.h"

namespace penstock::actors::control {

bool IsUnixSocket(kj::AsyncIoStream& stream) {
  int domain = 0;
  kj::uint size = sizeof(domain);
  const bool is_socket = kj::runCatchingExceptions([&] {
                           stream.getsockopt(SOL_SOCKET, SO_DOMAIN, &domain, &size);
                         }) == nullptr;
  return is_socket && domain == AF_UNIX;
}

bool IsOfThisUser(kj::AsyncIoStream& stream) {
  ucred peer = {};
  kj::uint size = sizeof(peer);
  const bool is_told = kj::runCatchingExceptions([&] {
                         stream.getsockopt(SOL_SOCKET, SO_PEERCRED, &peer, &size);
                       }) == nullptr;
  return is_told && size == sizeof(peer) && (peer.uid == geteuid() || peer.uid == 0);
}

}  // namespace penstock::actors::control
