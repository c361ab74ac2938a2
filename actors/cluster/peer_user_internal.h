// Who is at the other end of a Unix domain socket, as the kernel tells it. Sockets in Linux's
// abstract namespace have no file whose permissions would keep other users out.
//
// Thread rule: that of the stream.

#ifndef PENSTOCK_ACTORS_CLUSTER_PEER_USER_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_PEER_USER_INTERNAL_H_

#include <kj/async-io.h>

namespace penstock::actors::control {

// Whether the stream is a Unix domain socket. Not of a stream that is no socket, such as a pipe of
// kj.
bool IsUnixSocket(kj::AsyncIoStream& stream);

// Whether the process that has connected, or has listened, is of this user or of root.
// REQUIRES: the stream is a Unix domain socket.
bool IsOfThisUser(kj::AsyncIoStream& stream);

}  // namespace penstock::actors::control

#endif  // PENSTOCK_ACTORS_CLUSTER_PEER_USER_INTERNAL_H_
