// A first-in first-out list through the `next` member of its elements, which it does not own.
//
// Thread rule: none of its own.
// Invariant: an element is in one queue at a time.

#ifndef PENSTOCK_TRANSPORT_INTRUSIVE_QUEUE_H_
#define PENSTOCK_TRANSPORT_INTRUSIVE_QUEUE_H_

namespace penstock::transport {

template <typename T>
class IntrusiveQueue {
 public:
  bool empty() const { return head_ == nullptr; }
  T* front() const { return head_; }

  void PushBack(T* element) {
    element->next = nullptr;
    (tail_ == nullptr ? head_ : tail_->next) = element;
    tail_ = element;
  }

  void PushFront(T* element) {
    element->next = head_;
    head_ = element;
    if (tail_ == nullptr) tail_ = element;
  }

  // REQUIRES: not empty.
  T* PopFront() { return RemoveAfter(nullptr); }

  // The first element for which `is_it` holds; null if there is none.
  template <typename Predicate>
  T* FindFirst(Predicate is_it) const {
    T* at = head_;
    while (at != nullptr && !is_it(*at)) at = at->next;
    return at;
  }

  // Removes the first element for which `is_it` holds; null if there is none.
  template <typename Predicate>
  T* RemoveFirst(Predicate is_it) {
    T* previous = nullptr;
    for (T* at = head_; at != nullptr; previous = at, at = at->next) {
      if (is_it(*at)) return RemoveAfter(previous);
    }
    return nullptr;
  }

 private:
  // Removes the element behind `previous`, or the first one if that is null.
  T* RemoveAfter(T* previous) {
    T*& link = previous == nullptr ? head_ : previous->next;
    T* removed = link;
    link = removed->next;
    if (removed == tail_) tail_ = previous;
    return removed;
  }

  T* head_ = nullptr;
  T* tail_ = nullptr;
};

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_INTRUSIVE_QUEUE_H_
