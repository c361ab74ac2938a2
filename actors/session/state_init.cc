#include "actors/session/state_init.h"

#include <bit>
#include <cstring>

#include "actors/engine/tile_copy.h"
#include "base/random.h"

namespace penstock::actors {
namespace {

// The upper half of an f32, rounded to nearest even.
uint16_t ToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Rounded to nearest even. Not every compiler has a type for it.
uint16_t ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t half = 0;
  if (magnitude > 0x7f800000) {
    half = 0x7e00;  // not a number
  } else if (magnitude >= 0x477ff000) {
    half = 0x7c00;  // from 65520 on: infinity
  } else if (magnitude < 0x38800000) {
    // Below 2^-14 in steps of 2^-24, which is what a sum with 1/2 is rounded to.
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  } else {
    half = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

void Store(DType dtype, double value, void* tile, int64_t index) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(tile)[index] = static_cast<float>(value);
      break;
    case DType::kF64:
      static_cast<double*>(tile)[index] = value;
      break;
    case DType::kF16:
      static_cast<uint16_t*>(tile)[index] = ToF16(static_cast<float>(value));
      break;
    case DType::kBF16:
      static_cast<uint16_t*>(tile)[index] = ToBF16(static_cast<float>(value));
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
