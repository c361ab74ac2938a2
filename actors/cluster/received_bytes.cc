#include <memory>
#include <string>
#include <utility>

#include "actors/cluster/chunked_transfer_internal.h"
#include "actors/cluster/connection_internal.h"
#include "actors/cluster/received_bytes_internal.h"
#include "actors/engine/error_origin.h"
#include "base/strings.h"

namespace penstock::actors {

using control::AsText;

Received::Received(control::ControlLoop& loop, control::ChunkedBytes::Reader transfer) {
  if (transfer.isSource()) {
    source = std::make_shared<Holder<control::Source::Client>>(loop, transfer.getSource());
  } else {
    embedded = AsText(transfer.getEmbedded());
  }
}

absl::Status ByteReceiver::Take(const Received& received, ByteTarget target, absl::Duration timeout,
                                std::string_view what) {
  absl::Status status;
  if (received.source == nullptr) {
    status = control::TakeEmbedded(received.embedded, target);
  } else {
    const absl::Duration bound = control::BoundOf(timeout, target.num_bytes());
    status = loop_.Await(
        [this, client = received.source->client, target = std::move(target),
         what = std::string(what)]() -> control::StatusPromise {
          if (is_cancelled_) return absl::CancelledError("the node has ended");
          reading_ = what;
          return transfers_.wrap(control::ReadChunks(control::AskSource(client), target))
              .attach(kj::defer([this] { reading_.clear(); }));
        },
        bound, "reading");
  }
  return status.ok() ? status : WithPrefix(StrCat(what, ": "), status);
}

void ByteReceiver::Cancel() {
  is_cancelled_ = true;
  transfers_.cancel("the node has ended");
}

}  // namespace penstock::actors
