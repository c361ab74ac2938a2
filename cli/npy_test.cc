#include "cli/npy.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock::cli {
namespace {

using ::testing::HasSubstr;

Tensor Filled(TensorType type) {
  Tensor tensor(type);
  auto* bytes = static_cast<uint8_t*>(tensor.data());
  for (size_t i = 0; i < tensor.num_bytes(); ++i) bytes[i] = static_cast<uint8_t>(i % 2);
  return tensor;
}

std::string File(std::string_view header, std::string_view data) {
  std::string bytes = "\x93NUMPY";
  bytes += '\1';
  bytes += '\0';
  bytes += static_cast<char>(header.size() & 0xff);
  bytes += static_cast<char>(header.size() >> 8);
  return bytes + std::string(header) + std::string(data);
}

TEST(NpyTest, WhatIsWrittenReadsBack) {
  const std::vector<Shape> shapes = {{}, {3}, {2, 3}, {0, 4}, {1, 2, 3, 4}};
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kI8, DType::kU8,
                            DType::kI32, DType::kI64, DType::kBool}) {
    for (const Shape& shape : shapes) {
      const Tensor tensor = Filled({dtype, shape});
      const std::string bytes = NpyToBytes(tensor);
      const absl::StatusOr<Tensor> read = NpyFromBytes(bytes, "t");
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(read->type(), tensor.type());
      EXPECT_EQ(NpyToBytes(*read), bytes);
      EXPECT_EQ((bytes.size() - tensor.num_bytes()) % 64, 0);
    }
  }
}

TEST(NpyTest, ReadsWhatNumpyWrites) {
  const absl::StatusOr<Tensor> tensor =
      NpyFromBytes(File("{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }  \n",
                        std::string("\5\0\0\0\0\0\0\0\7\0\0\0\0\0\0\0", 16)),
                   "t");
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(tensor->type(), (TensorType{DType::kI64, {2}}));
  EXPECT_EQ(tensor->As<int64_t>()[1], 7);
}

TEST(NpyTest, RefusesFilesThatLie) {
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}";
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "not a .npy file"},
      {"hello, this is text", "not a .npy file"},
      {File(good, "1234567"), "holds 7 bytes"},
      {File(good, "").substr(0, 30), "cut off"},
      {File("{'descr': '>f4', 'fortran_order': False, 'shape': (2,)}", "12345678"),
       "unsupported element type '>f4'"},
      {File("{'descr': '<f4', 'fortran_order': True, 'shape': (1, 2)}", "12345678"), "Fortran"},
      {File("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 2)}", "12345678"), "t: "},
      {File("{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999, 9999999999)}", ""),
       "t: "},
      {File("{'descr': '<f4', 'shape': (2,)}", "12345678"), "malformed"},
      {File("{'descr': '<f4', 'fortran_order': False, 'shape': (2", "12345678"), "malformed"},
      {File("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", ""), "fields"},
      {File("{'descr': '|b1', 'fortran_order': False, 'shape': (1,)}", "\7"), "neither 0 nor 1"},
  };
  for (const auto& [bytes, message] : bad) {
    const absl::StatusOr<Tensor> tensor = NpyFromBytes(bytes, "t");
    ASSERT_FALSE(tensor.ok()) << message;
    EXPECT_THAT(std::string(ToStd(tensor.status().message())), HasSubstr(message));
  }
}

TEST(NpyTest, ConvertsWithinAKind) {
  Tensor doubles({DType::kF64, {3}});
  doubles.As<double>()[0] = 1.5;
  doubles.As<double>()[1] = -1.0 / 3;
  doubles.As<double>()[2] = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const absl::StatusOr<Tensor> converted = ConvertTensor(doubles, dtype);
    ASSERT_TRUE(converted.ok()) << converted.status();
    EXPECT_EQ(ElementAsDouble(*converted, 0), 1.5);
    EXPECT_NEAR(ElementAsDouble(*converted, 1), -1.0 / 3, 1e-3);
    EXPECT_TRUE(std::isinf(ElementAsDouble(*converted, 2)));
  }
  Tensor integers({DType::kI64, {2}});
  integers.As<int64_t>()[1] = 300;
  EXPECT_TRUE(ConvertTensor(integers, DType::kI32).ok());
  EXPECT_FALSE(ConvertTensor(integers, DType::kU8).ok());
  EXPECT_FALSE(ConvertTensor(integers, DType::kF32).ok());
}

TEST(NpyTest, EveryHalfSurvivesTheWayThroughFloat) {
  Tensor halves({DType::kF16, {65536}});
  for (int i = 0; i < 65536; ++i) halves.As<uint16_t>()[i] = static_cast<uint16_t>(i);
  const absl::StatusOr<Tensor> floats = ConvertTensor(halves, DType::kF32);
  ASSERT_TRUE(floats.ok());
  const absl::StatusOr<Tensor> back = ConvertTensor(*floats, DType::kF16);
  ASSERT_TRUE(back.ok());
  for (int i = 0; i < 65536; ++i) {
    if (std::isnan(floats->As<float>()[i])) continue;
    EXPECT_EQ(back->As<uint16_t>()[i], i);
  }
}

}  // namespace
}  // namespace penstock::cli
