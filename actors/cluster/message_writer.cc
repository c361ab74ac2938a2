#include <openssl/ssl3.h>

#include <array>
#include <utility>

#include <capnp/serialize.h>

#include "actors/cluster/message_writer_internal.h"

namespace penstock::actors::control {
namespace {

size_t SizeOf(MessageWriter::Segments segments) {
  size_t num_words = 0;
  for (const auto& segment : segments) num_words += segment.size();
  return num_words * sizeof(capnp::word);
}

}  // namespace

kj::Promise<void> MessageWriter::Write(Segments segments) {
  if (is_flushing_) {
    return flushed_.addBranch().then([this, segments] { return Write(segments); });
  }
  if (held_.empty()) return messages_.writeMessage(nullptr, segments);
  // What does not fit one record is not copied.
  if (held_.size() + SizeOf(segments) > SSL3_RT_MAX_PLAIN_LENGTH) {
    return Flush().then([this, segments] { return messages_.writeMessage(nullptr, segments); });
  }
  waiting_ = nullptr;
  is_waiting_ = false;
  auto held = kj::heap<std::string>(std::exchange(held_, std::string()));
  kj::Array<capnp::word> message = capnp::messageToFlatArray(segments);
  auto pieces = kj::heap<std::array<kj::ArrayPtr<const kj::byte>, 2>>();
  (*pieces)[0] = {reinterpret_cast<const kj::byte*>(held->data()), held->size()};
  (*pieces)[1] = message.asBytes();
  auto written = stream_.write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>>(pieces->data(), 2));
  return written.attach(kj::mv(pieces), kj::mv(message), kj::mv(held));
}

kj::Promise<void> MessageWriter::Hold(Segments segments) {
  if (held_.size() + SizeOf(segments) > kMaxHeldBytes) return Write(segments);
  const kj::Array<capnp::word> message = capnp::messageToFlatArray(segments);
  const auto bytes = message.asBytes();
  held_.append(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
  if (!is_waiting_) {
    is_waiting_ = true;
    // A stream that is broken says so to who writes or reads next.
    waiting_ = FlushWhenLate().eagerlyEvaluate([](const kj::Exception&) {});
  }
  return kj::READY_NOW;
}

kj::Promise<void> MessageWriter::Flush() {
  if (is_flushing_) {
    return flushed_.addBranch().then([this] { return Flush(); });
  }
  waiting_ = nullptr;
  is_waiting_ = false;
  if (held_.empty()) return kj::READY_NOW;
  auto held = kj::heap<std::string>(std::exchange(held_, std::string()));
  auto written = stream_.write(held->data(), held->size());
  return written.attach(kj::mv(held));
}

kj::Promise<void> MessageWriter::FlushWhenLate() {
  return timer_.afterDelay(kPatience)
      .then([this] {
        is_flushing_ = true;
        auto held = kj::heap<std::string>(std::exchange(held_, std::string()));
        auto written = stream_.write(held->data(), held->size());
        flushed_ = written.attach(kj::mv(held)).then([this] { is_flushing_ = false; }).fork();
        return flushed_.addBranch();
      })
      .then([this]() -> kj::Promise<void> {
        // More may have been held meanwhile.
        if (!held_.empty()) return FlushWhenLate();
        is_waiting_ = false;
        return kj::READY_NOW;
      });
}

}  // namespace penstock::actors::control
