#include "base/device.h"

#include <sched.h>
#include <sys/mman.h>

#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "base/copy_bytes.h"

namespace penstock {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

// Anonymous pages, on huge pages where the system has them: an arena's first touch costs
// microseconds a page, so it is paid here and not in the first step.
class MappedMemory : public Memory {
 public:
  MappedMemory(void* base, size_t mapped_bytes, std::byte* data, size_t num_bytes)
      : Memory(data, num_bytes), base_(base), mapped_bytes_(mapped_bytes) {}
  ~MappedMemory() override { munmap(base_, mapped_bytes_); }

 private:
  void* base_;
  size_t mapped_bytes_;
};

class DoneEvent : public Event {
 public:
  bool IsDone() const override { return true; }
  const StreamError* error() const override { return nullptr; }
};

class InlineStream : public Stream {
 public:
  void Copy(void* to, const void* from, size_t num_bytes, CopyKind) override {
    CopyBytes(to, from, num_bytes);
  }
  void Record(Event*) override {}
  void Wait(const Event*) override {}
  absl::Status Reset() override { return absl::OkStatus(); }
};

class CpuDevice : public Device {
 public:
  explicit CpuDevice(int num_threads) : pool_(num_threads) {}

  std::string kind() const override { return "cpu"; }
  bool is_synchronous() const override { return true; }

  absl::StatusOr<std::unique_ptr<Memory>> Allocate(size_t num_bytes, MemoryKind) override {
    const size_t mapped = num_bytes + kHugePageBytes;
    void* base = MAP_FAILED;
    if (mapped > num_bytes) {  // no wrap around
      base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (base == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the system has no ", num_bytes, " bytes of memory for a cpu device"));
    }
    const uintptr_t address = reinterpret_cast<uintptr_t>(base);
    const uintptr_t aligned = (address + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    auto* data = reinterpret_cast<std::byte*>(aligned);
    madvise(base, mapped, MADV_DONTDUMP);  // a crash would write all of it to the disk
    if (num_bytes >= kHugePageBytes) madvise(data, num_bytes, MADV_HUGEPAGE);
    std::memset(data, 0, num_bytes);
    return std::make_unique<MappedMemory>(base, mapped, data, num_bytes);
  }

  std::unique_ptr<Stream> CreateStream() override { return std::make_unique<InlineStream>(); }
  std::unique_ptr<Event> CreateEvent() override { return std::make_unique<DoneEvent>(); }
  ThreadPool* thread_pool() override { return &pool_; }

 private:
  ThreadPool pool_;
};

}  // namespace

int64_t SteadyClock::NowNs() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

absl::Status WaitUntilDone(Stream& stream, Event& event, int64_t timeout_ns) {
  stream.Record(&event);
  const SteadyClock clock;
  const int64_t begin_ns = clock.NowNs();
  while (!event.IsDone()) {
    if (stream.Poll()) continue;
    if (clock.NowNs() - begin_ns >= timeout_ns) {
      return absl::DeadlineExceededError(
          absl::StrCat("a stream has not done its work in ", timeout_ns / 1'000'000, " ms"));
    }
    sched_yield();
  }
  const StreamError* error = event.error();
  return error == nullptr ? absl::OkStatus() : error->status;
}

std::unique_ptr<Device> CreateCpuDevice(int num_threads) {
  return std::make_unique<CpuDevice>(num_threads);
}

}  // namespace penstock
