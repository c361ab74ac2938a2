// The suite that everything passes by which devices run collectives and messages themselves: what
// transport/stream_collective.h promises, nothing else.
//
//   INSTANTIATE_TEST_SUITE_P(Mine, StreamConformance,
//                            ::testing::Values(StreamFabricParam{.name = "plain", .make = Make}),
//                            StreamFabricParamName);
//
// Thread rule: tests launch on a thread of each device and do all else on their own.

#ifndef PENSTOCK_TESTS_SUPPORT_STREAM_CONFORMANCE_H_
#define PENSTOCK_TESTS_SUPPORT_STREAM_CONFORMANCE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

#include "base/collective.h"
#include "base/device.h"
#include "tests/support/collective_reference.h"
#include "transport/stream_collective.h"

namespace penstock::testing {

// Devices that run collectives, and what joins them; in one process, or as if in several.
class StreamFabric {
 public:
  virtual ~StreamFabric() = default;
  virtual std::unique_ptr<Device> CreateDevice(uint32_t index) = 0;
  // That of the device's process.
  virtual transport::CommunicatorFactory FactoryFor(uint32_t index) = 0;
};

// All devices in one process.
std::unique_ptr<StreamFabric> MakeStreamFabric(
    std::function<std::unique_ptr<Device>(uint32_t index)> create_device,
    transport::CommunicatorFactory factory);
// As if devices with an even index were in one process and the others in another one. Ids of groups
// are made by the process of the first device.
std::unique_ptr<StreamFabric> MakeStreamFabric(
    std::function<std::unique_ptr<Device>(uint32_t index)> create_device,
    const std::vector<std::shared_ptr<transport::CommunicatorSource>>& sources,
    const std::vector<transport::DeviceGroup>& groups);

struct StreamFabricParam {
  std::string name;
  // For devices below `num_devices`, which join `groups`. An error says why this machine has not so
  // many: the test is skipped.
  std::function<absl::StatusOr<std::unique_ptr<StreamFabric>>(
      uint32_t num_devices, const std::vector<transport::DeviceGroup>& groups)>
      make;
  // Whether results have the association of base/collective.h for every algorithm, or just for the
  // direct one, or none that is known.
  enum Association { kOfSpec, kDirect, kUnknown } association = kOfSpec;
  int num_collectives = 100;  // that are compared with the reference
};

std::string StreamFabricParamName(const ::testing::TestParamInfo<StreamFabricParam>& info);

// The members of one collective.
class StreamMembers {
 public:
  struct Member {
    std::unique_ptr<Device> device;
    std::unique_ptr<transport::Communicator> communicator;
    std::unique_ptr<Memory> input;
    std::unique_ptr<Memory> output;
    std::unique_ptr<transport::StreamCollective> collective;
    std::unique_ptr<Event> event;
    std::unique_ptr<Stream> stream;  // goes first: its work uses what is above
  };

  // Of the first `num_joining` ranks.
  StreamMembers(const CollectiveSpec& spec, StreamFabric& fabric, size_t num_joining = ~size_t{0},
                bool tells_failures = true);

  size_t size() const { return members_.size(); }
  Member& operator[](size_t rank) { return members_[rank]; }

  // On the calling thread. The launch's number is the rank.
  absl::Status Launch(size_t rank, bool is_poisoned = false);
  // On threads of their own: a launch may wait for those of the others.
  void LaunchAll(size_t poisoned = ~size_t{0});
  void AwaitAll();
  // One run, with the inputs given; the outputs.
  std::vector<Bytes> RunOnce(const std::vector<Bytes>& inputs);

 private:
  const CollectiveSpec spec_;
  std::vector<Member> members_;
};

// Of devices 0, 1, ..., 4 elements of f32 in each block.
CollectiveSpec AllReduceOf(uint32_t num_devices);
std::vector<Bytes> RandomInputsOf(const CollectiveSpec& spec, uint64_t seed);

class StreamConformance : public ::testing::TestWithParam<StreamFabricParam> {
 protected:
  // Null after a skip, or an error.
  std::unique_ptr<StreamFabric> Make(uint32_t num_devices,
                                     const std::vector<transport::DeviceGroup>& groups);
};

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_STREAM_CONFORMANCE_H_
