// The Gaussian error linear unit and its derivative (Hendrycks & Gimpel 2016).
//
// approximate="tanh": 0.5 x (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), which equals
// x sigmoid(2u) and so keeps its relative accuracy in the negative tail.
// approximate="none": x Phi(x) with the normal distribution function Phi.
//
// At -infinity both are NaN (-infinity times 0), as in PyTorch; the derivatives are 0 and 1 at the
// infinities.
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
  static constexpr double kFlat = 30;  // sigmoid(2u) is 0 or 1 in every type at -kFlat and kFlat

  template <typename V>
  static V Value(V x) {
    using T = ElementOf<V>;
    const V square = x * x;
    const V exponent = x * (T(-kTwoRootTwoOverPi) - T(kTwoRootTwoOverPi * kCubic) * square);
    return x / (1 + Exp(exponent));
  }
  // With s = sigmoid(2u): s + x (2u)' s (1 - s), whose second term is the same for x and -x.
  template <typename V>
  static V Slope(V x) {
    using T = ElementOf<V>;
    const V magnitude = Abs(x);
    const V y = magnitude > T(kFlat) ? Splat(T(kFlat)) : magnitude;
    const V square = y * y;
    const V inner = T(kTwoRootTwoOverPi) + T(3 * kTwoRootTwoOverPi * kCubic) * square;
    const auto [larger, smaller] =
        SigmoidOfPositive(y * (T(kTwoRootTwoOverPi) + T(kTwoRootTwoOverPi * kCubic) * square));
    const V rest = y * inner * larger * smaller;
    return x > V{} ? larger + rest : smaller - rest;
  }
};

struct ExactGelu {
  static constexpr double kFlat = 40;  // Phi is 0 or 1 in every type at -kFlat and kFlat

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
    const V y = Abs(x) > T(kFlat) ? CopySign(Splat(T(kFlat)), x) : x;
    return Phi(y) + y * T(0.39894228040143267794) * Exp(y * y * T(-0.5));
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
