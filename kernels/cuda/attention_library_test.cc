// What attention a library is asked for, in which slices, and with how much workspace.

#include "kernels/cuda/attention_library.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "graph/op.h"
#include "kernels/attention_tiles.h"
#include "kernels/cuda/library_attention.h"
#include "kernels/gpu.h"
#include "tests/support/interpreter.h"

namespace penstock::kernels::cuda {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

// With contiguous heads.
LibraryAttentionShape Heads(int64_t batch, int64_t heads, int64_t key_heads, int64_t queries,
                            int64_t keys, int64_t width, bool is_causal = false) {
  LibraryAttentionShape shape;
  shape.sizes = {.batch = batch,
                 .heads = heads,
                 .key_heads = key_heads,
                 .queries = queries,
                 .keys = keys,
                 .width = width,
                 .is_causal = is_causal,
                 .causal_offset = 0,
                 .lse_rows = queries};
  shape.q = SeparateStrides(heads, queries, width);
  shape.k = SeparateStrides(key_heads, keys, width);
  shape.v = shape.k;
  shape.o = shape.q;
  return shape;
}

TEST(AttentionLibraryTest, TakesFloatsOf16Bits) {
  LibraryAttentionShape shape = Heads(2, 4, 2, 64, 64, 32);
  EXPECT_TRUE(IsForLibrary(shape));
  shape.dtype = DType::kF16;
  EXPECT_TRUE(IsForLibrary(shape));
  shape.dtype = DType::kF32;
  EXPECT_FALSE(IsForLibrary(shape));
}

TEST(AttentionLibraryTest, TakesWidthsOfAMultipleOf8UpTo128) {
  for (const int64_t width : {8, 24, 64, 128}) {
    EXPECT_TRUE(IsForLibrary(Heads(1, 1, 1, 16, 16, width))) << width;
  }
  for (const int64_t width : {0, 4, 12, 136, 256}) {
    EXPECT_FALSE(IsForLibrary(Heads(1, 1, 1, 16, 16, width))) << width;
  }
}

TEST(AttentionLibraryTest, TakesNothingEmptyAndNoSingleQueryOrKey) {
  EXPECT_TRUE(IsForLibrary(Heads(1, 1, 1, 2, 2, 8)));
  EXPECT_FALSE(IsForLibrary(Heads(0, 1, 1, 16, 16, 8)));
  EXPECT_FALSE(IsForLibrary(Heads(1, 0, 1, 16, 16, 8)));
  EXPECT_FALSE(IsForLibrary(Heads(1, 1, 0, 16, 16, 8)));
  EXPECT_FALSE(IsForLibrary(Heads(1, 1, 1, 0, 16, 8)));
  EXPECT_FALSE(IsForLibrary(Heads(1, 1, 1, 16, 0, 8)));
  EXPECT_FALSE(IsForLibrary(Heads(1, 1, 1, 1, 16, 8)));
  EXPECT_FALSE(IsForLibrary(Heads(1, 1, 1, 16, 1, 8)));
}

TEST(AttentionLibraryTest, HeadsOfKeysDivideThoseOfQueries) {
  EXPECT_TRUE(IsForLibrary(Heads(1, 6, 3, 16, 16, 8)));
  EXPECT_FALSE(IsForLibrary(Heads(1, 6, 4, 16, 16, 8)));
}

TEST(AttentionLibraryTest, ACausalMaskStartsAtTheFirstKeyOfAsMany) {
  LibraryAttentionShape shape = Heads(1, 1, 1, 16, 16, 8, true);
  EXPECT_TRUE(IsForLibrary(shape));
  shape.sizes.causal_offset = 8;
  EXPECT_FALSE(IsForLibrary(shape));
  EXPECT_FALSE(IsForLibrary(Heads(1, 1, 1, 16, 24, 8, true)));
  // Without a mask the offset says nothing.
  shape.sizes.is_causal = false;
  EXPECT_TRUE(IsForLibrary(shape));
}

TEST(AttentionLibraryTest, StatisticsAreContiguous) {
  LibraryAttentionShape shape = Heads(1, 1, 1, 16, 16, 8);
  shape.sizes.lse_rows = 32;
  EXPECT_FALSE(IsForLibrary(shape));
}

TEST(AttentionLibraryTest, StridesAreAligned) {
  LibraryAttentionShape shape = Heads(1, 1, 1, 16, 16, 8);
  shape.k.row = 12;
  EXPECT_FALSE(IsForLibrary(shape));
  shape.k.row = 16;
  EXPECT_TRUE(IsForLibrary(shape));
}

TEST(AttentionLibraryTest, TensorsSpanLessThan2To31Elements) {
  EXPECT_TRUE(IsForLibrary(Heads(127, 32, 32, 4096, 4096, 128)));
  EXPECT_FALSE(IsForLibrary(Heads(128, 32, 32, 4096, 4096, 128)));
  EXPECT_FALSE(IsForLibrary(Heads(int64_t{1} << 32, 1, 1, 16, 16, 8)));
  EXPECT_FALSE(IsForLibrary(Heads(1, 1, 1, int64_t{1} << 40, 16, 8)));
}

TEST(AttentionLibraryTest, GradientsTakeQueriesOfAMultipleOf4) {
  EXPECT_TRUE(IsGradForLibrary(Heads(1, 2, 2, 12, 15, 8)));
  EXPECT_FALSE(IsGradForLibrary(Heads(1, 2, 2, 14, 15, 8)));
  EXPECT_FALSE(IsGradForLibrary(Heads(1, 2, 2, 12, 15, 12)));
}

TEST(AttentionLibraryTest, GradientsOfAllHeadsAreOneSliceWhereTheyFit) {
  const kernels::AttentionShape sizes = Heads(8, 12, 12, 1024, 1024, 64).sizes;
  const AttentionGradSlice slice = SliceOfGrad(sizes);
  EXPECT_EQ(slice.batch, 8);
  EXPECT_EQ(slice.key_heads, 12);
  // The matrices of queries x keys, and not much more.
  EXPECT_GE(AttentionGradWorkspaceBytes(sizes), size_t{8} * 12 * 1024 * 1024 * 2);
  EXPECT_LE(AttentionGradWorkspaceBytes(sizes), size_t{200 * kMiB});
}

TEST(AttentionLibraryTest, GradientsAreSlicedByTheBatchAndThenByHeads) {
  AttentionGradSlice slice = SliceOfGrad(Heads(16, 25, 25, 1024, 1024, 64).sizes);
  EXPECT_EQ(slice.batch, 8);
  EXPECT_EQ(slice.key_heads, 25);
  slice = SliceOfGrad(Heads(2, 32, 8, 4096, 4096, 128).sizes);
  EXPECT_EQ(slice.batch, 1);
  EXPECT_EQ(slice.key_heads, 2);  // with 8 heads of queries: 256 MiB of matrices
}

TEST(AttentionLibraryTest, GradientsOfLongSequencesDoNotFit) {
  EXPECT_TRUE(IsGradForLibrary(Heads(1, 1, 1, 8192, 8192, 128)));
  EXPECT_FALSE(IsGradForLibrary(Heads(1, 1, 1, 32768, 32768, 128)));
  EXPECT_EQ(SliceOfGrad(Heads(1, 1, 1, 32768, 32768, 128).sizes).batch, 0);
}

TEST(AttentionLibraryTest, SlicesDivideTheWholeAndKeepToTheLimit) {
  for (const int64_t batch : {1, 3, 8}) {
    for (const int64_t key_heads : {1, 6, 25}) {
      for (const int64_t group : {1, 4}) {
        for (const int64_t length : {4, 200, 1024, 4096}) {
          const kernels::AttentionShape sizes =
              Heads(batch, key_heads * group, key_heads, length, length, 128).sizes;
          const AttentionGradSlice slice = SliceOfGrad(sizes);
          ASSERT_GT(slice.batch, 0);
          EXPECT_EQ(batch % slice.batch, 0);
          EXPECT_EQ(key_heads % slice.key_heads, 0);
          EXPECT_TRUE(slice.batch == 1 || slice.key_heads == key_heads);
          EXPECT_LE(AttentionGradWorkspaceBytes(sizes), kMaxAttentionGradWorkspaceBytes);
          EXPECT_GE(
              AttentionGradWorkspaceBytes(sizes),
              static_cast<size_t>(slice.batch * slice.key_heads * group * length * length) * 2);
        }
      }
    }
  }
}

TEST(AttentionLibraryTest, TheVariableNamesOwnKernelsOrTheLibrary) {
  EXPECT_EQ(ParseAttentionChoice(nullptr).value(), AttentionChoice::kAny);
  EXPECT_EQ(ParseAttentionChoice("").value(), AttentionChoice::kAny);
  EXPECT_EQ(ParseAttentionChoice("own").value(), AttentionChoice::kOwn);
  EXPECT_EQ(ParseAttentionChoice("cudnn").value(), AttentionChoice::kLibrary);
  const absl::Status status = ParseAttentionChoice("fast").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("PENSTOCK_ATTENTION is \"fast\""));
}

// ---- Of the specs of operators.

TensorType BF16(Shape shape) { return {DType::kBF16, std::move(shape)}; }
TensorType F32(Shape shape) { return {DType::kF32, std::move(shape)}; }

KernelSpec Spec(const std::string& op, const std::vector<TensorType>& inputs, bool is_causal) {
  static const graph::OpRegistry ops = graph::BuiltinOps();
  KernelSpec spec;
  spec.op = op;
  spec.attributes = {{"causal", is_causal}};
  const auto results = graph::InferResultTypes(*ops.Find(op), spec.attributes, inputs);
  EXPECT_TRUE(results.ok()) << results.status();
  if (!results.ok()) return spec;
  for (const TensorType& type : inputs) spec.inputs.push_back(testing::WholeTile(type));
  for (const TensorType& type : *results) spec.outputs.push_back(testing::WholeTile(type));
  return spec;
}

TEST(LibraryAttentionTest, HeadsOfPackedOperandsLieInTheirRows) {
  const auto shape = FindLibraryShape(Spec("qkv_attention", {BF16({2, 16, 3, 4, 8})}, true));
  ASSERT_TRUE(shape.has_value());
  EXPECT_EQ(shape->dtype, DType::kBF16);
  EXPECT_EQ(shape->sizes.heads, 4);
  EXPECT_EQ(shape->sizes.queries, 16);
  EXPECT_TRUE(shape->sizes.is_causal);
  EXPECT_EQ(shape->q.batch, 16 * 3 * 4 * 8);
  EXPECT_EQ(shape->v.head, 8);
  EXPECT_EQ(shape->k.row, 3 * 4 * 8);
  EXPECT_EQ(shape->o.row, 4 * 8);
}

TEST(LibraryAttentionTest, SeparateOperandsMayShareHeadsOfKeys) {
  const auto shape = FindLibraryShape(
      Spec("attention", {BF16({2, 4, 16, 8}), BF16({2, 2, 24, 8}), BF16({2, 2, 24, 8})}, false));
  ASSERT_TRUE(shape.has_value());
  EXPECT_EQ(shape->sizes.key_heads, 2);
  EXPECT_EQ(shape->q.head, 16 * 8);
  EXPECT_EQ(shape->k.head, 24 * 8);
  EXPECT_EQ(shape->k.batch, 2 * 24 * 8);
  EXPECT_EQ(shape->o.batch, 4 * 16 * 8);
}

TEST(LibraryAttentionTest, ResultsAreOfTheTypeOfOperands) {
  KernelSpec spec = Spec("qkv_attention", {BF16({2, 16, 3, 4, 8})}, true);
  EXPECT_GT(LibraryAttentionWorkspace(spec), 0u);
  spec.outputs[0].dtype = DType::kF32;
  EXPECT_EQ(LibraryAttentionWorkspace(spec), 0u);
  EXPECT_EQ(LibraryAttentionWorkspace(Spec("qkv_attention", {F32({2, 16, 3, 4, 8})}, true)), 0u);
}

TEST(LibraryAttentionTest, WorkspaceIsReservedForTheLibraryAndForOurKernels) {
  const KernelRegistry kernels = CudaKernels();
  const auto bytes = [&](const KernelSpec& spec) {
    return kernels.Find(spec.op)->workspace_bytes(spec, 1);
  };
  const TensorType heads = BF16({2, 4, 16, 8});
  const TensorType lse = F32({2, 4, 16});
  const KernelSpec grad = Spec("attention_grad", {heads, heads, heads, heads, lse, heads}, true);
  ASSERT_TRUE(FindLibraryShape(grad).has_value());
  EXPECT_EQ(bytes(grad), AttentionGradWorkspaceBytes(FindLibraryShape(grad)->sizes) +
                             kAttentionWorkspaceAlignment);
  // Ours alone.
  const TensorType floats = F32({2, 4, 16, 8});
  EXPECT_EQ(bytes(Spec("attention_grad", {floats, floats, floats, floats, lse, floats}, true)),
            size_t{2} * 4 * 16 * 4);
  const KernelSpec packed = Spec(
      "qkv_attention_grad",
      {BF16({2, 16, 3, 4, 8}), BF16({2, 16, 4, 8}), F32({2, 4, 16}), BF16({2, 16, 4, 8})}, false);
  EXPECT_GT(bytes(packed), size_t{1} << 20);
}

}  // namespace
}  // namespace penstock::kernels::cuda
