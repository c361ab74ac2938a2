#include "actors/session/state_init.h"

#include <cstring>

#include "actors/engine/tile_copy.h"
#include "base/half.h"
#include "base/random.h"

namespace penstock::actors {
namespace {

void Store(DType dtype, double value, void* tile, int64_t index) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(tile)[index] = static_cast<float>(value);
      break;
    case DType::kF64:
      static_cast<double*>(tile)[index] = value;
      break;
    case DType::kF16:
      static_cast<uint16_t*>(tile)[index] = ToFloat16(static_cast<float>(value)).bits;
      break;
    case DType::kBF16:
      static_cast<uint16_t*>(tile)[index] = ToBFloat16(static_cast<float>(value)).bits;
      break;
    case DType::kI8:
    case DType::kU8:
    case DType::kBool:
      static_cast<uint8_t*>(tile)[index] = static_cast<uint8_t>(value);
      break;
    case DType::kI32:
      static_cast<int32_t*>(tile)[index] = static_cast<int32_t>(value);
      break;
    case DType::kI64:
      static_cast<int64_t*>(tile)[index] = static_cast<int64_t>(value);
      break;
  }
}

}  // namespace

void InitState(const planner::StatePlan& state, const planner::StatePlacement& placement,
               uint64_t seed, uint64_t offset, size_t size, void* bytes) {
  if (state.init == "zeros") {
    std::memset(bytes, 0, size);
    return;
  }
  const bool is_normal = state.init == "normal";
  const RandomKey key = {seed, state.stream, kInitStep};
  const auto element_bytes = static_cast<int64_t>(ByteSize(state.type.dtype));
  TileCopy(placement.tile)
      .ForEachRunOf(0, static_cast<int64_t>(offset), static_cast<int64_t>(size),
                    [&](int64_t global_offset, int64_t run_offset, int64_t count) {
                      const int64_t global = global_offset / element_bytes;
                      const int64_t first = run_offset / element_bytes;
                      for (int64_t i = 0; i < count / element_bytes; ++i) {
                        const double value =
                            is_normal
                                ? state.std * RandomNormal(key, static_cast<uint64_t>(global + i))
                                : 1.0;
                        Store(state.type.dtype, value, bytes, first + i);
                      }
                    });
}

}  // namespace penstock::actors
