// Writes the messages of a connection. Those that nobody waits for, such as the end of a question,
// are held back until the next one that somebody does, and leave with it: in one write, one record
// of TLS, and so that the other side wakes once. Where no such message comes, they leave after
// kPatience.
//
//   Hold(finish)   Hold(return)   Write(call) ──► finish, return, call
//
// Thread rule: the thread of the event loop.
// Invariants: messages leave in the order of the calls; at most kMaxHeldBytes are held.

#ifndef PENSTOCK_ACTORS_CLUSTER_MESSAGE_WRITER_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_MESSAGE_WRITER_INTERNAL_H_

#include <cstddef>
#include <string>

#include <capnp/common.h>
#include <capnp/serialize-async.h>
#include <kj/async-io.h>
#include <kj/timer.h>

namespace penstock::actors::control {

class MessageWriter {
 public:
  using Segments = kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>>;

  // Longer than most steps wait for a message, and shorter than a heartbeat's interval.
  static constexpr kj::Duration kPatience = 100 * kj::MILLISECONDS;
  static constexpr size_t kMaxHeldBytes = 4096;

  // Both outlive the writer.
  MessageWriter(kj::AsyncIoStream& stream, kj::Timer& timer)
      : stream_(stream), messages_(stream), timer_(timer) {}
  MessageWriter(const MessageWriter&) = delete;
  MessageWriter& operator=(const MessageWriter&) = delete;

  // Each is called when the promise of the call before has resolved. The segments stay until the
  // promise resolves.
  kj::Promise<void> Write(Segments segments);
  // Resolves at once, unless too much is held.
  kj::Promise<void> Hold(Segments segments);
  // Writes what is held.
  kj::Promise<void> Flush();

 private:
  kj::Promise<void> FlushWhenLate();

  kj::AsyncIoStream& stream_;
  capnp::AsyncIoMessageStream messages_;
  kj::Timer& timer_;
  std::string held_;
  bool is_waiting_ = false;   // for kPatience, or for what is written after it
  bool is_flushing_ = false;  // after kPatience
  kj::ForkedPromise<void> flushed_ = nullptr;
  kj::Promise<void> waiting_ = nullptr;
};

}  // namespace penstock::actors::control

#endif  // PENSTOCK_ACTORS_CLUSTER_MESSAGE_WRITER_INTERNAL_H_
