// What travels between the processes of a job, and the address that a process hands out.
//
// A message is one UCX active message: a header that says all of its tag, and the bytes; short ones
// come along, of long ones the header announces that they can be fetched (rendezvous). The receiver
// answers every message that it has taken or refused with an outcome, and the sender may ask for
// one back with a withdrawal:
//
//   sender                                           receiver
//   Send ---- MessageHeader + bytes ---------------> a Recv with its tag takes it, or it waits
//   Cancel -- Withdrawal --------------------------> given back, if nothing has taken it
//   request ends <--------------------- Outcome ---- delivered, withdrawn, or of another size
//
// A long message from memory that its sender shares names the place as well (shared_memory.h): a
// receiver of the same host reads it there, and has nothing fetched.
//
// No outcomes at all are a greeting; a probe, an Origin alone, asks for one.
//
// Structs are in the byte order of the machine: all processes of a job run on one architecture.
// Nothing that comes in is trusted: lengths, ids and keys are checked before use. What does not fit
// is dropped and counted. Who reads the traffic can forge it: see ucx_transport.h.

#ifndef PENSTOCK_TRANSPORT_UCX_WIRE_H_
#define PENSTOCK_TRANSPORT_UCX_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "transport/ucx/shared_memory.h"

namespace penstock::transport::ucx {

// Ids of active messages.
enum MessageId : unsigned { kMessageId = 1, kOutcomesId = 2, kWithdrawalId = 3, kProbeId = 4 };

// Longest message whose bytes travel with the header: one segment of the common transports.
inline constexpr size_t kMaxEagerBytes = 8000;

// Begins everything that is sent.
struct Origin {
  uint64_t key = 0;  // of the receiving endpoint, from its address
  uint32_t generation = 0;
  uint32_t source = 0;  // the sending device
};

// The sender's name for one of its operations: a slot and how often the slot was used before.
struct OperationId {
  uint32_t index = 0;
  uint32_t use = 0;
  friend bool operator==(const OperationId&, const OperationId&) = default;
};

struct MessageHeader {
  Origin origin;
  uint64_t serial = 0;  // grows with every message of a source to a receiver
  uint64_t sequence = 0;
  uint64_t num_bytes = 0;
  uint32_t channel = 0;
  uint32_t flags = 0;
  OperationId operation;
  uint64_t place = kNoPlace;  // of the bytes, if they may be read there
};
static_assert(sizeof(MessageHeader) == 64);

struct Withdrawal {
  Origin origin;
  OperationId operation;
  uint64_t channel = 0;
};
static_assert(sizeof(Withdrawal) == 32);

struct Outcome {
  enum Kind : uint32_t { kDelivered = 0, kWithdrawn = 1, kSizeMismatch = 2 };

  OperationId operation;
  uint32_t kind = kDelivered;
  uint32_t reserved = 0;
  uint64_t expected_bytes = 0;  // by the receiver, of kSizeMismatch
};
static_assert(sizeof(Outcome) == 24);

inline constexpr int kMaxOutcomes = 16;

// An Origin and up to kMaxOutcomes outcomes.
struct Outcomes {
  Origin origin;
  Outcome outcomes[kMaxOutcomes];
};
static_assert(sizeof(Outcomes) == sizeof(Origin) + kMaxOutcomes * sizeof(Outcome));

// Where the devices of one process are reached.
struct ProcessAddress {
  struct Device {
    uint64_t key = 0;    // what a message to the device has to name
    std::string worker;  // UCX's bytes
  };

  uint32_t generation = 0;
  uint32_t first_device = 0;
  SharedAddress shared;
  std::vector<Device> devices;
};

std::string EncodeAddress(const ProcessAddress& address);

// Refuses bytes that EncodeAddress did not make, by magic, lengths and a check sum. That finds
// accidents; bytes forged with care reach UCX, which is not written to withstand them.
absl::StatusOr<ProcessAddress> DecodeAddress(std::string_view bytes);

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_WIRE_H_
