#include <algorithm>
#include <utility>

#include "actors/cluster/bulk_transfer_internal.h"
#include "actors/cluster/connection_internal.h"
#include "actors/cluster/control_loop_internal.h"
#include "base/strings.h"

namespace penstock::actors::control {
namespace {

// What a message has beside the bytes.
constexpr uint64_t kPieceMessageWords = 16;

const std::byte* Bytes(capnp::Data::Reader data) {
  return reinterpret_cast<const std::byte*>(data.begin());
}

class SourceServer final : public Source::Server {
 public:
  explicit SourceServer(std::weak_ptr<const BulkSource> source) : source_(std::move(source)) {}

  kj::Promise<void> read(ReadContext context) override {
    const std::shared_ptr<const BulkSource> source = source_.lock();
    if (source == nullptr) {
      return ToException(absl::FailedPreconditionError("the bytes were asked for too late"));
    }
    const uint64_t offset = context.getParams().getOffset();
    const uint32_t size = context.getParams().getSize();
    const absl::Status status = CheckPiece(offset, size, source->num_bytes());
    if (!status.ok()) return ToException(status);
    auto bytes =
        context.getResults(capnp::MessageSize{size / 8 + kPieceMessageWords, 0}).initBytes(size);
    source->Copy(offset, size, reinterpret_cast<std::byte*>(bytes.begin()));
    return kj::READY_NOW;
  }

 private:
  const std::weak_ptr<const BulkSource> source_;
};

struct Reading {
  AskPiece ask;
  BulkTarget target;
  uint64_t next = 0;  // to be asked for
  kj::Own<kj::PromiseFulfiller<void>> failure;
};

// One piece after the other, of those that nobody has asked for yet.
kj::Promise<void> ReadOn(std::shared_ptr<Reading> reading) {
  const uint64_t offset = reading->next;
  const auto size =
      static_cast<uint32_t>(std::min<uint64_t>(kPieceBytes, reading->target.num_bytes() - offset));
  if (size == 0) return kj::READY_NOW;
  reading->next += size;
  return reading->ask(offset, size)
      .then([reading, offset, size](capnp::Response<Piece>&& piece) -> kj::Promise<void> {
        const auto bytes = piece.getBytes();
        if (bytes.size() != size) {
          return ToException(absl::InvalidArgumentError(
              StrCat("a piece of ", bytes.size(), " bytes where ", size, " were asked for")));
        }
        reading->target.Copy(offset, size, Bytes(bytes));
        return ReadOn(reading);
      });
}

}  // namespace

absl::Status CheckPiece(uint64_t offset, uint64_t size, uint64_t num_bytes) {
  if (size == 0 || size > kPieceBytes || size > num_bytes || offset > num_bytes - size) {
    return absl::OutOfRangeError(
        StrCat("there is no piece of ", size, " bytes at ", offset, " of ", num_bytes));
  }
  return absl::OkStatus();
}

std::shared_ptr<const BulkSource> Offer(BulkSource source, Bulk::Builder bulk) {
  if (source.num_bytes() <= kPieceBytes) {
    const auto size = static_cast<size_t>(source.num_bytes());
    auto bytes = bulk.initHere(static_cast<unsigned>(size));
    source.Copy(0, size, reinterpret_cast<std::byte*>(bytes.begin()));
    return nullptr;
  }
  auto offered = std::make_shared<const BulkSource>(std::move(source));
  bulk.setThere(kj::heap<SourceServer>(offered));
  return offered;
}

AskPiece AskSource(std::shared_ptr<Source::Client> source) {
  return [source = std::move(source)](uint64_t offset, uint32_t size) {
    auto call = source->readRequest();
    call.setOffset(offset);
    call.setSize(size);
    return call.send();
  };
}

kj::Promise<void> ReadPieces(AskPiece ask, BulkTarget target) {
  auto failure = kj::newPromiseAndFulfiller<void>();
  const auto reading = std::make_shared<Reading>();
  reading->ask = std::move(ask);
  reading->target = std::move(target);
  reading->failure = kj::mv(failure.fulfiller);
  auto readers = kj::heapArrayBuilder<kj::Promise<void>>(kMaxPiecesInFlight);
  for (size_t i = 0; i < kMaxPiecesInFlight; ++i) {
    readers.add(kj::evalNow([&reading] {
                  return ReadOn(reading);
                }).catch_([reading](kj::Exception&& exception) -> kj::Promise<void> {
      reading->failure->reject(kj::mv(exception));
      return kj::NEVER_DONE;
    }));
  }
  // To the end, as a fulfiller that goes is a failure.
  return kj::joinPromises(readers.finish())
      .exclusiveJoin(kj::mv(failure.promise))
      .attach(std::shared_ptr<Reading>(reading));
}

absl::Status TakeHere(std::string_view bytes, const BulkTarget& target) {
  if (bytes.size() != target.num_bytes()) {
    return absl::InvalidArgumentError(
        StrCat(bytes.size(), " of ", target.num_bytes(), " bytes have come"));
  }
  target.Copy(0, bytes.size(), reinterpret_cast<const std::byte*>(bytes.data()));
  return absl::OkStatus();
}

}  // namespace penstock::actors::control
