#include "transport/ucx/wire.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace penstock::transport::ucx {
namespace {

ProcessAddress Example() {
  ProcessAddress address;
  address.generation = 3;
  address.first_device = 8;
  address.network_namespace = 66;
  address.shared = {33, 44, 55};
  address.network_addresses = {"\x0a\x4d\x01\x02", std::string(16, '\xfe')};
  address.devices = {{11, "first", "1"}, {22, std::string(1000, 'x'), "2"}};
  return address;
}

TEST(WireTest, AddressesComeBack) {
  const auto address = DecodeAddress(EncodeAddress(Example()));
  ASSERT_TRUE(address.ok());
  EXPECT_EQ(address->generation, 3u);
  EXPECT_EQ(address->first_device, 8u);
  EXPECT_EQ(address->network_namespace, 66u);
  EXPECT_EQ(address->shared.process, 33u);
  EXPECT_EQ(address->shared.descriptor, 44u);
  EXPECT_EQ(address->shared.token, 55u);
  EXPECT_EQ(address->network_addresses, Example().network_addresses);
  ASSERT_EQ(address->devices.size(), 2u);
  EXPECT_EQ(address->devices[0].key, 11u);
  EXPECT_EQ(address->devices[0].worker, "first");
  EXPECT_EQ(address->devices[0].network, "1");
  EXPECT_EQ(address->devices[1].worker, std::string(1000, 'x'));
  EXPECT_EQ(address->devices[1].network, "2");
}

TEST(WireTest, DamagedAddressesAreRefused) {
  const std::string good = EncodeAddress(Example());
  for (size_t i = 0; i < good.size(); ++i) {
    EXPECT_FALSE(DecodeAddress(good.substr(0, i)).ok()) << i;
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    EXPECT_FALSE(DecodeAddress(bad).ok()) << i;
  }
  EXPECT_FALSE(DecodeAddress(good + "x").ok());
}

// Whoever computes the check sum gets no further.
TEST(WireTest, LengthsAreChecked) {
  ProcessAddress address = Example();
  address.devices.clear();
  EXPECT_FALSE(DecodeAddress(EncodeAddress(address)).ok());
  const std::string too_long((64 << 10) + 1, 'x');
  for (const ProcessAddress::Device& device : std::vector<ProcessAddress::Device>{
           {1, "", "x"}, {1, "x", ""}, {1, too_long, "x"}, {1, "x", too_long}}) {
    address.devices = {device};
    EXPECT_FALSE(DecodeAddress(EncodeAddress(address)).ok());
  }
}

}  // namespace
}  // namespace penstock::transport::ucx
