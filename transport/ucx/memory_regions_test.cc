#include "transport/ucx/memory_regions.h"

#include <vector>

#include <gtest/gtest.h>

namespace penstock::transport::ucx {
namespace {

// Stands for a handle of UCX.
ucp_mem_h HandleOf(int* token) { return reinterpret_cast<ucp_mem_h>(token); }

class MemoryRegionsTest : public ::testing::Test {
 protected:
  MemoryRegionsTest() : first_bytes_(10000), second_bytes_(10000) {
    regions_.Add(first_bytes_.data(), first_bytes_.size(), HandleOf(&tokens_[0]), kNoPlace);
    regions_.Add(second_bytes_.data(), second_bytes_.size(), HandleOf(&tokens_[1]), kPlace);
  }

  static constexpr uint64_t kPlace = uint64_t{1} << 48;

  std::vector<std::byte> first_bytes_;
  std::vector<std::byte> second_bytes_;
  int tokens_[2];
  MemoryRegions regions_;
};

TEST_F(MemoryRegionsTest, FindsTheRegionThatHoldsAllBytes) {
  EXPECT_EQ(regions_.Find(first_bytes_.data(), 10000).handle, HandleOf(&tokens_[0]));
  EXPECT_EQ(regions_.Find(second_bytes_.data() + 9999, 1).handle, HandleOf(&tokens_[1]));
  EXPECT_EQ(regions_.Find(second_bytes_.data() + 9999, 2).handle, nullptr);
  EXPECT_EQ(regions_.Find(first_bytes_.data(), ~size_t{0}).handle, nullptr);
  const std::byte other{};
  EXPECT_EQ(regions_.Find(&other, 1).handle, nullptr);
}

TEST_F(MemoryRegionsTest, GivesThePlaceOfBytesInSharedPages) {
  EXPECT_EQ(regions_.Find(second_bytes_.data(), 8192).place, kPlace);
  EXPECT_EQ(regions_.Find(second_bytes_.data() + 192, 8000).place, kPlace + 192);
  EXPECT_EQ(regions_.Find(second_bytes_.data() + 193, 8000).place, kNoPlace)
      << "the last page is not whole";
  EXPECT_EQ(regions_.Find(first_bytes_.data(), 8000).place, kNoPlace);
}

}  // namespace
}  // namespace penstock::transport::ucx
