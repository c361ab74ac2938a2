// A device for engine tests whose streams complete late and in any legal order: a launch waits in
// its stream until a draw from the device's generator lets it run.
//
// Thread rule: one thread drives the device, its streams and its events.
// Invariants: what the interface orders is kept (launches of one stream, Wait after Record); all
// else is decided by the seed.

#ifndef PENSTOCK_TESTS_SUPPORT_LATE_DEVICE_H_
#define PENSTOCK_TESTS_SUPPORT_LATE_DEVICE_H_

#include <cstdint>
#include <memory>
#include <random>
#include <string>

#include "base/device.h"

namespace penstock::testing {

class LateDevice : public Device {
 public:
  explicit LateDevice(uint64_t seed) : random_(seed) {}

  std::string kind() const override { return "late"; }
  absl::StatusOr<std::unique_ptr<Memory>> Allocate(size_t num_bytes, MemoryKind kind) override;
  std::unique_ptr<Stream> CreateStream() override;
  std::unique_ptr<Event> CreateEvent() override;

 private:
  std::mt19937_64 random_;
};

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_LATE_DEVICE_H_
