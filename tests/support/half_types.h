// Operand types of an operator with floats of 16 bits.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_TESTS_SUPPORT_HALF_TYPES_H_
#define PENSTOCK_TESTS_SUPPORT_HALF_TYPES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/tensor.h"

namespace penstock::testing {

// All floats as `dtype` but as few as can be that stay f32, such as statistics, so that
// accepts(types) is true; no types where it never is.
template <typename Accepts>
std::vector<TensorType> TypesInHalves(const std::vector<TensorType>& types, DType dtype,
                                      const Accepts& accepts) {
  std::vector<size_t> floats;
  for (size_t i = 0; i < types.size(); ++i) {
    if (IsFloat(types[i].dtype)) floats.push_back(i);
  }
  for (size_t num_f32 = 0; num_f32 < floats.size(); ++num_f32) {
    for (uint32_t mask = 0; mask < 1u << floats.size(); ++mask) {
      if (static_cast<size_t>(std::popcount(mask)) != num_f32) continue;
      std::vector<TensorType> halves = types;
      for (size_t i = 0; i < floats.size(); ++i) {
        halves[floats[i]].dtype = (mask >> i & 1) != 0 ? DType::kF32 : dtype;
      }
      if (accepts(halves)) return halves;
    }
  }
  return {};
}

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_HALF_TYPES_H_
