// A queue of elements that wait for turns on a link, or to be copied. The lowest channel is the
// most urgent and goes first, but no element waits for ever: the one that has waited longest gets a
// turn after it has been overtaken kMaxOvertaking times in a row.
//
// Example: a of channel 7 was added first, then b of channel 3; both need many turns:
//   b b ... b (kMaxOvertaking times)  a  b b ... b  a  ...
//
// So an element that needs n turns, added behind others that need m, has had them after at most
// (m + n) (kMaxOvertaking + 1) turns, whatever is added later.
//
// Element has members `next` (intrusive_queue.h) and `channel`.
//
// Thread rule: external synchronisation.

#ifndef PENSTOCK_TRANSPORT_UCX_BOUNDED_PRIORITY_QUEUE_H_
#define PENSTOCK_TRANSPORT_UCX_BOUNDED_PRIORITY_QUEUE_H_

#include <cstdint>

#include "transport/intrusive_queue.h"

namespace penstock::transport::ucx {

// Turns are chunks of 1 MiB at most: the most urgent work keeps 94 % of a link.
inline constexpr uint32_t kMaxOvertaking = 16;

template <typename Element>
class BoundedPriorityQueue {
 public:
  bool empty() const { return waiting_.empty(); }

  void Add(Element* element) { waiting_.PushBack(element); }

  // The element whose turn it is; of one channel, the first that was added.
  // REQUIRES: not empty().
  Element* First() const {
    Element* const oldest = waiting_.front();
    if (num_overtaking_ >= kMaxOvertaking) return oldest;
    Element* first = oldest;
    for (Element* other = oldest->next; other != nullptr; other = other->next) {
      if (other->channel < first->channel) first = other;
    }
    return first;
  }

  // `element`, usually First(), has a turn; it stays in the queue.
  void CountTurn(const Element* element) {
    num_overtaking_ = element == waiting_.front() ? 0 : num_overtaking_ + 1;
  }

  // First() and CountTurn in one.
  Element* TakeTurn() {
    Element* const first = First();
    CountTurn(first);
    return first;
  }

  // The oldest element for which `is_it` holds; null if there is none.
  template <typename Predicate>
  Element* FindFirst(Predicate is_it) const {
    return waiting_.FindFirst(is_it);
  }
  // Removes the first element for which `is_it` holds; null if there is none.
  template <typename Predicate>
  Element* Remove(Predicate is_it) {
    return waiting_.RemoveFirst(is_it);
  }

 private:
  IntrusiveQueue<Element> waiting_;  // the oldest first
  uint32_t num_overtaking_ = 0;      // turns since one of the oldest
};

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_BOUNDED_PRIORITY_QUEUE_H_
