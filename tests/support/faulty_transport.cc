#include "tests/support/faulty_transport.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/await.h"

namespace penstock::testing {
namespace {

using transport::Endpoint;
using transport::Request;
using transport::Tag;
using transport::Transport;
using transport::TransportStats;

using SteadyTime = std::chrono::steady_clock::time_point;

// Calls wake-ups at given times, on a thread of its own. Thread-safe.
class WakeupTimer {
 public:
  WakeupTimer() : thread_([this] { Run(); }) {}
  ~WakeupTimer() {
    {
      const absl::MutexLock lock(&mutex_);
      is_ending_ = true;
    }
    thread_.join();
  }

  // `wakeup` outlives the timer.
  void CallAt(SteadyTime time, const std::function<void()>* wakeup) {
    const absl::MutexLock lock(&mutex_);
    calls_.emplace(time, wakeup);
  }

 private:
  void Run() {
    const absl::MutexLock lock(&mutex_);
    while (!is_ending_) {
      const SteadyTime next = calls_.empty() ? SteadyTime::max() : calls_.begin()->first;
      const SteadyTime now = std::chrono::steady_clock::now();
      if (now < next) {
        const auto has_changed = [this, next]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return is_ending_ || (!calls_.empty() && calls_.begin()->first < next);
        };
        (void)AwaitFor(absl::Condition(&has_changed),
                       calls_.empty() ? absl::InfiniteDuration() : absl::FromChrono(next - now),
                       &mutex_);
      } else {
        const std::function<void()>* wakeup = calls_.begin()->second;
        calls_.erase(calls_.begin());
        mutex_.Unlock();
        (*wakeup)();
        mutex_.Lock();
      }
    }
  }

  absl::Mutex mutex_;
  std::multimap<SteadyTime, const std::function<void()>*> calls_ ABSL_GUARDED_BY(mutex_);
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

class FaultyEndpoint final : public Endpoint {
 public:
  // `timer` may be null where nothing is slow.
  FaultyEndpoint(Endpoint* inner, uint32_t device, const FaultOptions& options, WakeupTimer* timer)
      : inner_(inner),
        device_(device),
        options_(options),
        timer_(timer),
        random_(options.seed + device) {}

  uint32_t generation() const override { return inner_->generation(); }

  void Send(uint32_t peer, Tag tag, const void* data, size_t num_bytes, uint32_t flags,
            Request* request) override {
    if (Held* held = Hold(peer, tag, true, request)) {
      if (options_.checks_sent_bytes) {
        held->sent = {static_cast<const char*>(data), num_bytes};
        held->sent_hash = std::hash<std::string_view>()(held->sent);
      }
      inner_->Send(peer, tag, data, num_bytes, flags, &held->inner);
    }
  }

  void Recv(uint32_t peer, Tag tag, void* data, size_t num_bytes, Request* request) override {
    if (Held* held = Hold(peer, tag, false, request)) {
      inner_->Recv(peer, tag, data, num_bytes, &held->inner);
    }
  }

  bool can_view() const override { return options_.views == Views::kAll && inner_->can_view(); }
  bool CanView(uint32_t peer) const override {
    const bool is_shown = options_.views == Views::kAll ||
                          (options_.views == Views::kOfLikeParity && (device_ ^ peer) % 2 == 0);
    return is_shown && inner_->CanView(peer);
  }

  void View(uint32_t peer, Tag tag, size_t num_bytes, Request* request) override {
    if (Held* held = Hold(peer, tag, false, request)) {
      held->is_view = true;
      inner_->View(peer, tag, num_bytes, &held->inner);
    }
  }

  void Release(Request* request) override {
    auto* held = static_cast<Held*>(std::exchange(request->internal, nullptr));
    request->view = nullptr;
    inner_->Release(&held->inner);
    free_.push_back(held);
  }

  void Cancel(Request* request) override {
    if (request->state != Request::State::kPending) return;
    auto* held = static_cast<Held*>(request->internal);
    if (held->inner.state != Request::State::kPending) return;  // over, though not told yet
    inner_->Cancel(&held->inner);
    if (held->inner.state == Request::State::kPending) return;
    std::erase(pending_, held);
    End(held);
  }

  bool Progress() override {
    if (options_.while_pending &&
        std::any_of(pending_.begin(), pending_.end(),
                    [](const Held* held) { return !held->inner.is_done(); })) {
      options_.while_pending();
    }
    inner_->Progress();
    std::shuffle(pending_.begin(), pending_.end(), random_);
    std::vector<Held*> ended;
    std::erase_if(pending_, [&](Held* held) {
      const bool is_over = held->inner.is_done() && !IsSlow(held) && held->delay-- <= 0;
      if (is_over) ended.push_back(held);
      return is_over;
    });
    for (Held* held : ended) End(held);
    const bool is_holding = std::any_of(pending_.begin(), pending_.end(), [](Held* held) {
      return held->inner.is_done() && held->slow_time.count() == 0;
    });
    if (is_holding && wakeup_) wakeup_();  // the owner must not sleep on what is held back here
    return !ended.empty();
  }

  void PrepareSleep() override { inner_->PrepareSleep(); }
  int PrepareSleepOnArrivals() override { return inner_->PrepareSleepOnArrivals(); }

  void SetWakeup(std::function<void()> wakeup) override {
    wakeup_ = wakeup;
    inner_->SetWakeup(std::move(wakeup));
  }

 private:
  struct Held {
    Request inner;
    Request* outer = nullptr;
    int delay = 0;
    std::chrono::nanoseconds slow_time{0};  // to come, from the end of `inner` on
    SteadyTime slow_until;                  // once `inner` is over
    bool is_view = false;
    std::string_view sent;  // of a send
    size_t sent_hash = 0;
  };

  // Whether the request, which is over, is still held back by time.
  bool IsSlow(Held* held) {
    if (held->slow_time.count() == 0) return false;
    const SteadyTime now = std::chrono::steady_clock::now();
    if (held->slow_until == SteadyTime()) {
      held->slow_until = now + held->slow_time;
      timer_->CallAt(held->slow_until, &wakeup_);
    }
    if (now < held->slow_until) return true;
    held->slow_time = {};
    return false;
  }

  // Null if the request is to fail.
  Held* Hold(uint32_t peer, Tag tag, bool is_send, Request* request) {
    if (free_.empty()) {
      held_.emplace_back();
      free_.push_back(&held_.back());
    }
    Held* held = free_.back();
    free_.pop_back();
    held->outer = request;
    held->is_view = false;
    held->sent = {};
    held->sent_hash = std::hash<std::string_view>()(held->sent);
    held->delay = std::uniform_int_distribution<int>(0, options_.max_delay)(random_);
    held->slow_until = SteadyTime();
    held->slow_time = {};
    if (timer_ != nullptr &&
        std::uniform_int_distribution<int>(1, options_.slow_one_in)(random_) == 1) {
      held->slow_time = std::chrono::nanoseconds(
          std::uniform_int_distribution<int64_t>(1, options_.max_slow_time.count())(random_));
    }
    request->state = Request::State::kPending;
    request->flags = 0;
    request->view = nullptr;
    request->status = absl::OkStatus();
    request->internal = held;
    pending_.push_back(held);
    if (wakeup_) wakeup_();  // the inner request may be over already
    if (!options_.fail) return held;
    held->inner.status = options_.fail({device_, peer, tag, is_send});
    if (held->inner.status.ok()) return held;
    held->inner.state = Request::State::kFailed;
    return nullptr;
  }

  void End(Held* held) {
    Request* request = held->outer;
    request->flags = held->inner.flags;
    request->view = held->inner.view;
    request->status = held->inner.status;
    request->state = held->inner.state;
    if (request->state == Request::State::kDone &&
        std::hash<std::string_view>()(held->sent) != held->sent_hash) {
      request->state = Request::State::kFailed;
      request->status = absl::InternalError("the bytes of a send changed before it was done");
    }
    if (held->is_view && request->state == Request::State::kDone) return;  // until Release
    request->internal = nullptr;
    free_.push_back(held);
  }

  Endpoint* inner_;
  const uint32_t device_;
  const FaultOptions& options_;
  WakeupTimer* const timer_;
  std::mt19937_64 random_;
  std::function<void()> wakeup_;
  std::deque<Held> held_;
  std::vector<Held*> free_;
  std::vector<Held*> pending_;
};

class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, FaultOptions options)
      : options_(std::move(options)), inner_(std::move(inner)) {
    endpoints_.resize(inner_->num_devices());
    if (options_.max_slow_time.count() > 0) timer_ = std::make_unique<WakeupTimer>();
  }

  std::string name() const override { return "faulty " + inner_->name(); }
  uint32_t num_devices() const override { return inner_->num_devices(); }

  absl::StatusOr<Endpoint*> OpenEndpoint(uint32_t device) override {
    absl::StatusOr<Endpoint*> inner = inner_->OpenEndpoint(device);
    if (!inner.ok()) return inner;
    std::unique_ptr<FaultyEndpoint>& endpoint = endpoints_[device];
    if (endpoint == nullptr) {
      endpoint = std::make_unique<FaultyEndpoint>(*inner, device, options_, timer_.get());
    }
    return endpoint.get();
  }

  absl::Status RegisterMemory(void* data, size_t num_bytes) override {
    return inner_->RegisterMemory(data, num_bytes);
  }
  void Hold(std::shared_ptr<const void> owner, uint64_t num_bytes) override {
    inner_->Hold(std::move(owner), num_bytes);
  }
  void Wait(int fd, int timeout_ms) override { inner_->Wait(fd, timeout_ms); }
  TransportStats stats() const override { return inner_->stats(); }

 private:
  const FaultOptions options_;
  std::unique_ptr<Transport> inner_;
  std::vector<std::unique_ptr<FaultyEndpoint>> endpoints_;
  std::unique_ptr<WakeupTimer> timer_;  // last: it calls the endpoints' wake-ups
};

}  // namespace

std::unique_ptr<Transport> CreateFaultyTransport(std::unique_ptr<Transport> inner,
                                                 FaultOptions options) {
  return std::make_unique<FaultyTransport>(std::move(inner), std::move(options));
}

}  // namespace penstock::testing
