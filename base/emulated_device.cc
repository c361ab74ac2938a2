#include "base/emulated_device.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "base/exception_text.h"
#include "base/strings.h"

namespace penstock {
namespace {

constexpr size_t kAlignment = 64;

// An allocation: its address on the device, and the host memory that holds its bytes.
struct Region {
  const std::byte* begin = nullptr;
  size_t num_bytes = 0;
  std::byte* host = nullptr;
};

// The allocations of a device.
class Regions {
 public:
  void Add(const Region& region) {
    const absl::MutexLock lock(&mutex_);
    regions_.push_back(region);
  }
  void Remove(const std::byte* begin) {
    const absl::MutexLock lock(&mutex_);
    std::erase_if(regions_, [begin](const Region& region) { return region.begin == begin; });
  }
  // The host address of `num_bytes` bytes at `data`, or null unless they lie in one allocation.
  std::byte* Find(const void* data, size_t num_bytes) const {
    const absl::MutexLock lock(&mutex_);
    const auto* byte = static_cast<const std::byte*>(data);
    for (const Region& region : regions_) {
      if (byte < region.begin || byte > region.begin + region.num_bytes) continue;
      const auto offset = static_cast<size_t>(byte - region.begin);
      if (num_bytes <= region.num_bytes - offset) return region.host + offset;
    }
    return nullptr;
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<Region> regions_ ABSL_GUARDED_BY(mutex_);
};

// Heap memory, so that AddressSanitizer detects accesses beyond its ends.
using Bytes = std::unique_ptr<std::byte[], void (*)(std::byte*)>;

Bytes AllocateBytes(size_t num_bytes) {
  auto* bytes = static_cast<std::byte*>(
      ::operator new[](num_bytes, std::align_val_t{kAlignment}, std::nothrow));
  if (bytes != nullptr) std::memset(bytes, 0, num_bytes);
  return {bytes, [](std::byte* data) { ::operator delete[](data, std::align_val_t{kAlignment}); }};
}

class EmulatedMemory : public Memory {
 public:
  // `pages`: the inaccessible pages that give the memory its address, or null.
  EmulatedMemory(void* pages, size_t mapped_bytes, Bytes bytes, size_t num_bytes,
                 std::shared_ptr<Regions> regions)
      : Memory(pages == nullptr ? bytes.get() : static_cast<std::byte*>(pages), num_bytes),
        pages_(pages),
        mapped_bytes_(mapped_bytes),
        bytes_(std::move(bytes)),
        regions_(std::move(regions)) {
    regions_->Add({data(), num_bytes, bytes_.get()});
  }
  ~EmulatedMemory() override {
    regions_->Remove(data());
    if (pages_ != nullptr) munmap(pages_, mapped_bytes_);
  }

 private:
  void* const pages_;
  const size_t mapped_bytes_;
  const Bytes bytes_;
  const std::shared_ptr<Regions> regions_;
};

class EventImpl : public Event {
 public:
  bool IsDone() const override { return IsDone(num_records_); }
  const StreamError* error() const override { return has_error_ ? &error_ : nullptr; }
  int64_t NsSince(const Event& earlier) const override {
    return reached_ns_ - static_cast<const EventImpl&>(earlier).reached_ns_;
  }

  bool IsDone(uint64_t num_records) const {
    return num_reached_.load(std::memory_order_acquire) >= num_records;
  }
  uint64_t num_records() const { return num_records_; }
  void CountRecord() { ++num_records_; }

  // Called when the stream reaches the event.
  void Reach(const StreamError* error) {
    has_error_ = error != nullptr;
    if (has_error_) error_ = *error;
    reached_ns_ = SteadyClock().NowNs();
    num_reached_.store(num_reached_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

 private:
  uint64_t num_records_ = 0;  // used by the recording thread only
  bool has_error_ = false;
  StreamError error_;
  int64_t reached_ns_ = 0;
  std::atomic<uint64_t> num_reached_{0};
};

enum class Action : uint8_t { kRun, kCopy, kRecord, kWait, kReset };

struct Entry {
  Action action = Action::kRun;
  bool has_begun = false;  // EmulatedRun::retry was called
  EmulatedRun run;
  void* to = nullptr;
  const void* from = nullptr;
  size_t num_bytes = 0;
  CopyKind kind = CopyKind::kHostToDevice;
  EventImpl* event = nullptr;
  uint64_t num_records = 0;
};

struct EmulatedGraph : StreamGraph {
  std::vector<Entry> entries;
};

class StreamImpl;

// The state that the device, its streams and its thread share.
class Core {
 public:
  explicit Core(const EmulatedDeviceOptions& options)
      : has_thread_(options.has_thread), random_(options.seed) {
    if (has_thread_) thread_ = std::thread([this] { Work(); });
  }
  ~Core() {
    if (!thread_.joinable()) return;
    is_stopping_.store(true, std::memory_order_release);
    Wake();
    thread_.join();
  }

  void Add(StreamImpl* stream) {
    const PriorityLock lock(this);
    streams_.push_back(stream);
  }
  void Remove(StreamImpl* stream) {
    const PriorityLock lock(this);
    std::erase(streams_, stream);
  }

  void Wake() {
    if (!has_thread_) return;
    num_wakes_.fetch_add(1, std::memory_order_release);
    num_wakes_.notify_one();
  }
  // Runs some of the stream's work if the device has no thread. Returns whether anything ran.
  bool Poll(StreamImpl* stream);
  // Waits until the stream's ring has room.
  void MakeRoom(StreamImpl* stream);

  const std::shared_ptr<Regions>& regions() const { return regions_; }

 private:
  // How often the thread polls before it sleeps: tens of microseconds.
  static constexpr int kMaxLooks = 2000;

  // Holds the device's mutex for a scope; the device's thread gives way.
  class ABSL_SCOPED_LOCKABLE PriorityLock {
   public:
    explicit PriorityLock(Core* core) ABSL_EXCLUSIVE_LOCK_FUNCTION(core->mutex_) : core_(core) {
      ++core_->num_waiters_;
      core_->mutex_.Lock();
    }
    ~PriorityLock() ABSL_UNLOCK_FUNCTION() {
      core_->mutex_.Unlock();
      --core_->num_waiters_;
    }
    PriorityLock(const PriorityLock&) = delete;
    PriorityLock& operator=(const PriorityLock&) = delete;

   private:
    Core* const core_;
  };

  void Work();
  bool RunSome();

  const bool has_thread_;
  const std::shared_ptr<Regions> regions_ = std::make_shared<Regions>();
  std::atomic<int> num_waiters_{0};  // that hold or want a PriorityLock
  std::atomic<uint32_t> num_wakes_{0};
  std::atomic<bool> is_stopping_{false};
  absl::Mutex mutex_;  // held while work runs
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  std::vector<StreamImpl*> streams_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// A ring between the stream's owner, which pushes work, and the thread that runs it.
class StreamImpl : public EmulatedStream {
 public:
  explicit StreamImpl(std::shared_ptr<Core> core) : core_(std::move(core)), entries_(kCapacity) {
    core_->Add(this);
  }
  ~StreamImpl() override { core_->Remove(this); }

  EmulatedRun& BeginLaunch() override {
    Entry& entry = Next(Action::kRun);
    entry.has_begun = false;
    entry.run.retry = nullptr;
    entry.run.step_value = -1;
    return entry.run;
  }
  void EndLaunch() override { Push(); }

  void Copy(void* to, const void* from, size_t num_bytes, CopyKind kind) override {
    if (num_bytes == 0) return;
    Entry& entry = Next(Action::kCopy);
    entry.to = to;
    entry.from = from;
    entry.num_bytes = num_bytes;
    entry.kind = kind;
    Push();
  }

  void Record(Event* event) override {
    Entry& entry = Next(Action::kRecord);
    entry.event = static_cast<EventImpl*>(event);
    if (capture_ == nullptr) entry.event->CountRecord();
    Push();
  }

  void Wait(const Event* event) override {
    Entry& entry = Next(Action::kWait);
    entry.event = static_cast<EventImpl*>(const_cast<Event*>(event));
    entry.num_records = entry.event->num_records();
    Push();
  }

  absl::Status Reset() override {
    Next(Action::kReset);
    Push();
    return absl::OkStatus();
  }

  absl::Status BeginCapture() override {
    capture_ = std::make_unique<EmulatedGraph>();
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<StreamGraph>> EndCapture() override {
    std::unique_ptr<EmulatedGraph> graph = std::move(capture_);
    for (const Entry& entry : graph->entries) {
      const bool is_run = entry.action == Action::kRun && entry.run.retry == nullptr;
      if (!is_run && entry.action != Action::kCopy) {
        return absl::FailedPreconditionError("graphs hold kernels and copies alone");
      }
    }
    return graph;
  }
  void Launch(StreamGraph& graph, const GraphOffsets& offsets) override {
    for (const Entry& captured : static_cast<EmulatedGraph&>(graph).entries) {
      Entry& entry = Next(captured.action);
      entry = captured;  // into memory that the ring's entry has
      EmulatedRun& run = entry.run;
      if (run.launch != kNoLaunch) run.launch += offsets.launch;
      if (run.step_value >= 0) run.values[static_cast<size_t>(run.step_value)] += offsets.step;
      Push();
    }
  }

  bool Poll() override { return core_->Poll(this); }

  // Runs the oldest entry. Returns false if there is none or it waits for an event.
  // REQUIRES: the device's mutex is held.
  bool RunOne() {
    const size_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return false;
    Entry& entry = entries_[head % kCapacity];
    if (entry.action == Action::kWait && !entry.event->IsDone(entry.num_records)) return false;
    if (entry.action == Action::kRun && entry.run.retry != nullptr) {
      if (!Retry(&entry)) return false;
    } else {
      Run(entry);
    }
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

  bool is_full() const {
    return tail_.load(std::memory_order_relaxed) - head_.load(std::memory_order_acquire) ==
           kCapacity;
  }

 private:
  // About the depth of a GPU's queue.
  static constexpr size_t kCapacity = 1024;

  Entry& Next(Action action) {
    if (capture_ != nullptr) {
      Entry& captured = capture_->entries.emplace_back();
      captured.action = action;
      return captured;
    }
    if (is_full()) core_->MakeRoom(this);
    Entry& entry = entries_[tail_.load(std::memory_order_relaxed) % kCapacity];
    entry.action = action;
    return entry;
  }

  void Push() {
    if (capture_ != nullptr) return;
    tail_.store(tail_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    core_->Wake();
  }

  void Run(Entry& entry) {
    switch (entry.action) {
      case Action::kRun:
        if (!has_error_) Call(&entry.run);
        break;
      case Action::kCopy:
        if (!has_error_) RunCopy(entry);
        break;
      case Action::kRecord:
        entry.event->Reach(has_error_ ? &error_ : nullptr);
        break;
      case Action::kWait:
        if (!has_error_ && entry.event->error() != nullptr) {
          has_error_ = true;
          error_ = *entry.event->error();
        }
        break;
      case Action::kReset:
        has_error_ = false;
        break;
    }
  }

  // Replaces the run's pointers by where the host has their bytes.
  absl::Status FindBytes(EmulatedRun* run) {
    for (size_t i = 0; i < run->pointers.size(); ++i) {
      if (run->pointers[i] == nullptr) continue;
      void* host = core_->regions()->Find(run->pointers[i], 0);
      if (host == nullptr) {
        return absl::InternalError(StrCat("argument ", i, " is no memory of the device"));
      }
      run->pointers[i] = host;
    }
    return absl::OkStatus();
  }

  bool Retry(Entry* entry) {
    EmulatedRun& run = entry->run;
    if (!entry->has_begun) {
      entry->has_begun = true;
      if (absl::Status found = FindBytes(&run); !found.ok()) Fail(std::move(found), run.launch);
    }
    absl::Status status;
    if (!run.retry(run.context, run, has_error_, &status)) return false;
    if (!status.ok() && !has_error_) Fail(std::move(status), run.launch);
    return true;
  }

  void Call(EmulatedRun* run) {
    if (absl::Status found = FindBytes(run); !found.ok()) {
      Fail(std::move(found), run->launch);
      return;
    }
    absl::Status status;
    try {
      status = run->function(run->context, *run);
    } catch (...) {
      status = absl::InternalError(StrCat("its kernel threw: ", ExceptionText()));
    }
    if (!status.ok()) Fail(std::move(status), run->launch);
  }

  void RunCopy(const Entry& entry) {
    void* to = entry.to;
    const void* from = entry.from;
    if (entry.kind != CopyKind::kDeviceToHost) to = core_->regions()->Find(to, entry.num_bytes);
    if (entry.kind != CopyKind::kHostToDevice) from = core_->regions()->Find(from, entry.num_bytes);
    if (to == nullptr || from == nullptr) {
      Fail(absl::InternalError(StrCat("a copy of ", entry.num_bytes, " bytes ",
                                      to == nullptr ? "to" : "from",
                                      " what is no memory of the device")),
           kNoLaunch);
      return;
    }
    std::memmove(to, from, entry.num_bytes);
  }

  void Fail(absl::Status status, uint64_t launch) {
    has_error_ = true;
    error_ = {std::move(status), launch};
  }

  const std::shared_ptr<Core> core_;
  std::vector<Entry> entries_;
  std::unique_ptr<EmulatedGraph> capture_;  // null: the stream captures nothing
  alignas(64) std::atomic<size_t> tail_{0};
  alignas(64) std::atomic<size_t> head_{0};
  // Used while the device's mutex is held:
  bool has_error_ = false;
  StreamError error_;
};

bool Core::Poll(StreamImpl* stream) {
  if (has_thread_) return false;
  const PriorityLock lock(this);
  bool has_moved = false;
  while ((random_() & 3) == 0 && stream->RunOne()) has_moved = true;
  return has_moved;
}

void Core::MakeRoom(StreamImpl* stream) {
  while (stream->is_full()) {
    if (has_thread_) {
      sched_yield();
    } else {
      // Run every stream, because this one may wait for others.
      const PriorityLock lock(this);
      for (StreamImpl* any : streams_) any->RunOne();
    }
  }
}

bool Core::RunSome() {
  const absl::MutexLock lock(&mutex_);
  if (streams_.empty()) return false;
  const size_t first = random_() % streams_.size();
  bool has_moved = false;
  for (size_t i = 0; i < streams_.size(); ++i) {
    // A few entries at a time, so that streams interleave.
    StreamImpl* stream = streams_[(first + i) % streams_.size()];
    for (uint64_t count = 1 + random_() % 16; count > 0 && stream->RunOne(); --count) {
      has_moved = true;
    }
  }
  return has_moved;
}

void Core::Work() {
  int looks = 0;
  while (!is_stopping_.load(std::memory_order_acquire)) {
    const uint32_t seen = num_wakes_.load(std::memory_order_acquire);
    while (num_waiters_.load(std::memory_order_relaxed) > 0) sched_yield();
    if (RunSome()) {
      looks = 0;
    } else if (++looks >= kMaxLooks) {
      looks = 0;
      num_wakes_.wait(seen, std::memory_order_acquire);
    }
  }
}

class DeviceImpl : public EmulatedDevice {
 public:
  explicit DeviceImpl(const EmulatedDeviceOptions& options)
      : core_(std::make_shared<Core>(options)),
        host_device_(CreateCpuDevice(1)),
        host_stream_(host_device_->CreateStream()) {}

  std::string kind() const override { return "emulated"; }
  bool is_synchronous() const override { return false; }

  absl::StatusOr<std::unique_ptr<Memory>> Allocate(size_t num_bytes, MemoryKind kind) override {
    constexpr size_t kMost = size_t{1} << 46;  // of address space
    constexpr size_t kPageBytes = 4096;
    // One more page, so that the address just behind the end belongs to no other allocation.
    const size_t mapped_bytes = (num_bytes / kPageBytes + 2) * kPageBytes;
    void* pages = nullptr;
    Bytes bytes(nullptr, [](std::byte*) {});
    if (num_bytes <= kMost) bytes = AllocateBytes(num_bytes);
    if (bytes != nullptr && kind == MemoryKind::kDevice) {
      pages = mmap(nullptr, mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
      if (pages == MAP_FAILED) bytes = nullptr;
    }
    if (bytes == nullptr) {
      return absl::ResourceExhaustedError(
          StrCat("the system has no ", num_bytes, " bytes of memory for an emulated device"));
    }
    return std::make_unique<EmulatedMemory>(pages, mapped_bytes, std::move(bytes), num_bytes,
                                            core_->regions());
  }

  std::unique_ptr<Stream> CreateStream() override { return std::make_unique<StreamImpl>(core_); }
  std::unique_ptr<Event> CreateEvent() override { return std::make_unique<EventImpl>(); }

  void Wake() override { core_->Wake(); }

  Device& host_device() override { return *host_device_; }
  Stream& host_stream() override { return *host_stream_; }

 private:
  const std::shared_ptr<Core> core_;
  const std::unique_ptr<Device> host_device_;
  const std::unique_ptr<Stream> host_stream_;
};

}  // namespace

std::unique_ptr<EmulatedDevice> EmulatedDevice::Create(const EmulatedDeviceOptions& options) {
  return std::make_unique<DeviceImpl>(options);
}

}  // namespace penstock
