#include "cli/memory_samples.h"

#include <utility>

#include "base/device.h"
#include "base/start_thread.h"

namespace penstock::cli {
namespace {

// For those that do not answer.
constexpr absl::Duration kSampleTimeout = absl::Milliseconds(300);

}  // namespace

MemorySampler::MemorySampler(std::shared_ptr<actors::Inspector> inspector, absl::Duration interval,
                             size_t max_samples)
    : inspector_(std::move(inspector)), max_samples_(max_samples), interval_(interval) {
  // Training goes on without samples where there is no thread for them.
  auto thread = StartThread("samples of memory", [this] { Loop(); });
  if (thread.ok()) thread_ = *std::move(thread);
}

MemorySampler::~MemorySampler() { Finish(); }

void MemorySampler::Sample() {
  // Processes look at their memory at once; what takes time are devices that do not answer.
  const int64_t begin_ns = SteadyClock().NowNs();
  const absl::StatusOr<actors::EngineSnapshot> snapshot = inspector_->Inspect(kSampleTimeout);
  if (!snapshot.ok()) return;
  const absl::MutexLock lock(&mutex_);
  bool is_full = false;
  for (const actors::ProcessSnapshot& process : snapshot->processes) {
    if (!process.answers || process.resident_bytes == 0) continue;
    std::vector<actors::UseSample>& samples = samples_[process.rank];
    samples.push_back({begin_ns, static_cast<int64_t>(process.resident_bytes)});
    is_full |= samples.size() >= max_samples_;
  }
  if (!is_full) return;
  interval_ *= 2;
  for (auto& [rank, samples] : samples_) {
    size_t kept = 0;
    for (size_t i = 0; i < samples.size(); i += 2) samples[kept++] = samples[i];
    samples.resize(kept);
  }
}

void MemorySampler::Loop() {
  absl::Duration interval;
  do {
    Sample();
    const absl::MutexLock lock(&mutex_);
    interval = interval_;
  } while (!is_over_.WaitForNotificationWithTimeout(interval));
}

MemorySamples MemorySampler::Finish() {
  if (!is_over_.HasBeenNotified()) {
    is_over_.Notify();
    if (thread_.joinable()) thread_.join();
    Sample();
  }
  const absl::MutexLock lock(&mutex_);
  return samples_;
}

}  // namespace penstock::cli
