// A stream whose writes pass through a function, which may record or change them.
//
// Thread rule: that of the stream, an event loop's.

#ifndef PENSTOCK_TESTS_SUPPORT_TAPPED_STREAM_H_
#define PENSTOCK_TESTS_SUPPORT_TAPPED_STREAM_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <kj/async-io.h>
#include <kj/async.h>

namespace penstock::testing {

// `change` gets each text that is written with its number, counted from 0, and gives what is sent.
class TappedStream final : public kj::AsyncIoStream {
 public:
  using Change = std::function<std::string(size_t number, std::string said)>;

  TappedStream(kj::Own<kj::AsyncIoStream> stream, Change change)
      : stream_(kj::mv(stream)), change_(std::move(change)) {}

  kj::Promise<size_t> read(void* buffer, size_t min_bytes, size_t max_bytes) override {
    return stream_->read(buffer, min_bytes, max_bytes);
  }
  kj::Promise<size_t> tryRead(void* buffer, size_t min_bytes, size_t max_bytes) override {
    return stream_->tryRead(buffer, min_bytes, max_bytes);
  }
  kj::Promise<void> write(const void* buffer, size_t size) override {
    return Say(std::string(static_cast<const char*>(buffer), size));
  }
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    std::string said;
    for (const auto& piece : pieces) {
      said.append(reinterpret_cast<const char*>(piece.begin()), piece.size());
    }
    return Say(std::move(said));
  }
  kj::Promise<void> whenWriteDisconnected() override { return stream_->whenWriteDisconnected(); }
  void shutdownWrite() override { stream_->shutdownWrite(); }
  void abortRead() override { stream_->abortRead(); }

 private:
  kj::Promise<void> Say(std::string said) {
    auto changed = std::make_unique<std::string>(change_(number_++, std::move(said)));
    if (changed->empty()) return kj::READY_NOW;
    auto written = stream_->write(changed->data(), changed->size());
    return written.attach(kj::heap(std::move(changed)));
  }

  kj::Own<kj::AsyncIoStream> stream_;
  const Change change_;
  size_t number_ = 0;
};

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_TAPPED_STREAM_H_
