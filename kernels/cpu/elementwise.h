// Kernels of the shape "each element of the result from the same element of the operands".
//
// A function object is called with vectors where elements are floats and with single elements where
// they are integers or bools; `[](auto x, auto y) { return x + y; }` serves both.
//
// Thread rule: as kernel.h. Invariant: any operand may be the same memory as the result.

#ifndef PENSTOCK_KERNELS_CPU_ELEMENTWISE_H_
#define PENSTOCK_KERNELS_CPU_ELEMENTWISE_H_

#include <cstdint>
#include <memory>
#include <type_traits>

#include "base/half.h"
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/simd.h"

namespace penstock::kernels {

// Unsigned for integers, so that sums and products wrap; floats and vectors as they are.
template <typename V>
inline auto Wrapping(V x) {
  if constexpr (std::is_integral_v<V> && !std::is_same_v<V, bool>) {
    return static_cast<std::common_type_t<unsigned, std::make_unsigned_t<V>>>(x);
  } else {
    return x;
  }
}

// out[i] = f(in[i]...) for i < count. Where T computes with vectors, the operands have as many
// lanes.
template <typename T, typename F, typename... In>
inline void Map(int64_t count, F f, T* out, const In*... in) {
  if constexpr (kHasVectors<T>) {
    int64_t i = 0;
    for (; i + kLanes<T> <= count; i += kLanes<T>) Store<T>(out + i, f(Load(in + i)...));
    if (i < count) StorePart<T>(out + i, f(LoadPart(in + i, count - i)...), count - i);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(f(in[i]...));
  }
}

// A value as kernels compute with it.
template <typename T>
inline Arith<T> Widened(T value) {
  if constexpr (kIsHalf<T>) {
    return ToFloat(value);
  } else {
    return value;
  }
}

// A value in the form in which Map calls its function.
template <typename T>
inline auto Broadcast(T value) {
  if constexpr (kIsHalf<T>) {
    return Splat(ToFloat(value));
  } else if constexpr (std::is_floating_point_v<T>) {
    return Splat(value);
  } else {
    return value;
  }
}

template <typename T, typename F>
class UnaryKernel : public CpuKernel {
 public:
  UnaryKernel(const KernelSpec& spec, Device& device, F f) : CpuKernel(spec, device), f_(f) {}

  absl::Status Run(const KernelArgs& args) override {
    const T* x = Input<T>(args, 0);
    T* y = Output<T>(args, 0);
    pool_.ParallelFor(
        spec_.outputs[0].num_elements(), kGrain,
        [&](int64_t begin, int64_t end, int) { Map(end - begin, f_, y + begin, x + begin); });
    return absl::OkStatus();
  }

 private:
  F f_;
};

// Equal shapes, or one operand a scalar.
template <typename T, typename F>
class BinaryKernel : public CpuKernel {
 public:
  BinaryKernel(const KernelSpec& spec, Device& device, F f) : CpuKernel(spec, device), f_(f) {}

  absl::Status Run(const KernelArgs& args) override {
    const T* x = Input<T>(args, 0);
    const T* y = Input<T>(args, 1);
    T* z = Output<T>(args, 0);
    const bool is_x_scalar = spec_.inputs[0].shape != spec_.outputs[0].shape;
    const bool is_y_scalar = spec_.inputs[1].shape != spec_.outputs[0].shape;
    const auto x0 = Broadcast(is_x_scalar ? *x : T{});
    const auto y0 = Broadcast(is_y_scalar ? *y : T{});
    pool_.ParallelFor(spec_.outputs[0].num_elements(), kGrain,
                      [&](int64_t begin, int64_t end, int) {
                        const int64_t count = end - begin;
                        if (is_x_scalar) {
                          Map(
                              count, [&](auto b) { return f_(x0, b); }, z + begin, y + begin);
                        } else if (is_y_scalar) {
                          Map(
                              count, [&](auto a) { return f_(a, y0); }, z + begin, x + begin);
                        } else {
                          Map(count, f_, z + begin, x + begin, y + begin);
                        }
                      });
    return absl::OkStatus();
  }

 private:
  F f_;
};

// As BinaryKernel, with bool results and f on single elements.
template <typename T, typename F>
class CompareKernel : public CpuKernel {
 public:
  CompareKernel(const KernelSpec& spec, Device& device, F f) : CpuKernel(spec, device), f_(f) {}

  absl::Status Run(const KernelArgs& args) override {
    const T* x = Input<T>(args, 0);
    const T* y = Input<T>(args, 1);
    bool* z = Output<bool>(args, 0);
    const int64_t x_step = spec_.inputs[0].shape == spec_.outputs[0].shape ? 1 : 0;
    const int64_t y_step = spec_.inputs[1].shape == spec_.outputs[0].shape ? 1 : 0;
    pool_.ParallelFor(spec_.outputs[0].num_elements(), kGrain,
                      [&](int64_t begin, int64_t end, int) {
                        for (int64_t i = begin; i < end; ++i) {
                          z[i] = f_(x[i * x_step], y[i * y_step]);
                        }
                      });
    return absl::OkStatus();
  }

 private:
  F f_;
};

// A definition whose kernel is K<T, F>(spec, device, f) for the T of `Types`.
template <template <typename, typename> class K, typename Types, typename F>
KernelDef ElementwiseDef(F f) {
  return {.create = [f](const KernelSpec& spec, Device& device, Stream&) -> KernelOr {
            RETURN_IF_ERROR(CheckDevice(spec, device));
            std::unique_ptr<Kernel> kernel;
            RETURN_IF_ERROR(DispatchDType(Types(), spec.op, MainDType(spec),
                                          [&]<typename T>(std::type_identity<T>) {
                                            kernel = std::make_unique<K<T, F>>(spec, device, f);
                                            return absl::OkStatus();
                                          }));
            return kernel;
          },
          .can_alias = CanAliasElementwise};
}

template <typename Types, typename F>
KernelDef UnaryDef(F f) {
  return ElementwiseDef<UnaryKernel, Types>(f);
}
template <typename Types, typename F>
KernelDef BinaryDef(F f) {
  return ElementwiseDef<BinaryKernel, Types>(f);
}
template <typename F>
KernelDef CompareDef(F f) {
  return ElementwiseDef<CompareKernel, Natives>(f);
}

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_ELEMENTWISE_H_
