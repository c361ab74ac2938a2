// Sharding rules against the kernels: an operator split along a factor, one part after another,
// must give the numbers of the whole, and a sum taken through a linear operator those of its terms.

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "graph/op.h"
#include "tests/support/interpreter.h"
#include "tests/support/op_cases.h"
#include "tests/support/tested_plugin.h"

namespace penstock::testing {
namespace {

using graph::DimFactors;
using graph::Factor;
using graph::FactorKind;
using graph::ShardingRule;
using graph::TensorFactors;

constexpr int kParts = 2;
constexpr double kTolerance = 1e-12;

// The range of a dimension that part `part` of the factor holds: the whole where the dimension does
// not follow the factor, nothing where the factor is not its major one or does not split evenly.
std::optional<Range> PartOfDim(int64_t extent, const DimFactors& dim, int factor, int64_t size,
                               int part) {
  const auto at = std::find(dim.begin(), dim.end(), factor);
  if (at == dim.end()) return Range{0, extent};
  if (at != dim.begin() || (dim.size() > 1 && size % kParts != 0)) return std::nullopt;
  return PartOf(extent, part, kParts);
}

// The tile of a tensor that holds part `part` of the factor, or what that part reads.
std::optional<kernels::TileDesc> TileOf(const TensorType& type, const TensorFactors& factors,
                                        int factor, int64_t size, int part,
                                        const graph::Window* window = nullptr) {
  kernels::TileDesc tile = WholeTile(type);
  for (size_t d = 0; d < factors.size(); ++d) {
    std::optional<Range> range = PartOfDim(type.shape[d], factors[d], factor, size, part);
    if (!range.has_value()) return std::nullopt;
    if (window != nullptr && factors[d] == DimFactors{factor}) {
      range = window->Reads(PartOf(window->extent, part, kParts), type.shape[d]);
    }
    tile.offset[d] = range->begin;
    tile.shape[d] = range->size();
  }
  return tile;
}

// Calls body(index in the tile, index in the whole tensor) for every element of the tile.
template <typename Body>
void ForEachElement(const kernels::TileDesc& tile, Body body) {
  const Shape strides = RowMajorStrides(tile.global);
  for (int64_t i = 0; i < tile.num_elements(); ++i) {
    int64_t rest = i;
    int64_t whole = 0;
    for (size_t d = tile.shape.size(); d-- > 0;) {
      whole += (tile.offset[d] + rest % tile.shape[d]) * strides[d];
      rest /= tile.shape[d];
    }
    body(i, whole);
  }
}

Tensor Cut(const Tensor& whole, const kernels::TileDesc& tile) {
  Tensor part(TensorType{tile.dtype, tile.shape});
  const size_t bytes = ByteSize(tile.dtype);
  ForEachElement(tile, [&](int64_t from, int64_t to) {
    std::memcpy(static_cast<std::byte*>(part.data()) + from * bytes,
                static_cast<const std::byte*>(whole.data()) + to * bytes, bytes);
  });
  return part;
}

double Element(const Tensor& tensor, int64_t i) {
  if (tensor.dtype() == DType::kI64) return static_cast<double>(tensor.As<int64_t>()[i]);
  if (tensor.dtype() == DType::kBool) return tensor.As<bool>()[i] ? 1 : 0;
  return tensor.As<double>()[i];
}

class ShardingRuleTest : public ::testing::TestWithParam<OpCase> {
 protected:
  void SetUp() override {
    const OpCase& test = GetParam();
    op_ = ops_.Find(test.op);
    for (uint32_t i = 0; i < test.operands.size(); ++i) {
      operands_.push_back(DrawOperand(test.operands[i], i));
      operand_types_.push_back(test.operands[i].type);
    }
    auto types = graph::InferResultTypes(*op_, test.attributes, operand_types_);
    ASSERT_TRUE(types.ok()) << types.status();
    result_types_ = *std::move(types);
    rule_ = op_->Rule({test.attributes, operand_types_, result_types_});
    if (kernels_.Find(test.op) != nullptr) whole_ = Run(WholeSpec(), operands_);
  }

  kernels::KernelSpec WholeSpec() const {
    kernels::KernelSpec spec;
    spec.op = GetParam().op;
    spec.attributes = GetParam().attributes;
    for (const TensorType& type : operand_types_) spec.inputs.push_back(WholeTile(type));
    for (const TensorType& type : result_types_) spec.outputs.push_back(WholeTile(type));
    return spec;
  }

  std::vector<Tensor> Run(const kernels::KernelSpec& spec, const std::vector<Tensor>& inputs) {
    auto outputs = RunKernel(kernels_, *device_, spec, inputs, {.seed = 3, .step = 2});
    EXPECT_TRUE(outputs.ok()) << outputs.status();
    return outputs.ok() ? *std::move(outputs) : std::vector<Tensor>();
  }

  // The kernel's spec and operands for one part of the factor; nothing where it does not split so.
  std::optional<kernels::KernelSpec> PartSpec(int factor, int part) const {
    kernels::KernelSpec spec = WholeSpec();
    const int64_t size = rule_.factors[factor].size;
    for (size_t i = 0; i < operand_types_.size(); ++i) {
      const auto tile = TileOf(operand_types_[i], rule_.operands[i], factor, size, part,
                               rule_.FindWindow(static_cast<int>(i), factor));
      if (!tile.has_value()) return std::nullopt;
      spec.inputs[i] = *tile;
    }
    for (size_t i = 0; i < result_types_.size(); ++i) {
      const auto tile = TileOf(result_types_[i], rule_.results[i], factor, size, part);
      if (!tile.has_value()) return std::nullopt;
      spec.outputs[i] = *tile;
    }
    return spec;
  }

  void CheckFactor(int factor) {
    SCOPED_TRACE(ToString(GetParam()) + ", factor " + std::to_string(factor));
    const bool is_max = rule_.factors[factor].reduction == graph::Reduction::kMax;
    std::vector<std::vector<double>> joined;
    for (const Tensor& result : whole_) {
      joined.emplace_back(result.num_elements(),
                          is_max ? -std::numeric_limits<double>::infinity() : 0.0);
    }
    for (int part = 0; part < kParts; ++part) {
      const std::optional<kernels::KernelSpec> spec = PartSpec(factor, part);
      if (!spec.has_value()) return;
      std::vector<Tensor> inputs;
      for (size_t i = 0; i < operands_.size(); ++i) {
        inputs.push_back(Cut(operands_[i], spec->inputs[i]));
      }
      const std::vector<Tensor> outputs = Run(*spec, inputs);
      ASSERT_EQ(outputs.size(), whole_.size());
      for (size_t r = 0; r < outputs.size(); ++r) {
        ForEachElement(spec->outputs[r], [&](int64_t from, int64_t to) {
          const double value = Element(outputs[r], from);
          joined[r][to] = is_max ? std::max(joined[r][to], value) : joined[r][to] + value;
        });
      }
    }
    for (size_t r = 0; r < whole_.size(); ++r) {
      for (int64_t i = 0; i < whole_[r].num_elements(); ++i) {
        const double expected = Element(whole_[r], i);
        if (joined[r][i] == expected) continue;  // infinities too
        ASSERT_NEAR(joined[r][i], expected, kTolerance) << "result " << r << ", element " << i;
      }
    }
  }

  // x = y + z in every operand of the group must give f(x) = f(y) + f(z).
  void CheckLinear(const std::vector<int>& group) {
    SCOPED_TRACE(ToString(GetParam()) + ", linear in operand " + std::to_string(group[0]));
    std::vector<Tensor> first = operands_;
    std::vector<Tensor> second = operands_;
    for (int i : group) {
      if (operands_[i].dtype() != DType::kF64) return;
      first[i] = DrawOperand({operand_types_[i], -1, 1}, 50 + i);
      second[i] = operands_[i].Clone();
      for (int64_t e = 0; e < second[i].num_elements(); ++e) {
        second[i].As<double>()[e] -= first[i].As<double>()[e];
      }
    }
    const std::vector<Tensor> y = Run(WholeSpec(), first);
    const std::vector<Tensor> z = Run(WholeSpec(), second);
    ASSERT_EQ(y.size(), whole_.size());
    ASSERT_EQ(z.size(), whole_.size());
    for (size_t r = 0; r < whole_.size(); ++r) {
      for (int64_t i = 0; i < whole_[r].num_elements(); ++i) {
        ASSERT_NEAR(Element(y[r], i) + Element(z[r], i), Element(whole_[r], i), kTolerance)
            << "result " << r << ", element " << i;
      }
    }
  }

  const Registries registries_ = TestedRegistries();
  const graph::OpRegistry& ops_ = registries_.ops;
  const kernels::KernelRegistry& kernels_ = registries_.kernels;
  const std::unique_ptr<Device> device_ = CreateCpuDevice(1);
  const graph::Op* op_ = nullptr;
  std::vector<Tensor> operands_;
  std::vector<TensorType> operand_types_;
  std::vector<TensorType> result_types_;
  ShardingRule rule_;
  std::vector<Tensor> whole_;
};

TEST_P(ShardingRuleTest, FactorsMultiplyToTheirDimension) {
  ASSERT_EQ(rule_.operands.size(), operand_types_.size());
  ASSERT_EQ(rule_.results.size(), result_types_.size());
  auto check = [&](const TensorType& type, const TensorFactors& factors) {
    ASSERT_EQ(factors.size(), type.shape.size());
    for (size_t d = 0; d < factors.size(); ++d) {
      int64_t product = 1;
      bool is_permuted = false;
      for (int factor : factors[d]) {
        product *= rule_.factors[factor].size;
        is_permuted = is_permuted || rule_.factors[factor].kind == FactorKind::kPermutation;
      }
      // A permutation factor has the larger extent of operand and result.
      if (is_permuted) {
        EXPECT_GE(product, type.shape[d]);
      } else if (!factors[d].empty()) {
        // One that needs replication behind others has what is left, rounded up.
        const Factor& minor = rule_.factors[factors[d].back()];
        const bool is_rounded = factors[d].size() > 1 && minor.kind == FactorKind::kNeedReplication;
        const int64_t step = is_rounded ? product / minor.size : 1;
        EXPECT_EQ(product, (type.shape[d] + step - 1) / step * step);
      }
    }
  };
  for (size_t i = 0; i < operand_types_.size(); ++i) check(operand_types_[i], rule_.operands[i]);
  for (size_t i = 0; i < result_types_.size(); ++i) check(result_types_[i], rule_.results[i]);
}

TEST_P(ShardingRuleTest, PartsGiveTheWhole) {
  if (whole_.empty()) return;  // made by the planner: no kernel
  for (int factor = 0; factor < static_cast<int>(rule_.factors.size()); ++factor) {
    const bool rolls = rule_.factors[factor].kind == FactorKind::kRoll;
    if (rule_.MaySplit(factor) && !rolls) CheckFactor(factor);
  }
}

TEST_P(ShardingRuleTest, SumsPassThroughLinearOperands) {
  if (whole_.empty()) return;
  for (const std::vector<int>& group : rule_.linear) CheckLinear(group);
}

INSTANTIATE_TEST_SUITE_P(Ops, ShardingRuleTest, ::testing::ValuesIn(OpCases()),
                         [](const auto& info) {
                           return info.param.op + "_" + std::to_string(info.index);
                         });

}  // namespace
}  // namespace penstock::testing
