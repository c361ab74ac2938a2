#include "bench/threaded_device.h"

#include <sched.h>

#include <atomic>
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
  void OnRecord() { ++num_records_; }
  // The stream's thread.
  void OnReached() {
    num_reached_.store(num_reached_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

 private:
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

  void Launch(Work work) override { Push({work, nullptr, nullptr, 0}); }
  void Record(Event* event) override {
    auto* threaded = static_cast<ThreadedEvent*>(event);
    threaded->OnRecord();
    Push({{}, threaded, nullptr, 0});
  }
  void Wait(const Event* event) override {
    const auto* threaded = static_cast<const ThreadedEvent*>(event);
    Push({{}, nullptr, threaded, threaded->num_records()});
  }
  bool is_synchronous() const override { return false; }

 private:
  struct Entry {
    Work work;
    ThreadedEvent* recorded = nullptr;
    const ThreadedEvent* awaited = nullptr;
    uint64_t awaited_records = 0;
  };

  // Launches ahead of the thread, as a GPU's queue holds about as many.
  static constexpr size_t kCapacity = 1024;
  // Looks at an empty queue before the thread sleeps: tens of microseconds.
  static constexpr int kMaxLooks = 2000;
  static constexpr int64_t kSleepMs = 100;

  void Push(const Entry& entry) {
    // Most streams of an executor are never used.
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
    while (!entries_.TryPush(entry)) sched_yield();
    waker_.Notify();
  }

  bool is_stopping() const { return is_stopping_.load(std::memory_order_acquire); }

  void Run() {
    int looks = 0;
    while (!is_stopping()) {
      if (RunNext()) {
        looks = 0;
      } else if (++looks >= kMaxLooks) {
        looks = 0;
        waker_.PrepareSleep();
        if (entries_.Front() != nullptr || is_stopping()) {
          waker_.CancelSleep();
        } else {
          waker_.Sleep(kSleepMs);
        }
      }
    }
  }

  bool RunNext() {
    const Entry* entry = entries_.Front();
    if (entry == nullptr) return false;
    if (entry->awaited != nullptr && !entry->awaited->IsDone(entry->awaited_records)) return false;
    if (entry->work.run != nullptr) entry->work.run(entry->work.context);
    if (entry->recorded != nullptr) entry->recorded->OnReached();
    entries_.Pop();
    return true;
  }

  actors::SpscRing<Entry> entries_{kCapacity};
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
