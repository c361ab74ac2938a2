// A status in the messages of the control plane, and as what the promises of the event loop end
// with. Statuses are values of promises: an exception of kj means that a connection or the protocol
// has failed, and becomes a status here.
//
// Thread rule: the loop's thread.

#ifndef PENSTOCK_ACTORS_CLUSTER_WIRE_STATUS_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_WIRE_STATUS_INTERNAL_H_

#include <utility>

#include "absl/status/status.h"
#include <kj/async.h>
#include <kj/exception.h>

#include "actors/cluster/control.capnp.h"

namespace penstock::actors::control {

void WriteStatus(const absl::Status& status, Status::Builder builder);
// Reads the result of a call. The text is bounded; a code that does not exist is kUnknown. The rank
// of the origin is left out: the receiver knows who has sent it.
absl::Status ReadStatus(Status::Reader reader);
// Reads the report of an error. OK would be none, and becomes kUnknown.
absl::Status ReadError(Status::Reader reader);

// kUnavailable if the connection is gone, otherwise kInternal or what fits better.
absl::Status FromException(const kj::Exception& exception);

using StatusPromise = kj::Promise<absl::Status>;

// The status of a call: that in its results, or that of its connection. `on_results` gets the
// results of a call that has succeeded, and returns a status.
template <typename Call, typename OnResults>
StatusPromise StatusOf(Call&& sent, OnResults on_results) {
  return sent.then(
      [on_results = std::move(on_results)](auto&& results) mutable -> absl::Status {
        absl::Status status = ReadStatus(results.getStatus());
        return status.ok() ? on_results(results) : status;
      },
      [](kj::Exception&& exception) { return FromException(exception); });
}
template <typename Call>
StatusPromise StatusOf(Call&& sent) {
  return StatusOf(std::forward<Call>(sent), [](const auto&) { return absl::OkStatus(); });
}

// A promise without a value becomes one of an OK status.
inline StatusPromise ToStatus(StatusPromise promise) { return promise; }
inline StatusPromise ToStatus(kj::Promise<void> promise) {
  return promise.then([] { return absl::OkStatus(); });
}

// The first error, when all have ended.
StatusPromise JoinStatuses(kj::Array<StatusPromise> promises);

}  // namespace penstock::actors::control

#endif  // PENSTOCK_ACTORS_CLUSTER_WIRE_STATUS_INTERNAL_H_
