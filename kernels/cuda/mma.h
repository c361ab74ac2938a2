// Products of small matrices on tensor cores, and the copies that feed them: what the kernels of
// *.cu files need of mma.sync, ldmatrix and cp.async (NVIDIA, "Parallel Thread Execution ISA",
// sections "Warp-level matrix instructions" and "Data movement"). On every architecture since
// sm_80. With PENSTOCK_SIMULATED_SIMT they are computed by their definition.
//
// A warp multiplies a [16, 16] by b [16, 8] and adds c [16, 8]. Its 32 lanes share each matrix: of
// lane l, with g = l / 4 and t = l % 4,
//   a: rows g (v[0], v[2]) and g + 8 (v[1], v[3]), columns 2t, 2t + 1 (v[0], v[1]) and those + 8
//   b: rows 2t, 2t + 1 (v[0]) and those + 8 (v[1]), column g
//   c: rows g (v[0], v[1]) and g + 8 (v[2], v[3]), columns 2t and 2t + 1
//
// Thread rule: device functions, called by all lanes of a warp.

#ifndef PENSTOCK_KERNELS_CUDA_MMA_H_
#define PENSTOCK_KERNELS_CUDA_MMA_H_

#include <cstdint>
#include <type_traits>

#include "base/half.h"
#include "kernels/cuda/simt.h"

namespace penstock::kernels::cuda {

// Two elements of 16 bits each, the first one in the low bits.
struct FragmentA {
  uint32_t v[4];
};
struct FragmentB {
  uint32_t v[2];
};
struct FragmentC {
  float v[4];
};

#ifdef PENSTOCK_SIMULATED_SIMT

template <typename T>
float WidenHalfOf(uint32_t pair, int64_t which) {
  return Widen(T{static_cast<uint16_t>(which == 0 ? pair : pair >> 16)});
}

template <typename T>
uint32_t PackPair(float low, float high) {
  return Narrow<T>(low).bits | static_cast<uint32_t>(Narrow<T>(high).bits) << 16;
}

template <typename T>
void MultiplyAdd(const FragmentA& a, const FragmentB& b, FragmentC* c) {
  struct Own {
    const FragmentA* a;
    const FragmentB* b;
  } own = {&a, &b};
  const unsigned lane = simulated::running_block->lane();
  FragmentC result = *c;
  simulated::running_block->WithWarp(&own, [&](const auto& lane_data) {
    const auto of = [&](unsigned other) { return *static_cast<const Own*>(lane_data(other)); };
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned half_row = i / 2;               // row lane / 4 + 8 * half_row
      const unsigned column = lane % 4 * 2 + i % 2;  // of b
      for (unsigned k = 0; k < 16; ++k) {
        const unsigned part = k / 8;
        const uint32_t left = of(lane / 4 * 4 + k % 8 / 2).a->v[half_row + 2 * part];
        const uint32_t right = of(column * 4 + k % 8 / 2).b->v[part];
        result.v[i] += WidenHalfOf<T>(left, k % 2) * WidenHalfOf<T>(right, k % 2);
      }
    }
  });
  *c = result;
}

template <bool kIsTransposed>
void LoadMatrices(const void* row, uint32_t (&to)[4]) {
  const unsigned lane = simulated::running_block->lane();
  simulated::running_block->WithWarp(row, [&](const auto& lane_data) {
    for (unsigned i = 0; i < 4; ++i) {
      const auto at = [&](unsigned r, unsigned c) -> uint32_t {
        return static_cast<const uint16_t*>(lane_data(8 * i + r))[c];
      };
      const unsigned g = lane / 4;
      const unsigned t = lane % 4 * 2;
      to[i] = kIsTransposed ? at(t, g) | at(t + 1, g) << 16 : at(g, t) | at(g, t + 1) << 16;
    }
  });
}

// As if it were there only once it is waited for.
inline void CopyAsync16(void* to, const void* from) { simulated::CopyLater(to, from, 16); }
inline void WaitForCopies() { simulated::FinishCopies(); }

#else

template <typename T>
__device__ inline uint32_t PackPair(float low, float high) {
  uint32_t pair;
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

// c += a b, of bf16 or f16 in f32.
template <typename T>
__device__ inline void MultiplyAdd(const FragmentA& a, const FragmentB& b, FragmentC* c) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c->v[0]), "+f"(c->v[1]), "+f"(c->v[2]), "+f"(c->v[3])
        : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[0]), "r"(b.v[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c->v[0]), "+f"(c->v[1]), "+f"(c->v[2]), "+f"(c->v[3])
        : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[0]), "r"(b.v[1]));
  }
}

__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Four matrices [8, 8] of 16-bit elements from shared memory: lane l gives the address of row l % 8
// of matrix l / 8, and gets of each matrix two elements of row g or, transposed, of column g.
template <bool kIsTransposed>
__device__ inline void LoadMatrices(const void* row, uint32_t (&to)[4]) {
  const uint32_t address = SharedAddress(row);
  if constexpr (kIsTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  }
}

// 16 bytes from global to shared memory, both aligned, which are there for the thread that asked
// once it has waited, and for others after a barrier behind that.
__device__ inline void CopyAsync16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(to)), "l"(from)
               : "memory");
}
__device__ inline void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

#endif

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_MMA_H_
