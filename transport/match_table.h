// Message matching: which receive takes which message of one source.
//
// A MatchTable has two queues for every channel: posted receives, which wait for a message, and
// unexpected messages, which arrived before their receive was posted. A new message takes the first
// posted receive with its sequence number, a new receive the first unexpected message; what finds
// no match joins its own queue. So at most one of the two queues holds a given sequence number,
// unless a match was declined.
//
// The queues are short, at most the few chunks of one collective, and are searched from the front.
// They lie in pages of channels that are allocated when first used, because a source uses few of
// the channels of a plan.
//
// Receive and Message have members `next` (intrusive_queue.h) and `sequence`.
//
// Thread rule: external synchronisation.
// Invariant: allocates only when a channel of a new page is used for the first time.

#ifndef PENSTOCK_TRANSPORT_MATCH_TABLE_H_
#define PENSTOCK_TRANSPORT_MATCH_TABLE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/intrusive_queue.h"

namespace penstock::transport {

// The two queues of one channel. A call that takes or removes returns null if nothing fits.
template <typename Receive, typename Message>
class MatchQueues {
 public:
  // Removes the first posted receive with `sequence` for which `accept(receive)` holds.
  template <typename Accept>
  Receive* TakeReceive(uint64_t sequence, const Accept& accept) {
    return posted_.RemoveFirst([sequence, &accept](Receive& receive) {
      return receive.sequence == sequence && accept(receive);
    });
  }
  Receive* TakeReceive(uint64_t sequence) {
    return TakeReceive(sequence, [](const Receive&) { return true; });
  }

  // Removes the first unexpected message with `sequence` for which `accept(message)` holds.
  template <typename Accept>
  Message* TakeMessage(uint64_t sequence, const Accept& accept) {
    return unexpected_.RemoveFirst([sequence, &accept](Message& message) {
      return message.sequence == sequence && accept(message);
    });
  }
  Message* TakeMessage(uint64_t sequence) {
    return TakeMessage(sequence, [](const Message&) { return true; });
  }

  void AddReceive(Receive* receive) { posted_.PushBack(receive); }
  void AddMessage(Message* message) { unexpected_.PushBack(message); }

  // Returns false if `receive` is not posted: a message has taken it.
  bool RemoveReceive(const Receive* receive) {
    return posted_.RemoveFirst([receive](const Receive& other) { return &other == receive; });
  }
  void RemoveAllReceives() { posted_ = {}; }

  // The message that arrived first.
  Message* first_message() const { return unexpected_.front(); }
  // Removes the first message for which `is_it(message)` holds.
  template <typename Predicate>
  Message* RemoveMessage(const Predicate& is_it) {
    return unexpected_.RemoveFirst(is_it);
  }
  Message* RemoveFirstMessage() { return unexpected_.empty() ? nullptr : unexpected_.PopFront(); }

 private:
  IntrusiveQueue<Receive> posted_;
  IntrusiveQueue<Message> unexpected_;
};

template <typename Receive, typename Message>
class MatchTable {
 public:
  using Queues = MatchQueues<Receive, Message>;

  explicit MatchTable(uint32_t num_channels)
      : pages_((num_channels + kPageChannels - 1) / kPageChannels) {}

  // REQUIRES: channel < num_channels.
  Queues& operator[](uint32_t channel) {
    std::unique_ptr<Page>& page = pages_[channel / kPageChannels];
    if (page == nullptr) page = std::make_unique<Page>();
    return (*page)[channel % kPageChannels];
  }

  // Calls `visit(queues)` for every channel that may have been used.
  template <typename Visit>
  void ForEach(const Visit& visit) {
    for (const std::unique_ptr<Page>& page : pages_) {
      if (page == nullptr) continue;
      for (Queues& queues : *page) visit(queues);
    }
  }

 private:
  static constexpr uint32_t kPageChannels = 64;
  using Page = std::array<Queues, kPageChannels>;

  std::vector<std::unique_ptr<Page>> pages_;
};

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_MATCH_TABLE_H_
