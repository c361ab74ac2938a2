// A stream that does what another one does: the base of those that change only some of it.
//
// Thread rule: the thread of the event loop.

#ifndef PENSTOCK_ACTORS_CLUSTER_FORWARDING_STREAM_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_FORWARDING_STREAM_INTERNAL_H_

#include <cstddef>

#include <kj/async-io.h>

namespace penstock::actors {

class ForwardingStream : public kj::AsyncIoStream {
 public:
  explicit ForwardingStream(kj::Own<kj::AsyncIoStream> stream) : stream_(kj::mv(stream)) {}

  kj::Promise<size_t> read(void* buffer, size_t min_bytes, size_t max_bytes) override {
    return stream_->read(buffer, min_bytes, max_bytes);
  }
  kj::Promise<size_t> tryRead(void* buffer, size_t min_bytes, size_t max_bytes) override {
    return stream_->tryRead(buffer, min_bytes, max_bytes);
  }
  kj::Promise<void> write(const void* buffer, size_t size) override {
    return stream_->write(buffer, size);
  }
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    return stream_->write(pieces);
  }
  kj::Promise<void> whenWriteDisconnected() override { return stream_->whenWriteDisconnected(); }
  void shutdownWrite() override { stream_->shutdownWrite(); }
  void abortRead() override { stream_->abortRead(); }
  void setsockopt(int level, int option, const void* value, kj::uint length) override {
    stream_->setsockopt(level, option, value, length);
  }

 private:
  kj::Own<kj::AsyncIoStream> stream_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_FORWARDING_STREAM_INTERNAL_H_
