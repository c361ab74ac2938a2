// The operations of one kind, sends or receives, that an endpoint has in flight, one for each
// request.
//
// An operation goes through these states:
//   Acquire        pending
//   End            ended: it has a status, and its request is to be completed by the owner
//   TakeEnded      completed: its request is gone, the rest is the caller's
//   Recycle        free
// An operation does not end, and is not recycled, while UCX uses its bytes (`is_transferring`): the
// request that has ended gives the bytes back to the caller.
//
// A pending operation has an id that peers may know: a slot and how often the slot was used before.
//
// Thread rule: external synchronisation.
// Invariant: allocates only when more operations are in flight than ever before.

#ifndef PENSTOCK_TRANSPORT_UCX_OPERATION_TABLE_H_
#define PENSTOCK_TRANSPORT_UCX_OPERATION_TABLE_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"

#include "transport/intrusive_queue.h"
#include "transport/object_pool.h"
#include "transport/transport.h"
#include "transport/ucx/wire.h"

namespace penstock::transport::ucx {

// The members that every kind of operation, a derived class, has.
template <typename Derived>
struct Operation {
  Derived* next = nullptr;
  Request* request = nullptr;  // null: free, or completed
  OperationId id;
  uint32_t peer = 0;
  uint32_t seconds = 0;          // age
  bool is_transferring = false;  // UCX will call back
  bool is_ended = false;
  absl::Status status;  // of one that has ended

  bool is_pending() const { return request != nullptr && !is_ended; }
};

template <typename T>
class OperationTable {
 public:
  T* Acquire(uint32_t peer, Request* request) {
    T* operation = pool_.Acquire([](T& created, uint32_t index) { created.id.index = index; });
    operation->peer = peer;
    operation->request = request;
    request->internal = operation;
    return operation;
  }

  // Members of T itself keep their values.
  // REQUIRES: not among the ended operations.
  void Recycle(T* operation) {
    ++operation->id.use;
    operation->request = nullptr;
    operation->is_transferring = operation->is_ended = false;
    operation->seconds = 0;
    if (!operation->status.ok()) operation->status = absl::OkStatus();
    pool_.Recycle(operation);
  }

  // The pending operation with this id, which is not trusted; null if there is none.
  T* Find(OperationId id) {
    if (id.index >= pool_.size()) return nullptr;
    T& operation = pool_.at(id.index);
    return operation.id == id && operation.is_pending() ? &operation : nullptr;
  }

  // REQUIRES: is_pending(), and UCX does not use the bytes.
  void End(T* operation, absl::Status status) {
    operation->is_ended = true;
    operation->status = std::move(status);
    ended_.PushBack(operation);
  }

  bool has_ended() const { return !ended_.empty(); }

  // The operation that ended first; its request is no longer the operation's.
  // REQUIRES: has_ended().
  std::pair<T*, Request*> TakeEnded() {
    T* operation = ended_.PopFront();
    return {operation, std::exchange(operation->request, nullptr)};
  }

  template <typename Visit>
  void ForEachPending(const Visit& visit) {
    for (uint32_t i = 0; i < pool_.size(); ++i) {
      if (pool_.at(i).is_pending()) visit(pool_.at(i));
    }
  }

  // Calls visit(operation) for each whose bytes UCX uses.
  template <typename Visit>
  void ForEachTransferring(const Visit& visit) {
    for (uint32_t i = 0; i < pool_.size(); ++i) {
      if (pool_.at(i).is_transferring) visit(pool_.at(i));
    }
  }

 private:
  ObjectPool<T> pool_;
  IntrusiveQueue<T> ended_;
};

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_OPERATION_TABLE_H_
