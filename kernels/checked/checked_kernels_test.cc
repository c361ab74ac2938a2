#include "kernels/checked/checked_kernels.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/device.h"

namespace penstock::kernels {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

class CheckedKernelsTest : public ::testing::Test {
 protected:
  // An elementwise operator of two f32 operands under a check.
  std::unique_ptr<Kernel> Make(const std::string& op, int64_t size, ResultCheck check) {
    const KernelRegistry checked = CheckedKernels(kernels_, check);
    KernelSpec spec;
    spec.op = op;
    const Shape shape = {size};
    const TileDesc tile = {DType::kF32, shape, shape, {0}, {0}};
    spec.inputs = {tile, tile};
    spec.outputs = {tile};
    auto kernel = checked.Find(op)->create(spec, *device_, *stream_);
    EXPECT_TRUE(kernel.ok()) << kernel.status();
    return *std::move(kernel);
  }

  static std::string RunStep(Kernel& kernel, std::vector<float>& a, std::vector<float>& b,
                             std::vector<float>& out, int64_t step = 0) {
    void* inputs[] = {a.data(), b.data()};
    void* outputs[] = {out.data()};
    KernelArgs args;
    args.inputs = inputs;
    args.outputs = outputs;
    args.step = step;
    const absl::Status status = kernel.Run(args);
    EXPECT_TRUE(status.ok() || absl::IsOutOfRange(status));
    return std::string(status.message());
  }

  // `out` may be an operand.
  std::string Run(const std::string& op, std::vector<float>& a, std::vector<float>& b,
                  std::vector<float>& out) {
    return RunStep(*Make(op, static_cast<int64_t>(a.size()), ResultCheck::kEveryStep), a, b, out);
  }

  const KernelRegistry kernels_ = CpuKernels();
  const std::shared_ptr<Device> device_ = CreateCpuDevice(1);
  const std::shared_ptr<Stream> stream_ = device_->CreateStream();
};

TEST_F(CheckedKernelsTest, FiniteResultsPassAndAreThoseOfTheKernel) {
  std::vector<float> a = {1, 2, 3}, b = {4, 5, 6}, out(3);
  EXPECT_EQ(Run("mul", a, b, out), "");
  EXPECT_EQ(out, (std::vector<float>{4, 10, 18}));
}

TEST_F(CheckedKernelsTest, TheResultThatIsNotFiniteIsNamed) {
  std::vector<float> a = {1, 0, 3}, b = {4, 0, 6}, out(3);
  EXPECT_EQ(Run("div", a, b, out),
            "result 0 of div (a tile f32[3]) holds nan at element 1; its operands are finite");
  std::vector<float> large = {1, 1, 3e38f}, two = {1, 1, -2};
  EXPECT_THAT(Run("mul", large, two, out),
              HasSubstr("holds an infinity at element 2; its operands"));
}

TEST_F(CheckedKernelsTest, AnOperandThatHadItAlreadyIsTold) {
  std::vector<float> a = {1, 2, 3}, b = {4, kNan, 6};
  // In place: the operand is gone by then.
  EXPECT_THAT(Run("add", a, b, b), HasSubstr("an operand has a nan already"));
  std::vector<float> up = {kInf, 1, 1}, down = {-kInf, 1, 1}, out(3);
  EXPECT_THAT(Run("add", up, down, out), HasSubstr("nan at element 0; an operand is infinite"));
}

TEST_F(CheckedKernelsTest, AMaskPassesOn) {
  std::vector<float> a = {1, 2, 3}, mask = {0, -kInf, 0}, out(3);
  EXPECT_EQ(Run("add", a, mask, out), "");
}

TEST_F(CheckedKernelsTest, InfinitiesOfTheFirstStepMayBeIntended) {
  std::vector<float> one = {1, 1}, zero = {0, 1}, out(2), large = {1, 3e38f}, ten = {1, 10};
  const auto always = Make("div", 2, ResultCheck::kEveryStep);
  EXPECT_THAT(RunStep(*always, one, zero, out, 4), HasSubstr("an infinity at element 0"));
  const auto learning = Make("div", 2, ResultCheck::kAfterFirstStep);
  EXPECT_EQ(RunStep(*learning, one, zero, out, 4), "");
  EXPECT_EQ(RunStep(*learning, one, zero, out, 5), "");
  std::vector<float> both = {0, 0};
  EXPECT_THAT(RunStep(*learning, both, both, out, 5), HasSubstr("holds nan"));
  const auto overflowing = Make("mul", 2, ResultCheck::kAfterFirstStep);
  EXPECT_EQ(RunStep(*overflowing, one, ten, out, 4), "");
  EXPECT_THAT(RunStep(*overflowing, large, ten, out, 5), HasSubstr("an infinity at element 1"));
}

TEST_F(CheckedKernelsTest, AConstantMayBeInfinite) {
  const KernelRegistry checked = CheckedKernels(kernels_, ResultCheck::kEveryStep);
  KernelSpec spec;
  spec.op = "constant";
  spec.attributes = {{"value", -HUGE_VAL}};
  spec.outputs = {{DType::kF32, {2}, {2}, {0}, {0}}};
  auto kernel = checked.Find("constant")->create(spec, *device_, *stream_);
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  std::vector<float> out(2);
  void* outputs[] = {out.data()};
  KernelArgs args;
  args.outputs = outputs;
  EXPECT_TRUE((*kernel)->Run(args).ok());
  EXPECT_EQ(out[1], -kInf);
}

TEST_F(CheckedKernelsTest, EveryFloatTypeIsRead) {
  const double f64[] = {1, HUGE_VAL, std::nan("")};
  EXPECT_EQ(FindNotFinite(DType::kF64, f64, 3).infinity, 1);
  EXPECT_EQ(FindNotFinite(DType::kF64, f64, 3).nan, 2);
  EXPECT_EQ(FindNotFinite(DType::kF64, f64, 1).nan, -1);
  const uint16_t f16[] = {0x7bff, 0x3c00, 0x7e00, 0xfc00};  // largest, 1, nan, -inf
  EXPECT_EQ(FindNotFinite(DType::kF16, f16, 2).nan, -1);
  EXPECT_EQ(FindNotFinite(DType::kF16, f16, 4).nan, 2);
  const uint16_t bf16[] = {0x7f7f, 0x3f80, 0xff80, 0x7fc0};  // largest, 1, -inf, nan
  EXPECT_EQ(FindNotFinite(DType::kBF16, bf16, 4).infinity, 2);
  EXPECT_EQ(FindNotFinite(DType::kBF16, bf16, 4).nan, 3);
  const int32_t i32[] = {0x7f800000, -1};
  EXPECT_EQ(FindNotFinite(DType::kI32, i32, 2).nan, -1);
}

}  // namespace
}  // namespace penstock::kernels
