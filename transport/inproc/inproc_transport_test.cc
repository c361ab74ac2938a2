#include <array>
#include <memory>

#include "gtest/gtest.h"

#include "tests/support/faulty_transport.h"
#include "tests/support/transport_conformance.h"
#include "transport/inproc/descriptor.h"
#include "transport/transport.h"

namespace penstock::testing {

using transport::CreateInprocTransport;
using transport::TransportOptions;

std::unique_ptr<TestFabric> MakePlain(const TransportOptions& options) {
  return MakeSingleFabric(CreateInprocTransport(options));
}

std::unique_ptr<TestFabric> MakeDelayed(const TransportOptions& options) {
  return MakeSingleFabric(CreateFaultyTransport(CreateInprocTransport(options), {.seed = 3}));
}

std::unique_ptr<TestFabric> MakeWithoutViews(const TransportOptions& options) {
  return MakeSingleFabric(CreateFaultyTransport(
      CreateInprocTransport(options), {.seed = 4, .max_delay = 0, .views = Views::kNone}));
}

const auto kFabrics =
    ::testing::Values(FabricParam{"Plain", MakePlain}, FabricParam{"Delayed", MakeDelayed},
                      FabricParam{"WithoutViews", MakeWithoutViews});

INSTANTIATE_TEST_SUITE_P(Inproc, TransportConformance, kFabrics, FabricParamName);
INSTANTIATE_TEST_SUITE_P(Inproc, TransportErrors, kFabrics, FabricParamName);

TEST(InprocTransportTest, OpensOneEndpointForEachDevice) {
  auto transport = CreateInprocTransport({.num_devices = 2, .generation = 0, .num_channels = 1});
  EXPECT_EQ(transport->name(), "inproc");
  EXPECT_EQ(transport->num_devices(), 2u);
  EXPECT_NE(*transport->OpenEndpoint(0), *transport->OpenEndpoint(1));
  EXPECT_EQ(*transport->OpenEndpoint(0), *transport->OpenEndpoint(0));
  EXPECT_EQ(transport->OpenEndpoint(2).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace penstock::testing

namespace penstock::transport {
namespace {

TEST(DescriptorQueueTest, RemovesFromAnywhere) {
  std::array<Descriptor, 4> d;
  DescriptorQueue queue;
  const auto remove = [&queue](Descriptor* which) {
    return queue.RemoveFirst([which](const Descriptor& other) { return &other == which; });
  };
  for (Descriptor& descriptor : d) queue.PushBack(&descriptor);
  EXPECT_EQ(remove(&d[3]), &d[3]);
  EXPECT_EQ(remove(&d[3]), nullptr);
  EXPECT_EQ(remove(&d[1]), &d[1]);
  queue.PushBack(&d[3]);
  queue.PushFront(&d[1]);
  EXPECT_EQ(queue.PopFront(), &d[1]);
  EXPECT_EQ(queue.PopFront(), &d[0]);
  EXPECT_EQ(queue.PopFront(), &d[2]);
  EXPECT_EQ(queue.PopFront(), &d[3]);
  EXPECT_TRUE(queue.empty());
  queue.PushFront(&d[0]);
  queue.PushBack(&d[1]);
  EXPECT_EQ(queue.PopFront(), &d[0]);
  EXPECT_EQ(queue.PopFront(), &d[1]);
  EXPECT_TRUE(queue.empty());
}

TEST(DescriptorRingTest, OwesANoticeWhenItWasFull) {
  Descriptor descriptor;
  DescriptorRing ring;
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < DescriptorRing::kCapacity; ++i) {
      ASSERT_TRUE(ring.TryPush(&descriptor));
    }
    const bool was_full = round > 0;
    if (was_full) {
      ASSERT_FALSE(ring.TryPush(&descriptor));
    }
    EXPECT_EQ(ring.size(), DescriptorRing::kCapacity);
    for (uint32_t i = 0; i < DescriptorRing::kCapacity; ++i) EXPECT_EQ(ring.Pop(), &descriptor);
    EXPECT_EQ(ring.TookSome(), was_full);
    EXPECT_FALSE(ring.TookSome());
  }
}

}  // namespace
}  // namespace penstock::transport
