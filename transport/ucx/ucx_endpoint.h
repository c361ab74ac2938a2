// The endpoint of one device over UCX: a worker, its connections, and the matching of messages.
//
// UCX's tags have 64 bits, ours with the source have 160, so messages are matched here, by lists a
// (source, channel) as in the inproc transport: receives that wait for a message, and messages that
// wait for a receive. A long message that finds its receive goes straight into the register
// (rendezvous), or is copied from where it lies if the peer shares that memory; a short one is
// copied out of the segment it came in. A view that can have neither is of a copy that is held
// here. wire.h shows what travels.
//
// An Operation stands for one request, or for a message that nobody has asked for yet. Callbacks of
// UCX only change operations; requests are ended by calls of the owner, from the queue `ended_`.
//
// The receiver starts the transfer of a long message, and only a few bytes from each peer at a
// time: those of the lowest channel first. So the order of channels is an order of priority on each
// link, and a transfer never waits for one that waits for something else.
//
// Thread rule: the Endpoint's functions belong to the owner. OnArrival and Age belong to the thread
// that waits, the functions named so to any. All that touch the worker take a Turn, which waits for
// a few calls of UCX, or the copy of a message, at most.
// Invariant: nothing is allocated once every peer, channel page and number of operations in flight
// has been seen.

#ifndef PENSTOCK_TRANSPORT_UCX_UCX_ENDPOINT_H_
#define PENSTOCK_TRANSPORT_UCX_UCX_ENDPOINT_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <ucp/api/ucp.h>

#include "transport/intrusive_queue.h"
#include "transport/transport.h"
#include "transport/ucx/replay_window.h"
#include "transport/ucx/shared_memory.h"
#include "transport/ucx/ucx_transport.h"
#include "transport/ucx/wire.h"

namespace penstock::transport::ucx {

absl::Status FromUcs(ucs_status_t status, std::string_view what);

// How far the connections of an endpoint are, the last of them.
enum class Connections : uint8_t {
  kBeingMade,
  kUnheard,      // made, but nothing has come from the peer: its own may still need ours
  kEstablished,  // from both sides, or failed
};

class UcxEndpoint final : public Endpoint {
 public:
  // `local` carries messages between devices of this process. It, `options` and `context` outlive
  // the result.
  static absl::StatusOr<std::unique_ptr<UcxEndpoint>> Create(const UcxOptions& options,
                                                             ucp_context_h context, uint32_t device,
                                                             Endpoint* local);
  ~UcxEndpoint() override;

  // Nobody waits any more, and ProgressConnections has been given time. Returns false if UCX is
  // left behind with a connection that was never made; what the worker uses then stays as well.
  bool Close();

  uint32_t generation() const override { return options_.transport.generation; }
  void Send(uint32_t peer, Tag tag, const void* data, size_t num_bytes, uint32_t flags,
            Request* request) override;
  void Recv(uint32_t peer, Tag tag, void* data, size_t num_bytes, Request* request) override;
  bool can_view() const override;
  bool CanView(uint32_t peer) const override {
    return IsLocal(peer) || peers_[peer]->memory != nullptr;
  }
  void View(uint32_t peer, Tag tag, size_t num_bytes, Request* request) override;
  void Release(Request* request) override;
  void Cancel(Request* request) override;
  bool Progress() override;
  void PrepareSleep() override;
  void SetWakeup(std::function<void()> wakeup) override;

  // Any thread.
  const ProcessAddress::Device& address() const { return address_; }
  // `memory`, of the device's process, outlives this; null: nothing of it can be seen.
  absl::Status Connect(uint32_t device, const ProcessAddress::Device& address, PeerMemory* memory);
  void FailPeer(uint32_t device, const absl::Status& cause);
  void AddMemory(const void* data, size_t num_bytes, ucp_mem_h handle, uint64_t place);
  void AddStats(TransportStats* stats) const;

  // Whether the owner has called yet.
  bool is_driven() const { return is_driven_.load(std::memory_order_relaxed); }
  // Moves connections along where the owner may not be there; returns how far they are.
  Connections ProgressConnections();

  // The thread that waits (arrival_watch.h). Watch comes first: `watch_fd` is its epoll set, in
  // which this endpoint is known by `index`.
  absl::Status Watch(int watch_fd, uint32_t index);
  // The worker's descriptor became readable.
  void OnArrival();
  // A second has passed.
  void Age();

 private:
  enum class Kind : uint8_t { kFree, kSend, kReceive, kArrival };

  // Where the bytes of a message are.
  enum class Source : uint8_t {
    kEager,       // in UCX's segment or, outside of its callback, in a held buffer
    kRendezvous,  // with the sender; `data` is UCX's descriptor
    kShared,      // with the sender, who shares them
  };

  // Bytes that are kept for a view.
  struct Staging {
    std::unique_ptr<std::byte[]> bytes;
    size_t num_bytes = 0;
  };

  struct Operation {
    Operation* next = nullptr;
    UcxEndpoint* endpoint = nullptr;
    Request* request = nullptr;  // null: an arrival
    Kind kind = Kind::kFree;
    bool is_transferring = false;    // UCX will call back
    bool is_over = false;            // in `ended_`
    bool is_withdrawing = false;     // of a send: the receiver has been asked to give it back
    bool has_outcome = false;        // of a send
    bool is_view = false;            // of a receive
    Source source = Source::kEager;  // of an arrival and a view
    uint32_t seconds = 0;            // age, since the withdrawal if there was one
    uint32_t peer = 0;
    OperationId id;
    void* data = nullptr;
    void* descriptor = nullptr;  // of a receive that waits for its rendezvous: UCX's
    MessageHeader header;  // of a send and an arrival; of a receive tag and size, then the sender's
    ucp_mem_h memory = nullptr;  // registered, where `data` lies
    Outcome outcome;             // of a send
    absl::Status reason;         // of a send: why it is withdrawn
    absl::Status status;         // how it ended
    Staging staging;             // of a view by rendezvous
  };
  using OperationQueue = IntrusiveQueue<Operation>;

  struct Match {
    OperationQueue posted;   // receives
    OperationQueue arrived;  // messages, in the order of their coming
  };
  static constexpr uint32_t kPageChannels = 64;
  using Page = std::array<Match, kPageChannels>;

  struct ControlMessage {
    ControlMessage* next = nullptr;
    UcxEndpoint* endpoint = nullptr;
    Outcomes outcomes;
    Withdrawal withdrawal;
  };

  struct Peer {
    UcxEndpoint* endpoint = nullptr;
    uint32_t device = 0;
    ucp_ep_h ep = nullptr;
    PeerMemory* memory = nullptr;
    uint64_t key = 0;
    uint64_t next_serial = 0;    // of the next message to it
    ReplayWindow received;       // of the messages from it
    bool is_connecting = false;  // UCX has not said yet that it is connected, or that it failed
    bool is_heard = false;       // something has come, so its connection is made
    bool is_failed = false;      // found to be, why says `failure`
    bool is_closed = false;      // the failure has been dealt with
    absl::Status failure;
    uint32_t seconds_since_failure = 0;
    bool is_probed = false;  // and nothing has come from it since
    uint32_t seconds_since_probe = 0;
    uint32_t num_arrived = 0;           // messages that wait for a receive
    OperationQueue waiting;             // receives whose rendezvous has not started
    uint32_t num_transfers = 0;         // receives whose rendezvous has
    uint64_t transfer_bytes = 0;        // of those
    bool is_starting = false;           // StartTransfers runs
    ControlMessage* pending = nullptr;  // outcomes that were not sent yet
    int num_pending = 0;
    std::vector<std::unique_ptr<Page>> pages;
  };

  // A message as it comes: the bytes, or what stands for them.
  struct Incoming {
    MessageHeader header;
    void* data = nullptr;
    Source source = Source::kEager;
    bool is_held = false;  // outside of UCX's callback
  };

  struct Region {
    const std::byte* begin = nullptr;
    size_t num_bytes = 0;
    ucp_mem_h handle = nullptr;
    size_t shared_bytes = 0;
    uint64_t place = kNoPlace;
  };

  // Exclusive use of the worker.
  class Turn {
   public:
    explicit Turn(UcxEndpoint* endpoint) : endpoint_(endpoint) {
      if (endpoint_->is_taken_.exchange(true, std::memory_order_acquire)) endpoint_->WaitForTurn();
    }
    ~Turn() { endpoint_->is_taken_.store(false, std::memory_order_release); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    UcxEndpoint* const endpoint_;
  };

  UcxEndpoint(const UcxOptions& options, uint32_t device, Endpoint* local);
  absl::Status Open(ucp_context_h context);
  void WaitForTurn();
  void Wake();

  bool IsLocal(uint32_t device) const {
    return device - options_.first_device < options_.num_local_devices;
  }
  bool Begin(Kind kind, uint32_t peer, Tag tag, Request* request);
  void Post(uint32_t peer, Tag tag, void* data, size_t num_bytes, bool is_view, Request* request);
  Operation* Acquire(Kind kind, uint32_t peer);
  void Recycle(Operation* operation);
  Operation* Find(OperationId id, uint32_t peer);
  Match& MatchOf(Peer& peer, uint64_t channel);
  const Region* FindRegion(const void* data, size_t num_bytes) const;
  Origin OriginFor(const Peer& peer) const { return {peer.key, generation(), device_}; }

  // With the turn.
  void Start(Operation* send);
  void Withdraw(Operation* send, const absl::Status& reason);
  // Both return whether UCX's descriptor is in use.
  bool Arrive(const Incoming& incoming);
  bool Deliver(const Incoming& incoming, Operation* receive);
  void StartTransfers(Peer& peer);
  void DropWaiting(Peer& peer);
  void Refuse(const Incoming& incoming);
  void Answer(Peer& peer, OperationId operation, Outcome::Kind kind, uint64_t expected_bytes);
  void FlushOutcomes();
  void SendControl(Peer& peer, unsigned id, ControlMessage* message, const void* bytes,
                   size_t num_bytes);
  ControlMessage* AcquireControl();
  void Greet(Peer& peer);
  Connections connections() const;
  void Probe(Peer& peer);
  void End(Operation* operation, absl::Status status);
  void EndIfOver(Operation* send);
  void NoteFailure(Peer& peer, const absl::Status& cause);
  void ReleaseArrival(Operation* arrival);
  std::byte* AcquireHeld();
  Staging AcquireStaging(size_t num_bytes);
  void FreeView(Operation* view);
  bool Arm();

  // The owner, with the turn.
  bool EndRequests();
  void FailPeers();
  void FailOperations(Peer& peer);
  void Expire();

  // The peer that a message with this origin comes from; null, and counted, if it is not for us.
  Peer* Admit(const Origin& origin);
  absl::Status SizeMismatch(uint32_t source, uint32_t destination, uint64_t channel,
                            uint64_t num_bytes, uint64_t expected_bytes) const;

  static ucs_status_t OnMessage(void* self, const void* header, size_t header_length, void* data,
                                size_t length, const ucp_am_recv_param_t* param);
  static ucs_status_t OnOutcomes(void* self, const void* header, size_t header_length, void* data,
                                 size_t length, const ucp_am_recv_param_t* param);
  static ucs_status_t OnWithdrawal(void* self, const void* header, size_t header_length, void* data,
                                   size_t length, const ucp_am_recv_param_t* param);
  static ucs_status_t OnProbe(void* self, const void* header, size_t header_length, void* data,
                              size_t length, const ucp_am_recv_param_t* param);
  static void OnSent(void* request, ucs_status_t status, void* operation);
  static void OnControlSent(void* request, ucs_status_t status, void* message);
  static void OnReceived(void* request, ucs_status_t status, size_t length, void* operation);
  static void OnConnected(void* request, ucs_status_t status, void* peer);
  static void OnPeerError(void* peer, ucp_ep_h ep, ucs_status_t status);

  static void Count(std::atomic<uint64_t>* counter, uint64_t amount) {
    counter->store(counter->load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }

  const UcxOptions& options_;
  const uint32_t device_;
  Endpoint* const local_;

  std::atomic<bool> is_taken_{false};
  std::atomic<bool> is_driven_{false};
  std::mutex wakeup_mutex_;
  std::function<void()> wakeup_;  // guarded by wakeup_mutex_; called without the turn, or with it

  // With the turn.
  ucp_worker_h worker_ = nullptr;
  ProcessAddress::Device address_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::unique_ptr<std::array<Operation, 64>>> blocks_;
  OperationQueue free_;
  OperationQueue ended_;
  std::vector<std::unique_ptr<ControlMessage>> controls_;
  IntrusiveQueue<ControlMessage> free_controls_;
  std::vector<std::unique_ptr<std::byte[]>> held_;  // buffers of kMaxEagerBytes
  std::vector<std::byte*> free_held_;
  std::vector<Staging> free_staging_;
  std::vector<Peer*> answered_;  // with pending outcomes
  std::vector<Region> memory_;
  bool has_failures_ = false;  // a peer's failure to deal with
  bool has_expired_ = false;   // an operation's bound has passed
  bool is_closing_ = false;

  int event_fd_ = -1;
  int watch_fd_ = -1;
  uint32_t watch_index_ = 0;

  std::atomic<uint64_t> messages_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> dropped_{0};
};

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_UCX_ENDPOINT_H_
