#include <algorithm>
#include <utility>

#include "actors/cluster/chunked_transfer_internal.h"
#include "actors/cluster/connection_internal.h"
#include "base/strings.h"

namespace penstock::actors::control {
namespace {

// What a message has beside the bytes.
constexpr uint64_t kChunkMessageWords = 16;

const std::byte* Bytes(capnp::Data::Reader data) {
  return reinterpret_cast<const std::byte*>(data.begin());
}

void Count(const ByteCounter& counter, uint64_t num_bytes) {
  if (counter != nullptr) *counter += num_bytes;
}

class SourceServer final : public Source::Server {
 public:
  SourceServer(std::weak_ptr<const ByteSource> source, ByteCounter num_sent)
      : source_(std::move(source)), num_sent_(std::move(num_sent)) {}

  kj::Promise<void> read(ReadContext context) override {
    const std::shared_ptr<const ByteSource> source = source_.lock();
    const uint64_t offset = context.getParams().getOffset();
    const uint32_t size = context.getParams().getSize();
    const absl::Status status =
        source == nullptr ? absl::FailedPreconditionError("the bytes were asked for too late")
                          : CheckChunk(offset, size, source->num_bytes());
    if (!status.ok()) {
      WriteStatus(status, context.getResults().initStatus());
      return kj::READY_NOW;
    }
    auto bytes =
        context.getResults(capnp::MessageSize{size / 8 + kChunkMessageWords, 0}).initBytes(size);
    source->Copy(offset, size, reinterpret_cast<std::byte*>(bytes.begin()));
    Count(num_sent_, size);
    return kj::READY_NOW;
  }

 private:
  const std::weak_ptr<const ByteSource> source_;
  const ByteCounter num_sent_;
};

struct Reading {
  AskChunk ask;
  ByteTarget target;
  ByteCounter num_received;
  uint64_t next = 0;  // to be asked for
  kj::Own<kj::PromiseFulfiller<absl::Status>> failure;
};

// One chunk after the other, of those that nobody has asked for yet.
StatusPromise ReadOn(std::shared_ptr<Reading> reading) {
  const uint64_t offset = reading->next;
  const auto size =
      static_cast<uint32_t>(std::min<uint64_t>(kChunkBytes, reading->target.num_bytes() - offset));
  if (size == 0) return absl::OkStatus();
  reading->next += size;
  return reading->ask(offset, size)
      .then([reading, offset, size](capnp::Response<Chunk>&& chunk) -> StatusPromise {
        absl::Status status = ReadStatus(chunk.getStatus());
        if (!status.ok()) return status;
        const auto bytes = chunk.getBytes();
        if (bytes.size() != size) {
          return absl::InvalidArgumentError(
              StrCat("a chunk of ", bytes.size(), " bytes where ", size, " were asked for"));
        }
        reading->target.Copy(offset, size, Bytes(bytes));
        Count(reading->num_received, size);
        return ReadOn(reading);
      });
}

}  // namespace

absl::Status CheckChunk(uint64_t offset, uint64_t size, uint64_t num_bytes) {
  if (size == 0 || size > kChunkBytes || size > num_bytes || offset > num_bytes - size) {
    return absl::OutOfRangeError(
        StrCat("there is no chunk of ", size, " bytes at ", offset, " of ", num_bytes));
  }
  return absl::OkStatus();
}

std::shared_ptr<const ByteSource> Offer(ByteSource source, ChunkedBytes::Builder transfer,
                                        ByteCounter num_sent) {
  if (source.num_bytes() <= kChunkBytes) {
    const auto size = static_cast<size_t>(source.num_bytes());
    auto bytes = transfer.initEmbedded(static_cast<unsigned>(size));
    source.Copy(0, size, reinterpret_cast<std::byte*>(bytes.begin()));
    Count(num_sent, size);
    return nullptr;
  }
  auto offered = std::make_shared<const ByteSource>(std::move(source));
  transfer.setSource(kj::heap<SourceServer>(offered, std::move(num_sent)));
  return offered;
}

AskChunk AskSource(std::shared_ptr<Source::Client> source) {
  return [source = std::move(source)](uint64_t offset, uint32_t size) {
    auto call = source->readRequest();
    call.setOffset(offset);
    call.setSize(size);
    return call.send();
  };
}

StatusPromise ReadChunks(AskChunk ask, ByteTarget target, ByteCounter num_received) {
  auto failure = kj::newPromiseAndFulfiller<absl::Status>();
  const auto reading = std::make_shared<Reading>();
  reading->ask = std::move(ask);
  reading->target = std::move(target);
  reading->num_received = std::move(num_received);
  reading->failure = kj::mv(failure.fulfiller);
  auto readers = kj::heapArrayBuilder<kj::Promise<void>>(kMaxChunksInFlight);
  for (size_t i = 0; i < kMaxChunksInFlight; ++i) {
    readers.add(kj::evalNow([&reading] {
                  return ReadOn(reading);
                }).catch_([](kj::Exception&& exception) {
                    return FromException(exception);
                  }).then([reading](absl::Status&& status) -> kj::Promise<void> {
      if (status.ok()) return kj::READY_NOW;
      reading->failure->fulfill(std::move(status));
      return kj::NEVER_DONE;
    }));
  }
  // To the end, as a fulfiller that goes is a failure.
  return kj::joinPromises(readers.finish())
      .then([] { return absl::OkStatus(); })
      .exclusiveJoin(kj::mv(failure.promise))
      .attach(std::shared_ptr<Reading>(reading));
}

absl::Status TakeEmbedded(std::string_view bytes, const ByteTarget& target) {
  if (bytes.size() != target.num_bytes()) {
    return absl::InvalidArgumentError(
        StrCat(bytes.size(), " of ", target.num_bytes(), " bytes have come"));
  }
  target.Copy(0, bytes.size(), reinterpret_cast<const std::byte*>(bytes.data()));
  return absl::OkStatus();
}

}  // namespace penstock::actors::control
