// Transports over UCX for tests of one process that is one of several, or plays several.
//
// Thread rule: one thread.

#ifndef PENSTOCK_TESTS_SUPPORT_UCX_TRANSPORTS_H_
#define PENSTOCK_TESTS_SUPPORT_UCX_TRANSPORTS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "tests/support/wait_thread.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_transport.h"

namespace penstock::testing {

inline constexpr std::chrono::seconds kPatience{30};
inline constexpr uint32_t kGeneration = 7;

// Holds the environment variable UCX_TLS; empty: what UCX chooses.
class TransportsGuard {
 public:
  explicit TransportsGuard(const std::string& transports) {
    if (!transports.empty()) setenv("UCX_TLS", transports.c_str(), 1);
  }
  ~TransportsGuard() { unsetenv("UCX_TLS"); }
};

// A transport and a thread that waits for its arrivals.
class WaitedTransport {
 public:
  WaitedTransport() = default;
  explicit WaitedTransport(std::unique_ptr<transport::UcxTransport> transport)
      : transport_(std::move(transport)), waiter_(std::make_unique<WaitThread>(*transport_)) {}

  bool has_value() const { return transport_ != nullptr; }
  transport::UcxTransport* operator->() const { return transport_.get(); }
  transport::UcxTransport& operator*() const { return *transport_; }
  void reset() {
    waiter_.reset();
    transport_.reset();
  }

 private:
  std::unique_ptr<transport::UcxTransport> transport_;
  std::unique_ptr<WaitThread> waiter_;
};

inline WaitedTransport MakeTransport(const transport::UcxOptions& options) {
  auto transport = transport::CreateUcxTransport(options);
  if (!transport.ok()) {
    ADD_FAILURE() << transport.status();
    std::abort();
  }
  return WaitedTransport(*std::move(transport));
}

// One of three devices, each in a process of its own.
inline transport::UcxOptions OptionsOf(uint32_t device) {
  transport::UcxOptions options;
  options.transport = {.num_devices = 3, .generation = kGeneration, .num_channels = 4};
  options.first_device = device;
  options.answer_timeout = std::chrono::seconds(1);
  return options;
}

// Returns whether it came about in time.
inline bool DriveUntil(transport::Endpoint& endpoint, const std::function<bool()>& is_reached) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!is_reached()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    if (!endpoint.Progress()) std::this_thread::yield();
  }
  return true;
}

// Whether a byte, the first one if none is named, of a transfer that may be going on has come: not
// synchronised, on purpose.
__attribute__((noinline, no_sanitize("thread"))) inline bool HasBegun(
    const std::vector<uint8_t>& bytes, size_t at = 0) {
  return static_cast<const volatile uint8_t*>(bytes.data())[at] != 0;
}

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_UCX_TRANSPORTS_H_
