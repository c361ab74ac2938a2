#include "base/tensor_memory.h"

#include <new>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "tests/support/sanitizers.h"

namespace penstock {
namespace {

// 2 PiB: as much as a shape can say.
const TensorType kHuge = {DType::kF64, {int64_t{1} << 48}};

TEST(TensorMemoryTest, WhatIsLargerThanTheMachineIsNamed) {
  EXPECT_TRUE(CheckFitsMemory({DType::kF32, {1024, 1024}}).ok());
  EXPECT_TRUE(CheckFitsMemory({DType::kF32, {}}).ok());
  const absl::Status status = CheckFitsMemory(kHuge);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(ToStd(status.message()),
              ::testing::StartsWith("f64[281474976710656] is larger than the memory of this "
                                    "machine, "));
}

TEST(TensorMemoryTest, ATensorWithoutMemoryThrows) {
  if (testing::kHasSanitizer) GTEST_SKIP() << "a sanitizer ends the process instead";
  EXPECT_THROW(Tensor{kHuge}, std::bad_alloc);
}

}  // namespace
}  // namespace penstock
