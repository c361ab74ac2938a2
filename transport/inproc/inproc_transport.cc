// The transport between logical devices of one process: descriptors go to the receiver through
// rings, the receiver copies (or looks at) the sender's bytes where they lie, and the descriptor
// comes back as the notice that the send is done. See descriptor.h for the round trip.
//
// An endpoint holds for every peer that it has talked to:
//   - the table that matches the peer's messages with receives (match_table.h);
//   - the queue of descriptors that found the ring to the peer full.
// Whoever pushes sets its bit in the receiver's `ready_` words; the 0 to 1 step wakes the receiver,
// and Progress looks only at rings whose bit is set.
//
// Nothing is allocated once every pair, channel page and number of requests in flight has been
// seen.

#include <atomic>
#include <bit>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/cache_line.h"
#include "base/copy_bytes.h"
#include "base/strings.h"
#include "transport/inproc/descriptor.h"
#include "transport/match_table.h"
#include "transport/object_pool.h"
#include "transport/request_internal.h"
#include "transport/transport.h"

namespace penstock::transport {
namespace {

class InprocEndpoint;
using Endpoints = std::vector<std::unique_ptr<InprocEndpoint>>;

class InprocEndpoint final : public Endpoint {
 public:
  InprocEndpoint(const TransportOptions& options, uint32_t device, const Endpoints& endpoints)
      : options_(options),
        device_(device),
        endpoints_(endpoints),
        inbound_(options.num_devices),
        ready_((options.num_devices + 63) / 64),
        peers_(options.num_devices) {}

  ~InprocEndpoint() override {
    for (std::atomic<DescriptorRing*>& ring : inbound_) delete ring.load();
  }

  uint32_t generation() const override { return options_.generation; }

  void Send(uint32_t peer, Tag tag, const void* data, size_t num_bytes, uint32_t flags,
            Request* request) override {
    if (!Begin(options_, tag, request)) {
      counters_.CountDropped();
      return;
    }
    Descriptor* send = Acquire(Descriptor::Kind::kSend, peer, tag, num_bytes, request);
    send->data = const_cast<void*>(data);
    send->flags = flags;
    Push(peer, send);
    Announce(peer);
  }

  void Recv(uint32_t peer, Tag tag, void* data, size_t num_bytes, Request* request) override {
    if (!Begin(options_, tag, request)) return;
    Descriptor* receive = Acquire(Descriptor::Kind::kRecv, peer, tag, num_bytes, request);
    receive->data = data;
    Post(receive);
  }

  bool can_view() const override { return true; }

  void View(uint32_t peer, Tag tag, size_t num_bytes, Request* request) override {
    if (!Begin(options_, tag, request)) return;
    Post(Acquire(Descriptor::Kind::kView, peer, tag, num_bytes, request));
  }

  void Release(Request* request) override {
    auto* send = static_cast<Descriptor*>(std::exchange(request->internal, nullptr));
    request->view = nullptr;
    const auto source = static_cast<uint32_t>(request->internal_word);
    Return(source, send, Descriptor::Ack::kDelivered);
    Announce(source);
  }

  void Cancel(Request* request) override {
    if (request->state != Request::State::kPending) return;
    auto* descriptor = static_cast<Descriptor*>(request->internal);
    if (descriptor->kind != Descriptor::Kind::kSend) {
      QueuesOf(descriptor->peer, descriptor->channel).RemoveReceive(descriptor);
      pool_.Recycle(descriptor);
    } else if (descriptor->phase.load(std::memory_order_relaxed) == Descriptor::Phase::kQueued) {
      PeerOf(descriptor->peer).overflow.RemoveFirst([descriptor](const Descriptor& other) {
        return &other == descriptor;
      });
      pool_.Recycle(descriptor);
    } else if (descriptor->Decide(Descriptor::Phase::kCancelled)) {
      descriptor->request = nullptr;  // comes back when the receiver next looks at the channel
    } else {
      return;  // the receiver has it: the send completes
    }
    Fail(request, absl::CancelledError("the request was cancelled"));
  }

  bool Progress() override {
    bool changed = false;
    for (size_t word = 0; word < ready_.size(); ++word) {
      if (ready_[word].bits.load(std::memory_order_seq_cst) == 0) continue;
      uint64_t bits = ready_[word].bits.exchange(0, std::memory_order_acq_rel);
      for (; bits != 0; bits &= bits - 1) {
        changed |= Drain(static_cast<uint32_t>(word * 64 + std::countr_zero(bits)));
      }
    }
    return changed;
  }

  void SetWakeup(std::function<void()> wakeup) override { wakeup_ = std::move(wakeup); }

  // Any thread.
  void AddStats(TransportStats* stats) const { counters_.AddTo(stats); }

 private:
  using Matches = MatchTable<Descriptor, Descriptor>;

  // A bit for each of 64 peers: it has pushed something.
  struct alignas(kCacheLine) ReadyWord {
    std::atomic<uint64_t> bits{0};
  };

  struct Peer {
    explicit Peer(uint32_t num_channels) : matches(num_channels) {}

    Matches matches;  // our receives and views, the peer's sends
    DescriptorQueue overflow;
    DescriptorRing* outbound = nullptr;  // owned by the peer's endpoint
  };

  Descriptor* Acquire(Descriptor::Kind kind, uint32_t peer, Tag tag, size_t num_bytes,
                      Request* request) {
    Descriptor* descriptor = pool_.Acquire();
    descriptor->request = request;
    descriptor->num_bytes = num_bytes;
    descriptor->sequence = tag.sequence;
    descriptor->channel = tag.channel;
    descriptor->peer = peer;
    descriptor->kind = kind;
    descriptor->phase.store(Descriptor::Phase::kQueued, std::memory_order_relaxed);
    descriptor->is_returned = false;
    request->internal = descriptor;
    return descriptor;
  }

  Peer& PeerOf(uint32_t device) {
    std::unique_ptr<Peer>& peer = peers_[device];
    if (peer == nullptr) peer = std::make_unique<Peer>(options_.num_channels);
    return *peer;
  }

  Matches::Queues& QueuesOf(uint32_t device, uint32_t channel) {
    return PeerOf(device).matches[channel];
  }

  // Hands `descriptor` to the endpoint of `device`, now or when its ring has room. The public
  // function that this is part of ends with Announce, once for any number of descriptors.
  void Push(uint32_t device, Descriptor* descriptor) {
    Peer& peer = PeerOf(device);
    if (peer.outbound == nullptr) {
      peer.outbound = new DescriptorRing;
      endpoints_[device]->inbound_[device_].store(peer.outbound, std::memory_order_release);
    }
    if (!peer.overflow.empty() || !TryPush(peer, descriptor)) peer.overflow.PushBack(descriptor);
  }

  // A send is offered just before it is published, and the sender's alone again if there was no
  // room.
  bool TryPush(Peer& peer, Descriptor* descriptor) {
    const bool is_offer = !descriptor->is_returned;
    if (is_offer) {
      descriptor->phase.store(Descriptor::Phase::kOffered, std::memory_order_relaxed);
    }
    if (peer.outbound->TryPush(descriptor)) {
      is_announcement_due_ = true;
      return true;
    }
    if (is_offer) descriptor->phase.store(Descriptor::Phase::kQueued, std::memory_order_relaxed);
    return false;
  }

  void Announce(uint32_t device) {
    if (std::exchange(is_announcement_due_, false)) endpoints_[device]->Signal(device_);
  }

  // Called by the endpoint of `from`, on its thread. The addition always happens: whether the bit
  // is set already is only known by changing the word.
  void Signal(uint32_t from) {
    const uint64_t bit = uint64_t{1} << (from % 64);
    const uint64_t before = ready_[from / 64].bits.fetch_or(bit, std::memory_order_seq_cst);
    if ((before & bit) == 0 && wakeup_) wakeup_();
  }

  // Takes what the ring from `device` holds and refills the ring to it; returns whether a request
  // of ours changed.
  bool Drain(uint32_t device) {
    bool changed = false;
    if (DescriptorRing* ring = inbound_[device].load(std::memory_order_acquire)) {
      const uint32_t count = ring->size();
      // Descriptors are in the cache of another core: all are prefetched, and later the data of the
      // next one.
      for (uint32_t i = 0; i < count; ++i) __builtin_prefetch(ring->Peek(i), /*rw=*/1);
      for (uint32_t i = 0; i < count; ++i) {
        Descriptor* descriptor = ring->Pop();
        if (i + 1 < count) __builtin_prefetch(ring->Peek(0)->data);
        changed |= descriptor->is_returned ? EndSend(descriptor) : Arrive(device, descriptor);
      }
      if (count > 0 && ring->TookSome()) is_announcement_due_ = true;
    }
    DescriptorQueue& overflow = PeerOf(device).overflow;
    while (!overflow.empty()) {
      Descriptor* descriptor = overflow.PopFront();  // once pushed, the link is the peer's
      if (!TryPush(PeerOf(device), descriptor)) {
        overflow.PushFront(descriptor);
        break;
      }
    }
    Announce(device);
    return changed;
  }

  // A send of ours has come back.
  bool EndSend(Descriptor* send) {
    Request* request = send->request;
    if (request != nullptr && send->ack == Descriptor::Ack::kDelivered) {
      Complete(request);
    } else if (request != nullptr) {
      Fail(request,
           SizeMismatch(device_, send->peer, send->channel, send->num_bytes, send->expected_bytes));
    }
    pool_.Recycle(send);
    return request != nullptr;
  }

  // A send of `source` has come; returns whether it matched.
  bool Arrive(uint32_t source, Descriptor* send) {
    Matches::Queues& queues = QueuesOf(source, send->channel);
    ReturnCancelled(source, queues);
    Descriptor* receive = queues.TakeReceive(send->sequence, [send](const Descriptor&) {
      return send->Decide(Descriptor::Phase::kTaken);
    });
    if (receive == nullptr) {
      queues.AddMessage(send);
      return false;
    }
    Deliver(source, send, receive);
    return true;
  }

  // A receive or view of ours is new.
  void Post(Descriptor* receive) {
    const uint32_t source = receive->peer;
    Matches::Queues& queues = QueuesOf(source, receive->channel);
    ReturnCancelled(source, queues);
    Descriptor* send = queues.TakeMessage(receive->sequence, [](Descriptor& message) {
      return message.Decide(Descriptor::Phase::kTaken);
    });
    if (send == nullptr) {
      queues.AddReceive(receive);
    } else {
      Deliver(source, send, receive);
    }
    Announce(source);
  }

  // Gives back sends that were cancelled before anything matched them, so that they do not pile up.
  void ReturnCancelled(uint32_t source, Matches::Queues& queues) {
    for (;;) {
      const Descriptor* first = queues.first_message();
      if (first == nullptr ||
          first->phase.load(std::memory_order_acquire) != Descriptor::Phase::kCancelled) {
        return;
      }
      Return(source, queues.RemoveFirstMessage(), Descriptor::Ack::kCancelled);
    }
  }

  // `send` is ours until it is returned, and its bytes with it.
  void Deliver(uint32_t source, Descriptor* send, Descriptor* receive) {
    Request* request = receive->request;
    if (send->num_bytes != receive->num_bytes) {
      Fail(request,
           SizeMismatch(source, device_, send->channel, send->num_bytes, receive->num_bytes));
      send->expected_bytes = receive->num_bytes;
      Return(source, send, Descriptor::Ack::kSizeMismatch);
    } else {
      counters_.CountMessage(send->num_bytes);
      request->flags = send->flags;
      request->state = Request::State::kDone;
      if (receive->kind == Descriptor::Kind::kView) {
        request->view = send->data;
        request->internal = send;
        request->internal_word = source;
      } else {
        request->internal = nullptr;
        CopyBytes(receive->data, send->data, send->num_bytes);
        Return(source, send, Descriptor::Ack::kDelivered);
      }
    }
    pool_.Recycle(receive);
  }

  void Return(uint32_t source, Descriptor* send, Descriptor::Ack ack) {
    send->ack = ack;
    send->is_returned = true;
    Push(source, send);
  }

  // Read by anyone. Written by peers: `inbound_` once, `ready_` with every push.
  const TransportOptions& options_;
  const uint32_t device_;
  const Endpoints& endpoints_;
  std::function<void()> wakeup_;
  std::vector<std::atomic<DescriptorRing*>> inbound_;
  std::vector<ReadyWord> ready_;

  // The owner's thread.
  alignas(kCacheLine) std::vector<std::unique_ptr<Peer>> peers_;
  ObjectPool<Descriptor> pool_;
  bool is_announcement_due_ = false;

  // Written by the owner, read by anyone.
  MessageCounters counters_;
};

class InprocTransport final : public Transport {
 public:
  explicit InprocTransport(const TransportOptions& options) : options_(options) {
    for (uint32_t device = 0; device < options.num_devices; ++device) {
      endpoints_.push_back(std::make_unique<InprocEndpoint>(options_, device, endpoints_));
    }
  }

  std::string name() const override { return "inproc"; }
  uint32_t num_devices() const override { return options_.num_devices; }

  absl::StatusOr<Endpoint*> OpenEndpoint(uint32_t device) override {
    if (device >= options_.num_devices) {
      return absl::InvalidArgumentError(
          StrCat("there is no device ", device, ": the transport joins ", options_.num_devices));
    }
    return endpoints_[device].get();
  }

  TransportStats stats() const override {
    TransportStats stats;
    for (const auto& endpoint : endpoints_) endpoint->AddStats(&stats);
    return stats;
  }

 private:
  const TransportOptions options_;
  Endpoints endpoints_;
};

}  // namespace

std::unique_ptr<Transport> CreateInprocTransport(const TransportOptions& options) {
  return std::make_unique<InprocTransport>(options);
}

}  // namespace penstock::transport
