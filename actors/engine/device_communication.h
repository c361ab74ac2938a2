// Advances the sends, receives and collectives of one device, beside the device's kernels.
//
// Two threads may do so: the communication executor of the process, and the device executor while
// it has nothing to compute, which saves a thread switch where latency counts. One of them owns the
// endpoint at a time. The device executor starts operations and takes completions whoever owns it:
//
//   device executor                          communication executor
//     TryOwn; Start(op 0); Advance
//     before a long kernel: Disown     --->  is woken; TryOwn; Advance; Disown; sleeps
//     kernel; Start(op 1) by a ring
//     Flush                            --->  is woken; TryOwn, starts op 1; Advance; Disown
//     NextCompletion: 0                <---  op 0 is done: a ring, and a wake-up if asleep
//
// The owner sleeps on the endpoint: the device executor as long as operations are under way and it
// has nothing else to do, so that an arrival wakes it and no other thread.
//
// Thread rule: members say which thread calls them; "owner" is the thread that owns the endpoint.
// Invariants: the endpoint is touched by its owner alone; whatever arrives after an owner's last
// Advance wakes that owner or the next; an operation completes, failed or not, when the transport
// does not use its memory any more; nothing is allocated after Load.

#ifndef PENSTOCK_ACTORS_ENGINE_DEVICE_COMMUNICATION_H_
#define PENSTOCK_ACTORS_ENGINE_DEVICE_COMMUNICATION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "actors/engine/spsc_ring.h"
#include "actors/engine/waker.h"
#include "base/cache_line.h"
#include "base/device.h"
#include "planner/plan/plan.h"
#include "transport/collective.h"
#include "transport/transport.h"

namespace penstock::actors {

// A tensor that a communication moves.
struct CommTensor {
  uint64_t input_bytes = 0;   // that a collective or a send reads
  uint64_t output_bytes = 0;  // that a collective or a receive writes
  bool is_in_place = false;   // of a collective: input and output begin at the same byte
};

// A collective, or one end of a transfer. The device executor writes what describes it; the owner
// of the endpoint writes the rest from Start until it has completed.
struct Comm {
  std::unique_ptr<transport::Collective> collective;             // null for transfers
  transport::Request request;                                    // of a transfer
  std::vector<CommTensor> tensors = std::vector<CommTensor>(1);  // one of a transfer
  uint32_t peer = 0;     // device at the other end of a transfer
  uint32_t channel = 0;  // of the tags of its messages
  uint32_t actor = 0;    // index in DevicePlan::actors
  uint32_t phase = 0;    // that the actor is in, an index in DevicePlan::phases
  uint32_t ordinal = 0;  // among the communicating actors of the device
  planner::ActorKind kind = planner::ActorKind::kCollective;  // a collective, a send or a receive
  std::unique_ptr<std::byte[]> message;  // what a stage sends or receives (stage_exchange.h)
  int64_t begin_ns = 0;                  // with a clock
  int64_t end_ns = 0;                    // likewise
};

// One run of an operation.
struct CommStart {
  uint32_t comm = 0;      // index of the operation in `comms` of Load
  uint32_t flags = 0;     // transport::MessageFlags
  uint64_t sequence = 0;  // of the run, the same on all its devices: see Tag::sequence
  // By tensor, in lists that last until the run has begun.
  void* const* inputs = nullptr;   // what a collective or a send reads
  void* const* outputs = nullptr;  // what a collective or a receive writes
};

// The operations of one device, and who advances them; the comment at the top has an example.
class DeviceCommunication {
 public:
  // kLeavingDevice: the device executor is about to give the endpoint up.
  enum class Owner : uint8_t { kNobody, kDevice, kLeavingDevice, kCommunication };

  // `endpoint` may be null where the device communicates with nobody. Both wakers outlive this;
  // with a null `communication_waker` there is no communication executor, and the device owns the
  // endpoint for good.
  DeviceCommunication(transport::Endpoint* endpoint, Waker* device_waker,
                      Waker* communication_waker);
  DeviceCommunication(const DeviceCommunication&) = delete;
  DeviceCommunication& operator=(const DeviceCommunication&) = delete;

  // Before anything is started: the operations of the device, known by their index from here on.
  // With a `clock`, beginnings and ends are recorded.
  void Load(std::vector<Comm> comms, uint32_t generation, const Clock* clock);

  // --- The device executor -----------------------------------------------------------------------

  // Whether the device executor owns the endpoint now.
  bool TryOwn();
  // As TryOwn and Disown left it.
  bool is_owner() const { return is_owned_by_device_; }
  // Leaves the endpoint to the communication executor, which is woken if there is work for it.
  // REQUIRES: is_owner().
  void Disown();

  // Starts an operation: here if the endpoint can be owned, else on the communication executor.
  // Flush follows. REQUIRES: the operation is not under way.
  void Start(const CommStart& start);
  // The same for a device executor that is about to compute for long: the owner to come starts it.
  void HandOver(const CommStart& start);
  // Ends a batch of the two: wakes the communication executor for what was handed over, once for
  // all of it.
  void Flush() {
    if (is_flush_due_) WakeForStarts();
  }

  // Whether NextCompletion would take one.
  bool has_completion() const { return completions_->Front() != nullptr; }
  // Takes the next operation that has completed; false if there is none.
  bool NextCompletion(uint32_t* comm) {
    const uint32_t* front = completions_->Front();
    if (front == nullptr) return false;
    *comm = *front;
    completions_->Pop();
    --num_active_;
    return true;
  }
  // Operations started and not taken yet.
  uint32_t num_active() const { return num_active_; }

  // The device executor is about to sleep, unless one more Advance finds something. It keeps the
  // endpoint if it owns it and waits for operations; then it sleeps on the descriptor that this
  // returns, too (Endpoint::PrepareSleepOnArrivals). Otherwise it does not become the owner before
  // EndSleep, as it would sleep on nothing. -1: there is no descriptor.
  int PrepareSleep();
  // The device executor is awake: it may become the owner again.
  void EndSleep() { is_about_to_sleep_ = false; }

  // Ends all operations, waiting for the endpoint if need be. Nothing is started afterwards.
  void Cancel();

  // The operations, by index. The owner writes in those that are under way.
  const std::vector<Comm>& comms() const { return comms_; }
  // Likewise. REQUIRES: the operation is not under way, or the caller is its owner.
  Comm& comm(uint32_t index) { return comms_[index]; }

  // --- The owner ---------------------------------------------------------------------------------

  // Starts what was handed over and moves everything along; returns whether anything happened.
  bool Advance();

  // --- The communication executor ----------------------------------------------------------------

  // Advances as the owner; returns whether anything happened. Nothing is done if the device owns
  // the endpoint.
  bool Serve();
  // Before it sleeps: wake-ups come without delay from here on. One more Serve follows.
  void PrepareServerSleep();

  // --- Any thread --------------------------------------------------------------------------------

  // Something has arrived: wakes the owner.
  void OnArrival();

 private:
  bool TryOwn(Owner owner) {
    Owner nobody = Owner::kNobody;
    return owner_.compare_exchange_strong(nobody, owner);
  }
  void WakeForStarts();
  void Begin(const CommStart& start);
  bool IsDone(Comm& comm) const;

  transport::Endpoint* const endpoint_;
  Waker* const device_waker_;
  Waker* const communication_waker_;
  const Clock* clock_ = nullptr;
  uint32_t generation_ = 0;

  std::vector<Comm> comms_;
  // An operation is in each at most once, so they are never full.
  std::unique_ptr<SpscRing<CommStart>> starts_;      // device to owner
  std::unique_ptr<SpscRing<uint32_t>> completions_;  // owner to device

  // Read for each arrival, and seldom written. Sequentially consistent, both: a device executor
  // that gives the endpoint up sees the arrivals before, or OnArrival sees that it was given up.
  alignas(kCacheLine) std::atomic<Owner> owner_{Owner::kNobody};
  std::atomic<bool> has_arrival_{false};  // since owner_ became kLeavingDevice

  // The device executor's.
  alignas(kCacheLine) bool is_owned_by_device_ = false;
  bool is_about_to_sleep_ = false;
  bool is_flush_due_ = false;  // something was handed over
  uint32_t num_active_ = 0;

  // The owner's.
  alignas(kCacheLine) std::vector<uint32_t> running_;
  bool has_completed_ = false;  // the last Advance completed an operation
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_DEVICE_COMMUNICATION_H_
