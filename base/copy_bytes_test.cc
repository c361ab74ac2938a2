#include "base/copy_bytes.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace penstock {
namespace {

constexpr size_t kPage = 4096;

TEST(CopyBytesTest, CopiesAnySizeAtAnyDistance) {
  std::vector<unsigned char> from(3 * kPage);
  std::iota(from.begin(), from.end(), 7);
  for (const size_t size : {0ul, 1ul, 2047ul, 2048ul, 2049ul, 4096ul, 6000ul}) {
    for (const size_t offset : {0ul, 1ul, 16ul, 63ul, 64ul, 4095ul}) {
      std::vector<unsigned char> storage(5 * kPage, 1);
      const size_t skew = reinterpret_cast<uintptr_t>(from.data()) % kPage + kPage -
                          reinterpret_cast<uintptr_t>(storage.data()) % kPage;
      unsigned char* to = storage.data() + skew % kPage + offset;
      CopyBytes(to, from.data(), size);
      EXPECT_TRUE(std::equal(to, to + size, from.begin())) << size << " at " << offset;
      EXPECT_EQ(to[size], 1) << size << " at " << offset;
    }
  }
}

TEST(CopyBytesTest, TheSameBytesStay) {
  std::vector<unsigned char> bytes(kPage, 3);
  CopyBytes(bytes.data(), bytes.data(), bytes.size());
  EXPECT_EQ(bytes, std::vector<unsigned char>(kPage, 3));
}

// No distance takes much longer than another: the fastest of some copies each, which alternate.
TEST(CopyBytesTest, NoDistanceIsSlow) {
  constexpr size_t kSize = 8 * kPage;
  std::vector<unsigned char> from(kSize + kPage, 1);
  std::vector<unsigned char> to(kSize + 2 * kPage, 2);
  const size_t skew = reinterpret_cast<uintptr_t>(from.data()) % kPage + kPage -
                      reinterpret_cast<uintptr_t>(to.data()) % kPage;
  const auto seconds = [&](size_t offset) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 10; ++i) {
      CopyBytes(to.data() + skew % kPage + offset, from.data(), kSize);
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  double aliased = 1;
  double apart = 1;
  for (int i = 0; i < 50; ++i) {
    aliased = std::min(aliased, seconds(16));
    apart = std::min(apart, seconds(2048));
  }
  EXPECT_LT(aliased, 8 * apart);
}

}  // namespace
}  // namespace penstock
