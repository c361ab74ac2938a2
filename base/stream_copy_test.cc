#include "base/stream_copy.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace penstock {
namespace {

TEST(StreamCopy, CopiesWhatItIsToldToAndNothingElse) {
  std::mt19937_64 random(1);
  std::vector<char> source(5000);
  for (char& byte : source) byte = static_cast<char>(random());
  for (int i = 0; i < 3000; ++i) {
    const size_t num_bytes = i < 300 ? static_cast<size_t>(i) : random() % 4000;
    const size_t from = random() % 500;
    const size_t to = random() % 500;
    std::vector<char> target(5000, '.');
    std::vector<char> expected = target;
    StreamCopy(target.data() + to, source.data() + from, num_bytes);
    for (size_t b = 0; b < num_bytes; ++b) expected[to + b] = source[from + b];
    ASSERT_EQ(target, expected) << num_bytes << " bytes from " << from << " to " << to;
  }
}

}  // namespace
}  // namespace penstock
