// Turns for work that may wait, such as handshakes with peers that nobody knows yet: each turn
// comes when all else that is ready in the event loop has run, one at a time and in order. So
// however many peers ask for such work, what else the loop serves waits for few of them.
//
// Thread rule: the thread of the event loop.

#ifndef PENSTOCK_ACTORS_CLUSTER_TURN_QUEUE_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_TURN_QUEUE_INTERNAL_H_

#include <deque>

#include <kj/async.h>

namespace penstock::actors::control {

class TurnQueue {
 public:
  TurnQueue() = default;
  TurnQueue(const TurnQueue&) = delete;
  TurnQueue& operator=(const TurnQueue&) = delete;

  // Resolves when it is this call's turn.
  kj::Promise<void> Await() {
    auto turn = kj::newPromiseAndFulfiller<void>();
    waiting_.push_back(kj::mv(turn.fulfiller));
    if (!is_running_) {
      is_running_ = true;
      running_ = Run().eagerlyEvaluate(nullptr);
    }
    return kj::mv(turn.promise);
  }

 private:
  kj::Promise<void> Run() {
    return kj::evalLast([this]() -> kj::Promise<void> {
      if (waiting_.empty()) {
        is_running_ = false;
        return kj::READY_NOW;
      }
      waiting_.front()->fulfill();
      waiting_.pop_front();
      return Run();
    });
  }

  std::deque<kj::Own<kj::PromiseFulfiller<void>>> waiting_;
  bool is_running_ = false;
  kj::Promise<void> running_ = nullptr;
};

}  // namespace penstock::actors::control

#endif  // PENSTOCK_ACTORS_CLUSTER_TURN_QUEUE_INTERNAL_H_
