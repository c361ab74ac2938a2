// Kernels whose operands and results are different tiles of one tensor, the packed form of
// attention, and what kernels do with wrong data.

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/random.h"
#include "kernels/cpu/contraction.h"
#include "kernels/kernel.h"
#include "tests/support/kernel_case.h"

namespace penstock::kernels {
namespace {

using graph::AttrValue;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::KernelRunner;

TileDesc Tile(Shape shape, Shape global, Shape offset, Shape microbatch_stride = {},
              DType dtype = DType::kF32) {
  TileDesc tile;
  tile.dtype = dtype;
  tile.shape = std::move(shape);
  tile.global = std::move(global);
  tile.offset = std::move(offset);
  tile.microbatch_stride =
      microbatch_stride.empty() ? Shape(tile.shape.size(), 0) : std::move(microbatch_stride);
  return tile;
}
TileDesc Whole(Shape shape, DType dtype = DType::kF32) {
  return Tile(shape, shape, Shape(shape.size(), 0), {}, dtype);
}

KernelSpec Spec(std::string op, std::vector<TileDesc> inputs, std::vector<TileDesc> outputs,
                graph::Attributes attributes = {}) {
  KernelSpec spec;
  spec.op = std::move(op);
  spec.inputs = std::move(inputs);
  spec.outputs = std::move(outputs);
  spec.attributes = std::move(attributes);
  return spec;
}

// A tensor that counts from `first`.
Tensor Counting(const TileDesc& tile, double first = 0) {
  Tensor tensor(TensorType{tile.dtype, tile.shape});
  for (int64_t i = 0; i < tensor.num_elements(); ++i) testing::SetElement(tensor, i, first + i);
  return tensor;
}
Tensor Of(DType dtype, Shape shape, const std::vector<double>& values) {
  Tensor tensor(TensorType{dtype, shape});
  for (size_t i = 0; i < values.size(); ++i) testing::SetElement(tensor, i, values[i]);
  return tensor;
}
std::vector<double> Values(const Tensor& tensor) {
  std::vector<double> values;
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    values.push_back(testing::GetElement(tensor, i));
  }
  return values;
}

// Runs a spec of one result in one micro-batch after another on the same memory.
std::vector<double> RunAll(const KernelSpec& spec, const std::vector<std::vector<Tensor>>& inputs) {
  KernelRunner runner(2);
  auto kernel = runner.Create(spec);
  EXPECT_TRUE(kernel.ok()) << kernel.status();
  const std::vector<Tensor> outputs = {
      KernelRunner::Garbage(spec.outputs[0].dtype, spec.outputs[0].shape)};
  for (size_t m = 0; m < inputs.size(); ++m) {
    const absl::Status status = runner.Run(**kernel, inputs[m], outputs, m);
    EXPECT_TRUE(status.ok()) << status;
  }
  return Values(outputs[0]);
}

TEST(LocalSliceTest, CopiesTheResultsTileOutOfTheOperands) {
  // Rows 1..2 of columns 2..3 of a [4, 5] tensor, out of its columns 1..4.
  const KernelSpec spec =
      Spec("local_slice", {Tile({4, 4}, {4, 5}, {0, 1})}, {Tile({2, 2}, {4, 5}, {1, 2})});
  EXPECT_THAT(RunAll(spec, {{Counting(spec.inputs[0])}}), ElementsAre(5, 6, 9, 10));
}

TEST(LocalSliceTest, TakesAMicrobatchOfAWhole) {
  const KernelSpec spec =
      Spec("local_slice", {Whole({4, 2})}, {Tile({2, 2}, {4, 2}, {0, 0}, {2, 0})});
  const Tensor x = Counting(spec.inputs[0]);
  EXPECT_THAT(RunAll(spec, {{x}}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(RunAll(spec, {{x}, {x}}), ElementsAre(4, 5, 6, 7));
}

TEST(LocalSliceTest, RefusesATileThatTheOperandDoesNotCover) {
  KernelRunner runner(1);
  const KernelSpec spec = Spec("local_slice", {Tile({2}, {4}, {0})}, {Tile({2}, {4}, {1})});
  auto kernel = runner.Create(spec);
  ASSERT_TRUE(kernel.ok());
  const absl::Status status =
      runner.Run(**kernel, {Counting(spec.inputs[0])}, {KernelRunner::Garbage(DType::kF32, {2})});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
}

TEST(LocalSliceTest, AnEmptyTileIsAlwaysCovered) {
  const KernelSpec spec = Spec("local_slice", {Tile({2}, {4}, {0})}, {Tile({0}, {4}, {4})});
  EXPECT_THAT(RunAll(spec, {{Counting(spec.inputs[0])}}), ElementsAre());
}

TEST(GatherMicrobatchesTest, PutsEachMicrobatchIntoItsPlace) {
  const KernelSpec spec = Spec("gather_microbatches", {Tile({1, 2}, {3, 4}, {0, 2}, {1, 0})},
                               {Tile({3, 2}, {3, 4}, {0, 2})});
  EXPECT_THAT(RunAll(spec, {{Counting(spec.inputs[0], 0)},
                            {Counting(spec.inputs[0], 10)},
                            {Counting(spec.inputs[0], 20)}}),
              ElementsAre(0, 1, 10, 11, 20, 21));
}

TEST(PackTest, MakesEachPartContiguousAndUnpackGoesBack) {
  const graph::Attributes attributes = {{"axis", 1}, {"sizes", AttrValue::Ints({1, 0, 2})}};
  const KernelSpec pack = Spec("pack", {Whole({2, 3})}, {Whole({6})}, attributes);
  EXPECT_THAT(RunAll(pack, {{Counting(pack.inputs[0])}}), ElementsAre(0, 3, 1, 2, 4, 5));
  const KernelSpec unpack = Spec("unpack", {Whole({6})}, {Whole({2, 3})}, attributes);
  EXPECT_THAT(RunAll(unpack, {{Of(DType::kF32, {6}, {0, 3, 1, 2, 4, 5})}}),
              ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(PackTest, TakesRangesThatOverlap) {
  const KernelSpec pack =
      Spec("pack", {Whole({2, 4})}, {Whole({8})},
           {{"axis", 1}, {"sizes", AttrValue::Ints({1, 3})}, {"starts", AttrValue::Ints({3, 1})}});
  EXPECT_THAT(RunAll(pack, {{Counting(pack.inputs[0])}}), ElementsAre(3, 7, 1, 2, 3, 5, 6, 7));
}

TEST(PackTest, RefusesRangesOutsideTheTile) {
  KernelRunner runner(1);
  const KernelSpec pack =
      Spec("pack", {Whole({4})}, {Whole({2})},
           {{"axis", 0}, {"sizes", AttrValue::Ints({2})}, {"starts", AttrValue::Ints({3})}});
  auto kernel = runner.Create(pack);
  ASSERT_TRUE(kernel.ok());
  const absl::Status status =
      runner.Run(**kernel, {Counting(pack.inputs[0])}, {KernelRunner::Garbage(DType::kF32, {2})});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
}

// Columns 1 to 5 of [2, 8], of which columns 2 and 3 are there.
TEST(JoinHaloTest, PutsWhatIsReceivedAroundWhatIsThere) {
  const KernelSpec spec =
      Spec("join_halo", {Tile({2, 2}, {2, 8}, {0, 2}), Whole({6})}, {Tile({2, 5}, {2, 8}, {0, 1})},
           {{"axis", 1}, {"sizes", AttrValue::Ints({1, 2})}});
  EXPECT_THAT(RunAll(spec, {{Of(DType::kF32, {2, 2}, {2, 3, 12, 13}),
                             Of(DType::kF32, {6}, {1, 11, 4, 5, 14, 15})}}),
              ElementsAre(1, 2, 3, 4, 5, 11, 12, 13, 14, 15));
}

TEST(JoinHaloTest, AWindowMayLieOutsideTheTile) {
  const KernelSpec beside =
      Spec("join_halo", {Tile({2}, {8}, {6}), Whole({3})}, {Tile({3}, {8}, {1})},
           {{"axis", 0}, {"sizes", AttrValue::Ints({1, 2})}});
  EXPECT_THAT(RunAll(beside, {{Of(DType::kF32, {2}, {6, 7}), Of(DType::kF32, {3}, {1, 2, 3})}}),
              ElementsAre(1, 2, 3));
  const KernelSpec inside =
      Spec("join_halo", {Tile({4}, {8}, {2}), Whole({0})}, {Tile({2}, {8}, {3})}, {{"axis", 0}});
  EXPECT_THAT(RunAll(inside, {{Of(DType::kF32, {4}, {2, 3, 4, 5}), Of(DType::kF32, {0}, {})}}),
              ElementsAre(3, 4));
}

TEST(JoinHaloTest, RefusesPartsThatDoNotMakeUpTheWindow) {
  KernelRunner runner(1);
  const KernelSpec spec =
      Spec("join_halo", {Tile({2}, {8}, {2}), Whole({1})}, {Tile({4}, {8}, {2})},
           {{"axis", 0}, {"sizes", AttrValue::Ints({1})}});
  auto kernel = runner.Create(spec);
  ASSERT_TRUE(kernel.ok());
  const absl::Status status =
      runner.Run(**kernel, {Counting(spec.inputs[0]), Counting(spec.inputs[1])},
                 {KernelRunner::Garbage(DType::kF32, {4})});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
}

// Rows 2 and 3 and columns 1 to 4 of [4, 8], in three parts.
TEST(JoinTilesTest, PutsEachPartAtItsPlace) {
  const KernelSpec spec = Spec(
      "join_tiles",
      {Tile({1, 3}, {4, 8}, {2, 2}), Tile({2, 1}, {4, 8}, {2, 1}), Tile({1, 3}, {4, 8}, {3, 2})},
      {Tile({2, 4}, {4, 8}, {2, 1})});
  EXPECT_THAT(
      RunAll(spec, {{Of(DType::kF32, {1, 3}, {22, 23, 24}), Of(DType::kF32, {2, 1}, {21, 31}),
                     Of(DType::kF32, {1, 3}, {32, 33, 34})}}),
      ElementsAre(21, 22, 23, 24, 31, 32, 33, 34));
}

TEST(JoinTilesTest, RefusesPartsThatDoNotMakeUpTheTile) {
  KernelRunner runner(1);
  const auto error = [&](std::vector<TileDesc> parts) {
    return runner.Create(Spec("join_tiles", std::move(parts), {Tile({4}, {8}, {2})}))
        .status()
        .ToString();
  };
  EXPECT_THAT(error({Tile({2}, {8}, {2}), Tile({1}, {8}, {4})}),
              HasSubstr("join_tiles: the parts have 3 elements of 4"));
  EXPECT_THAT(error({Tile({2}, {8}, {2}), Tile({2}, {8}, {3})}),
              HasSubstr("join_tiles: parts 0 and 1 overlap"));
  EXPECT_THAT(error({Tile({4}, {8}, {2}, {}, DType::kF64)}),
              HasSubstr("join_tiles: part 0 is f64[4] of f32[4]"));
  EXPECT_THAT(error({Tile({2, 2}, {8, 2}, {2, 0})}),
              HasSubstr("join_tiles: part 0 is f32[2, 2] of f32[4]"));
  // Beside the tile.
  const KernelSpec beside = Spec("join_tiles", {Tile({4}, {8}, {3})}, {Tile({4}, {8}, {2})});
  auto kernel = runner.Create(beside);
  ASSERT_TRUE(kernel.ok());
  EXPECT_EQ(
      runner.Run(**kernel, {Counting(beside.inputs[0])}, {KernelRunner::Garbage(DType::kF32, {4})})
          .code(),
      absl::StatusCode::kInternal);
}

TEST(SliceTest, ReadsAWindow) {
  // Elements 2 and 3 of the result, which begins at 1 and goes by 2, read 5 to 7.
  const graph::Attributes attributes = {{"start", AttrValue::Ints({1})},
                                        {"limit", AttrValue::Ints({12})},
                                        {"stride", AttrValue::Ints({2})}};
  const KernelSpec window =
      Spec("slice", {Tile({3}, {12}, {5})}, {Tile({2}, {6}, {2})}, attributes);
  EXPECT_THAT(RunAll(window, {{Of(DType::kF32, {3}, {5, 6, 7})}}), ElementsAre(5, 7));
  const KernelSpec larger =
      Spec("slice", {Tile({6}, {12}, {4})}, {Tile({2}, {6}, {2})}, attributes);
  EXPECT_THAT(RunAll(larger, {{Of(DType::kF32, {6}, {4, 5, 6, 7, 8, 9})}}), ElementsAre(5, 7));
  const KernelSpec none = Spec("slice", {Tile({0}, {12}, {0})}, {Tile({0}, {6}, {6})}, attributes);
  EXPECT_THAT(RunAll(none, {{Of(DType::kF32, {0}, {})}}), ElementsAre());
}

TEST(SliceTest, RefusesATileThatDoesNotHoldTheWindow) {
  KernelRunner runner(1);
  const KernelSpec spec = Spec("slice", {Tile({2}, {8}, {0})}, {Tile({2}, {7}, {0})},
                               {{"start", AttrValue::Ints({1})}, {"limit", AttrValue::Ints({8})}});
  auto kernel = runner.Create(spec);
  ASSERT_TRUE(kernel.ok());
  const absl::Status status =
      runner.Run(**kernel, {Counting(spec.inputs[0])}, {KernelRunner::Garbage(DType::kF32, {2})});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
}

// [2, 4], padded to [2, 9] by 2 and 3 columns.
TEST(PadTest, CopiesWhatLiesInTheResultsTile) {
  const graph::Attributes attributes = {{"low", AttrValue::Ints({0, 2})},
                                        {"high", AttrValue::Ints({0, 3})}};
  const KernelSpec middle =
      Spec("pad", {Tile({2, 2}, {2, 4}, {0, 1})}, {Tile({2, 2}, {2, 9}, {0, 3})}, attributes);
  EXPECT_THAT(RunAll(middle, {{Of(DType::kF32, {2, 2}, {1, 2, 11, 12})}}),
              ElementsAre(1, 2, 11, 12));
  const KernelSpec whole = Spec("pad", {Whole({2, 4})}, {Tile({2, 3}, {2, 9}, {0, 4})}, attributes);
  EXPECT_THAT(RunAll(whole, {{Of(DType::kF32, {2, 4}, {0, 1, 2, 3, 10, 11, 12, 13})}}),
              ElementsAre(2, 3, 0, 12, 13, 0));
  const KernelSpec zeros =
      Spec("pad", {Tile({2, 0}, {2, 4}, {0, 0})}, {Tile({2, 2}, {2, 9}, {0, 0})}, attributes);
  EXPECT_THAT(RunAll(zeros, {{Of(DType::kF32, {2, 0}, {})}}), ElementsAre(0, 0, 0, 0));
}

TEST(AccumulateTest, OverwritesInTheFirstMicrobatchAndAddsAfterwards) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kI32}) {
    KernelSpec spec = Spec("accumulate", {Whole({3}, dtype)}, {Whole({3}, dtype)});
    spec.accumulate = true;
    EXPECT_THAT(RunAll(spec, {{Counting(spec.inputs[0], 1)},
                              {Counting(spec.inputs[0], 10)},
                              {Counting(spec.inputs[0], 100)}}),
                ElementsAre(111, 114, 117));
  }
}

TEST(AccumulateTest, KnowsOtherReductions) {
  for (const auto& [reduction, expected] :
       {std::pair{"max", 7.0}, std::pair{"min", 2.0}, std::pair{"prod", 42.0}}) {
    KernelSpec spec = Spec("accumulate", {Whole({1})}, {Whole({1})}, {{"reduction", reduction}});
    spec.accumulate = true;
    EXPECT_THAT(RunAll(spec, {{Counting(spec.inputs[0], 3)},
                              {Counting(spec.inputs[0], 7)},
                              {Counting(spec.inputs[0], 2)}}),
                ElementsAre(expected));
  }
}

TEST(ReduceTest, NothingSumsToZeroAndHasTheLowestMaximum) {
  const graph::Attributes attributes = {{"axes", AttrValue::Ints({1})}};
  const TileDesc empty = Tile({2, 0}, {2, 5}, {0, 5});
  EXPECT_THAT(RunAll(Spec("reduce_sum", {empty}, {Whole({2})}, attributes), {{Counting(empty)}}),
              ElementsAre(0, 0));
  const double lowest = -std::numeric_limits<double>::infinity();
  EXPECT_THAT(RunAll(Spec("reduce_max", {empty}, {Whole({2})}, attributes), {{Counting(empty)}}),
              ElementsAre(lowest, lowest));
}

TEST(MaxTest, NanWins) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = Of(DType::kF32, {3}, {nan, 1, nan});
  const Tensor y = Of(DType::kF32, {3}, {1, nan, 2});
  for (const char* op : {"max", "min"}) {
    for (double value : RunAll(Spec(op, {Whole({3}), Whole({3})}, {Whole({3})}), {{x, y}})) {
      EXPECT_TRUE(std::isnan(value));
    }
  }
}

TEST(ExpTest, SpecialValues) {
  const double inf = std::numeric_limits<double>::infinity();
  for (DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor x = Of(dtype, {6}, {0, inf, -inf, 1000, -1000, std::nan("")});
    const std::vector<double> y =
        RunAll(Spec("exp", {Whole({6}, dtype)}, {Whole({6}, dtype)}), {{x}});
    EXPECT_EQ(y[0], 1);
    EXPECT_EQ(y[1], inf);
    EXPECT_EQ(y[2], 0);
    EXPECT_EQ(y[3], inf);
    EXPECT_EQ(y[4], 0);
    EXPECT_TRUE(std::isnan(y[5]));
  }
}

// The bounds that cpu/simd.h states, over the whole range.
TEST(ElementaryFunctionTest, RelativeErrors) {
  struct Function {
    std::string op;
    double (*exact)(double);
    double low, high;
  };
  constexpr int64_t kCount = 200000;
  for (const Function& f :
       {Function{"exp", [](double x) { return std::exp(x); }, -87, 88},
        Function{"tanh", [](double x) { return std::tanh(x); }, -10, 10},
        Function{"sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }, -80, 80}}) {
    for (const auto& [dtype, bound] :
         {std::pair{DType::kF32, 3e-7}, std::pair{DType::kF64, 2e-15}}) {
      const TileDesc tile = Whole({kCount}, dtype);
      Tensor x(TensorType{dtype, {kCount}});
      for (int64_t i = 0; i < kCount; ++i) {
        testing::SetElement(x, i, f.low + (f.high - f.low) * (i + 0.5) / kCount);
      }
      const std::vector<double> y = RunAll(Spec(f.op, {tile}, {tile}), {{x}});
      double worst = 0;
      for (int64_t i = 0; i < kCount; ++i) {
        const double exact = f.exact(testing::GetElement(x, i));
        worst = std::max(worst, std::abs((y[i] - exact) / exact));
      }
      EXPECT_LE(worst, bound) << f.op << " on " << Name(dtype);
    }
  }
}

// ---- Packed attention is attention.

// Copies between [b, s, parts, h, d], part `part`, and [b, h, s, d].
void MovePart(const Shape& packed_shape, int64_t part, const Tensor& packed, Tensor* separate,
              bool to_separate) {
  const int64_t s = packed_shape[1], parts = packed_shape[2], h = packed_shape[3],
                d = packed_shape[4];
  for (int64_t i = 0; i < separate->num_elements(); ++i) {
    const int64_t at_d = i % d, at_s = i / d % s, at_h = i / d / s % h, at_b = i / d / s / h;
    const int64_t at = (((at_b * s + at_s) * parts + part) * h + at_h) * d + at_d;
    Tensor target = packed;  // shares the memory
    if (to_separate) {
      testing::SetElement(*separate, i, testing::GetElement(packed, at));
    } else {
      testing::SetElement(target, at, testing::GetElement(*separate, i));
    }
  }
}

TEST(QkvAttentionTest, AgreesWithSeparateOperands) {
  const int64_t b = 2, s = 70, h = 3, d = 16;
  const Shape packed = {b, s, 3, h, d};
  const Shape packed_o = {b, s, 1, h, d};
  const Shape heads = {b, h, s, d};
  for (bool is_causal : {false, true}) {
    for (DType dtype : {DType::kF32, DType::kF64}) {
      SCOPED_TRACE(Name(dtype));
      const graph::Attributes attributes = {{"causal", is_causal}};
      const auto random = [&](const Shape& shape, uint32_t stream) {
        Tensor tensor(TensorType{dtype, shape});
        for (int64_t i = 0; i < tensor.num_elements(); ++i) {
          testing::SetElement(tensor, i, 4 * RandomUniform({1, stream, 0}, i) - 2);
        }
        return tensor;
      };
      const auto make = [&](const Shape& shape) { return Tensor(TensorType{dtype, shape}); };
      const auto run = [&](const KernelSpec& spec, const std::vector<Tensor>& inputs,
                           const std::vector<Tensor>& outputs) {
        KernelRunner runner(2);
        auto kernel = runner.Create(spec);
        ASSERT_TRUE(kernel.ok()) << kernel.status();
        ASSERT_TRUE(runner.Run(**kernel, inputs, outputs).ok());
      };
      const TileDesc head_tile = Whole(heads, dtype);
      const TileDesc lse_tile = Whole({b, h, s}, dtype);
      const TileDesc qkv_tile = Whole(packed, dtype);
      const TileDesc o_tile = Whole({b, s, h, d}, dtype);

      const Tensor qkv = random(packed, 1);
      const Tensor d_o = random({b, s, h, d}, 2);
      const Tensor o = make({b, s, h, d}), lse = make({b, h, s}), dqkv = make(packed);
      run(Spec("qkv_attention", {qkv_tile}, {o_tile, lse_tile}, attributes), {qkv}, {o, lse});
      run(Spec("qkv_attention_grad", {qkv_tile, o_tile, lse_tile, o_tile}, {qkv_tile}, attributes),
          {qkv, o, lse, d_o}, {dqkv});

      std::vector<Tensor> parts;
      for (int64_t part = 0; part < 3; ++part) {
        parts.push_back(make(heads));
        MovePart(packed, part, qkv, &parts.back(), /*to_separate=*/true);
      }
      Tensor o_heads = make(heads), d_o_heads = make(heads), lse_heads = make({b, h, s});
      MovePart(packed_o, 0, d_o, &d_o_heads, true);
      run(Spec("attention", {head_tile, head_tile, head_tile}, {head_tile, lse_tile}, attributes),
          parts, {o_heads, lse_heads});
      std::vector<Tensor> grads = {make(heads), make(heads), make(heads)};
      run(Spec("attention_grad", {head_tile, head_tile, head_tile, head_tile, lse_tile, head_tile},
               {head_tile, head_tile, head_tile}, attributes),
          {parts[0], parts[1], parts[2], o_heads, lse_heads, d_o_heads}, grads);

      EXPECT_EQ(Values(lse), Values(lse_heads));
      const Tensor expected_o = make({b, s, h, d}), expected_dqkv = make(packed);
      MovePart(packed_o, 0, expected_o, &o_heads, false);
      EXPECT_EQ(Values(o), Values(expected_o));
      for (int64_t part = 0; part < 3; ++part)
        MovePart(packed, part, expected_dqkv, &grads[part], false);
      const double tolerance = dtype == DType::kF32 ? 1e-5 : 1e-13;
      EXPECT_THAT(Values(dqkv),
                  ::testing::Pointwise(::testing::DoubleNear(tolerance), Values(expected_dqkv)));
    }
  }
}

TEST(QkvAttentionTest, HeadsMayBeSplit) {
  // One of three heads of a packed tensor is that head's tile.
  const Shape packed = {2, 10, 3, 3, 4};
  Tensor qkv(TensorType{DType::kF64, packed});
  for (int64_t i = 0; i < qkv.num_elements(); ++i) {
    qkv.As<double>()[i] = RandomUniform({3, 1, 0}, i);
  }
  const graph::Attributes attributes = {{"causal", true}};
  const std::vector<double> whole = RunAll(Spec("qkv_attention", {Whole(packed, DType::kF64)},
                                                {Whole({2, 10, 3, 4}, DType::kF64)}, attributes),
                                           {{qkv}});
  for (int64_t head = 0; head < 3; ++head) {
    const TileDesc tile = Tile({2, 10, 3, 1, 4}, packed, {0, 0, 0, head, 0}, {}, DType::kF64);
    Tensor part(TensorType{DType::kF64, tile.shape});
    const std::vector<int64_t> from = testing::TilePositions(packed, tile.offset, tile.shape);
    for (size_t i = 0; i < from.size(); ++i) part.As<double>()[i] = qkv.As<double>()[from[i]];
    const TileDesc result = Tile({2, 10, 1, 4}, {2, 10, 3, 4}, {0, 0, head, 0}, {}, DType::kF64);
    const std::vector<double> y =
        RunAll(Spec("qkv_attention", {tile}, {result}, attributes), {{part}});
    const std::vector<int64_t> to =
        testing::TilePositions(result.global, result.offset, result.shape);
    for (size_t i = 0; i < to.size(); ++i) EXPECT_NEAR(y[i], whole[to[i]], 1e-13);
  }
}

TEST(AttentionTest, AQueryThatSeesNoKeyGetsZeros) {
  // The tile of the later keys of a causal attention, seen from the earlier queries.
  const KernelSpec spec =
      Spec("attention",
           {Tile({1, 1, 2, 4}, {1, 1, 4, 4}, {0, 0, 0, 0}),
            Tile({1, 1, 2, 4}, {1, 1, 4, 4}, {0, 0, 2, 0}),
            Tile({1, 1, 2, 4}, {1, 1, 4, 4}, {0, 0, 2, 0})},
           {Tile({1, 1, 2, 4}, {1, 1, 4, 4}, {0, 0, 0, 0}), Tile({1, 1, 2}, {1, 1, 4}, {0, 0, 0})},
           {{"causal", true}});
  KernelRunner runner(1);
  auto kernel = runner.Create(spec);
  ASSERT_TRUE(kernel.ok());
  const Tensor x = Counting(spec.inputs[0]);
  const std::vector<Tensor> outputs = {KernelRunner::Garbage(DType::kF32, {1, 1, 2, 4}),
                                       KernelRunner::Garbage(DType::kF32, {1, 1, 2})};
  ASSERT_TRUE(runner.Run(**kernel, {x, x, x}, outputs).ok());
  EXPECT_THAT(Values(outputs[0]), ::testing::Each(0));
  EXPECT_THAT(Values(outputs[1]), ::testing::Each(-std::numeric_limits<double>::infinity()));
}

// ---- Optional results, contractions, errors.

TEST(OptionalResultsTest, MayBeUnbound) {
  const Tensor x = Counting(Whole({2, 3}));
  const Tensor v = Counting(Whole({3}));
  const Tensor labels = Of(DType::kI64, {2}, {0, 2});
  const auto run = [](KernelSpec spec, const std::vector<Tensor>& inputs) {
    for (size_t i = 1; i < spec.outputs.size(); ++i) spec.outputs[i].is_bound = false;
    KernelRunner runner(1);
    auto kernel = runner.Create(spec);
    ASSERT_TRUE(kernel.ok()) << kernel.status();
    std::vector<Tensor> outputs(spec.outputs.size());  // empty tensors: null pointers
    outputs[0] = KernelRunner::Garbage(spec.outputs[0].dtype, spec.outputs[0].shape);
    EXPECT_TRUE(runner.Run(**kernel, inputs, outputs).ok()) << spec.op;
  };
  const TileDesc matrix = Whole({2, 3}), vector = Whole({3}), column = Whole({2});
  run(Spec("layer_norm", {matrix, vector, vector}, {matrix, column, column}), {x, v, v});
  run(Spec("rms_norm", {matrix, vector}, {matrix, column}), {x, v});
  run(Spec("cross_entropy", {matrix, Whole({2}, DType::kI64)}, {column, column, column}),
      {x, labels});
}

TEST(ContractionTest, ProductsOfATransformerAreOneMatrixProduct) {
  // Sizes of b s d c h k v, and strides from the letters' order.
  const auto contraction = [](const std::string& a, const std::string& b, const std::string& c) {
    const std::map<char, int64_t> sizes = {{'b', 2}, {'s', 3}, {'d', 8}, {'c', 3},
                                           {'h', 2}, {'k', 4}, {'v', 11}};
    std::map<char, ContractionIndex> indices;
    for (const auto& [letters, stride] :
         {std::pair{a, &ContractionIndex::a_stride}, std::pair{b, &ContractionIndex::b_stride},
          std::pair{c, &ContractionIndex::c_stride}}) {
      int64_t step = 1;
      for (size_t i = letters.size(); i-- > 0;) {
        indices[letters[i]].size = sizes.at(letters[i]);
        indices[letters[i]].*stride = step;
        step *= sizes.at(letters[i]);
      }
    }
    std::vector<ContractionIndex> list;
    for (const auto& [letter, index] : indices) list.push_back(index);
    return Contraction(list);
  };
  for (const auto& [a, b, c] :
       std::vector<std::tuple<std::string, std::string, std::string>>{{"bsd", "dchk", "bschk"},
                                                                      {"bsd", "bsv", "dv"},
                                                                      {"bsv", "bsd", "vd"},
                                                                      {"bsd", "vd", "bsv"},
                                                                      {"bschk", "dchk", "bsd"},
                                                                      {"bsd", "bschk", "dchk"}}) {
    SCOPED_TRACE(a + "," + b + "->" + c);
    const Contraction product = contraction(a, b, c);
    EXPECT_EQ(product.num_products(), 1);
    // Those that sum over the sequences read a transposed operand, which may be packed.
    const bool is_transposed = c.find('s') == std::string::npos;
    EXPECT_EQ(product.WorkspaceBytes<float>(1) > 0, is_transposed);
  }
  EXPECT_EQ(contraction("bhsk", "bhvk", "bhsv").num_products(), 4);
}

// a[k, m] and b[k, n] give c[n, m]: computed as its transpose, whose panels are other ones. Threads
// do not touch each other's workspace, nor what lies behind it.
TEST(ContractionTest, TransposedResultsStayInTheirWorkspace) {
  constexpr int64_t kDepth = 300;
  for (const auto& [m, n] : {std::pair<int64_t, int64_t>{256, 64}, {64, 256}, {17, 16}}) {
    const Contraction product({{.size = m, .a_stride = 1, .b_stride = 0, .c_stride = 1},
                               {.size = n, .a_stride = 0, .b_stride = 1, .c_stride = m},
                               {.size = kDepth, .a_stride = m, .b_stride = n, .c_stride = 0}});
    std::vector<float> a(kDepth * m);
    std::vector<float> b(kDepth * n);
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i % 7) - 3;
    for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i % 5) - 2;
    for (const int num_threads : {1, 4}) {
      ThreadPool pool(num_threads);
      const size_t num_bytes = product.WorkspaceBytes<float>(num_threads);
      constexpr size_t kGuardBytes = 1 << 18;
      std::vector<std::byte> memory(num_bytes + kGuardBytes + 64, std::byte{0x5a});
      auto* workspace =
          reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
      std::vector<float> c(m * n);
      product.Run<float>(pool, a.data(), b.data(), c.data(), /*accumulate=*/false, workspace);
      EXPECT_TRUE(std::all_of(workspace + num_bytes, memory.data() + memory.size(),
                              [](std::byte byte) { return byte == std::byte{0x5a}; }));
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = 0; i < m; ++i) {
          float want = 0;
          for (int64_t d = 0; d < kDepth; ++d) want += a[d * m + i] * b[d * n + j];
          ASSERT_EQ(c[j * m + i], want) << m << " x " << n << ", " << num_threads << " threads";
        }
      }
    }
  }
}

// Products and sums of whole ranges, modulo 2^bits.
template <typename T>
void CheckProductWraps(int64_t m, int64_t k, int64_t n, bool transpose_a, bool transpose_b) {
  using U = std::make_unsigned_t<T>;
  const DType dtype = DTypeOf<T>();
  KernelSpec spec =
      Spec("matmul",
           {Whole(transpose_a ? Shape{k, m} : Shape{m, k}, dtype),
            Whole(transpose_b ? Shape{n, k} : Shape{k, n}, dtype)},
           {Whole({m, n}, dtype)}, {{"transpose_a", transpose_a}, {"transpose_b", transpose_b}});
  spec.accumulate = true;
  std::vector<Tensor> inputs;
  for (uint32_t i = 0; i < 2; ++i) {
    Tensor& tensor = inputs.emplace_back(TensorType{dtype, spec.inputs[i].shape});
    for (int64_t e = 0; e < tensor.num_elements(); ++e) {
      const RandomKey key{.seed = 5, .stream = i};
      const uint64_t word = uint64_t{RandomWord(key, 2 * e)} << 32 | RandomWord(key, 2 * e + 1);
      tensor.As<T>()[e] = static_cast<T>(word);
    }
  }
  inputs[0].As<T>()[0] = std::numeric_limits<T>::lowest();
  inputs[1].As<T>()[0] = std::numeric_limits<T>::lowest();
  KernelRunner runner(2);
  auto kernel = runner.Create(spec);
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  const std::vector<Tensor> outputs = {KernelRunner::Garbage(dtype, {m, n})};
  for (int64_t microbatch : {0, 1}) {
    ASSERT_TRUE(runner.Run(**kernel, inputs, outputs, microbatch).ok());
  }
  const T* a = inputs[0].As<T>();
  const T* b = inputs[1].As<T>();
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      uint64_t sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += uint64_t{static_cast<U>(a[transpose_a ? l * m + i : i * k + l])} *
               static_cast<U>(b[transpose_b ? j * k + l : l * n + j]);
      }
      ASSERT_EQ(outputs[0].As<T>()[i * n + j], static_cast<T>(2 * sum))
          << Name(dtype) << " " << i << ", " << j;
    }
  }
}

TEST(IntegerMatmulTest, ProductsWrap) {
  for (const bool is_transposed : {false, true}) {
    // Small, and larger than every block.
    for (const auto& [m, k, n] :
         {std::tuple{1, 1, 1}, std::tuple{5, 7, 3}, std::tuple{101, 300, 130}}) {
      CheckProductWraps<int8_t>(m, k, n, is_transposed, !is_transposed);
      CheckProductWraps<uint8_t>(m, k, n, is_transposed, is_transposed);
      CheckProductWraps<int32_t>(m, k, n, is_transposed, is_transposed);
      CheckProductWraps<int64_t>(m, k, n, is_transposed, !is_transposed);
    }
  }
}

TEST(ErrorsTest, IndicesOutsideTheTableAreNamed) {
  struct Case {
    KernelSpec spec;
    std::vector<Tensor> inputs;
  };
  const Tensor ids = Of(DType::kI32, {2}, {1, 12});
  const Tensor negative = Of(DType::kI64, {2}, {-3, 1});
  const TileDesc ids32 = Whole({2}, DType::kI32), ids64 = Whole({2}, DType::kI64);
  const Tensor table = Counting(Whole({4, 3})), rows = Counting(Whole({2, 3})),
               logits = Counting(Whole({2, 10})), column = Counting(Whole({2}));
  // The table of 12 rows is split: 12 is outside of all, 1 is in another tile.
  const TileDesc part = Tile({4, 3}, {12, 3}, {8, 0});
  const TileDesc choices = Whole({1, 2}, DType::kI32), slots = Whole({1, 2}, DType::kI64);
  for (const auto& [test, id] : std::vector<std::pair<Case, std::string>>{
           {{Spec("expert_slots", {choices}, {slots}, {{"experts", 12}, {"capacity", 9}}),
             {Of(DType::kI32, {1, 2}, {1, 12})}},
            "12"},
           {{Spec("embedding", {part, ids32}, {Whole({2, 3})}), {table, ids}}, "12"},
           {{Spec("embedding", {part, ids64}, {Whole({2, 3})}), {table, negative}}, "-3"},
           {{Spec("embedding_grad", {Whole({2, 3}), ids32}, {part}), {rows, ids}}, "12"},
           {{Spec("cross_entropy", {Whole({2, 10}), ids32}, {Whole({2})}), {logits, ids}}, "12"},
           {{Spec("pick", {Whole({2, 10}), ids32}, {Whole({2})}), {logits, ids}}, "12"},
           {{Spec("cross_entropy_grad", {Whole({2, 10}), ids64, Whole({2}), Whole({2}), Whole({2})},
                  {Whole({2, 10})}),
             {logits, negative, column, column, column}},
            "-3"}}) {
    KernelRunner runner(1);
    auto kernel = runner.Create(test.spec);
    ASSERT_TRUE(kernel.ok()) << kernel.status();
    const absl::Status status = runner.Run(
        **kernel, test.inputs, {KernelRunner::Garbage(DType::kF32, test.spec.outputs[0].shape)});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.spec.op;
    EXPECT_THAT(std::string(status.message()), HasSubstr(id));
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.spec.op));
  }
}

TEST(ErrorsTest, EquationsThatDoNotFitAreRefused) {
  KernelRunner runner(1);
  for (const char* equation : {"ab,bc", "ab,bc->ad", "abc,bc->ac", "aa,bc->ac", "ab,ab->ab"}) {
    const auto kernel = runner.Create(
        Spec("einsum", {Whole({2, 3}), Whole({3, 4})}, {Whole({2, 4})}, {{"equation", equation}}));
    EXPECT_EQ(kernel.status().code(), absl::StatusCode::kInvalidArgument) << equation;
  }
}

TEST(ErrorsTest, UnknownApproximationsAreRefused) {
  KernelRunner runner(1);
  const auto kernel =
      runner.Create(Spec("gelu", {Whole({2})}, {Whole({2})}, {{"approximate", "sigmoid"}}));
  EXPECT_EQ(kernel.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RegistryTest, RefusesANameTwiceAndListsSorted) {
  KernelRegistry registry;
  EXPECT_TRUE(registry.Add("b", {}).ok());
  EXPECT_TRUE(registry.Add("a", {}).ok());
  EXPECT_EQ(registry.Add("b", {}).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(registry.Names(), ElementsAre("a", "b"));
  EXPECT_EQ(registry.Find("c"), nullptr);
}

TEST(NullKernelsTest, DoNothingForAnyOperator) {
  const std::vector<std::string_view> ops = {"matmul", "whatever"};
  const KernelRegistry registry = NullKernels(ops);
  EXPECT_THAT(registry.Names(), ElementsAre("matmul", "whatever"));
  const std::unique_ptr<Device> device = CreateCpuDevice(1);
  const std::unique_ptr<Stream> stream = device->CreateStream();
  auto kernel = registry.Find("whatever")->create(KernelSpec(), *device, *stream);
  ASSERT_TRUE(kernel.ok());
  EXPECT_TRUE((*kernel)->Run(KernelArgs()).ok());
}

}  // namespace
}  // namespace penstock::kernels
