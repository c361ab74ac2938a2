// Kernels with random numbers: the draws of base/random.h, whatever the split.

#include <cmath>

#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/elementwise.h"

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

RandomParams ParamsOf(const KernelSpec& spec, const KernelArgs& args) {
  return {.seed = args.seed,
          .stream = static_cast<uint32_t>(spec.attributes.GetInt("stream", 0)),
          .step = static_cast<uint32_t>(args.step),
          .tile = MapOf(spec.outputs[0], args.microbatch)};
}

absl::Status CheckTile(const KernelSpec& spec) {
  RETURN_IF_ERROR(CheckFloats(spec));
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
  return MakeKernel(spec, stream, [spec, threshold, scale](const KernelArgs& args, CudaStream& to) {
    return Launched(spec, LaunchDropout(to.handle(), ParamsOf(spec, args), threshold, scale,
                                        spec.outputs[0].num_elements(), Input<float>(args, 0),
                                        Output<float>(args, 0)));
  });
}

using LaunchDraws = LaunchResult (*)(StreamHandle, const RandomParams&, int64_t, float*);

KernelDef DrawDef(LaunchDraws launch) {
  return {.create = [launch](const KernelSpec& spec, Device&, Stream& stream) -> KernelOr {
    RETURN_IF_ERROR(CheckTile(spec));
    return MakeKernel(spec, stream, [spec, launch](const KernelArgs& args, CudaStream& to) {
      return Launched(spec, launch(to.handle(), ParamsOf(spec, args),
                                   spec.outputs[0].num_elements(), Output<float>(args, 0)));
    });
  }};
}

}  // namespace

void AddRandomKernels(KernelRegistry* registry) {
  AddKernel(registry, "dropout", {.create = CreateDropout, .can_alias = CanAliasFirst});
  AddKernel(registry, "random_uniform", DrawDef(LaunchRandomUniform));
  AddKernel(registry, "random_normal", DrawDef(LaunchRandomNormal));
}

}  // namespace penstock::kernels::cuda
