// Collectives that devices run themselves, as work on their streams: NCCL's on GPUs, or those of
// emulated devices (emulated/emulated_communicator.h). The host launches them, and neither waits
// for them nor touches their data. transport/collective.h has those that the host runs.
//
// Thread rule: a Communicator and what it makes belong to the executor of their device.
// Invariants: every member launches the runs of a collective in the same order. Runs of different
// collectives are matched by their order, too, where these share a communicator: NCCL adds up what
// it is given, whether the members mean the same collective or not. But for NCCL's, results have
// the association that base/collective.h defines.

#ifndef PENSTOCK_TRANSPORT_STREAM_COLLECTIVE_H_
#define PENSTOCK_TRANSPORT_STREAM_COLLECTIVE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/collective.h"
#include "base/device.h"

namespace penstock::transport {

struct StreamCollectiveArgs {
  // On the device, of each tensor, as for Collective::StartTensors.
  const void* const* inputs = nullptr;
  void* const* outputs = nullptr;
  // The data mean nothing, but the run takes place: where a member is poisoned, or its stream has
  // an error, the streams of all others have one afterwards, kAborted, if the collective tells
  // failures.
  bool is_poisoned = false;
  uint64_t launch = kNoLaunch;  // names the run in an error of the stream
};

// One member's part of a collective, on one stream of its device.
class StreamCollective {
 public:
  virtual ~StreamCollective() = default;
  // Gives a run to the stream. Allocates nothing. An error is one of launching.
  virtual absl::Status Launch(const StreamCollectiveArgs& args) = 0;
};

// Connects a device to the other members. It may be destroyed before its collectives, which must
// not be launched afterwards; that aborts operations of NCCL that wait for missing members.
class Communicator {
 public:
  virtual ~Communicator() = default;
  // `stream` is one of the device and outlives the last run, but not the result. With
  // `tells_failures`, members learn from it that another one has failed; without, they learn it
  // from another collective and have meaningless data until then. REQUIRES: CheckCollective(spec)
  // is OK, `rank` is that of the device, and all members agree on `tells_failures`.
  virtual absl::StatusOr<std::unique_ptr<StreamCollective>> Create(const CollectiveSpec& spec,
                                                                   int rank, Stream& stream,
                                                                   bool tells_failures) = 0;
};

// A communicator for device `index` of a plan.
using CommunicatorFactory =
    std::function<absl::StatusOr<std::unique_ptr<Communicator>>(uint32_t index, Device& device)>;

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_STREAM_COLLECTIVE_H_
