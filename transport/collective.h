// One rank's part of a collective: a state machine over tagged messages, in chunks, made when a
// plan is loaded and run once a step or micro-batch.
//
// Thread rule: the endpoint's.
// Invariants: Start allocates nothing; every rank runs the same sequence numbers in the same order;
// results have the association that base/collective.h defines, whatever the timing.

#ifndef PENSTOCK_TRANSPORT_COLLECTIVE_H_
#define PENSTOCK_TRANSPORT_COLLECTIVE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/collective.h"
#include "transport/transport.h"

namespace penstock::transport {

// Returns an error for an inconsistent spec: counts of the wrong number or negative, tensors that
// do not add up to them or that such a collective cannot have, peers that are no permutation, a
// group with a device twice or out of range, a reduction that the dtype does not have (reduce.h),
// chunks smaller than an element or so small that a run has more than 2^20.
absl::Status CheckCollective(const CollectiveSpec& spec, uint32_t num_devices);

// The devices with which the member `device` of the group exchanges messages: ascending. Messages
// are symmetric: each of them has `device` among its own.
// REQUIRES: CheckCollective(spec) is OK and `device` is in the group.
std::vector<uint32_t> CollectivePeers(const CollectiveSpec& spec, uint32_t device);

// The bytes of messages that CreateCollective allocates room for, beside input and output.
// `can_view`: of each rank, whether its memory can be read where it lies.
// REQUIRES: CheckCollective(spec) is OK and `rank` is in the group.
uint64_t CollectiveBufferBytes(const CollectiveSpec& spec, int rank,
                               const std::vector<bool>& can_view);

// A rank's part of one collective of a plan: it runs again and again, one run at a time.
class Collective {
 public:
  // Cancels what runs. Its buffers are memory that requests name: see Transport::Hold. REQUIRES:
  // Settle() is true then, or the endpoint is not driven any more.
  virtual ~Collective() = default;

  // Begins the run number `sequence`, below 2^44. Each tensor has an input and an output, which
  // hold InputCount and OutputCount elements of it; they may be the same memory for all_reduce (in
  // place), an all_gather's input may lie at its place in the output, and a reduce_scatter's output
  // at its place in the input. Both belong to the run until it is over, the lists do not.
  // `flags` travel with the data, so they reach every rank whose output depends on this rank's
  // input: of an all_reduce, reduce_scatter and all_gather all ranks (empty blocks included), of a
  // broadcast all but the root, of a permute the receiver, of an all_to_all those that get a block
  // that is not empty from it, and possibly those that receive from these.
  // With kErrorFlag the data means nothing, but every run still completes. REQUIRES: not running,
  // and Settle() is true.
  virtual void StartTensors(const void* const* inputs, void* const* outputs, uint64_t sequence,
                            uint32_t flags) = 0;
  // The same with one tensor.
  void Start(const void* input, void* output, uint64_t sequence, uint32_t flags) {
    StartTensors(&input, &output, sequence, flags);
  }

  // Moves along as far as it can; true once the run is over (again and again until the next Start).
  // The endpoint's Progress is called by the owner, not here: there is nothing to poll for until it
  // has returned true.
  virtual bool Poll() = 0;

  // Of the last run: OK, or why it failed; a failed request ends the run and cancels the others.
  virtual const absl::Status& status() const = 0;

  // Of the last run: the union of this rank's flags and those received.
  virtual uint32_t flags() const = 0;

  // Ends a run early with the status kCancelled: its requests are cancelled and Poll is true.
  virtual void Cancel() = 0;

  // Whether the last run's memory is free and another may start: at once after one that is OK;
  // after one that failed or was cancelled, when the peers have let go of the sends that they were
  // reading just then, which Progress brings about.
  virtual bool Settle() = 0;
};

// `endpoint` outlives the result. REQUIRES: CheckCollective(spec) is OK.
absl::StatusOr<std::unique_ptr<Collective>> CreateCollective(const CollectiveSpec& spec, int rank,
                                                             Endpoint& endpoint);

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_COLLECTIVE_H_
