#include <cmath>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <capnp/message.h>

#include "actors/cluster/wire_cores_internal.h"

namespace penstock::actors::control {
namespace {

using ::testing::ElementsAre;

ProcessCores SentAndRead(const ProcessCores& cores) {
  capnp::MallocMessageBuilder message;
  const auto info = message.initRoot<NodeInfo>();
  WriteCores(cores, info);
  return ReadCores(info.asReader());
}

TEST(WireCoresTest, AreReadAsTheyWereSent) {
  const ProcessCores cores{{0, 3, 1000}, {{"28:17", 1.5}, {"28:1", 4}}};
  EXPECT_EQ(SentAndRead(cores), cores);
  EXPECT_EQ(SentAndRead({}), ProcessCores());
}

TEST(WireCoresTest, WhatIsReadIsChecked) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const ProcessCores cores = SentAndRead(
      {{5, 1, 5}, {{"a", std::nan("")}, {"b", -1}, {"c", 0}, {"d", kInfinity}, {"e", 2}}});
  EXPECT_THAT(cores.processors, ElementsAre(1, 5));
  EXPECT_THAT(cores.quotas, ElementsAre(penstock::CoreQuota{"e", 2}));
  ProcessCores long_lists;
  long_lists.processors.assign(200'000, 0);
  for (uint32_t i = 0; i < 200'000; ++i) long_lists.processors[i] = i;
  long_lists.quotas.assign(1000, {std::string(1000, 'x'), 1});
  const ProcessCores bounded = SentAndRead(long_lists);
  EXPECT_EQ(bounded.processors.size(), 65536u);
  EXPECT_EQ(bounded.quotas.size(), 64u);
  EXPECT_EQ(bounded.quotas[0].group.size(), 64u);
}

}  // namespace
}  // namespace penstock::actors::control
