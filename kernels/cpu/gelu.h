// The Gaussian error linear unit and its derivative (Hendrycks & Gimpel 2016).
//
// approximate="tanh": 0.5 x (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), which equals
// x sigmoid(2u) and so keeps its relative accuracy in the negative tail.
// approximate="none": x Phi(x) with the normal distribution function Phi.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_KERNELS_CPU_GELU_H_
#define PENSTOCK_KERNELS_CPU_GELU_H_

#include <cmath>

#include "absl/status/status.h"
#include "fmt/format.h"

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/simd.h"

namespace penstock::kernels {

// Each operates on vectors of floats.
struct TanhGelu {
  static constexpr double kTwoRootTwoOverPi = 1.5957691216057307117598;  // 2 sqrt(2/pi)
  static constexpr double kCubic = 0.044715;

  template <typename V>
  static V Value(V x) {
    using T = ElementOf<V>;
    const V square = x * x;
    return x * Sigmoid(x * (T(kTwoRootTwoOverPi) + T(kTwoRootTwoOverPi * kCubic) * square));
  }
  template <typename V>
  static V Slope(V x) {
    using T = ElementOf<V>;
    // With s = sigmoid(2u): s + x (2u)' s (1 - s).
    const V square = x * x;
    const V inner = T(kTwoRootTwoOverPi) + T(3 * kTwoRootTwoOverPi * kCubic) * square;
    const auto [larger, smaller] =
        SigmoidOfMagnitude(x * (T(kTwoRootTwoOverPi) + T(kTwoRootTwoOverPi * kCubic) * square));
    return (x > V{} ? larger : smaller) + x * inner * larger * smaller;
  }
};

struct ExactGelu {
  template <typename V>
  static V Phi(V x) {
    using T = ElementOf<V>;
    return PerLane(x, [](T s) { return T(0.5) * std::erfc(s * T(-0.70710678118654752440)); });
  }
  template <typename V>
  static V Value(V x) {
    return x * Phi(x);
  }
  template <typename V>
  static V Slope(V x) {
    using T = ElementOf<V>;
    return Phi(x) + x * T(0.39894228040143267794) * Exp(x * x * T(-0.5));
  }
};

// create(Approximation()) for the node's attribute `approximate`.
template <typename Create>
KernelOr DispatchGelu(const KernelSpec& spec, Create create) {
  const std::string approximate = spec.attributes.GetString("approximate", "tanh");
  if (approximate == "tanh") return create(TanhGelu());
  if (approximate == "none") return create(ExactGelu());
  return absl::InvalidArgumentError(
      fmt::format("{}: approximate is \"tanh\" or \"none\", not \"{}\"", spec.op, approximate));
}

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_GELU_H_
