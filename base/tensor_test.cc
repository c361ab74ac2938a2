#include "base/tensor.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace penstock {
namespace {

TEST(TensorTypeTest, SizesAndText) {
  const TensorType type{DType::kBF16, {8, 16}};
  EXPECT_EQ(type.num_elements(), 128);
  EXPECT_EQ(type.num_bytes(), 256u);
  EXPECT_EQ(ToString(type), "bf16[8, 16]");
  EXPECT_EQ(ToString(TensorType{DType::kI64, {}}), "i64[]");
  EXPECT_EQ(type, (TensorType{DType::kBF16, {8, 16}}));
  EXPECT_NE(type, (TensorType{DType::kF16, {8, 16}}));
  EXPECT_NE(type, (TensorType{DType::kBF16, {16, 8}}));
}

TEST(TensorTest, IsZeroedAndAligned) {
  const Tensor tensor({DType::kF32, {3, 5}});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data()) % 64, 0u);
  EXPECT_EQ(tensor.num_bytes(), 60u);
  for (int i = 0; i < 15; ++i) EXPECT_EQ(tensor.As<float>()[i], 0.0f);
}

TEST(TensorTest, CopiesShareAndClonesDoNot) {
  Tensor tensor({DType::kI32, {2}});
  Tensor copy = tensor;
  Tensor clone = tensor.Clone();
  tensor.As<int32_t>()[1] = 7;
  EXPECT_EQ(copy.As<int32_t>()[1], 7);
  EXPECT_EQ(clone.As<int32_t>()[1], 0);
  EXPECT_EQ(clone.type(), tensor.type());
}

TEST(TensorTest, ScalarsAndEmptyTensors) {
  Tensor scalar({DType::kF64, {}});
  EXPECT_EQ(scalar.num_elements(), 1);
  scalar.As<double>()[0] = 2.5;
  EXPECT_EQ(scalar.Clone().As<double>()[0], 2.5);
  const Tensor empty({DType::kF64, {4, 0}});
  EXPECT_EQ(empty.num_bytes(), 0u);
  EXPECT_EQ(empty.Clone().num_elements(), 0);
  EXPECT_EQ(Tensor().data(), nullptr);
}

}  // namespace
}  // namespace penstock
