// How long a device has had nothing to run, and what was under way meanwhile.
//
// Thread rule: one thread counts; any thread may call Read. A reading made while an idle time
// begins or ends may count it twice or not at all.

#ifndef PENSTOCK_ACTORS_ENGINE_IDLE_TIME_H_
#define PENSTOCK_ACTORS_ENGINE_IDLE_TIME_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace penstock::actors {

// The idle times of one device, in nanoseconds of its executor's clock.
class IdleTime {
 public:
  // What was under way when an idle time began.
  enum Kind : uint8_t { kNothing, kTransfer, kCollective, kNumKinds };

  // What Read tells.
  struct Reading {
    std::array<int64_t, kNumKinds> ns = {};  // since the device was loaded, by Kind
    int64_t current_ns = 0;  // of the idle time that lasts, at least 1; 0: none does
  };

  // The last look found nothing to do, and the one that is going on has not found anything yet.
  bool is_idle() const { return is_idle_; }

  // REQUIRES: !is_idle().
  void Begin(Kind kind, int64_t now_ns) {
    is_idle_ = true;
    since_ns_ = now_ns;
    kind_.store(kind, std::memory_order_relaxed);
    begin_ns_.store(now_ns, std::memory_order_relaxed);
  }
  // REQUIRES: is_idle().
  void End(int64_t now_ns) {
    is_idle_ = false;
    wait_ns_ += now_ns - since_ns_;
    const int64_t begin_ns = begin_ns_.load(std::memory_order_relaxed);
    begin_ns_.store(0, std::memory_order_relaxed);
    std::atomic<int64_t>& total = total_ns_[kind_];
    total.store(total.load(std::memory_order_relaxed) + now_ns - begin_ns,
                std::memory_order_relaxed);
  }

  // A step begins, and none was under way: waiting until now was not for one.
  void BeginStep(int64_t now_ns) {
    wait_ns_ = 0;
    since_ns_ = now_ns;
  }
  // Time without a core while there was something to do.
  void AddWithoutCore(int64_t ns) { without_core_ns_ += ns; }
  // Idle times that are over, and those without a core, since the last call.
  int64_t TakeWait() { return std::exchange(wait_ns_, 0) + std::exchange(without_core_ns_, 0); }

  // How long the device has been idle until `now_ns`. Any thread.
  Reading Read(int64_t now_ns) const {
    Reading reading;
    const int64_t begin_ns = begin_ns_.load(std::memory_order_relaxed);
    if (begin_ns != 0) reading.current_ns = std::max<int64_t>(now_ns - begin_ns, 1);
    for (size_t i = 0; i < reading.ns.size(); ++i) {
      reading.ns[i] = total_ns_[i].load(std::memory_order_relaxed);
    }
    reading.ns[kind_.load(std::memory_order_relaxed)] += reading.current_ns;
    return reading;
  }

 private:
  bool is_idle_ = false;
  int64_t since_ns_ = 0;  // of the current idle time, the part that counts for a step
  int64_t wait_ns_ = 0;
  int64_t without_core_ns_ = 0;
  // For Read.
  std::atomic<int64_t> begin_ns_{0};  // of the current idle time; 0: there is none
  std::array<std::atomic<int64_t>, kNumKinds> total_ns_ = {};  // of those that are over
  std::atomic<uint8_t> kind_{kNothing};                        // of the last one
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_IDLE_TIME_H_
