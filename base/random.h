// Counter-based random numbers: a draw is a pure function of (seed, stream, step, element), so it
// does not depend on how a tensor is split over devices or micro-batches.
//
// The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC'11). One block of four 32-bit words serves the elements 4*b .. 4*b+3.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_BASE_RANDOM_H_
#define PENSTOCK_BASE_RANDOM_H_

#include <array>
#include <cmath>
#include <cstdint>

namespace penstock {

// What the draws for one tensor depend on, beside the element.
struct RandomKey {
  uint64_t seed = 0;    // of the job
  uint32_t stream = 0;  // identifies the operator or state; streams are independent
  uint32_t step = 0;    // of the training, so that each step draws anew; 0 for initial values
};

// The four words of block `block`.
inline std::array<uint32_t, 4> PhiloxBlock(const RandomKey& key, uint64_t block) {
  uint32_t c0 = static_cast<uint32_t>(block);
  uint32_t c1 = static_cast<uint32_t>(block >> 32);
  uint32_t c2 = key.stream;
  uint32_t c3 = key.step;
  uint32_t k0 = static_cast<uint32_t>(key.seed);
  uint32_t k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {c0, c1, c2, c3};
}

// The word of element `index`.
inline uint32_t RandomWord(const RandomKey& key, uint64_t index) {
  return PhiloxBlock(key, index >> 2)[index & 3];
}

// Uniform in [0, 1), a multiple of 2^-24: exact in f32.
inline float WordToUniform(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

// The draw of element `index`, uniform in [0, 1).
inline float RandomUniform(const RandomKey& key, uint64_t index) {
  return WordToUniform(RandomWord(key, index));
}

// Standard normal by Box-Muller; elements 2i and 2i+1 share a pair of words. Computed in double,
// so that f32 and f64 tensors hold the same draws up to rounding.
inline double RandomNormal(const RandomKey& key, uint64_t index) {
  const std::array<uint32_t, 4> words = PhiloxBlock(key, index >> 2);
  const int pair = static_cast<int>(index & 2);
  const double u = (words[pair] + 0.5) * 0x1p-32;
  const double v = words[pair + 1] * 0x1p-32;
  const double radius = std::sqrt(-2.0 * std::log(u));
  const double angle = 6.283185307179586476925 * v;
  return (index & 1) != 0 ? radius * std::sin(angle) : radius * std::cos(angle);
}

}  // namespace penstock

#endif  // PENSTOCK_BASE_RANDOM_H_
