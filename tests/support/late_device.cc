#include "tests/support/late_device.h"

#include <deque>
#include <vector>

namespace penstock::testing {
namespace {

class HeapMemory : public Memory {
 public:
  explicit HeapMemory(size_t num_bytes, std::unique_ptr<std::byte[], void (*)(std::byte*)> bytes)
      : Memory(bytes.get(), num_bytes), bytes_(std::move(bytes)) {}

 private:
  std::unique_ptr<std::byte[], void (*)(std::byte*)> bytes_;
};

class LateEvent : public Event {
 public:
  bool IsDone() const override { return records_done_ == records_; }
  void OnRecord() { ++records_; }
  void OnReached() { ++records_done_; }

 private:
  int64_t records_ = 0;
  int64_t records_done_ = 0;
};

class LateStream : public Stream {
 public:
  explicit LateStream(std::mt19937_64* random) : random_(random) {}

  void Launch(Work work) override { queue_.push_back({work, nullptr, nullptr}); }
  void Record(Event* event) override {
    auto* late = static_cast<LateEvent*>(event);
    late->OnRecord();
    queue_.push_back({{}, late, nullptr});
  }
  void Wait(const Event* event) override { queue_.push_back({{}, nullptr, event}); }
  bool is_synchronous() const override { return false; }

  bool Poll() override {
    bool has_moved = false;
    while (!queue_.empty() && ((*random_)() & 3) == 0) {
      const Entry entry = queue_.front();
      if (entry.awaited != nullptr && !entry.awaited->IsDone()) break;
      queue_.pop_front();
      if (entry.work.run != nullptr) entry.work.run(entry.work.context);
      if (entry.recorded != nullptr) entry.recorded->OnReached();
      has_moved = true;
    }
    return has_moved;
  }

 private:
  struct Entry {
    Work work;
    LateEvent* recorded = nullptr;
    const Event* awaited = nullptr;
  };

  std::mt19937_64* random_;
  std::deque<Entry> queue_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Memory>> LateDevice::Allocate(size_t num_bytes, MemoryKind) {
  constexpr size_t kAlignment = 64;
  auto* data = static_cast<std::byte*>(
      ::operator new[](num_bytes + kAlignment, std::align_val_t{kAlignment}));
  std::fill(data, data + num_bytes, std::byte{0});
  return std::make_unique<HeapMemory>(
      num_bytes, std::unique_ptr<std::byte[], void (*)(std::byte*)>(data, [](std::byte* bytes) {
        ::operator delete[](bytes, std::align_val_t{kAlignment});
      }));
}

std::unique_ptr<Stream> LateDevice::CreateStream() {
  return std::make_unique<LateStream>(&random_);
}
std::unique_ptr<Event> LateDevice::CreateEvent() { return std::make_unique<LateEvent>(); }

}  // namespace penstock::testing
