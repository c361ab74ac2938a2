// What type inference lets pass, kernels compute: every operand of every operator with every other
// element type and with shapes that differ a little. Either inference refuses them, naming the
// operator, the operand and, in a file, the place; or the kernel runs in memory that ends where its
// operands end, and gives the numbers that the operator's definition gives for what they hold.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/device.h"
#include "base/half.h"
#include "base/strings.h"
#include "graph/op.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "kernels/kernel.h"
#include "planner/opt.h"
#include "tests/support/half_types.h"
#include "tests/support/interpreter.h"
#include "tests/support/op_cases.h"
#include "tests/support/reference_ops.h"

namespace penstock::testing {
namespace {

using graph::Graph;
using graph::OpRegistry;
using ::testing::StartsWith;

constexpr InterpretOptions kOptions{.seed = 3, .step = 2};

// ---- Memory.

// Bytes whose end is the end of readable memory: whoever touches the next one dies, whatever the
// build. What lies between them and the start of their page is checked to stay as it was.
class GuardedMemory {
 public:
  explicit GuardedMemory(size_t num_bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    num_usable_ = (num_bytes / page + 1) * page;
    num_mapped_ = num_usable_ + page;
    void* mapped =
        mmap(nullptr, num_mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) std::abort();
    base_ = static_cast<std::byte*>(mapped);
    std::memset(base_, kFill, num_usable_);
    if (mprotect(base_ + num_usable_, page, PROT_NONE) != 0) std::abort();
    num_before_ = num_usable_ - num_bytes;
  }
  ~GuardedMemory() { munmap(base_, num_mapped_); }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  void* data() const { return base_ + num_before_; }
  bool IsIntactBefore() const {
    return std::all_of(base_, base_ + num_before_,
                       [](std::byte value) { return value == std::byte{kFill}; });
  }

 private:
  static constexpr unsigned char kFill = 0x7f;  // a large number in every type
  std::byte* base_ = nullptr;
  size_t num_usable_ = 0;
  size_t num_mapped_ = 0;
  size_t num_before_ = 0;
};

// ---- Elements as doubles.

template <typename F>
auto WithElement(DType dtype, F f) {
  switch (dtype) {
    case DType::kF32:
      return f(float{});
    case DType::kF64:
      return f(double{});
    case DType::kF16:
      return f(Float16{});
    case DType::kBF16:
      return f(BFloat16{});
    case DType::kI8:
      return f(int8_t{});
    case DType::kU8:
      return f(uint8_t{});
    case DType::kI32:
      return f(int32_t{});
    case DType::kI64:
      return f(int64_t{});
    case DType::kBool:
      break;
  }
  return f(bool{});
}

// The element nearest to a drawn value, or one that depends on it.
template <typename T>
T Narrow(double value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value >= 1;
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(value);
  } else if constexpr (kIsHalf<T>) {
    return FromFloat<T>(static_cast<float>(value));
  } else {
    return static_cast<T>(static_cast<int64_t>(std::floor(value)));
  }
}

double TypedElement(DType dtype, const void* data, int64_t i) {
  return WithElement(dtype, [&](auto zero) -> double {
    const auto element = static_cast<const decltype(zero)*>(data)[i];
    if constexpr (kIsHalf<decltype(zero)>) {
      return ToFloat(element);
    } else {
      return static_cast<double>(element);
    }
  });
}

// An operand or a result in memory of its own.
class GuardedTensor {
 public:
  explicit GuardedTensor(const TensorType& type) : type_(type), memory_(type.num_bytes()) {
    if (type.dtype == DType::kBool) std::memset(memory_.data(), 1, type.num_bytes());
  }

  void Fill(const Values& values) {
    WithElement(type_.dtype, [&](auto zero) {
      auto* elements = static_cast<decltype(zero)*>(memory_.data());
      for (size_t i = 0; i < values.elements.size(); ++i) {
        elements[i] = Narrow<decltype(zero)>(values.elements[i]);
      }
    });
  }

  Values Read() const {
    Values values{type_.shape, {}};
    for (int64_t i = 0; i < type_.num_elements(); ++i) {
      values.elements.push_back(TypedElement(type_.dtype, memory_.data(), i));
    }
    return values;
  }

  const TensorType& type() const { return type_; }
  const GuardedMemory& memory() const { return memory_; }

 private:
  TensorType type_;
  GuardedMemory memory_;
};

// ---- Variants of a case.

struct Variant {
  std::vector<int> changed;
  std::vector<OperandCase> operands;
};

std::vector<TensorType> TypesOf(const std::vector<OperandCase>& operands) {
  std::vector<TensorType> types;
  for (const OperandCase& operand : operands) types.push_back(operand.type);
  return types;
}

// `change` on each operand alone, then on all that have the type of operand 0.
template <typename Change>
void AddVariants(const OpCase& test, Change change, std::vector<Variant>* variants) {
  const int count = static_cast<int>(test.operands.size());
  std::vector<std::vector<int>> groups;
  for (int i = 0; i < count; ++i) groups.push_back({i});
  std::vector<int> alike;
  for (int i = 0; i < count; ++i) {
    if (test.operands[i].type == test.operands[0].type) alike.push_back(i);
  }
  if (alike.size() > 1) groups.push_back(alike);
  for (const std::vector<int>& group : groups) {
    Variant variant{group, test.operands};
    for (int i : group) change(variant.operands[i]);
    variants->push_back(std::move(variant));
  }
}

std::vector<Variant> DTypeVariants(const OpCase& test) {
  std::vector<Variant> variants;
  for (int d = 0; d < kNumDTypes; ++d) {
    const DType dtype = static_cast<DType>(d);
    AddVariants(
        test, [&](OperandCase& operand) { operand.type.dtype = dtype; }, &variants);
    // All floats together, whatever their shapes.
    Variant floats{{}, test.operands};
    for (size_t i = 0; i < test.operands.size(); ++i) {
      if (!IsFloat(test.operands[i].type.dtype)) continue;
      floats.operands[i].type.dtype = dtype;
      floats.changed.push_back(static_cast<int>(i));
    }
    if (floats.changed.size() > 1) variants.push_back(std::move(floats));
  }
  std::erase_if(variants, [&](const Variant& variant) {
    return TypesOf(variant.operands) == TypesOf(test.operands);
  });
  return variants;
}

// The case with TypesInHalves; no operands where it takes no such type.
template <typename Accepts>
std::vector<OperandCase> HalfVariant(const OpCase& test, DType dtype, const Accepts& accepts) {
  std::vector<OperandCase> operands = test.operands;
  const auto with = [&](const std::vector<TensorType>& types) -> const std::vector<OperandCase>& {
    for (size_t i = 0; i < types.size(); ++i) operands[i].type = types[i];
    return operands;
  };
  const std::vector<TensorType> types =
      TypesInHalves(TypesOf(test.operands), dtype,
                    [&](const std::vector<TensorType>& each) { return accepts(with(each)); });
  return types.empty() ? std::vector<OperandCase>() : with(types);
}

// One extent more or less, a dimension less or more.
std::vector<Variant> ShapeVariants(const OpCase& original) {
  OpCase test = original;
  // Indices stay inside a dimension that shrinks.
  for (OperandCase& operand : test.operands) {
    if (operand.type.dtype == DType::kI64 && operand.high - operand.low > 1) --operand.high;
  }
  size_t rank = 0;
  for (const OperandCase& operand : test.operands) {
    rank = std::max(rank, operand.type.shape.size());
  }
  std::vector<Variant> variants;
  for (size_t d = 0; d <= rank; ++d) {
    for (int64_t step : {-1, 1}) {
      AddVariants(
          test,
          [&](OperandCase& operand) {
            if (d < operand.type.shape.size()) operand.type.shape[d] += step;
          },
          &variants);
    }
    AddVariants(
        test,
        [&](OperandCase& operand) {
          Shape& shape = operand.type.shape;
          if (d < shape.size()) shape.erase(shape.begin() + d);
        },
        &variants);
    for (int64_t extent : {1, 2}) {
      AddVariants(
          test,
          [&](OperandCase& operand) {
            Shape& shape = operand.type.shape;
            if (d <= shape.size()) shape.insert(shape.begin() + d, extent);
          },
          &variants);
    }
  }
  std::erase_if(variants, [&](const Variant& variant) {
    return std::any_of(variant.changed.begin(), variant.changed.end(),
                       [&](int i) { return variant.operands[i].type == test.operands[i].type; });
  });
  return variants;
}

// ---- The test.

// What `penstock opt --pass verify` says of a file; empty: nothing.
std::string ErrorOf(const std::string& text) {
  const OpRegistry ops = graph::BuiltinOps();
  return std::string(planner::Optimize(text, "t.pst", "verify", ops).status().message());
}

class OperandTypesTest : public ::testing::TestWithParam<OpCase> {
 protected:
  absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<OperandCase>& operands) const {
    return graph::InferResultTypes(*ops_.Find(GetParam().op), GetParam().attributes,
                                   TypesOf(operands));
  }

  void CheckVariants(const std::vector<Variant>& variants) {
    for (const Variant& variant : variants) {
      SCOPED_TRACE(StrCat(ToString(GetParam()), " with ", Text(variant.operands)));
      const auto results = Infer(variant.operands);
      if (!results.ok()) {
        ASSERT_NO_FATAL_FAILURE(CheckRefusal(variant, results.status()));
      } else {
        ASSERT_NO_FATAL_FAILURE(CheckRun(GetParam(), variant.operands, *results));
      }
    }
  }

  // A graph of inputs and the operator: `operands` are %x0, %x1, ..., the results %y0, %y1, ...
  std::string Text(const std::vector<OperandCase>& operands,
                   const std::vector<TensorType>& results) const {
    std::string text = "graph g {\n";
    std::vector<std::string> names;
    for (size_t i = 0; i < operands.size(); ++i) {
      names.push_back(StrCat("%x", i));
      text += StrCat("  ", names.back(), " = input : ", ToString(operands[i].type), "\n");
    }
    std::vector<std::string> result_names;
    std::vector<std::string> types;
    for (size_t i = 0; i < results.size(); ++i) {
      result_names.push_back(StrCat("%y", i));
      types.push_back(ToString(results[i]));
    }
    return StrCat(text, "  ", StrJoin(result_names, ", "), " = ", GetParam().op, "(",
                  StrJoin(names, ", "), ") ", graph::PrintAttributes(GetParam().attributes), " : ",
                  StrJoin(types, ", "), "\n}\n");
  }

  // Where Text puts the operator.
  std::string Place() const { return StrCat("t.pst:", GetParam().operands.size() + 2, ":3: "); }

  void CheckRun(const OpCase& test, const std::vector<OperandCase>& operands,
                const std::vector<TensorType>& types);

  const OpRegistry ops_ = graph::BuiltinOps();

 private:
  static std::string Text(const std::vector<OperandCase>& operands) {
    std::vector<std::string> types;
    for (const TensorType& type : TypesOf(operands)) types.push_back(ToString(type));
    return StrJoin(types, ", ");
  }

  void CheckRefusal(const Variant& variant, const absl::Status& status) const {
    const std::string message(status.message());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(message, StartsWith(StrCat(GetParam().op, ": ")));
    EXPECT_TRUE(std::any_of(
        variant.changed.begin(), variant.changed.end(),
        [&](int i) { return message.find(StrCat("operand ", i)) != std::string::npos; }))
        << "names no changed operand: " << message;

    // In a file.
    const auto results = Infer(GetParam().operands);
    ASSERT_TRUE(results.ok()) << results.status();
    EXPECT_THAT(ErrorOf(Text(variant.operands, *results)),
                StartsWith(StrCat(Place(), message, "\n")));

    // In a graph whose values were changed since.
    absl::StatusOr<Graph> graph =
        graph::ParseGraph(Text(GetParam().operands, *results), "t.pst", ops_);
    ASSERT_TRUE(graph.ok()) << graph.status();
    for (int i : variant.changed) graph->mutable_value(i).type = variant.operands[i].type;
    EXPECT_THAT(std::string(graph::VerifyGraph(*graph).message()),
                StartsWith(StrCat(Place(), message)));
  }

  // The case's values for an operand, whatever type it has.
  Values Draw(uint32_t i, OperandCase operand) const {
    operand.type.dtype = GetParam().operands[i].type.dtype;
    const Tensor drawn = DrawOperand(operand, i);
    Values values{operand.type.shape, {}};
    for (int64_t e = 0; e < drawn.num_elements(); ++e) {
      values.elements.push_back(TypedElement(drawn.dtype(), drawn.data(), e));
    }
    return values;
  }

  static void CheckResult(int result, const GuardedTensor& actual, const Values& expected) {
    ASSERT_EQ(actual.type().shape, expected.shape) << "result " << result;
    const Values values = actual.Read();
    const DType dtype = actual.type().dtype;
    for (size_t i = 0; i < values.elements.size(); ++i) {
      double wanted = expected.elements[i];
      double tolerance = 0;
      if (IsFloat(dtype)) {
        const double relative = dtype == DType::kF64   ? 1e-12
                                : dtype == DType::kF32 ? 1e-5
                                : dtype == DType::kF16 ? 2e-3
                                                       : 1e-2;
        tolerance = relative * std::max(1.0, std::abs(wanted));
      } else if (IsInteger(dtype)) {  // sums and products wrap
        wanted = WithElement(dtype, [&](auto zero) {
          if constexpr (std::is_integral_v<decltype(zero)>) {
            return static_cast<double>(static_cast<decltype(zero)>(static_cast<int64_t>(wanted)));
          } else {
            return wanted;
          }
        });
      }
      if (values.elements[i] == wanted || (std::isnan(values.elements[i]) && std::isnan(wanted))) {
        continue;
      }
      ASSERT_LE(std::abs(values.elements[i] - wanted), tolerance)
          << "result " << result << ", element " << i << ": " << values.elements[i]
          << " instead of " << wanted;
    }
  }

  static constexpr int kNumThreads = 2;
  const kernels::KernelRegistry kernels_ = kernels::CpuKernels();
  const std::unique_ptr<Device> device_ = CreateCpuDevice(kNumThreads);
  const std::unique_ptr<Stream> stream_ = device_->CreateStream();
};

void OperandTypesTest::CheckRun(const OpCase& test, const std::vector<OperandCase>& operands,
                                const std::vector<TensorType>& types) {
  if (kernels_.Find(test.op) == nullptr) {  // the identity on one device
    EXPECT_EQ(types, TypesOf(operands));
    return;
  }
  kernels::KernelSpec spec;
  spec.op = test.op;
  spec.attributes = test.attributes;
  std::vector<std::unique_ptr<GuardedTensor>> inputs;
  std::vector<std::unique_ptr<GuardedTensor>> outputs;
  std::vector<Values> values;
  for (uint32_t i = 0; i < operands.size(); ++i) {
    spec.inputs.push_back(WholeTile(operands[i].type));
    inputs.push_back(std::make_unique<GuardedTensor>(operands[i].type));
    inputs.back()->Fill(Draw(i, operands[i]));
    values.push_back(inputs.back()->Read());
  }
  for (const TensorType& type : types) {
    spec.outputs.push_back(WholeTile(type));
    outputs.push_back(std::make_unique<GuardedTensor>(type));
  }

  const kernels::KernelDef& def = *kernels_.Find(spec.op);
  const auto kernel = def.create(spec, *device_, *stream_);
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  size_t workspace_bytes = 0;
  if (def.workspace_bytes) workspace_bytes = def.workspace_bytes(spec, kNumThreads);
  const GuardedMemory workspace((workspace_bytes + 63) / 64 * 64);
  std::vector<void*> in;
  std::vector<void*> out;
  for (const auto& input : inputs) in.push_back(input->memory().data());
  for (const auto& output : outputs) out.push_back(output->memory().data());
  const absl::Status status = (*kernel)->Run({.inputs = in,
                                              .outputs = out,
                                              .workspace = workspace.data(),
                                              .seed = kOptions.seed,
                                              .step = kOptions.step});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(workspace.IsIntactBefore());
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_TRUE(inputs[i]->memory().IsIntactBefore());
    EXPECT_EQ(inputs[i]->Read().elements, values[i].elements) << "operand " << i << " was written";
  }

  const bool is_integer = !operands.empty() && IsInteger(operands[0].type.dtype);
  const auto expected = EvaluateReference(spec.op, spec.attributes, values, is_integer, kOptions);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (size_t r = 0; r < outputs.size(); ++r) {
    EXPECT_TRUE(outputs[r]->memory().IsIntactBefore());
    ASSERT_NO_FATAL_FAILURE(CheckResult(static_cast<int>(r), *outputs[r], (*expected)[r]));
  }
}

TEST_P(OperandTypesTest, RunsAsDefined) { CheckVariants({{{}, GetParam().operands}}); }

TEST_P(OperandTypesTest, ElementTypesAreRefusedOrComputed) {
  CheckVariants(DTypeVariants(GetParam()));
}

// Sums of floats of 16 bits may be f32, too.
TEST_P(OperandTypesTest, FloatsOf16BitsAreComputed) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const std::vector<OperandCase> operands = HalfVariant(
        GetParam(), dtype, [&](const std::vector<OperandCase>& each) { return Infer(each).ok(); });
    if (operands.empty()) continue;
    OpCase test = GetParam();
    CheckRun(test, operands, *Infer(operands));
    if (test.attributes.Find("dtype") != nullptr) continue;
    test.attributes.Set("dtype", DType::kF32);
    const auto results =
        graph::InferResultTypes(*ops_.Find(test.op), test.attributes, TypesOf(operands));
    if (results.ok()) CheckRun(test, operands, *results);
  }
}

TEST_P(OperandTypesTest, ShapesAreRefusedOrComputed) { CheckVariants(ShapeVariants(GetParam())); }

TEST_P(OperandTypesTest, DeclaredResultsHaveTheInferredTypes) {
  const auto inferred = Infer(GetParam().operands);
  ASSERT_TRUE(inferred.ok()) << inferred.status();
  ASSERT_EQ(ErrorOf(Text(GetParam().operands, *inferred)), "");
  for (size_t r = 0; r < inferred->size(); ++r) {
    const auto check = [&](const TensorType& declared) {
      std::vector<TensorType> types = *inferred;
      types[r] = declared;
      EXPECT_THAT(ErrorOf(Text(GetParam().operands, types)),
                  StartsWith(StrCat(Place(), "%y", r, " is declared ", ToString(declared), ", but ",
                                    GetParam().op, " gives ", ToString((*inferred)[r]), "\n")));
    };
    for (int d = 0; d < kNumDTypes; ++d) {
      const DType dtype = static_cast<DType>(d);
      if (dtype != (*inferred)[r].dtype) check({dtype, (*inferred)[r].shape});
    }
    TensorType longer = (*inferred)[r];
    longer.shape.push_back(1);
    check(longer);
  }
}

std::vector<OpCase> CasesWithOperands() {
  std::vector<OpCase> cases = OpCases();
  std::erase_if(cases, [](const OpCase& test) { return test.operands.empty(); });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Ops, OperandTypesTest, ::testing::ValuesIn(CasesWithOperands()),
                         [](const ::testing::TestParamInfo<OpCase>& info) {
                           return StrCat(info.param.op, "_", info.index);
                         });

// The element types that an operand after the first may have while all others stay as they are;
// OperandTypesTest runs each. Kernels read indices of every integer type, and the scalars of
// optimisers as f32 or f64.
TEST(OperandTypesListTest, FewOperandsMayDifferInElementType) {
  const OpRegistry ops = graph::BuiltinOps();
  std::set<std::string> accepted;
  for (const OpCase& test : OpCases()) {
    for (const Variant& variant : DTypeVariants(test)) {
      if (variant.changed.size() > 1 || variant.changed[0] == 0) continue;
      const std::vector<TensorType> types = TypesOf(variant.operands);
      if (!graph::InferResultTypes(*ops.Find(test.op), test.attributes, types).ok()) continue;
      const int changed = variant.changed[0];
      accepted.insert(StrCat(test.op, " ", changed, " ", Name(types[changed].dtype)));
    }
  }
  std::set<std::string> expected = {"adamw 5 f32", "adamw 6 f32", "sgd 2 f32", "sgd 3 f32"};
  for (const char* op :
       {"pick 1", "embedding 1", "embedding_grad 1", "cross_entropy 1", "cross_entropy_grad 1",
        "dispatch 1", "combine 1", "combine_weight_grad 2", "cached_attention 2", "rotary 1"}) {
    for (const char* dtype : {"i8", "u8", "i32"}) expected.insert(StrCat(op, " ", dtype));
  }
  EXPECT_EQ(accepted, expected);
}

// ---- Files that once ended in SIGSEGV, or in wrong numbers.

TEST(OperandTypesListTest, SgdOfMixedTypesIsRefusedWithItsPlace) {
  EXPECT_THAT(
      ErrorOf(R"(graph g {
  %w = parameter : f64[20000000]
  %g = input : f32[20000000]
  %lr = constant {value=0.1} : f64[]
  %one = constant {value=1.0} : f64[]
  %next = sgd(%w, %g, %lr, %one) : f64[20000000]
  assign(%w, %next)
})"),
      StartsWith("t.pst:6:3: sgd: operand 1 (g) is f32[20000000]; expected f64[20000000], the type "
                 "of operand 0 (w)\n"));
}

TEST(OperandTypesListTest, AdamwOfMixedTypesIsRefusedWithItsPlace) {
  EXPECT_THAT(
      ErrorOf(R"(graph g {
  %w = parameter : f64[20]
  %m = state : f64[20]
  %v = state : f64[20]
  %g = input : f32[20]
  %step = constant {value=1} : i64[]
  %lr = constant {value=0.1} : f32[]
    %next, %m2, %v2 = adamw(%w, %g, %m, %v, %step, %lr, %lr) : f64[20], f64[20], f64[20]
  assign(%w, %next)
})"),
      StartsWith(
          "t.pst:8:5: adamw: operand 1 (g) is f32[20]; expected f64[20], the type of operand "
          "0 (w)\n"));
}

TEST(OperandTypesListTest, AssignOfAnotherTypeIsRefusedWithItsPlace) {
  EXPECT_THAT(
      ErrorOf(R"(graph g {
  %w = parameter : f64[20]
  %g = input : f32[20]
  assign(%w, %g)
})"),
      StartsWith(
          "t.pst:4:3: assign: operand 1 is f32[20]; expected f64[20], the type of operand 0\n"));
}

}  // namespace
}  // namespace penstock::testing
