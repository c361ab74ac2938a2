#include "bench/threaded_device.h"

#include <sched.h>

#include <atomic>
#include <deque>
#include <thread>

#include "actors/spsc_ring.h"
#include "actors/waker.h"

namespace penstock::bench {
namespace {

class ThreadedEvent : public Event {
 public:
  bool IsDone() const override { return IsDone(num_records_); }
  bool IsDone(uint64_t num_records) const {
    return num_reached_.load(std::memory_order_acquire) >= num_records;
  }
  uint64_t num_records() const { return num_records_; }

  // To be run when the stream comes to it.
  Work Record() {
    ++num_records_;
    return {&Reach, this};
  }

 private:
  static void Reach(void* event) {
    std::atomic<uint64_t>& num_reached = static_cast<ThreadedEvent*>(event)->num_reached_;
    num_reached.store(num_reached.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  uint64_t num_records_ = 0;
  std::atomic<uint64_t> num_reached_{0};
};

class ThreadedStream : public Stream {
 public:
  ~ThreadedStream() override {
    if (!thread_.joinable()) return;
    is_stopping_.store(true, std::memory_order_release);
    waker_.Notify();
    thread_.join();
  }

  void Launch(Work work) override {
    // Most streams of an executor are never used.
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
    while (!queue_.TryPush(work)) sched_yield();
    waker_.Notify();
  }
  void Record(Event* event) override { Launch(static_cast<ThreadedEvent*>(event)->Record()); }
  void Wait(const Event* event) override {
    const auto* threaded = static_cast<const ThreadedEvent*>(event);
    awaits_.push_back({this, threaded, threaded->num_records()});
    Launch({&RunAwait, &awaits_.back()});
  }
  bool is_synchronous() const override { return false; }

 private:
  struct Await {
    const ThreadedStream* stream = nullptr;
    const ThreadedEvent* event = nullptr;
    uint64_t num_records = 0;
  };

  // Launches ahead of the thread, about as many as a GPU's queue holds.
  static constexpr size_t kCapacity = 1024;
  // Looks at an empty queue before the thread sleeps: tens of microseconds.
  static constexpr int kMaxLooks = 2000;
  static constexpr int64_t kSleepMs = 100;

  bool is_stopping() const { return is_stopping_.load(std::memory_order_acquire); }

  static void RunAwait(void* context) {
    const Await& await = *static_cast<const Await*>(context);
    while (!await.event->IsDone(await.num_records) && !await.stream->is_stopping()) sched_yield();
  }

  void Run() {
    int looks = 0;
    while (!is_stopping()) {
      if (const Work* front = queue_.Front()) {
        const Work work = *front;
        queue_.Pop();
        work.run(work.context);
        looks = 0;
      } else if (++looks >= kMaxLooks) {
        looks = 0;
        waker_.PrepareSleep();
        if (queue_.Front() != nullptr || is_stopping()) {
          waker_.CancelSleep();
        } else {
          waker_.Sleep(kSleepMs);
        }
      }
    }
  }

  actors::SpscRing<Work> queue_{kCapacity};
  std::deque<Await> awaits_;
  actors::Waker waker_;
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

class ThreadedDevice : public Device {
 public:
  std::string kind() const override { return "threaded"; }
  absl::StatusOr<std::unique_ptr<Memory>> Allocate(size_t num_bytes, MemoryKind kind) override {
    return memory_->Allocate(num_bytes, kind);
  }
  std::unique_ptr<Stream> CreateStream() override { return std::make_unique<ThreadedStream>(); }
  std::unique_ptr<Event> CreateEvent() override { return std::make_unique<ThreadedEvent>(); }

 private:
  const std::unique_ptr<Device> memory_ = CreateCpuDevice(1);
};

}  // namespace

std::unique_ptr<Device> CreateThreadedDevice() { return std::make_unique<ThreadedDevice>(); }

}  // namespace penstock::bench
