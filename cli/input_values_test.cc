#include "cli/input_values.h"

#include <cmath>
#include <filesystem>

#include "cli/npy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "tests/support/temp_folder.h"

namespace penstock::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class InputValuesTest : public ::testing::Test {
 protected:
  // A file of i64 that counts from 0.
  Job::InputSource File(const std::string& name, Shape shape) const {
    Tensor tensor({DType::kI64, std::move(shape)});
    for (int64_t i = 0; i < tensor.num_elements(); ++i) tensor.As<int64_t>()[i] = i;
    EXPECT_TRUE(WriteNpy(folder_.Path(name), tensor).ok());
    return {false, folder_.Path(name)};
  }

  static absl::StatusOr<InputValues> Open(const Job::InputSource& source,
                                          TensorType type = {DType::kI32, {2, 3}}) {
    return InputValues::Open("x", type, source, /*seed=*/5);
  }

  static std::vector<int32_t> At(const InputValues& values, int64_t step) {
    const absl::StatusOr<Tensor> tensor = values.Get(step);
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    return {tensor->As<int32_t>(), tensor->As<int32_t>() + tensor->num_elements()};
  }

  static std::string ErrorOf(const Job::InputSource& source,
                             TensorType type = {DType::kI32, {2, 3}}) {
    const absl::StatusOr<InputValues> values = Open(source, std::move(type));
    return values.ok() ? "no error" : std::string(ToStd(values.status().message()));
  }

  const testing::TempFolder folder_;
};

TEST_F(InputValuesTest, AFileOfTheInputsShapeIsFedInEveryStep) {
  const auto values = Open(File("x.npy", {2, 3}));
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(values->period(), 1);
  EXPECT_TRUE(values->is_constant());
  EXPECT_THAT(At(*values, 0), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(At(*values, 9), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST_F(InputValuesTest, AnEmptyInputHasAnEmptyFile) {
  const auto values = Open(File("x.npy", {0, 3}), {DType::kI32, {0, 3}});
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_TRUE(values->is_constant());
  EXPECT_THAT(At(*values, 1), ElementsAre());
  EXPECT_THAT(ErrorOf(File("y.npy", {4, 3}), {DType::kI32, {0, 3}}), HasSubstr("expected [0, 3]"));
}

TEST_F(InputValuesTest, RowsAreFedInOrderAndStartAgain) {
  const auto values = Open(File("x.npy", {4, 3}));
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(values->period(), 2);
  EXPECT_FALSE(values->is_constant());
  EXPECT_THAT(At(*values, 1), ElementsAre(6, 7, 8, 9, 10, 11));
  EXPECT_THAT(At(*values, 2), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST_F(InputValuesTest, RowsThatDoNotFillAStepAreRefused) {
  EXPECT_THAT(ErrorOf(File("x.npy", {5, 3})),
              HasSubstr("x.npy: holds i64[5, 3]; input x is i32[2, 3]: 1 row would be left over "
                        "after 2 steps of 2 rows; use a number of rows that is a multiple of 2"));
  EXPECT_THAT(ErrorOf(File("y.npy", {12, 3}), {DType::kI32, {8, 3}}),
              HasSubstr("4 rows would be left over after 1 step of 8 rows"));
}

TEST_F(InputValuesTest, OneStepInTheFormOfSeveralIsNotConstant) {
  const auto values = Open(File("x.npy", {1, 2, 3}));
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(values->period(), 1);
  EXPECT_FALSE(values->is_constant());
  EXPECT_THAT(At(*values, 3), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST_F(InputValuesTest, AnotherDimensionBeforeTheInputsIsOfSteps) {
  const auto values = Open(File("x.npy", {3, 2, 3}));
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(values->period(), 3);
  EXPECT_THAT(At(*values, 5), ElementsAre(12, 13, 14, 15, 16, 17));
  // Of a scalar too.
  const auto scalar = Open(File("s.npy", {4}), {DType::kI32, {}});
  ASSERT_TRUE(scalar.ok()) << scalar.status();
  EXPECT_THAT(At(*scalar, 6), ElementsAre(2));
}

TEST_F(InputValuesTest, AFolderHoldsAFileAStepInTheOrderOfNames) {
  std::filesystem::create_directories(folder_.Path("d"));
  File("d/b.npy", {2, 3});
  Tensor ones({DType::kI64, {2, 3}});
  for (int64_t i = 0; i < 6; ++i) ones.As<int64_t>()[i] = 1;
  ASSERT_TRUE(WriteNpy(folder_.Path("d/a.npy"), ones).ok());
  const auto values = Open({false, folder_.Path("d")});
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(values->period(), 2);
  EXPECT_THAT(At(*values, 0), ElementsAre(1, 1, 1, 1, 1, 1));
  EXPECT_THAT(At(*values, 3), ElementsAre(0, 1, 2, 3, 4, 5));
  // One that does not fit is named when its turn comes; the first is checked at once.
  File("d/c.npy", {3, 3});
  const auto with_bad = Open({false, folder_.Path("d")});
  ASSERT_TRUE(with_bad.ok()) << with_bad.status();
  EXPECT_THAT(std::string(ToStd(with_bad->Get(2).status().message())),
              HasSubstr("c.npy: holds i32[3, 3]; input x is i32[2, 3]"));
}

TEST_F(InputValuesTest, WhatDoesNotFitIsRefused) {
  EXPECT_THAT(ErrorOf(File("x.npy", {1, 3})), HasSubstr("x.npy: holds i64[1, 3]; input x is"));
  EXPECT_THAT(ErrorOf(File("y.npy", {2, 4})), HasSubstr("expected [2, 3], more rows"));
  EXPECT_THAT(ErrorOf(File("z.npy", {4}), {DType::kI32, {2}}), "no error");
  EXPECT_THAT(ErrorOf(File("f.npy", {2, 3}), {DType::kF32, {2, 3}}), HasSubstr("f.npy: "));
  Tensor large({DType::kI64, {2, 3}});
  large.As<int64_t>()[4] = int64_t{1} << 40;
  ASSERT_TRUE(WriteNpy(folder_.Path("l.npy"), large).ok());
  EXPECT_THAT(ErrorOf({false, folder_.Path("l.npy")}), HasSubstr("does not fit"));
}

TEST_F(InputValuesTest, DrawsDependOnNameSeedAndStep) {
  const TensorType type = {DType::kF32, {1000}};
  const auto draw = [&](std::string_view name, uint64_t seed, int64_t step) {
    const absl::StatusOr<Tensor> tensor = DrawInput(name, type, seed, step);
    EXPECT_TRUE(tensor.ok());
    return std::vector<float>(tensor->As<float>(), tensor->As<float>() + 1000);
  };
  EXPECT_EQ(draw("x", 1, 0), draw("x", 1, 0));
  EXPECT_NE(draw("x", 1, 0), draw("y", 1, 0));
  EXPECT_NE(draw("x", 1, 0), draw("x", 2, 0));
  EXPECT_NE(draw("x", 1, 0), draw("x", 1, 1));
  double sum = 0;
  double squares = 0;
  for (const float value : draw("x", 1, 0)) {
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / 1000, 0, 0.15);
  EXPECT_NEAR(squares / 1000, 1, 0.2);
  const auto values = InputValues::Open("x", type, {true, ""}, 1);
  ASSERT_TRUE(values.ok());
  EXPECT_EQ(values->period(), 0);
}

}  // namespace
}  // namespace penstock::cli
