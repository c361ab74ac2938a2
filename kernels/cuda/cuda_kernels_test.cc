// Kernels of GPUs: what can be known of them without a GPU, and on a GPU their results against
// those of the CPU.

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/attention.h"
#include "kernels/cuda/box_plan.h"
#include "kernels/cuda/contraction_plan.h"
#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/embedding_grad.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/tensor_attention.h"
#include "kernels/gpu.h"
#include "tests/support/kernel_checks.h"

namespace penstock::kernels::cuda {
namespace {

using testing::AllKernelChecks;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::KernelCheck;
using testing::KernelCheckRun;

constexpr int64_t kTimeoutNs = 60'000'000'000;

// ---- Without a GPU.

TEST(LaunchShapeTest, LoopsAndRowsAreLaunchable) {
  for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{255}, int64_t{257}, int64_t{1} << 40}) {
    const LaunchShape loop = ShapeForLoop(count);
    EXPECT_TRUE(IsLaunchable(loop)) << count;
    EXPECT_LE(loop.grid_x, kMaxBlocks);
    for (int64_t size : {int64_t{0}, int64_t{1}, int64_t{100}, int64_t{50257}}) {
      const LaunchShape rows = ShapeForRows(count, size);
      EXPECT_TRUE(IsLaunchable(rows)) << count << " x " << size;
      EXPECT_EQ(rows.threads_x % kWarp, 0u);
    }
  }
  EXPECT_EQ(ShapeForLoop(1000).grid_x, 4u);
  EXPECT_EQ(ShapeForRows(10, 768).threads_x, 256u);
  EXPECT_EQ(ShapeForRows(10, 50257).threads_x, 1024u);
}

TEST(LaunchShapeTest, LimitsAreThoseOfEveryArchitectureSince80) {
  LaunchShape shape;
  EXPECT_TRUE(IsLaunchable(shape));
  shape.threads_x = 1024;
  shape.threads_y = 2;
  EXPECT_FALSE(IsLaunchable(shape));
  shape = {.grid_y = 65536};
  EXPECT_FALSE(IsLaunchable(shape));
  shape = {.shared_bytes = (99 << 10) + 1};
  EXPECT_FALSE(IsLaunchable(shape));
}

TEST(LaunchShapeTest, ScattersFillTheDeviceThenGoOverTheirIndicesLessOften) {
  // A table of 256 bytes: a block for each row and 256 columns.
  const ScatterLaunch few = ScatterLaunchOf(1, 256, 768);
  EXPECT_EQ(few.rows, 1);
  EXPECT_EQ(few.shape.grid_x, 256u);
  EXPECT_EQ(few.shape.grid_y, 3u);
  EXPECT_EQ(few.shape.threads_x, 256u);
  // A vocabulary.
  const ScatterLaunch many = ScatterLaunchOf(1, 50257, 768);
  EXPECT_EQ(many.rows, 32);
  EXPECT_EQ(many.shape.grid_x, 1571u);
  EXPECT_EQ(ScatterLaunchOf(8, 2048, 100).rows, 8);
  EXPECT_EQ(ScatterLaunchOf(1, 10, 1).shape.threads_x, 32u);
  EXPECT_TRUE(IsLaunchable(ScatterLaunchOf(1, 1 << 20, 1 << 20).shape));
}

// Few rows have a part each, and a vocabulary is not gone over more often than devices need.
TEST(LaunchShapeTest, EmbeddingsAreDividedIntoEnoughParts) {
  EXPECT_EQ(EmbeddingPartsOf(256).parts, 256);
  EXPECT_EQ(EmbeddingPartsOf(1100).parts, 550);
  EXPECT_EQ(EmbeddingPartsOf(50257).shift, 5);
  EXPECT_EQ(EmbeddingPartsOf(50257).parts, 1571);
  EXPECT_EQ(EmbeddingPartsOf(0).parts, 0);
  EXPECT_EQ(EmbeddingGradWorkspaceBytes(1100, 7), 8u * (2 * 550 + 7));
}

TEST(LaunchShapeTest, AttentionFitsInSharedMemoryAtEveryWidth) {
  for (int64_t width = 1; width <= kMaxHeadWidth; ++width) {
    for (const bool is_gradient : {false, true}) {
      const LaunchShape shape = AttentionLaunch(8, 16, 4096, width, is_gradient);
      ASSERT_TRUE(IsLaunchable(shape)) << width;
    }
  }
  EXPECT_EQ(AttentionLaunch(1, 1, 1, 64, false).shared_bytes, 80u * 65 * 4);
  EXPECT_EQ(AttentionLaunch(1, 1, 1, 256, true).shared_bytes, 96u * 257 * 4);
}

TEST(LaunchShapeTest, AttentionOnTensorCoresFitsInSharedMemory) {
  for (int64_t width = 8; width <= kMaxTensorHeadWidth; width += 8) {
    for (const AttentionCut& cut : {ForwardCut(width), GradCut(width)}) {
      LaunchShape shape = TensorAttentionLaunch(cut, 8 * 16, 4096, width);
      EXPECT_EQ(shape.grid_x, 8u * 16 * 4096 / static_cast<unsigned>(cut.rows()));
      shape.shared_bytes += AttentionCut::kMaxStaticBytes;
      ASSERT_TRUE(IsLaunchable(shape)) << width;
    }
  }
  // The rows of queries, and two buffers for those of keys and of values.
  EXPECT_EQ(TensorAttentionLaunch(ForwardCut(64), 1, 1, 64).shared_bytes, 2u * 64 * (128 + 4 * 64));
  EXPECT_EQ(TensorAttentionLaunch(GradCut(80), 1, 1, 80).shared_bytes,
            2u * 128 * (2 * 64 + 4 * 32));
}

TEST(BoxPlanTest, JoinsAndDropsDimensions) {
  const Box plain = *PlanBox({2, 1, 3, 4}, {12, 12, 4, 1}, {12, 12, 4, 1});
  EXPECT_EQ(plain.rank, 1);
  EXPECT_EQ(plain.sizes[0], 24);
  // The source's contiguous dimension comes next to the last.
  const Box transpose = *PlanBox({6, 5, 4}, {1, 6, 30}, {20, 4, 1});
  EXPECT_EQ(transpose.rank, 3);
  EXPECT_EQ(transpose.sizes[1], 6);
  EXPECT_EQ(transpose.source_strides[1], 1);
  EXPECT_EQ(transpose.target_strides[2], 1);
  EXPECT_EQ(PlanBox({}, {}, {})->count(), 1);
}

TEST(BoxPlanTest, WordsAreAsWideAsAddressesAndDistancesAllow) {
  alignas(16) static char bytes[64];
  const Box rows = *PlanBox({3, 8}, {16, 1}, {8, 1});
  EXPECT_EQ(WordBytes(rows, 4, bytes, bytes), 16);
  EXPECT_EQ(WordBytes(rows, 4, bytes + 8, bytes), 8);
  EXPECT_EQ(WordBytes(rows, 4, bytes + 4, bytes), 4);
  const Box odd = *PlanBox({3, 6}, {16, 1}, {6, 1});
  EXPECT_EQ(WordBytes(odd, 4, bytes, bytes), 8);
  const Box repeated = *PlanBox({3, 8}, {1, 0}, {8, 1});
  EXPECT_EQ(WordBytes(repeated, 2, bytes, bytes), 2);
}

TEST(BlasLayoutTest, RowMajorProductsAreSwapped) {
  // c[3, 5] = a[3, 7] b[7, 5], all of them row-major.
  const auto layout = BlasLayoutOf({.m = 3,
                                    .n = 5,
                                    .k = 7,
                                    .a_row = 7,
                                    .a_column = 1,
                                    .b_row = 5,
                                    .b_column = 1,
                                    .c_row = 5,
                                    .c_column = 1});
  ASSERT_TRUE(layout.has_value());
  EXPECT_TRUE(layout->is_swapped);
  EXPECT_FALSE(layout->transpose_a);
  EXPECT_FALSE(layout->transpose_b);
  EXPECT_THAT((std::vector<int64_t>{layout->rows, layout->columns, layout->k, layout->lda,
                                    layout->ldb, layout->ldc}),
              ElementsAre(5, 3, 7, 5, 7, 5));
}

TEST(BlasLayoutTest, MatricesWithoutAUnitStrideHaveNone) {
  EXPECT_FALSE(BlasLayoutOf({.m = 3,
                             .n = 5,
                             .k = 7,
                             .a_row = 14,
                             .a_column = 2,
                             .b_row = 5,
                             .b_column = 1,
                             .c_row = 5,
                             .c_column = 1})
                   .has_value());
}

TEST(ContractionPlanTest, LoopsAroundTheBatchBecomeLaunches) {
  // "bshd,bthd->bhst" with b = 2, s = 4, h = 3, d = 8, t = 5.
  const std::vector<ContractionIndex> indices = {
      {2, 96, 120, 60}, {4, 24, 0, 5}, {3, 8, 8, 20}, {8, 1, 1, 0}, {5, 0, 24, 1}};
  const ContractionPlan plan = *PlanContraction(indices);
  ASSERT_TRUE(plan.product.has_value());
  EXPECT_EQ(plan.product->layout.batch, 3);
  EXPECT_EQ(plan.product->launches.size(), 2u);
  EXPECT_EQ(plan.product->launches[1].a, 96);
  EXPECT_EQ(plan.product->aligned_elements, 1);
}

TEST(ContractionPlanTest, ElementwiseProductsAreNotABatchOfMatrices) {
  EXPECT_FALSE(PlanContraction({{4, 6, 6, 6}, {6, 1, 1, 1}})->product.has_value());
}

TEST(ContractionPlanTest, BatchesStayInTheRangeOfTheLibrary) {
  const int64_t batch = int64_t{1} << 31;
  EXPECT_FALSE(PlanContraction({{batch, 4, 4, 4}, {2, 2, 0, 2}, {2, 1, 2, 0}, {2, 0, 1, 1}})
                   ->product.has_value());
  EXPECT_TRUE(PlanContraction({{batch - 1, 4, 4, 4}, {2, 2, 0, 2}, {2, 1, 2, 0}, {2, 0, 1, 1}})
                  ->product.has_value());
}

TEST(ReducePlanTest, FewResultsAreFoldedInParts) {
  ReduceLoops all;
  all.reduced_rank = 1;
  all.reduced_sizes[0] = 1 << 20;
  all.reduced_strides[0] = 1;
  EXPECT_EQ(NumReduceParts(all), 256);
  EXPECT_EQ(ReduceWorkspaceBytes(all, 4), 1024u);
  ReduceLoops columns;
  columns.kept_rank = columns.reduced_rank = 1;
  columns.kept_sizes[0] = 768;
  columns.kept_strides[0] = 1;
  columns.reduced_sizes[0] = 8192;
  columns.reduced_strides[0] = 768;
  EXPECT_EQ(NumReduceParts(columns), 44);
  EXPECT_EQ(ReduceWorkspaceBytes(columns, 4), 44u * 768 * 4);
  EXPECT_EQ(NormWeightGradWorkspaceBytes(8192, 768, true), 2u * 44 * 768 * 4);
  columns.reduced_sizes[0] = 16;
  EXPECT_EQ(NumReduceParts(columns), 1);
  EXPECT_EQ(ReduceWorkspaceBytes(columns, 4), 0u);
}

// Workspaces and types differ, so a plan is made for one kind of device. What differs must be
// known.
TEST(CudaKernelsTest, EveryKernelOfTheCpuHasOneThatCanDoTheSame) {
  const KernelRegistry gpu = CudaKernels();
  const KernelRegistry cpu = CpuKernels();
  EXPECT_EQ(gpu.Names(), cpu.Names());
  for (const std::string_view name : cpu.Names()) {
    const KernelDef* def = gpu.Find(name);
    ASSERT_NE(def, nullptr) << name;
    EXPECT_EQ(def->supports_accumulate, cpu.Find(name)->supports_accumulate) << name;
  }
}

TEST(CudaKernelsTest, ResultsMayTakeThePlaceOfTheSameOperandsAsOnCpus) {
  const KernelRegistry gpu = CudaKernels();
  const KernelRegistry cpu = CpuKernels();
  const auto can_alias = [](const KernelRegistry& registry, const KernelSpec& spec, int input) {
    const KernelDef& def = *registry.Find(spec.op);
    return def.can_alias != nullptr && def.can_alias(spec, input);
  };
  for (const KernelCheck& check : AllKernelChecks(gpu)) {
    for (int i = 0; i < static_cast<int>(check.spec.inputs.size()); ++i) {
      EXPECT_EQ(can_alias(gpu, check.spec, i), can_alias(cpu, check.spec, i))
          << check.spec.op << ", operand " << i;
    }
  }
}

TEST(CudaKernelsTest, APlannerAsksForKernelsWithoutAGpu) {
  const KernelRegistry registry = CudaKernels();
  const graph::KernelTraits traits = TraitsOf(registry, 1);
  KernelSpec spec;
  spec.op = "softmax";
  spec.inputs = spec.outputs = {testing::WholeTile({DType::kF32, {4}})};
  EXPECT_EQ(traits.check_kernel(spec), absl::OkStatus());
  spec.inputs[0].dtype = spec.outputs[0].dtype = DType::kI64;
  EXPECT_EQ(traits.check_kernel(spec),
            absl::UnimplementedError("there is no cuda kernel for softmax on i64"));
}

// Those that compute in the type of their operands have f64, and so have products with an epilogue,
// as steps; a kernel with statistics, scalars or sums in f32 says why it has not.
TEST(CudaKernelsTest, KernelsHaveDoublesOrSayWhyNot) {
  const KernelRegistry registry = CudaKernels();
  const graph::KernelTraits traits = TraitsOf(registry, 1);
  std::set<std::string> with;
  std::set<std::string> without;
  for (const KernelCheck& check : AllKernelChecks(registry)) {
    const std::optional<KernelSpec> spec = testing::InDoubles(check.spec);
    const bool has_halves =  // with results in f32
        std::any_of(check.spec.inputs.begin(), check.spec.inputs.end(),
                    [](const TileDesc& tile) { return IsHalf(tile.dtype); });
    if (!spec.has_value() || has_halves) continue;
    const absl::Status status = traits.check_kernel(*spec);
    if (testing::HasDoubles(spec->op)) {
      EXPECT_EQ(status, absl::OkStatus()) << spec->op;
      with.insert(spec->op);
    } else if (!status.ok()) {
      EXPECT_EQ(status, absl::UnimplementedError(StrCat("there is no cuda kernel for ", spec->op,
                                                        " on f64; its kernel computes in f32")));
      without.insert(spec->op);
    }
  }
  EXPECT_GE(with.size(), 38u);
  EXPECT_TRUE(without.contains("softmax"));
  EXPECT_TRUE(without.contains("adamw"));
  EXPECT_FALSE(without.contains("transpose"));
}

// ---- With one.

class RealCudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const GpuSystem system = FindGpus();
    if (!system.status.ok()) GTEST_SKIP() << system.status.message();
    auto device = CreateCudaDevice(0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }

  std::unique_ptr<Device> device_;
};

TEST_F(RealCudaDeviceTest, CopiesBetweenAllKindsOfMemory) {
  const auto stream = device_->CreateStream();
  const auto event = device_->CreateEvent();
  const std::vector<int> numbers = {3, 1, 4, 1, 5};
  const size_t num_bytes = numbers.size() * sizeof(int);
  const auto a = *device_->Allocate(num_bytes, MemoryKind::kDevice);
  const auto b = *device_->Allocate(num_bytes, MemoryKind::kDevice);
  const auto pinned = *device_->Allocate(num_bytes, MemoryKind::kPinned);
  std::memcpy(pinned->data(), numbers.data(), num_bytes);
  std::vector<int> back(numbers.size());
  stream->Copy(a->data(), pinned->data(), num_bytes, CopyKind::kHostToDevice);
  stream->Copy(b->data(), a->data(), num_bytes, CopyKind::kDeviceToDevice);
  stream->Copy(back.data(), b->data(), num_bytes, CopyKind::kDeviceToHost);
  EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs), absl::OkStatus());
  EXPECT_EQ(back, numbers);
  // Allocations are zeroed.
  const auto zeros = *device_->Allocate(num_bytes, MemoryKind::kDevice);
  stream->Copy(back.data(), zeros->data(), num_bytes, CopyKind::kDeviceToHost);
  EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs), absl::OkStatus());
  EXPECT_EQ(back, std::vector<int>(numbers.size(), 0));
}

TEST_F(RealCudaDeviceTest, StreamsThatWaitForAFaultyOneHaveItsError) {
  const KernelRegistry registry = CudaKernels();
  const auto first = device_->CreateStream();
  const auto second = device_->CreateStream();
  const auto event = device_->CreateEvent();
  const auto last = device_->CreateEvent();
  const auto memory = *device_->Allocate(256, MemoryKind::kDevice);
  const int64_t id = 7;
  first->Copy(memory->data(), &id, sizeof(id), CopyKind::kHostToDevice);
  const KernelSpec spec = {
      .op = "pick",
      .attributes = {},
      .inputs = {testing::WholeTile({DType::kF32, {1, 4}}), testing::WholeTile({DType::kI64, {1}})},
      .outputs = {testing::WholeTile({DType::kF32, {1}})}};
  auto kernel = registry.Find("pick")->create(spec, *device_, *first);
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  void* inputs[] = {memory->data() + 64, memory->data()};
  void* outputs[] = {memory->data() + 128};
  KernelArgs args;
  args.inputs = inputs;
  args.outputs = outputs;
  args.stream = first.get();
  args.launch = 3;
  ASSERT_EQ((*kernel)->Run(args), absl::OkStatus());
  first->Record(event.get());
  second->Wait(event.get());
  EXPECT_THAT(std::string(WaitUntilDone(*second, *last, kTimeoutNs).message()),
              HasSubstr("index 7 lies outside [0, 4)"));
  ASSERT_NE(last->error(), nullptr);
  EXPECT_EQ(last->error()->launch, 3u);
  EXPECT_EQ(WaitUntilDone(*first, *event, kTimeoutNs).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(first->Reset(), absl::OkStatus());
  EXPECT_EQ(second->Reset(), absl::OkStatus());
  EXPECT_EQ(WaitUntilDone(*second, *last, kTimeoutNs), absl::OkStatus());
}

TEST_F(RealCudaDeviceTest, ALackOfMemoryNamesTheAmount) {
  const auto memory = device_->Allocate(size_t{1} << 50, MemoryKind::kDevice);
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(memory.status().message()), HasSubstr("1125899906842624 bytes"));
}

class CudaKernelCheckTest : public ::testing::TestWithParam<KernelCheck> {};

TEST_P(CudaKernelCheckTest, AgreesWithTheCpu) {
  const GpuSystem system = FindGpus();
  if (!system.status.ok()) GTEST_SKIP() << system.status.message();
  static const std::unique_ptr<Device>* const device =
      new std::unique_ptr<Device>(*CreateCudaDevice(0));
  const KernelRegistry registry = CudaKernels();
  KernelCheckRun(GetParam(), registry, **device).Run();
}

std::string CheckName(const ::testing::TestParamInfo<KernelCheck>& info) {
  return info.param.spec.op + "_" + std::to_string(info.index);
}

INSTANTIATE_TEST_SUITE_P(Kernels, CudaKernelCheckTest,
                         ::testing::ValuesIn(AllKernelChecks(CudaKernels())), CheckName);

}  // namespace
}  // namespace penstock::kernels::cuda
