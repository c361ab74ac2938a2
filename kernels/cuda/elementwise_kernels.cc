// Kernels that go over tensors element by element.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <type_traits>

#include "graph/rotary_scaling.h"
#include "graph/sharding.h"
#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/launch_batch.h"

namespace penstock::kernels::cuda {
namespace {

ScalarSide ScalarOf(const KernelSpec& spec) {
  if (spec.inputs[0].shape != spec.outputs[0].shape) return ScalarSide::kLeft;
  if (spec.inputs[1].shape != spec.outputs[0].shape) return ScalarSide::kRight;
  return ScalarSide::kNone;
}

// 0 for a single element that goes with every element of the result.
int64_t StepOf(const KernelSpec& spec, int input) {
  return spec.inputs[input].shape == spec.outputs[0].shape ? 1 : 0;
}

template <typename Types>
KernelDef UnaryDef(UnaryOp op) {
  return {.create = [op](const KernelSpec& spec, Device&, Stream& stream) -> KernelOr {
            return WithType(
                Types(), spec, spec.inputs[0].dtype, [&]<typename T>(std::type_identity<T>) {
                  return MakeKernel(
                      spec, stream, [op, spec](const KernelArgs& args, CudaStream& to) {
                        return Launched(
                            spec, LaunchUnary<T>(to.handle(), op, spec.outputs[0].num_elements(),
                                                 Input<T>(args, 0), Output<T>(args, 0)));
                      });
                });
          },
          .can_alias = CanAliasElementwise};
}

// Launches of one kernel that `kLaunch` launches for a table.
template <LaunchResult (*kLaunch)(StreamHandle, const MapTable&)>
class MapBatch : public LaunchBatch {
 public:
  MapBatch() : LaunchBatch(2 * MapTable::kMax, MapTable::kMax) {}

  // A launch of `op` on `count` elements of In... and Out.
  template <typename Out, typename... In>
  void Add(std::string_view op, const KernelArgs& args, int64_t count, CudaStream& stream) {
    if (count == 0) return;
    const auto size = static_cast<size_t>(count);
    size_t i = 0;
    const MemoryRange reads[] = {{args.inputs[i++], size * sizeof(In)}...};
    const MemoryRange writes[] = {{args.outputs[0], size * sizeof(Out)}};
    stream.Hold(this, !table_.is_full(), reads, writes, op, args.launch);
    MapEntry entry = {.count = count, .in = {}, .out = args.outputs[0]};
    std::copy_n(args.inputs.begin(), sizeof...(In), entry.in);
    table_.Add(entry, CeilDiv(count, kMapChunk));
  }

 private:
  LaunchResult LaunchEntries(StreamHandle stream) override {
    const LaunchResult result = kLaunch(stream, table_);
    table_.Clear();
    return result;
  }

  MapTable table_;
};

// Sums of single elements, such as those of the norm of all gradients.
KernelOr CreateScalarAdd(const KernelSpec& spec, Stream& stream) {
  auto* const batch = BatchOf<MapBatch<&LaunchAdds<float>>>(stream);
  return MakeKernel(spec, stream, [batch](const KernelArgs& args, CudaStream& to) {
    batch->Add<float, float, float>("add", args, 1, to);
    return absl::OkStatus();
  });
}

template <typename Types>
KernelOr CreateBinary(BinaryOp op, const KernelSpec& spec, Stream& stream) {
  return WithType(Types(), spec, spec.inputs[0].dtype, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(spec, stream, [op, spec](const KernelArgs& args, CudaStream& to) {
      return Launched(
          spec, LaunchBinary<T>(to.handle(), op, ScalarOf(spec), spec.outputs[0].num_elements(),
                                Input<T>(args, 0), Input<T>(args, 1), Output<T>(args, 0)));
    });
  });
}

KernelDef BinaryDef(BinaryOp op) {
  return {.create =
              [op](const KernelSpec& spec, Device&, Stream& stream) {
                if (op == BinaryOp::kAdd && spec.outputs[0].dtype == DType::kF32 &&
                    spec.outputs[0].num_elements() == 1) {
                  return CreateScalarAdd(spec, stream);
                }
                return CreateBinary<DeviceNumbers>(op, spec, stream);
              },
          .can_alias = CanAliasElementwise};
}

KernelDef CompareDef(CompareOp op) {
  return {
      .create = [op](const KernelSpec& spec, Device&, Stream& stream) -> KernelOr {
        return WithType(
            DeviceNumbers(), spec, spec.inputs[0].dtype, [&]<typename T>(std::type_identity<T>) {
              return MakeKernel(spec, stream, [op, spec](const KernelArgs& args, CudaStream& to) {
                return Launched(spec,
                                LaunchCompare<T>(to.handle(), op, ScalarOf(spec),
                                                 spec.outputs[0].num_elements(), Input<T>(args, 0),
                                                 Input<T>(args, 1), Output<bool>(args, 0)));
              });
            });
      },
      .can_alias = CanAliasElementwise};
}

// Whether the attribute `approximate` is "tanh", or an error.
absl::StatusOr<bool> IsTanh(const KernelSpec& spec) {
  const std::string approximate = spec.attributes.GetString("approximate", "tanh");
  if (approximate == "tanh" || approximate == "none") return approximate == "tanh";
  return absl::InvalidArgumentError(
      StrCat(spec.op, ": approximate is \"tanh\" or \"none\", not \"", approximate, "\""));
}

KernelOr CreateGelu(const KernelSpec& spec, Device& device, Stream& stream) {
  ASSIGN_OR_RETURN(const bool is_tanh, IsTanh(spec));
  return UnaryDef<AllFloats>(is_tanh ? UnaryOp::kTanhGelu : UnaryOp::kExactGelu)
      .create(spec, device, stream);
}

KernelOr CreateGeluGrad(const KernelSpec& spec, Device&, Stream& stream) {
  ASSIGN_OR_RETURN(const bool is_tanh, IsTanh(spec));
  return CreateBinary<AllFloats>(is_tanh ? BinaryOp::kTanhGeluGrad : BinaryOp::kExactGeluGrad, spec,
                                 stream);
}

KernelOr CreateBias(BiasOp op, const KernelSpec& spec, Stream& stream) {
  return WithType(AllFloats(), spec, spec.inputs[0].dtype, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(spec, stream, [op, spec](const KernelArgs& args, CudaStream& to) {
      const T* dy = spec.inputs.size() > 2 ? Input<T>(args, 2) : nullptr;
      return Launched(spec, LaunchBias(to.handle(), op, spec.outputs[0].num_elements(),
                                       spec.inputs[1].num_elements(), Input<T>(args, 0),
                                       Input<T>(args, 1), dy, Output<T>(args, 0)));
    });
  });
}

// The bias is read for every row: never the result's memory.
bool CanAliasBias(const KernelSpec& spec, int input) {
  return input != 1 && CanAliasElementwise(spec, input);
}

KernelDef BiasDef(BiasOp tanh, BiasOp exact) {
  return {.create = [tanh, exact](const KernelSpec& spec, Device&, Stream& stream) -> KernelOr {
            ASSIGN_OR_RETURN(const bool is_tanh, IsTanh(spec));
            return CreateBias(is_tanh ? tanh : exact, spec, stream);
          },
          .can_alias = CanAliasBias};
}

template <typename T>
inline constexpr bool kIsDeviceFloat = kIsHalf<T> || std::is_same_v<T, float>;

// Casts between the floats of mixed precision are held back: those of all parameters follow each
// other.
KernelOr CreateCast(const KernelSpec& spec, Device&, Stream& stream) {
  return WithType(
      DeviceNatives(), spec, spec.inputs[0].dtype, [&]<typename From>(std::type_identity<From>) {
        return WithType(
            DeviceNatives(), spec, spec.outputs[0].dtype, [&]<typename To>(std::type_identity<To>) {
              if constexpr (kIsDeviceFloat<From> && kIsDeviceFloat<To>) {
                auto* const batch = BatchOf<MapBatch<&LaunchCasts<To, From>>>(stream);
                const int64_t count = spec.outputs[0].num_elements();
                return MakeKernel(spec, stream,
                                  [batch, count](const KernelArgs& args, CudaStream& to) {
                                    batch->template Add<To, From>("cast", args, count, to);
                                    return absl::OkStatus();
                                  });
              } else {
                return MakeKernel(spec, stream, [spec](const KernelArgs& args, CudaStream& to) {
                  return Launched(spec,
                                  LaunchCast<To, From>(to.handle(), spec.outputs[0].num_elements(),
                                                       Input<From>(args, 0), Output<To>(args, 0)));
                });
              }
            });
      });
}

// The unsigned integer of the elements' size.
using Words = TypeList<uint8_t, uint16_t, uint32_t, uint64_t>;

template <typename... Ts, typename F>
KernelOr WithWord(TypeList<Ts...>, const KernelSpec& spec, F&& f) {
  const size_t size = ByteSize(spec.outputs[0].dtype);
  KernelOr made = Unsupported(spec, spec.outputs[0].dtype);
  ((size == sizeof(Ts) && (made = f(std::type_identity<Ts>()), true)) || ...);
  return made;
}

KernelOr CreateWhere(const KernelSpec& spec, Device&, Stream& stream) {
  return WithWord(Words(), spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(spec, stream, [spec](const KernelArgs& args, CudaStream& to) {
      return Launched(
          spec, LaunchWhere<T>(to.handle(), spec.outputs[0].num_elements(), Input<bool>(args, 0),
                               StepOf(spec, 0), Input<T>(args, 1), StepOf(spec, 1),
                               Input<T>(args, 2), StepOf(spec, 2), Output<T>(args, 0)));
    });
  });
}

// The bits of the attribute `value` in T.
template <typename T>
uint64_t BitsOf(const graph::AttrValue* value) {
  using Number = std::conditional_t<kIsHalf<T>, float, T>;
  Number number{};
  if (value != nullptr) {
    if (const bool* as_bool = value->AsBool()) number = static_cast<Number>(*as_bool);
    if (const int64_t* as_int = value->AsInt()) number = static_cast<Number>(*as_int);
    if (const double* as_double = value->AsDouble()) number = static_cast<Number>(*as_double);
  }
  T typed{};
  if constexpr (kIsHalf<T>) {
    typed = FromFloat<T>(number);
  } else {
    typed = number;
  }
  uint64_t bits = 0;
  std::memcpy(&bits, &typed, sizeof(typed));
  return bits;
}

KernelOr CreateConstant(const KernelSpec& spec, Device&, Stream& stream) {
  using Types = TypeList<float, double, BFloat16, Float16, int8_t, uint8_t, int32_t, int64_t, bool>;
  return WithType(Types(), spec, spec.outputs[0].dtype, [&]<typename V>(std::type_identity<V>) {
    const uint64_t bits = BitsOf<V>(spec.attributes.Find("value"));
    return WithWord(Words(), spec, [&]<typename T>(std::type_identity<T>) {
      return MakeKernel(spec, stream, [spec, bits](const KernelArgs& args, CudaStream& to) {
        return Launched(spec, LaunchFill<T>(to.handle(), spec.outputs[0].num_elements(),
                                            static_cast<T>(bits), Output<T>(args, 0)));
      });
    });
  });
}

KernelOr CreateIota(const KernelSpec& spec, Device&, Stream& stream) {
  const TileDesc& tile = spec.outputs[0];
  const int axis = NormalizeAxis(spec.attributes.GetInt("axis", 0), Rank(tile));
  int64_t inner = 1;  // elements of one step along the axis
  for (int i = axis + 1; i < Rank(tile); ++i) inner *= tile.shape[i];
  return WithType(DeviceNumbers(), spec, tile.dtype, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(spec, stream, [spec, axis, inner](const KernelArgs& args, CudaStream& to) {
      const TileDesc& tile = spec.outputs[0];
      return Launched(spec, LaunchIota<T>(to.handle(), tile.num_elements(),
                                          TileBegin(tile, axis, args.microbatch), inner,
                                          tile.shape[axis], Output<T>(args, 0)));
    });
  });
}

// The running reduction over micro-batches. Without KernelSpec::accumulate it is a copy.
KernelOr CreateAccumulate(const KernelSpec& spec, Device&, Stream& stream) {
  const std::string name = spec.attributes.GetString("reduction", "sum");
  const std::optional<graph::Reduction> reduction = graph::ParseReduction(name);
  if (!reduction.has_value()) {
    return absl::InvalidArgumentError(StrCat("accumulate: there is no reduction \"", name, "\""));
  }
  BinaryOp op = BinaryOp::kAdd;
  if (*reduction == graph::Reduction::kProd) op = BinaryOp::kMul;
  if (*reduction == graph::Reduction::kMax) op = BinaryOp::kMax;
  if (*reduction == graph::Reduction::kMin) op = BinaryOp::kMin;
  return WithType(
      DeviceNumbers(), spec, spec.inputs[0].dtype, [&]<typename T>(std::type_identity<T>) {
        return MakeKernel(spec, stream, [op, spec](const KernelArgs& args, CudaStream& to) {
          if (!AddsToResults(spec, args)) {
            if (args.inputs[0] != args.outputs[0]) {
              to.Copy(args.outputs[0], args.inputs[0], spec.outputs[0].num_bytes(),
                      CopyKind::kDeviceToDevice);
            }
            return absl::OkStatus();
          }
          return Launched(spec, LaunchBinary<T>(to.handle(), op, ScalarSide::kNone,
                                                spec.outputs[0].num_elements(), Output<T>(args, 0),
                                                Input<T>(args, 0), Output<T>(args, 0)));
        });
      });
}

KernelOr CreateRotary(const KernelSpec& spec, Device&, Stream& stream) {
  const TileDesc& x = spec.inputs[0];
  RotaryParams params;
  params.width = x.shape.back();
  params.positions = x.shape[1];
  params.heads = 1;
  for (int i = 2; i + 1 < Rank(x); ++i) params.heads *= x.shape[i];
  params.rows = x.shape[0] * params.positions * params.heads;
  params.base = spec.attributes.GetDouble("base", 1e4);
  const graph::RotaryScaling scaling = graph::RotaryScalingOf(spec.attributes);
  if (scaling.type != "none") {
    params.factor = scaling.factor;
    params.context = static_cast<double>(scaling.context);
    params.low_factor = scaling.low_factor;
    params.high_factor = scaling.high_factor;
  }
  if (scaling.type == "linear") params.low_factor = std::numeric_limits<double>::infinity();
  params.is_inverse = spec.attributes.GetBool("inverse", false);
  const bool has_start = spec.inputs.size() > 1;
  if (has_start) {
    ASSIGN_OR_RETURN(params.start.type, IndexType(spec, 1));
  }
  return WithType(AllFloats(), spec, x.dtype, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(
        spec, stream, [spec, params, has_start](const KernelArgs& args, CudaStream& to) {
          RotaryParams run = params;
          run.first = TileBegin(spec.inputs[0], 1, args.microbatch);
          if (has_start) run.start.data = args.inputs[1];
          return Launched(spec,
                          LaunchRotary(to.handle(), run, Input<T>(args, 0), Output<T>(args, 0)));
        });
  });
}

}  // namespace

void AddElementwiseKernels(KernelRegistry* registry) {
  const auto add = [registry](std::string op, KernelDef def) {
    AddKernel(registry, std::move(op), std::move(def));
  };
  add("abs", UnaryDef<DeviceNumbers>(UnaryOp::kAbs));
  add("neg", UnaryDef<DeviceNumbers>(UnaryOp::kNeg));
  add("relu", UnaryDef<DeviceNumbers>(UnaryOp::kRelu));
  add("square", UnaryDef<DeviceNumbers>(UnaryOp::kSquare));
  add("exp", UnaryDef<AllFloats>(UnaryOp::kExp));
  add("log", UnaryDef<AllFloats>(UnaryOp::kLog));
  add("tanh", UnaryDef<AllFloats>(UnaryOp::kTanh));
  add("sqrt", UnaryDef<AllFloats>(UnaryOp::kSqrt));
  add("rsqrt", UnaryDef<AllFloats>(UnaryOp::kRsqrt));
  add("sin", UnaryDef<AllFloats>(UnaryOp::kSin));
  add("cos", UnaryDef<AllFloats>(UnaryOp::kCos));
  add("sigmoid", UnaryDef<AllFloats>(UnaryOp::kSigmoid));
  add("silu", UnaryDef<AllFloats>(UnaryOp::kSilu));
  add("gelu", {.create = CreateGelu, .can_alias = CanAliasElementwise});
  add("gelu_grad", {.create = CreateGeluGrad, .can_alias = CanAliasElementwise});
  add("add", BinaryDef(BinaryOp::kAdd));
  add("sub", BinaryDef(BinaryOp::kSub));
  add("mul", BinaryDef(BinaryOp::kMul));
  add("div", BinaryDef(BinaryOp::kDiv));
  add("max", BinaryDef(BinaryOp::kMax));
  add("min", BinaryDef(BinaryOp::kMin));
  add("equal", CompareDef(CompareOp::kEqual));
  add("less", CompareDef(CompareOp::kLess));
  add("greater", CompareDef(CompareOp::kGreater));
  add("where", {.create = CreateWhere, .can_alias = CanAliasElementwise});
  add("cast", {.create = CreateCast, .can_alias = CanAliasElementwise});
  add("bias_add", BiasDef(BiasOp::kAdd, BiasOp::kAdd));
  add("bias_gelu", BiasDef(BiasOp::kTanhGelu, BiasOp::kExactGelu));
  add("bias_gelu_grad", BiasDef(BiasOp::kTanhGeluGrad, BiasOp::kExactGeluGrad));
  add("constant", {.create = CreateConstant});
  add("iota", {.create = CreateIota});
  add("accumulate", {.create = CreateAccumulate, .supports_accumulate = true});
  add("rotary", {.create = CreateRotary, .can_alias = CanAliasFirst});
}

}  // namespace penstock::kernels::cuda
