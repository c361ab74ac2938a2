#include "transport/ucx/ucx_transport.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/transport_conformance.h"
#include "transport/transport.h"

namespace penstock::testing {
namespace {

using transport::CreateUcxTransport;
using transport::Endpoint;
using transport::TransportOptions;
using transport::TransportStats;
using transport::UcxOptions;
using transport::UcxTransport;

// A transport for every `devices_per_process` devices, joined as those of separate processes are.
class UcxFabric final : public TestFabric {
 public:
  UcxFabric(const TransportOptions& options, uint32_t devices_per_process) {
    for (uint32_t first = 0; first < options.num_devices; first += devices_per_process) {
      UcxOptions ucx;
      ucx.transport = options;
      ucx.first_device = first;
      ucx.num_local_devices = std::min(devices_per_process, options.num_devices - first);
      auto transport = CreateUcxTransport(ucx);
      EXPECT_EQ(transport.status(), absl::OkStatus());
      if (!transport.ok()) std::abort();
      for (uint32_t i = 0; i < ucx.num_local_devices; ++i) {
        endpoints_.push_back(*(*transport)->OpenEndpoint(first + i));
      }
      transports_.push_back(*std::move(transport));
    }
    for (uint32_t i = 0; i < transports_.size(); ++i) {
      for (uint32_t j = 0; j < transports_.size(); ++j) {
        if (i == j) continue;
        EXPECT_EQ(transports_[i]->Connect(j * devices_per_process, transports_[j]->LocalAddress()),
                  absl::OkStatus());
      }
    }
  }

  Endpoint& endpoint(uint32_t device) override { return *endpoints_[device]; }

  TransportStats stats() const override {
    TransportStats sum;
    for (const auto& transport : transports_) {
      const TransportStats stats = transport->stats();
      sum.messages += stats.messages;
      sum.bytes += stats.bytes;
      sum.dropped += stats.dropped;
    }
    return sum;
  }

 private:
  std::vector<std::unique_ptr<UcxTransport>> transports_;
  std::vector<Endpoint*> endpoints_;
};

// `transports` as in UCX_TLS; empty: what UCX chooses.
FabricParam MakeParam(const std::string& name, const std::string& transports,
                      uint32_t devices_per_process) {
  return {name, [=](const TransportOptions& options) -> std::unique_ptr<TestFabric> {
            if (transports.empty()) {
              unsetenv("UCX_TLS");
            } else {
              setenv("UCX_TLS", transports.c_str(), 1);
            }
            auto fabric = std::make_unique<UcxFabric>(options, devices_per_process);
            unsetenv("UCX_TLS");
            return fabric;
          }};
}

const auto kFabrics =
    ::testing::Values(MakeParam("SharedMemory", "posix", 1), MakeParam("Tcp", "tcp", 1),
                      MakeParam("Chosen", "", 1), MakeParam("TwoDevicesAProcess", "", 2));

INSTANTIATE_TEST_SUITE_P(Ucx, TransportConformance, kFabrics, FabricParamName);
INSTANTIATE_TEST_SUITE_P(Ucx, TransportErrors, kFabrics, FabricParamName);

}  // namespace
}  // namespace penstock::testing
