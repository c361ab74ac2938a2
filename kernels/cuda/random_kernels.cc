// Kernels with random numbers: the draws of base/random.h, whatever the split.

#include <cmath>

#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/draws.h"

namespace penstock::kernels::cuda {
namespace {

// The tile's place in its tensor. Dimensions that continue each other are joined.
TileMap MapOf(const TileDesc& tile, int64_t microbatch) {
  TileMap map;
  int64_t stride = 1;
  int64_t extents[kMaxTileDims];
  int64_t strides[kMaxTileDims];
  for (int i = Rank(tile) - 1; i >= 0; --i) {
    map.offset += TileBegin(tile, i, microbatch) * stride;
    if (tile.shape[i] != 1) {
      const int last = map.rank - 1;
      if (map.rank > 0 && stride == extents[last] * strides[last]) {
        extents[last] *= tile.shape[i];
      } else {
        extents[map.rank] = tile.shape[i];
        strides[map.rank] = stride;
        ++map.rank;
      }
    }
    stride *= GlobalExtent(tile, i);
  }
  if (map.rank == 0) {
    extents[0] = 1;
    strides[0] = 1;
    map.rank = 1;
  }
  for (int i = 0; i < map.rank; ++i) {
    map.extents[i] = extents[map.rank - 1 - i];
    map.strides[i] = strides[map.rank - 1 - i];
  }
  return map;
}

RandomParams ParamsOf(const KernelSpec& spec, const KernelArgs& args, CudaStream& stream) {
  return {.seed = args.seed,
          .stream = static_cast<uint32_t>(spec.attributes.GetInt("stream", 0)),
          .step = static_cast<uint32_t>(args.step),
          .offsets = stream.offsets(),
          .tile = MapOf(spec.outputs[0], args.microbatch)};
}

absl::Status CheckTile(const KernelSpec& spec) {
  if (Rank(spec.outputs[0]) <= kMaxTileDims) return absl::OkStatus();
  return absl::UnimplementedError(StrCat("the cuda kernel for ", spec.op, " takes at most ",
                                         kMaxTileDims, " dimensions, not ", Rank(spec.outputs[0])));
}

KernelOr CreateDropout(const KernelSpec& spec, Device&, Stream& stream) {
  RETURN_IF_ERROR(CheckTile(spec));
  const double rate = spec.attributes.GetDouble("rate", 0.0);
  // A uniform draw is (word >> 8) 2^-24, so it is >= rate where word >> 8 is >= this.
  const auto threshold = static_cast<uint32_t>(std::ceil(rate * 0x1p24));
  const auto scale = static_cast<float>(rate < 1 ? 1 / (1 - rate) : 0);
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(
        spec, stream, [spec, threshold, scale](const KernelArgs& args, CudaStream& to) {
          return Launched(spec, LaunchDropout(to.handle(), ParamsOf(spec, args, to), threshold,
                                              scale, spec.outputs[0].num_elements(),
                                              Input<T>(args, 0), Output<T>(args, 0)));
        });
  });
}

KernelOr CreateDraws(bool is_normal, const KernelSpec& spec, Stream& stream) {
  RETURN_IF_ERROR(CheckTile(spec));
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(spec, stream, [spec, is_normal](const KernelArgs& args, CudaStream& to) {
      const auto launch = is_normal ? LaunchRandomNormal<T> : LaunchRandomUniform<T>;
      return Launched(spec, launch(to.handle(), ParamsOf(spec, args, to),
                                   spec.outputs[0].num_elements(), Output<T>(args, 0)));
    });
  });
}

KernelDef DrawDef(bool is_normal) {
  return {.create = [is_normal](const KernelSpec& spec, Device&, Stream& stream) {
    return CreateDraws(is_normal, spec, stream);
  }};
}

}  // namespace

void AddRandomKernels(KernelRegistry* registry) {
  AddKernel(registry, "dropout", {.create = CreateDropout, .can_alias = CanAliasFirst});
  AddKernel(registry, "random_uniform", DrawDef(/*is_normal=*/false));
  AddKernel(registry, "random_normal", DrawDef(/*is_normal=*/true));
}

}  // namespace penstock::kernels::cuda
