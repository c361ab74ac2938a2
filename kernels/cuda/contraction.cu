#include "kernels/cuda/contraction.h"
#include "kernels/cuda/scalar_functions.h"
#include "kernels/cuda/simt.h"

namespace penstock::kernels::cuda {
namespace {

template <typename T, typename R>
__global__ void ContractionKernel(ContractionLoops loops, int64_t num_results, int64_t num_terms,
                                  const T* a, const T* b, R* c, bool adds) {
  for (int64_t i = ThreadIndex(); i < num_results; i += ThreadCount()) {
    int64_t rest = i;
    int64_t a_base = 0;
    int64_t b_base = 0;
    int64_t c_at = 0;
    for (int dim = loops.num_kept - 1; dim >= 0; --dim) {
      const int64_t at = rest % loops.kept_sizes[dim];
      rest /= loops.kept_sizes[dim];
      a_base += at * loops.kept_a[dim];
      b_base += at * loops.kept_b[dim];
      c_at += at * loops.kept_c[dim];
    }
    Compute<T> sum = 0;
    for (int64_t j = 0; j < num_terms; ++j) {
      int64_t left = j;
      int64_t a_at = a_base;
      int64_t b_at = b_base;
      for (int dim = loops.num_summed - 1; dim >= 0; --dim) {
        const int64_t at = left % loops.summed_sizes[dim];
        left /= loops.summed_sizes[dim];
        a_at += at * loops.summed_a[dim];
        b_at += at * loops.summed_b[dim];
      }
      const Compute<T> left_factor = Widen(a[a_at]);
      sum = AddFunction()(sum,
                          b != nullptr ? MulFunction()(left_factor, Widen(b[b_at])) : left_factor);
    }
    c[c_at] = Narrow<R>(adds ? AddFunction()(Widen(c[c_at]), sum) : sum);
  }
}

int64_t Product(int count, const int64_t* sizes) {
  int64_t product = 1;
  for (int i = 0; i < count; ++i) product *= sizes[i];
  return product;
}

}  // namespace

template <typename T, typename R>
LaunchResult LaunchContraction(StreamHandle stream, const ContractionLoops& loops, const T* a,
                               const T* b, R* c, bool adds) {
  const int64_t num_results = Product(loops.num_kept, loops.kept_sizes);
  const int64_t num_terms = Product(loops.num_summed, loops.summed_sizes);
  if (num_results == 0) return 0;
  return Launch(&ContractionKernel<T, R>, ShapeForLoop(num_results), stream, loops, num_results,
                num_terms, a, b, c, adds);
}

template LaunchResult LaunchContraction(StreamHandle, const ContractionLoops&, const float*,
                                        const float*, float*, bool);
template LaunchResult LaunchContraction(StreamHandle, const ContractionLoops&, const double*,
                                        const double*, double*, bool);
template LaunchResult LaunchContraction(StreamHandle, const ContractionLoops&, const BFloat16*,
                                        const BFloat16*, BFloat16*, bool);
template LaunchResult LaunchContraction(StreamHandle, const ContractionLoops&, const BFloat16*,
                                        const BFloat16*, float*, bool);
template LaunchResult LaunchContraction(StreamHandle, const ContractionLoops&, const Float16*,
                                        const Float16*, Float16*, bool);
template LaunchResult LaunchContraction(StreamHandle, const ContractionLoops&, const Float16*,
                                        const Float16*, float*, bool);
template LaunchResult LaunchContraction(StreamHandle, const ContractionLoops&, const int32_t*,
                                        const int32_t*, int32_t*, bool);
template LaunchResult LaunchContraction(StreamHandle, const ContractionLoops&, const int64_t*,
                                        const int64_t*, int64_t*, bool);

}  // namespace penstock::kernels::cuda
