// The endpoint of one device over UCX: a worker of UCX and what uses it.
//
//   Peers          connections, and which peers have failed       peers.h
//   Sender         sends, acknowledged by their receivers          sender.h
//   Receiver       message matching, transfers, views              receiver.h
//   ControlSender  acks, cancel requests, greetings and probes     control_sender.h
//
// This class joins them: it passes requests for devices of this process on to another endpoint,
// locks, drives the worker, and wakes the owner. wire.h describes the protocol.
//
// Thread rule: the functions of Endpoint belong to the owner, OnArrival and OnSecondPassed to the
// thread that waits, the functions marked so to any thread. All that touches the worker holds
// `lock_`, for a few calls of UCX and the copy of a chunk of a message at most. Callbacks of UCX
// only change operations; calls of the owner complete requests. Invariants: no request ends while
// UCX uses its bytes, and no worker is destroyed while UCX uses the bytes of any; nothing is
// allocated once every peer, channel page and number of operations in flight has been seen.

#ifndef PENSTOCK_TRANSPORT_UCX_UCX_ENDPOINT_H_
#define PENSTOCK_TRANSPORT_UCX_UCX_ENDPOINT_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include <ucp/api/ucp.h>

#include "transport/request_internal.h"
#include "transport/transport.h"
#include "transport/ucx/control_sender.h"
#include "transport/ucx/memory_regions.h"
#include "transport/ucx/peers.h"
#include "transport/ucx/receiver.h"
#include "transport/ucx/sender.h"
#include "transport/ucx/shared_memory.h"
#include "transport/ucx/spin_lock.h"
#include "transport/ucx/ucx_transport.h"
#include "transport/ucx/wire.h"

namespace penstock::transport::ucx {

class UcxEndpoint final : public Endpoint {
 public:
  // `local` carries messages between devices of this process; `transfers` is the queue of its
  // transfers over the network. They, `options` and `context` outlive the result.
  static absl::StatusOr<std::unique_ptr<UcxEndpoint>> Create(const UcxOptions& options,
                                                             ucp_context_h context, uint32_t device,
                                                             Endpoint* local,
                                                             Receiver::Transfers* transfers);
  ~UcxEndpoint() override;

  // Disconnects, waits until `deadline` for UCX to let go of the memory of requests, and destroys
  // the worker, which shuts down what is left. A worker with a connection that was never made
  // cannot be destroyed and is leaked: see is_leaked. Nothing but the functions below is called
  // afterwards. REQUIRES: nobody waits any more, and ProgressConnections has been given time.
  void Close(std::chrono::steady_clock::time_point deadline) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // After Close: the worker was leaked, and with it the context has to stay.
  bool is_leaked() const { return is_leaked_; }
  // Whether UCX uses memory of requests. After Close: if so, it does for good, and this endpoint
  // has to stay as well.
  bool IsTransferring();
  // "2 requests of device 1": those whose memory UCX uses, by their peers. Empty: there are none.
  std::string DescribeTransferring();

  uint32_t generation() const override { return options_.transport.generation; }
  void Send(uint32_t peer, Tag tag, const void* data, size_t num_bytes, uint32_t flags,
            Request* request) override;
  void Recv(uint32_t peer, Tag tag, void* data, size_t num_bytes, Request* request) override;
  bool can_view() const override;
  bool CanView(uint32_t peer) const override;
  void View(uint32_t peer, Tag tag, size_t num_bytes, Request* request) override;
  void Release(Request* request) override;
  void Cancel(Request* request) override;
  bool Progress() override;
  void PrepareSleep() override { PrepareSleep(true); }
  int PrepareSleepOnArrivals() override {
    PrepareSleep(false);
    return event_fd_;
  }
  void SetWakeup(std::function<void()> wakeup) override;

  // Any thread.
  const ProcessAddress::Device& address() const { return address_; }
  // `memory`, of the device's process, outlives this; null: nothing of it can be seen.
  absl::Status Connect(uint32_t device, uint64_t key, const std::string& worker, PeerMemory* memory,
                       std::shared_ptr<const std::vector<NetworkAddress>> network_addresses);
  // Does not connect to `device`, with which no messages are exchanged.
  void LeaveUnconnected(uint32_t device, PeerMemory* memory);
  void FailPeer(uint32_t device, const absl::Status& cause);
  void AddMemory(const void* data, size_t num_bytes, ucp_mem_h handle, uint64_t place);
  void AddStats(TransportStats* stats);

  // Whether the owner has called yet.
  bool is_driven() const { return is_driven_.load(std::memory_order_relaxed); }
  // Moves connections along while the owner may not be there.
  ConnectionState ProgressConnections();

  // The thread that waits (arrival_watch.h). Watch comes first: `watch_fd` is its epoll set, in
  // which this endpoint is known by `index`.
  absl::Status Watch(int watch_fd, uint32_t index);
  // The worker's descriptor became readable.
  void OnArrival() { Wake(); }
  // A second has passed. Not OK once for each peer: it has failed, and UCX uses memory of its
  // requests longer than it should.
  absl::Status OnSecondPassed();
  // Looks at the links, `elapsed` after the last look. Fails the peers whose links are cut; returns
  // their devices, each once.
  std::vector<uint32_t> FindCutLinks(std::chrono::milliseconds elapsed);

 private:
  // Calls of ucp_worker_progress in one Progress.
  static constexpr int kProgressRounds = 4;

  UcxEndpoint(const UcxOptions& options, uint32_t device, Endpoint* local,
              Receiver::Transfers* transfers);
  absl::Status Open(ucp_context_h context);
  void Wake();
  bool IsLocal(uint32_t device) const {  // a device of this process
    return device - options_.first_device < options_.num_local_devices;
  }

  bool BeginRemote(const Peer& peer, Tag tag, uint64_t kind, Request* request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_);
  uint64_t NumTransferring() ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_);
  // By index of the peer.
  const std::vector<uint64_t>& CountTransferring() ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_);
  bool has_ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_) {
    return sender_.has_ended() || receiver_.has_ended();
  }
  bool CompleteRequests() ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_);
  void FinishMatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_);
  void HandleFailures() ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_);
  void ProgressWorker() ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_) {
    for (int i = 0; i < kProgressRounds && ucp_worker_progress(worker_) != 0; ++i) {
    }
  }
  void PrepareSleep(bool is_watched);
  bool Arm(bool is_watched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_);

  // Handles kProbeId; `self` is a UcxEndpoint.
  static ucs_status_t OnProbe(void* self, const void* header, size_t header_length, void* data,
                              size_t length, const ucp_am_recv_param_t* param);

  const UcxOptions& options_;
  const uint32_t device_;
  Endpoint* const local_;
  ProcessAddress::Device address_;

  std::atomic<bool> is_driven_{false};
  absl::Mutex wakeup_mutex_;
  // Called with or without lock_.
  std::function<void()> wakeup_ ABSL_GUARDED_BY(wakeup_mutex_);

  mutable SpinLock lock_;
  MessageCounters counters_;  // written with the lock, read by any thread

  ucp_worker_h worker_ ABSL_GUARDED_BY(lock_) = nullptr;
  MemoryRegions memory_ ABSL_GUARDED_BY(lock_);
  Peers peers_ ABSL_GUARDED_BY(lock_);
  ControlSender control_ ABSL_GUARDED_BY(lock_);
  Sender sender_ ABSL_GUARDED_BY(lock_);
  Receiver receiver_ ABSL_GUARDED_BY(lock_);
  // An operation has reached its time limit.
  bool has_expired_ ABSL_GUARDED_BY(lock_) = false;
  // The last CountTransferring.
  std::vector<uint64_t> num_transferring_ ABSL_GUARDED_BY(lock_);
  bool is_leaked_ = false;  // since Close

  int event_fd_ = -1;  // the worker's
  int watch_fd_ = -1;
  uint32_t watch_index_ = 0;
  bool is_watched_ ABSL_GUARDED_BY(lock_) = false;  // the last time that the worker was armed
};

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_UCX_ENDPOINT_H_
