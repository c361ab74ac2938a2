#include "transport/ucx/ucx_system.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::transport {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

UcxSystem System(std::vector<std::string> memory, bool knows_cuda) {
  UcxSystem system;
  system.version = "1.2.3";
  system.memory = std::move(memory);
  system.knows_cuda = knows_cuda;
  return system;
}

TEST(UcxSystemTest, AsksUcxWhichMemoryItKnows) {
  const UcxSystem system = FindUcx();
  ASSERT_EQ(system.status, absl::OkStatus());
  EXPECT_THAT(system.version, HasSubstr("."));
  EXPECT_THAT(system.memory, Contains("host"));
  EXPECT_THAT(DescribeUcx(system), ::testing::StartsWith("UCX " + system.version + " knows host"));
}

TEST(UcxSystemTest, NamesMemoryTypes) {
  EXPECT_THAT(MemoryNames(0b00111), ElementsAre("host", "CUDA", "CUDA managed"));
  EXPECT_THAT(MemoryNames(0b100001), ElementsAre("host", "type 5"));
}

TEST(UcxSystemTest, SaysHowGpusSend) {
  EXPECT_EQ(DescribeUcx(System({"host"}, false)),
            "UCX 1.2.3 knows host memory; what GPUs send through it is staged in host memory");
  EXPECT_EQ(DescribeUcx(System({"host", "CUDA"}, true)),
            "UCX 1.2.3 knows host, CUDA memory; what GPUs send through it is staged in host memory "
            "all the same");
  UcxSystem unknown = System({}, false);
  unknown.status = absl::UnavailableError("no");
  EXPECT_THAT(DescribeUcx(unknown), HasSubstr("are not known: no"));
}

}  // namespace
}  // namespace penstock::transport
