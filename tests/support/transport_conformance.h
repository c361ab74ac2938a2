// The suite that every transport passes: what transport/transport.h promises, nothing else.
//
// A transport's test instantiates both suites with a way to make fabrics of it:
//
//   std::unique_ptr<TestFabric> MakeMine(const transport::TransportOptions& options) { ... }
//   INSTANTIATE_TEST_SUITE_P(Mine, TransportConformance,
//                            ::testing::Values(FabricParam{"plain", MakeMine}), FabricParamName);
//   INSTANTIATE_TEST_SUITE_P(Mine, TransportErrors, ...same...);
//
// Thread rule: tests drive all endpoints from their own thread, except where they start one for
// each endpoint.

#ifndef PENSTOCK_TESTS_SUPPORT_TRANSPORT_CONFORMANCE_H_
#define PENSTOCK_TESTS_SUPPORT_TRANSPORT_CONFORMANCE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "transport/transport.h"

namespace penstock::testing {

// All endpoints of one job in this process. A transport between processes has a Transport for each.
class TestFabric {
 public:
  virtual ~TestFabric() = default;
  virtual transport::Endpoint& endpoint(uint32_t device) = 0;
  virtual transport::TransportStats stats() const = 0;  // of all transports together
};

// Of a transport that hosts all devices itself.
std::unique_ptr<TestFabric> MakeSingleFabric(std::unique_ptr<transport::Transport> transport);

struct FabricParam {
  std::string name;
  std::function<std::unique_ptr<TestFabric>(const transport::TransportOptions&)> make;
};

std::string FabricParamName(const ::testing::TestParamInfo<FabricParam>& info);

class TransportTest : public ::testing::TestWithParam<FabricParam> {
 protected:
  static constexpr uint32_t kGeneration = 7;
  static constexpr uint32_t kNumChannels = 100;

  // Makes the fabric under test; once a test.
  void Join(uint32_t num_devices);

  transport::Endpoint& endpoint(uint32_t device) { return fabric_->endpoint(device); }

  // Progresses all endpoints until `is_reached`; a failure if that takes too long.
  void DriveUntil(const std::function<bool()>& is_reached);
  void DriveUntilDone(const std::vector<const transport::Request*>& requests);
  // Progresses until nothing has moved for a good while.
  void DriveToRest();

  uint32_t num_devices_ = 0;
  std::unique_ptr<TestFabric> fabric_;
};

class TransportConformance : public TransportTest {
 protected:
  void SetUp() override;
};

// What happens when something is wrong or called off.
class TransportErrors : public TransportTest {
 protected:
  void SetUp() override;
};

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_TRANSPORT_CONFORMANCE_H_
