// Every CPU kernel against a naive reference: one list of cases, each run on whole tensors, tiles
// and micro-batches (see tests/support/kernel_case.h).

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "graph/op.h"
#include "kernels/cpu/dot_gemm.h"
#include "kernels/cpu/half_gemm.h"
#include "kernels/cpu/onednn_matmul.h"
#include "kernels/kernel.h"
#include "tests/support/interpreter.h"
#include "tests/support/kernel_case.h"
#include "tests/support/op_cases.h"

namespace penstock::kernels {
namespace {

using graph::AttrValue;
using testing::KernelCase;
using testing::Operand;
using testing::Reference;

const std::vector<DType> kFloats = {DType::kF32, DType::kF64};
const std::vector<DType> kNumbers = {DType::kF32, DType::kF64, DType::kI8,
                                     DType::kU8,  DType::kI32, DType::kI64};
const std::vector<DType> kNatives = {DType::kF32, DType::kF64, DType::kI8,  DType::kU8,
                                     DType::kI32, DType::kI64, DType::kBool};

AttrValue Ints(std::vector<int64_t> values) { return AttrValue::Ints(values); }

// ---- Elementwise.

KernelCase Unary(const std::string& op, double (*f)(double), double low, double high,
                 std::vector<DType> dtypes = kFloats, graph::Attributes attributes = {}) {
  return {op,
          attributes,
          {{"abc", low, high}},
          {{"abc"}},
          {{'a', 2}, {'b', 6}, {'c', 35}},
          [f](Reference& r) { r.Loop("abc", [&] { r.Out(0) = f(r.In(0)); }); },
          dtypes,
          3e-7};
}

// Operands of equal shapes and with a scalar on either side.
std::vector<KernelCase> Binary(const std::string& op, double (*f)(double, double),
                               std::vector<DType> dtypes, std::optional<DType> result = {},
                               double low = -5) {
  std::vector<KernelCase> cases;
  for (const auto& [x, y] : {std::pair{"ab", "ab"}, std::pair{"", "ab"}, std::pair{"ab", ""}}) {
    cases.push_back({op,
                     {},
                     {{x, low, 6}, {y, low, 6}},
                     {{"ab", 0, 0, result}},
                     {{'a', 4}, {'b', 21}},
                     [f](Reference& r) { r.Loop("ab", [&] { r.Out(0) = f(r.In(0), r.In(1)); }); },
                     dtypes,
                     3e-7});
  }
  return cases;
}

double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double ExactGelu(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }
double GeluSlope(double x) {
  const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
  const double t = std::tanh(u);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}
double ExactGeluSlope(double x) {
  return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
}

void AddElementwise(std::vector<KernelCase>* cases) {
  cases->push_back(Unary("neg", [](double x) { return -x; }, -5, 5,
                         {DType::kF32, DType::kF64, DType::kI8, DType::kI32, DType::kI64}));
  cases->push_back(Unary(
      "abs", [](double x) { return std::abs(x); }, -5, 5, kNumbers));
  cases->push_back(Unary(
      "relu", [](double x) { return std::max(x, 0.0); }, -5, 5, kNumbers));
  cases->push_back(Unary(
      "square", [](double x) { return x * x; }, -5, 5, kNumbers));
  cases->push_back(Unary(
      "exp", [](double x) { return std::exp(x); }, -20, 20));
  cases->push_back(Unary(
      "log", [](double x) { return std::log(x); }, 0.01, 20));
  cases->push_back(Unary(
      "tanh", [](double x) { return std::tanh(x); }, -12, 12));
  cases->push_back(Unary(
      "sqrt", [](double x) { return std::sqrt(x); }, 0, 20));
  cases->push_back(Unary(
      "rsqrt", [](double x) { return 1 / std::sqrt(x); }, 0.1, 20));
  cases->push_back(Unary(
      "sin", [](double x) { return std::sin(x); }, -20, 20));
  cases->push_back(Unary(
      "cos", [](double x) { return std::cos(x); }, -20, 20));
  cases->push_back(Unary(
      "silu", [](double x) { return x / (1 + std::exp(-x)); }, -20, 20));
  cases->push_back(Unary(
      "sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }, -20, 20));
  cases->push_back(Unary("gelu", Gelu, -6, 6));
  cases->push_back(Unary("gelu", ExactGelu, -6, 6, kFloats, {{"approximate", "none"}}));

  const auto append = [&](std::vector<KernelCase> more) {
    cases->insert(cases->end(), more.begin(), more.end());
  };
  const double kUnsigned = 0;  // differences of u8 would wrap where doubles do not
  append(Binary(
      "add", [](double x, double y) { return x + y; }, kNumbers, {}, kUnsigned));
  append(Binary("sub", [](double x, double y) { return x - y; },
                {DType::kF32, DType::kF64, DType::kI8, DType::kI32, DType::kI64}));
  append(Binary(
      "mul", [](double x, double y) { return x * y; }, kNumbers, {}, kUnsigned));
  append(Binary(
      "div", [](double x, double y) { return x / y; }, kFloats));
  append(Binary("div", [](double x, double y) { return y == 0 ? 0 : std::trunc(x / y); },
                {DType::kI8, DType::kU8, DType::kI32, DType::kI64}));
  append(Binary(
      "max", [](double x, double y) { return std::max(x, y); }, kNatives));
  append(Binary(
      "min", [](double x, double y) { return std::min(x, y); }, kNatives));
  append(Binary(
      "equal", [](double x, double y) { return x == y ? 1.0 : 0.0; }, kNatives, DType::kBool));
  append(Binary(
      "less", [](double x, double y) { return x < y ? 1.0 : 0.0; }, kNatives, DType::kBool));
  append(Binary(
      "greater", [](double x, double y) { return x > y ? 1.0 : 0.0; }, kNatives, DType::kBool));
  for (const auto& [approximate, slope] :
       {std::pair{"tanh", &GeluSlope}, std::pair{"none", &ExactGeluSlope}}) {
    cases->push_back(
        {"gelu_grad",
         {{"approximate", approximate}},
         {{"ab", -5, 5}, {"ab"}},
         {{"ab"}},
         {{'a', 4}, {'b', 21}},
         [slope](Reference& r) { r.Loop("ab", [&] { r.Out(0) = r.In(1) * slope(r.In(0)); }); },
         kFloats,
         1e-6});
    cases->push_back({"bias_gelu_grad",
                      {{"approximate", approximate}},
                      {{"ab"}, {"b"}, {"ab"}},
                      {{"ab"}},
                      {{'a', 4}, {'b', 21}},
                      [slope](Reference& r) {
                        r.Loop("ab", [&] { r.Out(0) = r.In(2) * slope(r.In(0) + r.In(1)); });
                      },
                      kFloats,
                      1e-6});
  }
  for (const auto& [approximate, gelu] :
       {std::pair{"tanh", &Gelu}, std::pair{"none", &ExactGelu}}) {
    cases->push_back(
        {"bias_gelu",
         {{"approximate", approximate}},
         {{"abc"}, {"c"}},
         {{"abc"}},
         {{'a', 2}, {'b', 3}, {'c', 21}},
         [gelu](Reference& r) { r.Loop("abc", [&] { r.Out(0) = gelu(r.In(0) + r.In(1)); }); },
         kFloats,
         1e-6});
  }
  for (const char* bias : {"c", "bc"}) {
    cases->push_back({"bias_add",
                      {},
                      {{"abc", 0, 5}, {bias, 0, 5}},
                      {{"abc"}},
                      {{'a', 2}, {'b', 3}, {'c', 21}},
                      [](Reference& r) { r.Loop("abc", [&] { r.Out(0) = r.In(0) + r.In(1); }); },
                      kNumbers});
  }
  for (const char* condition : {"ab", ""}) {
    for (const char* x : {"ab", ""}) {
      for (const char* y : {"ab", ""}) {
        if (std::string(condition) + x + y == "") continue;
        cases->push_back({"where",
                          {},
                          {{condition, -1, 1, DType::kBool}, {x}, {y}},
                          {{"ab"}},
                          {{'a', 4}, {'b', 9}},
                          [](Reference& r) {
                            r.Loop("ab", [&] { r.Out(0) = r.In(0) != 0 ? r.In(1) : r.In(2); });
                          },
                          kNatives});
      }
    }
  }
  for (DType to : kNatives) {
    cases->push_back(
        {"cast",
         {{"dtype", to}},
         {{"ab", 0, 100}},
         {{"ab", 0, 0, to}},
         {{'a', 3}, {'b', 21}},
         [to](Reference& r) {
           r.Loop("ab", [&] {
             const double x = r.In(0);
             r.Out(0) = to == DType::kBool ? (x != 0 ? 1.0 : 0.0) : IsFloat(to) ? x : std::trunc(x);
           });
         },
         kNatives,
         to == DType::kF32 ? 1e-7 : 1e-5});
  }
}

// ---- Shape.

void AddShape(std::vector<KernelCase>* cases) {
  const auto copy = [](const std::string& letters) {
    return [letters](Reference& r) { r.Loop(letters, [&] { r.Out(0) = r.In(0); }); };
  };
  for (const char* op : {"copy", "reshape", "accumulate"}) {
    cases->push_back({op,
                      {{"shape", Ints({3, 10})}},
                      {{"ab"}},
                      {{"ab"}},
                      {{'a', 3}, {'b', 10}},
                      copy("ab"),
                      kNumbers});
  }
  struct Permutation {
    std::string result;
    std::vector<int64_t> permutation;
  };
  for (const Permutation& p : {Permutation{"abcd", {0, 1, 2, 3}}, Permutation{"dcba", {3, 2, 1, 0}},
                               Permutation{"acbd", {0, 2, 1, 3}}, Permutation{"abdc", {0, 1, 3, 2}},
                               Permutation{"cdab", {2, 3, 0, 1}}}) {
    cases->push_back({"transpose",
                      {{"permutation", Ints(p.permutation)}},
                      {{"abcd"}},
                      {{p.result}},
                      {{'a', 3}, {'b', 4}, {'c', 5}, {'d', 6}},
                      copy("abcd"),
                      kNatives});
  }
  cases->push_back({"transpose",
                    {{"permutation", Ints({1, 0})}},
                    {{"AB"}},
                    {{"BA"}},
                    {{'A', 70}, {'B', 45}},
                    copy("AB"),
                    kFloats});
  struct Broadcasting {
    std::string operand;
    std::vector<int64_t> axes;
  };
  for (const Broadcasting& b :
       {Broadcasting{"", {}}, Broadcasting{"a", {0}}, Broadcasting{"b", {1}},
        Broadcasting{"ac", {0, 2}}, Broadcasting{"bc", {1, 2}}}) {
    cases->push_back({"broadcast",
                      {{"shape", Ints({3, 4, 5})}, {"axes", Ints(b.axes)}},
                      {{b.operand}},
                      {{"abc"}},
                      {{'a', 3}, {'b', 4}, {'c', 5}},
                      copy("abc"),
                      kNatives});
  }
  cases->push_back(
      {"slice",
       {{"start", Ints({1, 0, 2})}, {"limit", Ints({6, 4, 8})}, {"stride", Ints({2, 1, 1})}},
       {{"AbC"}},
       {{"DbE"}},
       {{'A', 7}, {'b', 4}, {'C', 9}, {'D', 3}, {'E', 6}},
       [](Reference& r) {
         r.Loop("DbE", [&] {
           r.At('A') = 1 + 2 * r.At('D');
           r.At('C') = 2 + r.At('E');
           r.Out(0) = r.In(0);
         });
       },
       kNatives});
  cases->push_back({"pad",
                    {{"low", Ints({1, 0})}, {"high", Ints({2, 0})}},
                    {{"Ab"}},
                    {{"Cb"}},
                    {{'A', 3}, {'b', 6}, {'C', 6}},
                    [](Reference& r) {
                      r.Loop("Ab", [&] {
                        r.At('C') = r.At('A') + 1;
                        r.Out(0) = r.In(0);
                      });
                    },
                    kNatives});
  cases->push_back({"concat",
                    {{"axis", 1}},
                    {{"aBc"}, {"aCc"}, {"aZc"}},
                    {{"aDc"}},
                    {{'a', 4}, {'B', 2}, {'C', 3}, {'Z', 0}, {'D', 5}, {'c', 6}},
                    [](Reference& r) {
                      r.Loop("aDc", [&] {
                        const int64_t at = r.At('D');
                        r.At('B') = std::min<int64_t>(at, 1);
                        r.At('C') = std::max<int64_t>(at - 2, 0);
                        r.Out(0) = at < 2 ? r.In(0) : r.In(1);
                      });
                    },
                    kNatives});
  cases->push_back({"split",
                    {{"axis", -2}, {"parts", 3}},
                    {{"aBc"}},
                    {{"aPc"}, {"aPc"}, {"aPc"}},
                    {{'a', 4}, {'B', 6}, {'P', 2}, {'c', 6}},
                    [](Reference& r) {
                      r.Loop("aPc", [&] {
                        for (int part = 0; part < 3; ++part) {
                          r.At('B') = 2 * part + r.At('P');
                          r.Out(part) = r.In(0);
                        }
                      });
                    },
                    kNatives});
  // Starts beyond either end are clamped.
  cases->push_back({"dynamic_slice",
                    {{"sizes", Ints({2, 6, 3})}},
                    {{"AbC"}, {"S", 0, 0, DType::kI64}},
                    {{"DbE"}},
                    {{'A', 5}, {'b', 6}, {'C', 7}, {'S', 3}, {'D', 2}, {'E', 3}},
                    [](Reference& r) {
                      r.Loop("DbE", [&] {
                        r.At('A') = 3 + r.At('D');
                        r.At('C') = r.At('E');
                        r.Out(0) = r.In(0);
                      });
                    },
                    kNatives,
                    0,
                    false,
                    [](Reference& r) {
                      r.in[1] = {9, 4, -3};
                    }});
  cases->push_back({"dynamic_update_slice",
                    {},
                    {{"AbC"}, {"DbE"}, {"S", 0, 0, DType::kI64}},
                    {{"AbC"}},
                    {{'A', 5}, {'b', 6}, {'C', 7}, {'S', 3}, {'D', 2}, {'E', 3}},
                    [](Reference& r) {
                      r.Loop("AbC", [&] { r.Out(0) = r.In(0); });
                      r.Loop("DbE", [&] {
                        r.At('A') = 1 + r.At('D');
                        r.At('C') = 4 + r.At('E');
                        r.Out(0) = r.In(1);
                      });
                    },
                    kNatives,
                    0,
                    false,
                    [](Reference& r) {
                      r.in[2] = {1, 0, 5};
                    }});
  for (int axis = 0; axis < 2; ++axis) {
    cases->push_back(
        {"iota",
         {{"axis", axis}},
         {},
         {{"ab"}},
         {{'a', 6}, {'b', 9}},
         [axis](Reference& r) { r.Loop("ab", [&] { r.Out(0) = r.At(axis == 0 ? 'a' : 'b'); }); },
         kNumbers});
  }
  for (const AttrValue& value : {AttrValue(1), AttrValue(1.0), AttrValue(true)}) {
    cases->push_back({"constant",
                      {{"value", value}},
                      {},
                      {{"ab"}},
                      {{'a', 6}, {'b', 9}},
                      [](Reference& r) { r.Loop("ab", [&] { r.Out(0) = 1; }); },
                      kNatives});
  }
}

// ---- Contractions and reductions.

KernelCase Einsum(const std::string& a, const std::string& b, const std::string& c,
                  std::vector<DType> dtypes = kNumbers) {
  testing::Sizes sizes;
  std::string letters = c;
  for (char letter : a + b) {
    if (letters.find(letter) == std::string::npos) letters.push_back(letter);
  }
  for (char letter : letters) sizes[letter] = 2 + (letter * 7) % 5;
  const bool is_unary = b.empty();
  std::vector<Operand> inputs = {{a, 0, 2}};
  if (!is_unary) inputs.push_back({b, 0, 2});
  return {"einsum",
          {{"equation", is_unary ? a + "->" + c : a + "," + b + "->" + c}},
          inputs,
          {{c}},
          sizes,
          [letters, is_unary](Reference& r) {
            r.Loop(letters, [&] { r.Out(0) += r.In(0) * (is_unary ? 1 : r.In(1)); });
          },
          dtypes};
}

void AddContractions(std::vector<KernelCase>* cases) {
  const auto matmul = [](const std::string& a, const std::string& b, const std::string& c,
                         bool transpose_a, bool transpose_b, testing::Sizes sizes,
                         std::vector<DType> dtypes = kNumbers) {
    std::string letters = c + "k";
    return KernelCase{
        "matmul",
        {{"transpose_a", transpose_a}, {"transpose_b", transpose_b}},
        {{a, 0, 2}, {b, 0, 2}},
        {{c}},
        sizes,
        [letters](Reference& r) { r.Loop(letters, [&] { r.Out(0) += r.In(0) * r.In(1); }); },
        dtypes};
  };
  const testing::Sizes sizes = {{'m', 6}, {'k', 7}, {'n', 9}};
  cases->push_back(matmul("mk", "kn", "mn", false, false, sizes));
  cases->push_back(matmul("mk", "nk", "mn", false, true, sizes));
  cases->push_back(matmul("km", "kn", "mn", true, false, sizes));
  cases->push_back(matmul("km", "nk", "mn", true, true, sizes));
  testing::Sizes batched = {{'a', 2}, {'b', 3}, {'m', 4}, {'k', 5}, {'n', 6}};
  cases->push_back(matmul("abmk", "abkn", "abmn", false, false, batched));
  cases->push_back(matmul("abkm", "abnk", "abmn", true, true, batched));
  cases->push_back(matmul("abmk", "kn", "abmn", false, false, batched));
  cases->push_back(matmul("abmk", "nk", "abmn", false, true, batched));
  // Larger than every block of the packed product, and with more than one stripe a thread.
  cases->push_back(
      matmul("MK", "KN", "MN", false, false, {{'M', 105}, {'K', 260}, {'N', 210}}, {DType::kF64}));
  cases->back().reference = [](Reference& r) {
    r.Loop("MKN", [&] { r.Out(0) += r.In(0) * r.In(1); });
  };
  // Longer than what oneDNN is given at once of a transposed operand.
  for (const bool transpose_b : {false, true}) {
    cases->push_back(matmul("KM", transpose_b ? "NK" : "KN", "MN", true, transpose_b,
                            {{'M', 110}, {'K', 300}, {'N', 170}}, {DType::kF32}));
    cases->back().reference = [](Reference& r) {
      r.Loop("MKN", [&] { r.Out(0) += r.In(0) * r.In(1); });
    };
  }

  // The products of a transformer and of their gradients.
  cases->push_back(Einsum("bsd", "dchk", "bschk"));
  cases->push_back(Einsum("bsd", "bsv", "dv"));
  cases->push_back(Einsum("bsv", "bsd", "vd"));
  cases->push_back(Einsum("bsd", "vd", "bsv"));
  cases->push_back(Einsum("bschk", "dchk", "bsd"));
  cases->push_back(Einsum("bsd", "bschk", "dchk"));
  // Batches, transposed results, nothing in common, sums of one operand, outer and inner products.
  cases->push_back(Einsum("bhsk", "bhtk", "bhst"));
  cases->push_back(Einsum("bshk", "bthk", "bhst"));
  cases->push_back(Einsum("mk", "kn", "nm"));
  cases->push_back(Einsum("amk", "kan", "nam"));
  cases->push_back(Einsum("m", "n", "mn"));
  cases->push_back(Einsum("k", "k", ""));
  cases->push_back(Einsum("ak", "ak", "a"));
  cases->push_back(Einsum("mkx", "kn", "mn"));
  cases->push_back(Einsum("abc", "cba", "b"));
  cases->push_back(Einsum("abc", "", "cab"));
  cases->push_back(Einsum("abc", "", "b"));
  cases->push_back(Einsum("abc", "", ""));
  cases->push_back(Einsum("a", "", "a"));
}

void AddReductions(std::vector<KernelCase>* cases) {
  struct Axes {
    std::string operand;
    std::string result;
    std::vector<int64_t> axes;
  };
  for (const Axes& a :
       {Axes{"abcd", "abc", {3}}, Axes{"abcd", "bcd", {0}}, Axes{"abcd", "ad", {1, 2}},
        Axes{"abcd", "bd", {0, 2}}, Axes{"abcd", "ac", {-1, 1}}, Axes{"abcd", "", {0, 1, 2, 3}},
        Axes{"abcd", "abcd", {}}, Axes{"", "", {}}}) {
    const testing::Sizes sizes = {{'a', 2}, {'b', 4}, {'c', 3}, {'d', 150}};
    double count = 1;
    for (char letter : a.operand) {
      if (a.result.find(letter) == std::string::npos) count *= sizes.at(letter);
    }
    const auto make = [&](const std::string& op, std::function<void(Reference&)> reference,
                          std::vector<DType> dtypes) {
      return KernelCase{
          op,    {{"axes", Ints(a.axes)}}, {{a.operand, -1, 1}}, {{a.result}}, sizes, reference,
          dtypes};
    };
    cases->push_back(make("reduce_sum",
                          [a](Reference& r) { r.Loop(a.operand, [&] { r.Out(0) += r.In(0); }); },
                          {DType::kF32, DType::kF64, DType::kI32, DType::kI64}));
    cases->push_back(make(
        "reduce_mean",
        [a, count](Reference& r) { r.Loop(a.operand, [&] { r.Out(0) += r.In(0) / count; }); },
        kFloats));
    cases->push_back(make(
        "reduce_max",
        [a](Reference& r) {
          for (double& value : r.out[0]) value = -std::numeric_limits<double>::infinity();
          r.Loop(a.operand, [&] { r.Out(0) = std::max(r.Out(0), r.In(0)); });
        },
        kFloats));
    cases->back().is_partial_max = true;
  }
  cases->push_back(
      {"sum_squares", {}, {{"ab"}}, {{""}}, {{'a', 12}, {'b', 1000}}, [](Reference& r) {
         r.Loop("ab", [&] { r.Out(0) += r.In(0) * r.In(0); });
       }});
  cases->push_back(
      {"sum_exp",
       {},
       {{"abn"}, {"ab"}},
       {{"ab"}},
       {{'a', 2}, {'b', 3}, {'n', 70}},
       [](Reference& r) { r.Loop("abn", [&] { r.Out(0) += std::exp(r.In(0) - r.In(1)); }); }});
  cases->push_back({"pick",
                    {},
                    {{"abn"}, {"ab", 0, 9, DType::kI32}},
                    {{"ab"}},
                    {{'a', 2}, {'b', 3}, {'n', 9}},
                    [](Reference& r) {
                      r.Loop("ab", [&] {
                        r.At('n') = static_cast<int64_t>(r.In(1));
                        r.Out(0) = r.In(0);
                      });
                      r.At('n') = 0;
                    },
                    kNumbers});
}

// ---- Neural networks.

void AddSoftmax(std::vector<KernelCase>* cases, int axis, const std::string& labels,
                const std::string& rows, char n) {
  const testing::Sizes sizes = {{'a', 4}, {'b', 6}, {'B', 6}, {'c', 40}, {'C', 40}};
  cases->push_back(
      {"softmax", {{"axis", axis}}, {{labels, -8, 8}}, {{labels}}, sizes, [rows, n](Reference& r) {
         r.Loop(rows, [&] {
           double sum = 0;
           r.Loop(std::string(1, n), [&] { sum += std::exp(r.In(0)); });
           r.Loop(std::string(1, n), [&] { r.Out(0) = std::exp(r.In(0)) / sum; });
         });
       }});
  cases->push_back({"softmax_grad",
                    {{"axis", axis}},
                    {{labels}, {labels}},
                    {{labels}},
                    sizes,
                    [rows, n](Reference& r) {
                      r.Loop(rows, [&] {
                        double dot = 0;
                        r.Loop(std::string(1, n), [&] { dot += r.In(0) * r.In(1); });
                        r.Loop(std::string(1, n), [&] { r.Out(0) = r.In(0) * (r.In(1) - dot); });
                      });
                    }});
}

void AddNorms(std::vector<KernelCase>* cases) {
  const testing::Sizes sizes = {{'a', 4}, {'b', 3}, {'n', 75}, {'N', 75}};
  const double epsilon = 1e-3;
  cases->push_back({"layer_norm",
                    {{"epsilon", epsilon}},
                    {{"abN"}, {"N"}, {"N"}},
                    {{"abN"}, {"ab"}, {"ab"}},
                    sizes,
                    [=](Reference& r) {
                      r.Loop("ab", [&] {
                        double mean = 0;
                        double variance = 0;
                        r.Loop("N", [&] { mean += r.In(0) / 75; });
                        r.Loop("N", [&] { variance += std::pow(r.In(0) - mean, 2) / 75; });
                        const double rstd = 1 / std::sqrt(variance + epsilon);
                        r.Out(1) = mean;
                        r.Out(2) = rstd;
                        r.Loop("N",
                               [&] { r.Out(0) = (r.In(0) - mean) * rstd * r.In(1) + r.In(2); });
                      });
                    }});
  for (const bool has_addend : {false, true}) {
    std::vector<Operand> operands = {{"abN"}, {"abN"}, {"N"}, {"ab", -0.5, 0.5}, {"ab", 0.5, 2}};
    if (has_addend) operands.push_back({"abN"});
    cases->push_back(
        {"layer_norm_grad", {}, operands, {{"abN"}}, sizes, [has_addend](Reference& r) {
           r.Loop("ab", [&] {
             double g = 0;
             double gh = 0;
             const auto h = [&] { return (r.In(1) - r.In(3)) * r.In(4); };
             r.Loop("N", [&] { g += r.In(0) * r.In(2) / 75; });
             r.Loop("N", [&] { gh += r.In(0) * r.In(2) * h() / 75; });
             r.Loop("N", [&] {
               r.Out(0) = r.In(4) * (r.In(0) * r.In(2) - g - h() * gh) + (has_addend ? r.In(5) : 0);
             });
           });
         }});
  }
  cases->push_back({"layer_norm_weight_grad",
                    {},
                    {{"abn"}, {"abn"}, {"ab", -0.5, 0.5}, {"ab", 0.5, 2}},
                    {{"n"}, {"n"}},
                    sizes,
                    [](Reference& r) {
                      r.Loop("abn", [&] {
                        r.Out(0) += r.In(0) * (r.In(1) - r.In(2)) * r.In(3);
                        r.Out(1) += r.In(0);
                      });
                    }});
  cases->push_back({"rms_norm",
                    {{"epsilon", epsilon}},
                    {{"abN"}, {"N"}},
                    {{"abN"}, {"ab"}},
                    sizes,
                    [=](Reference& r) {
                      r.Loop("ab", [&] {
                        double square = 0;
                        r.Loop("N", [&] { square += r.In(0) * r.In(0) / 75; });
                        r.Out(1) = 1 / std::sqrt(square + epsilon);
                        r.Loop("N", [&] { r.Out(0) = r.In(0) * r.Out(1) * r.In(1); });
                      });
                    }});
  for (const bool has_addend : {false, true}) {
    std::vector<Operand> operands = {{"abN"}, {"abN"}, {"N"}, {"ab", 0.5, 2}};
    if (has_addend) operands.push_back({"abN"});
    cases->push_back({"rms_norm_grad", {}, operands, {{"abN"}}, sizes, [has_addend](Reference& r) {
                        r.Loop("ab", [&] {
                          double gh = 0;
                          const auto h = [&] { return r.In(1) * r.In(3); };
                          r.Loop("N", [&] { gh += r.In(0) * r.In(2) * h() / 75; });
                          r.Loop("N", [&] {
                            r.Out(0) = r.In(3) * (r.In(0) * r.In(2) - h() * gh) +
                                       (has_addend ? r.In(4) : 0);
                          });
                        });
                      }});
  }
  cases->push_back(
      {"rms_norm_weight_grad",
       {},
       {{"abn"}, {"abn"}, {"ab", 0.5, 2}},
       {{"n"}},
       sizes,
       [](Reference& r) { r.Loop("abn", [&] { r.Out(0) += r.In(0) * r.In(1) * r.In(2); }); }});
}

void AddLanguage(std::vector<KernelCase>* cases) {
  for (DType ids : {DType::kI8, DType::kU8, DType::kI32, DType::kI64}) {
    cases->push_back({"embedding",
                      {},
                      {{"vd"}, {"bs", 0, 10, ids}},
                      {{"bsd"}},
                      {{'v', 10}, {'d', 6}, {'b', 4}, {'s', 3}},
                      [](Reference& r) {
                        r.Loop("bsd", [&] {
                          r.At('v') = static_cast<int64_t>(r.In(1));
                          r.Out(0) = r.In(0);
                        });
                      },
                      kNumbers});
    cases->push_back({"embedding_grad",
                      {{"rows", 10}},
                      {{"bsd"}, {"bs", 0, 10, ids}},
                      {{"vd"}},
                      {{'v', 10}, {'d', 6}, {'b', 4}, {'s', 3}},
                      [](Reference& r) {
                        r.Loop("bsd", [&] {
                          r.At('v') = static_cast<int64_t>(r.In(1));
                          r.Out(0) += r.In(0);
                        });
                      }});
    cases->push_back({"cross_entropy",
                      {},
                      {{"bsV", -8, 8}, {"bs", 0, 37, ids}},
                      {{"bs"}, {"bs"}, {"bs"}},
                      {{'V', 37}, {'b', 4}, {'s', 3}},
                      [](Reference& r) {
                        r.Loop("bs", [&] {
                          double sum = 0;
                          double max = -std::numeric_limits<double>::infinity();
                          r.Loop("V", [&] {
                            sum += std::exp(r.In(0));
                            max = std::max(max, r.In(0));
                          });
                          r.At('V') = static_cast<int64_t>(r.In(1));
                          r.Out(0) = std::log(sum) - r.In(0);
                          r.Out(1) = max;
                          r.Out(2) = std::log(sum) - max;
                        });
                      }});
    cases->push_back({"cross_entropy_grad",
                      {},
                      {{"bsv"}, {"bs", 0, 37, ids}, {"bs", 2, 3}, {"bs", 1, 2}, {"bs"}},
                      {{"bsv"}},
                      {{'v', 37}, {'b', 4}, {'s', 3}},
                      [](Reference& r) {
                        r.Loop("bsv", [&] {
                          const bool is_label = r.At('v') == static_cast<int64_t>(r.In(1));
                          r.Out(0) = r.In(4) * (std::exp(r.In(0) - r.In(2) - r.In(3)) - is_label);
                        });
                      }});
  }
}

// The current token's choice at k, as the letters of a place: false if it has none.
bool GoToPlace(Reference& r, int slots) {
  const auto slot = static_cast<int64_t>(r.In(slots));
  if (slot < 0) return false;
  r.At('e') = slot / r.Size('c');
  r.At('c') = slot % r.Size('c');
  return true;
}

void AddRouting(std::vector<KernelCase>* cases) {
  cases->push_back({"top_k",
                    {{"k", 3}},
                    {{"abN"}},
                    {{"abK"}, {"abK", 0, 0, DType::kI64}},
                    {{'a', 6}, {'b', 400}, {'N', 11}, {'K', 3}},
                    [](Reference& r) {
                      r.Loop("ab", [&] {
                        std::vector<int64_t> order;
                        r.Loop("N", [&] { order.push_back(r.At('N')); });
                        const auto x = [&](int64_t i) {
                          r.At('N') = i;
                          return r.In(0);
                        };
                        std::stable_sort(order.begin(), order.end(),
                                         [&](int64_t i, int64_t j) { return x(i) > x(j); });
                        r.Loop("K", [&] {
                          r.Out(0) = x(order[r.At('K')]);
                          r.Out(1) = static_cast<double>(order[r.At('K')]);
                        });
                        r.At('N') = 0;
                      });
                    }});
  // Several tokens may share a place; a tenth of them goes nowhere.
  for (const bool has_weights : {false, true}) {
    const testing::Sizes sizes = {{'g', 4}, {'s', 12}, {'k', 2}, {'e', 3}, {'c', 6}, {'d', 500}};
    const Operand slots = {"gsk", -2, 18, DType::kI32};
    std::vector<Operand> operands = {{"gsd"}, slots};
    if (has_weights) operands.push_back({"gsk"});
    const auto weight = [has_weights](Reference& r) { return has_weights ? r.In(2) : 1; };
    cases->push_back({"dispatch",
                      {{"experts", 3}, {"capacity", 6}},
                      operands,
                      {{"egcd"}},
                      sizes,
                      [weight](Reference& r) {
                        r.Loop("gskd", [&] {
                          if (GoToPlace(r, 1)) r.Out(0) += weight(r) * r.In(0);
                        });
                        r.At('e') = r.At('c') = 0;
                      }});
    operands[0] = {"egcd"};
    cases->push_back({"combine", {}, operands, {{"gsd"}}, sizes, [weight](Reference& r) {
                        r.Loop("gskd", [&] {
                          if (GoToPlace(r, 1)) r.Out(0) += weight(r) * r.In(0);
                        });
                        r.At('e') = r.At('c') = 0;
                      }});
    if (has_weights) continue;
    cases->push_back(
        {"combine_weight_grad", {}, {{"gsd"}, {"egcd"}, slots}, {{"gsk"}}, sizes, [](Reference& r) {
           r.Loop("gskd", [&] {
             if (GoToPlace(r, 2)) r.Out(0) += r.In(0) * r.In(1);
           });
           r.At('e') = r.At('c') = 0;
         }});
  }
}

// Scores, probabilities and the log-sum-exp of the head and query at the current place; `q` and `k`
// are functions of the key.
template <typename Score>
std::vector<double> Probabilities(int64_t keys, int64_t visible, Score score, double* lse) {
  std::vector<double> p(keys, 0.0);
  double sum = 0;
  for (int64_t j = 0; j < std::min(keys, visible); ++j) sum += p[j] = std::exp(score(j));
  for (double& value : p) value = sum > 0 ? value / sum : 0;
  *lse = std::log(sum);
  return p;
}

// With `parts`, part p of the keys by itself.
void SeparateAttention(Reference& r, bool is_causal, int64_t parts = 1) {
  const int64_t keys = r.Size('T');
  r.Loop(parts > 1 ? "pbhs" : "bhs", [&] {
    const Range part = PartOf(keys, parts > 1 ? r.At('p') : 0, parts);
    const int64_t visible = is_causal ? r.At('s') + keys - r.Size('s') + 1 : keys;
    double lse = 0;
    const std::vector<double> p = Probabilities(
        part.size(), visible - part.begin,
        [&](int64_t j) {
          r.At('T') = part.begin + j;
          double score = 0;
          r.Loop("D", [&] { score += r.In(0) * r.In(1); });
          return score / std::sqrt(static_cast<double>(r.Size('D')));
        },
        &lse);
    r.Out(1) = lse;
    for (int64_t j = 0; j < part.size(); ++j) {
      r.At('T') = part.begin + j;
      r.Loop("D", [&] { r.Out(0) += p[j] * r.In(2); });
    }
  });
}

// Operands q, k, v, o, lse, do; results dq, dk, dv. o and lse are set to what attention gives.
void SeparateAttentionGrad(Reference& r, bool is_causal) {
  const int64_t keys = r.Size('t');
  const double scale = 1 / std::sqrt(static_cast<double>(r.Size('D')));
  r.Loop("bhs", [&] {
    double lse = 0;
    const std::vector<double> p = Probabilities(
        keys, is_causal ? r.At('s') + keys - r.Size('s') + 1 : keys,
        [&](int64_t j) {
          r.At('t') = j;
          double score = 0;
          r.Loop("D", [&] { score += r.In(0) * r.In(1); });
          return score * scale;
        },
        &lse);
    double delta = 0;
    r.Loop("D", [&] { delta += r.In(3) * r.In(5); });
    r.Loop("t", [&] {
      const double pj = p[r.At('t')];
      double dp = 0;
      r.Loop("D", [&] { dp += r.In(5) * r.In(2); });
      const double ds = pj * (dp - delta) * scale;
      r.Loop("D", [&] {
        r.Out(0) += ds * r.In(1);
        r.Out(1) += ds * r.In(0);
        r.Out(2) += pj * r.In(5);
      });
    });
  });
}

// Sets the operands o and lse (3 and 4) of attention_grad.
void PrepareAttentionGrad(Reference& r, bool is_causal) {
  const int64_t keys = r.Size('t');
  for (double& value : r.in[3]) value = 0;
  r.Loop("bhs", [&] {
    double lse = 0;
    const std::vector<double> p = Probabilities(
        keys, is_causal ? r.At('s') + keys - r.Size('s') + 1 : keys,
        [&](int64_t j) {
          r.At('t') = j;
          double score = 0;
          r.Loop("D", [&] { score += r.In(0) * r.In(1); });
          return score / std::sqrt(static_cast<double>(r.Size('D')));
        },
        &lse);
    r.In(4) = lse;
    r.Loop("tD", [&] { r.In(3) += p[r.At('t')] * r.In(2); });
  });
}

void AddAttention(std::vector<KernelCase>* cases) {
  for (bool is_causal : {false, true}) {
    // Small, and larger than a block of queries and of keys.
    for (const auto& [s, t] :
         {std::pair{6, 6}, std::pair{6, 9}, std::pair{9, 6}, std::pair{150, 280}}) {
      const bool is_large = s > 100;
      const testing::Sizes sizes = {
          {'b', is_large ? 1 : 2}, {'h', is_large ? 1 : 3}, {'s', s}, {'T', t}, {'D', 4}};
      KernelCase forward{"attention",
                         {{"causal", is_causal}},
                         {{"bhsD"}, {"bhTD"}, {"bhTD"}},
                         {{"bhsD"}, {"bhs"}},
                         sizes,
                         [=](Reference& r) { SeparateAttention(r, is_causal); }};
      cases->push_back(forward);
      for (const int64_t parts : {2, 5, 11}) {
        KernelCase in_parts = forward;
        in_parts.op = "attention_parts";
        in_parts.attributes.Set("parts", parts);
        in_parts.outputs = {{"pbhsD"}, {"pbhs"}};
        in_parts.sizes['p'] = parts;
        in_parts.reference = [=](Reference& r) { SeparateAttention(r, is_causal, parts); };
        cases->push_back(in_parts);
      }
      KernelCase backward{
          "attention_grad",
          {{"causal", is_causal}},
          {{"bhsD"}, {"bhtD"}, {"bhtD"}, {"bhsD"}, {"bhs"}, {"bhsD"}},
          {{"bhsD"}, {"bhtD"}, {"bhtD"}},
          {{'b', is_large ? 1 : 2}, {'h', is_large ? 1 : 3}, {'s', s}, {'t', t}, {'D', 4}},
          [=](Reference& r) { SeparateAttentionGrad(r, is_causal); }};
      backward.prepare = [=](Reference& r) { PrepareAttentionGrad(r, is_causal); };
      backward.tolerance = 1e-4;
      cases->push_back(backward);
    }
  }
}

// ---- Random numbers and optimisers.

void AddRandom(std::vector<KernelCase>* cases) {
  const RandomKey key{7, 5, 3};  // the runner's seed, the case's stream, the runner's step
  const testing::Sizes sizes = {{'a', 4}, {'b', 6}, {'c', 83}};
  cases->push_back({"random_uniform",
                    {{"stream", 5}},
                    {},
                    {{"abc"}},
                    sizes,
                    [key](Reference& r) {
                      r.Loop("abc", [&] { r.Out(0) = RandomUniform(key, r.OutIndex(0)); });
                    },
                    kFloats,
                    0});
  cases->push_back(
      {"random_normal",
       {{"stream", 5}},
       {},
       {{"abc"}},
       sizes,
       [key](Reference& r) { r.Loop("abc", [&] { r.Out(0) = RandomNormal(key, r.OutIndex(0)); }); },
       kFloats,
       1e-6});
  for (double rate : {0.0, 0.3, 1.0}) {
    cases->push_back({"dropout",
                      {{"rate", rate}, {"stream", 5}},
                      {{"abc"}},
                      {{"abc"}},
                      sizes,
                      [=](Reference& r) {
                        r.Loop("abc", [&] {
                          const bool keeps = RandomUniform(key, r.OutIndex(0)) >= rate;
                          r.Out(0) = keeps ? r.In(0) / (1 - rate) : 0;
                        });
                      },
                      kFloats,
                      3e-7});
  }
}

void AddOptimizers(std::vector<KernelCase>* cases) {
  const testing::Sizes sizes = {{'a', 4}, {'b', 35}};
  cases->push_back({"adamw",
                    {{"beta1", 0.8}, {"beta2", 0.95}, {"epsilon", 1e-6}, {"weight_decay", 0.1}},
                    {{"ab"},
                     {"ab"},
                     {"ab"},
                     {"ab", 0, 2},
                     {"", 3, 4, DType::kI64},
                     {"", 0.1, 0.2},
                     {"", 0.5, 1}},
                    {{"ab"}, {"ab"}, {"ab"}},
                    sizes,
                    [](Reference& r) {
                      r.Loop("ab", [&] {
                        const double g = r.In(1) * r.In(6);
                        r.Out(1) = 0.8 * r.In(2) + 0.2 * g;
                        r.Out(2) = 0.95 * r.In(3) + 0.05 * g * g;
                        const double m = r.Out(1) / (1 - std::pow(0.8, r.In(4)));
                        const double v = r.Out(2) / (1 - std::pow(0.95, r.In(4)));
                        r.Out(0) = r.In(0) - r.In(5) * (m / (std::sqrt(v) + 1e-6) + 0.1 * r.In(0));
                      });
                    }});
  cases->push_back(
      {"sgd",
       {{"weight_decay", 0.1}},
       {{"ab"}, {"ab"}, {"", 0.1, 0.2}, {"", 0.5, 1}},
       {{"ab"}},
       sizes,
       [](Reference& r) {
         r.Loop("ab", [&] { r.Out(0) = r.In(0) - r.In(2) * (r.In(1) * r.In(3) + 0.1 * r.In(0)); });
       }});
  for (bool is_nesterov : {false, true}) {
    cases->push_back({"sgd",
                      {{"momentum", 0.9}, {"weight_decay", 0.1}, {"nesterov", is_nesterov}},
                      {{"ab"}, {"ab"}, {"", 0.1, 0.2}, {"", 0.5, 1}, {"ab"}},
                      {{"ab"}, {"ab"}},
                      sizes,
                      [=](Reference& r) {
                        r.Loop("ab", [&] {
                          const double g = r.In(1) * r.In(3) + 0.1 * r.In(0);
                          r.Out(1) = 0.9 * r.In(4) + g;
                          r.Out(0) =
                              r.In(0) - r.In(2) * (is_nesterov ? g + 0.9 * r.Out(1) : r.Out(1));
                        });
                      }});
  }
}

std::vector<KernelCase> AllCases() {
  std::vector<KernelCase> cases;
  AddElementwise(&cases);
  AddShape(&cases);
  AddContractions(&cases);
  AddReductions(&cases);
  AddSoftmax(&cases, -1, "abC", "ab", 'C');
  AddSoftmax(&cases, 1, "aBc", "ac", 'B');
  AddNorms(&cases);
  AddLanguage(&cases);
  AddRouting(&cases);
  AddAttention(&cases);
  AddRandom(&cases);
  AddOptimizers(&cases);
  return cases;
}

class CpuKernelCase : public ::testing::TestWithParam<KernelCase> {};

TEST_P(CpuKernelCase, AgreesWithReference) { testing::CheckKernelCase(GetParam()); }

INSTANTIATE_TEST_SUITE_P(All, CpuKernelCase, ::testing::ValuesIn(AllCases()),
                         [](const ::testing::TestParamInfo<KernelCase>& info) {
                           return fmt::format("{}_{}", info.param.op, info.index);
                         });

// Kernels whose operands and results do not follow letters; tested on their own.
const std::set<std::string> kTestedElsewhere = {"gather_microbatches", "join_halo", "join_tiles",
                                                "local_slice",         "pack",      "qkv_attention",
                                                "qkv_attention_grad",  "unpack"};

// A case here, or a test case of its operator: those are held against finite differences.
TEST(CpuKernelsTest, EveryKernelHasACase) {
  std::set<std::string> names = kTestedElsewhere;
  for (const testing::OpCase& test : testing::OpCases()) names.insert(test.op);
  for (const KernelCase& test : AllCases()) names.insert(test.op);
  std::set<std::string> known;
  const KernelRegistry registry = CpuKernels();
  for (std::string_view name : registry.Names()) known.emplace(name);
  for (const std::string& name : known) EXPECT_TRUE(names.contains(name)) << name;
}

TEST(CpuKernelsTest, EveryTypeThatAnOperatorTakesHasAKernel) {
  const graph::OpRegistry ops = graph::BuiltinOps();
  const KernelRegistry registry = CpuKernels();
  const graph::KernelTraits traits = TraitsOf(registry, 1);
  int num_integer = 0;
  for (const testing::OpCase& test : testing::OpCases()) {
    if (registry.Find(test.op) == nullptr) continue;  // made by the planner
    for (DType values : kNatives) {
      for (DType indices : {DType::kI8, DType::kU8, DType::kI32, DType::kI64}) {
        KernelSpec spec;
        spec.op = test.op;
        spec.attributes = test.attributes;
        if (spec.attributes.Find("dtype") != nullptr) spec.attributes.Set("dtype", values);
        std::vector<TensorType> types;
        for (const testing::OperandCase& operand : test.operands) {
          types.push_back(operand.type);
          DType& dtype = types.back().dtype;
          dtype = dtype == DType::kF64 ? values : dtype == DType::kI64 ? indices : dtype;
          spec.inputs.push_back(testing::WholeTile(types.back()));
        }
        const auto results = graph::InferResultTypes(*ops.Find(test.op), spec.attributes, types);
        if (!results.ok()) continue;
        for (const TensorType& type : *results) spec.outputs.push_back(testing::WholeTile(type));
        const absl::Status status = traits.check_kernel(spec);
        EXPECT_TRUE(status.ok()) << testing::ToString(test) << " on " << Name(values) << ", "
                                 << Name(indices) << ": " << status;
        num_integer += IsInteger(values) ? 1 : 0;
      }
    }
  }
  EXPECT_GT(num_integer, 500);
}

// Of bf16 in every way that this processor has, and by conversion; with sizes that fill no tile,
// any strides, and more depth than is multiplied at a time.
TEST(CpuKernelsTest, ProductsOf16BitsAreAddedUpInF32) {
  struct Sizes {
    int64_t m, n, k;
  };
  const bool has_onednn = OneDnnBf16Unit() != Bf16Unit::kNone;
  for (const auto& [m, n, k] : {Sizes{1, 1, 1}, Sizes{7, 13, 9}, Sizes{100, 70, 1029},
                                Sizes{13, 400, 64}, Sizes{130, 65, 513}}) {
    for (int layout = 0; layout < 16; ++layout) {
      const bool is_a_transposed = (layout & 1) != 0;
      const bool is_b_transposed = (layout & 2) != 0;
      const bool is_c_transposed = (layout & 4) != 0;
      // Rows, or columns, that are parts of longer ones.
      const int64_t gap = (layout & 8) != 0 ? 5 : 0;
      const auto matrix = [gap](auto* data, int64_t rows, int64_t columns, bool is_transposed) {
        using T = std::remove_pointer_t<decltype(data)>;
        return is_transposed ? StridedMatrix<T>{data, 1, rows + gap}
                             : StridedMatrix<T>{data, columns + gap, 1};
      };
      const auto room = [gap](int64_t rows, int64_t columns) {
        return static_cast<size_t>((rows + gap) * (columns + gap));
      };
      std::vector<BFloat16> a(room(m, k)), b(room(k, n)), begin16(room(m, n), ToBFloat16(0.5f));
      for (size_t i = 0; i < a.size(); ++i) a[i] = ToBFloat16(static_cast<float>(i % 37) / 8 - 2);
      for (size_t i = 0; i < b.size(); ++i) b[i] = ToBFloat16(static_cast<float>(i % 29) / 8 - 2);
      const auto left = matrix(static_cast<const BFloat16*>(a.data()), m, k, is_a_transposed);
      const auto right = matrix(static_cast<const BFloat16*>(b.data()), k, n, is_b_transposed);
      const size_t num_bytes = std::max({HalfGemmWorkspaceBytes<BFloat16, float>(m, n, k),
                                         HalfGemmWorkspaceBytes<BFloat16, BFloat16>(m, n, k),
                                         ConvertedGemmWorkspaceBytes<BFloat16, float>(m, n, k)});
      std::vector<std::byte> bytes(num_bytes + 64);
      void* workspace = bytes.data();
      size_t space = bytes.size();
      ASSERT_NE(std::align(64, num_bytes, workspace, space), nullptr);
      // Each has other values between its results, which must stay.
      std::vector<std::vector<float>> exact(4, std::vector<float>(room(m, n), 0.5f));
      std::vector<std::vector<BFloat16>> rounded(3, begin16);
      const auto result = [&](auto& values) {
        return matrix(values.data(), m, n, is_c_transposed);
      };
      HalfGemm<BFloat16, float>(m, n, k, left, right, result(exact[0]), true, workspace);
      HalfGemm<BFloat16, BFloat16>(m, n, k, left, right, result(rounded[0]), true, workspace);
      ConvertedGemm<BFloat16, float>(m, n, k, left, right, result(exact[1]), true, workspace);
      if (has_onednn) {
        ASSERT_TRUE(OneDnnMatmul<float>(m, n, k, left, right, result(exact[2]), true));
        ASSERT_TRUE(OneDnnMatmul<BFloat16>(m, n, k, left, right, result(rounded[1]), true));
      } else {
        exact[2] = exact[0];
        rounded[1] = rounded[0];
      }
      if (HasDotProduct()) {
        DotGemm(m, n, k, left, right, result(exact[3]), true, workspace);
        DotGemm(m, n, k, left, right, result(rounded[2]), true, workspace);
      } else {
        exact[3] = exact[0];
        rounded[2] = rounded[0];
      }
      const StridedMatrix<float> c = result(exact[0]);
      std::vector<float> expected(room(m, n), 0.5f);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0.5;
          for (int64_t d = 0; d < k; ++d) {
            sum += static_cast<double>(
                       ToFloat(left.data[i * left.row_stride + d * left.column_stride])) *
                   ToFloat(right.data[d * right.row_stride + j * right.column_stride]);
          }
          // All terms are multiples of 1/64, so that sums are exact.
          expected[i * c.row_stride + j * c.column_stride] = static_cast<float>(sum);
        }
      }
      for (size_t at = 0; at < expected.size(); ++at) {
        for (const std::vector<float>& values : exact) {
          ASSERT_EQ(values[at], expected[at]) << m << " " << n << " " << k << " " << layout;
        }
        for (const std::vector<BFloat16>& values : rounded) {
          ASSERT_EQ(values[at].bits, ToBFloat16(expected[at]).bits)
              << m << " " << n << " " << k << " " << layout;
        }
      }
    }
  }
}

// oneDNN leaves to others what it would have to copy or to loop over.
TEST(CpuKernelsTest, OneDnnMultipliesContiguousRowsOrColumns) {
  const std::vector<BFloat16> a(64, ToBFloat16(1));
  std::vector<float> c(4, 7);
  EXPECT_FALSE(OneDnnMatmul<float>(2, 2, 4, {a.data(), 16, 2}, {a.data(), 2, 1}, {c.data(), 2, 1},
                                   /*accumulate=*/false));
  EXPECT_EQ(c, std::vector<float>(4, 7));
  if (OneDnnBf16Unit() == Bf16Unit::kNone) return;
  EXPECT_TRUE(OneDnnMatmul<float>(2, 2, 4, {a.data(), 16, 1}, {a.data(), 2, 1}, {c.data(), 2, 1},
                                  /*accumulate=*/false));
  EXPECT_EQ(c, std::vector<float>(4, 4));
}

TEST(CpuKernelsTest, LargeProductsGoThroughOneDnn) {
  for (const Bf16Unit unit : {Bf16Unit::kTiles, Bf16Unit::kDotProduct, Bf16Unit::kNone}) {
    for (const bool has_dot_product : {true, false}) {
      const Bf16Product own = has_dot_product ? Bf16Product::kDot : Bf16Product::kConverted;
      EXPECT_EQ(ChooseBf16Product(unit, has_dot_product, 16, 16, 16), own);
      EXPECT_EQ(ChooseBf16Product(unit, has_dot_product, 256, 16, 256),
                unit == Bf16Unit::kNone ? own : Bf16Product::kOneDnn);
    }
  }
}

}  // namespace
}  // namespace penstock::kernels
