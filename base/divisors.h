// Thread rule: a pure function.

#ifndef PENSTOCK_BASE_DIVISORS_H_
#define PENSTOCK_BASE_DIVISORS_H_

#include <algorithm>
#include <cstdint>

#include "absl/container/inlined_vector.h"

namespace penstock {

// All divisors of a positive number, increasing.
inline absl::InlinedVector<int64_t, 16> DivisorsOf(int64_t number) {
  absl::InlinedVector<int64_t, 16> divisors;
  for (int64_t d = 1; d * d <= number; ++d) {
    if (number % d != 0) continue;
    divisors.push_back(d);
    if (d * d != number) divisors.push_back(number / d);
  }
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

}  // namespace penstock

#endif  // PENSTOCK_BASE_DIVISORS_H_
