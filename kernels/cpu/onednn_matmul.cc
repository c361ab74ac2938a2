#include "kernels/cpu/onednn_matmul.h"

#include <compare>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "oneapi/dnnl/dnnl.hpp"

#include "kernels/cpu/onednn.h"

namespace penstock::kernels {
namespace {

using dnnl::memory;

// A thread that meets more products than this forgets them all: that bounds its memory.
constexpr size_t kMaxProducts = 1024;

// All that the code of a product depends on.
struct Product {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  RowMajor a;
  RowMajor b;
  int64_t c_stride = 0;
  bool rounds = false;  // the result is bf16
  bool accumulate = false;
  friend auto operator<=>(const Product&, const Product&) = default;
};

struct CompiledProduct {
  dnnl::primitive primitive;  // empty: oneDNN has no fast code for it
  memory a;
  memory b;
  memory c;
};

// rows x columns whose rows, or whose columns where it is transposed, are contiguous.
memory::desc Layout(int64_t rows, int64_t columns, memory::data_type type, const RowMajor& matrix) {
  const memory::dims strides =
      matrix.is_transposed ? memory::dims{1, matrix.stride} : memory::dims{matrix.stride, 1};
  return memory::desc({rows, columns}, type, strides);
}

dnnl::matmul::primitive_desc Describe(const memory::desc& a, const memory::desc& b,
                                      const memory::desc& c, const dnnl::primitive_attr& attributes,
                                      const dnnl::engine& engine) {
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul::primitive_desc(engine, a, b, c, attributes, /*allow_empty=*/true);
#else
  return dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), attributes, engine,
                                      /*allow_empty=*/true);
#endif
}

class Products {
 public:
  Products() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

  bool Run(const Product& product, const BFloat16* a, const BFloat16* b, void* c) {
    CompiledProduct& compiled = Find(product);
    if (!compiled.primitive) return false;
    // oneDNN takes what it only reads as mutable, too.
    compiled.a.set_data_handle(const_cast<BFloat16*>(a));
    compiled.b.set_data_handle(const_cast<BFloat16*>(b));
    compiled.c.set_data_handle(c);
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, compiled.a.get()},
                                         {DNNL_ARG_WEIGHTS, compiled.b.get()},
                                         {DNNL_ARG_DST, compiled.c.get()}};
    return dnnl_primitive_execute(compiled.primitive.get(), stream_.get(), 3, arguments) ==
           dnnl_success;
  }

 private:
  CompiledProduct& Find(const Product& product) {
    const auto found = products_.find(product);
    if (found != products_.end()) return found->second;
    if (products_.size() >= kMaxProducts) products_.clear();
    return products_.emplace(product, Compile(product)).first->second;
  }

  CompiledProduct Compile(const Product& product) const {
    const auto bf16 = memory::data_type::bf16;
    const memory::desc a = Layout(product.m, product.k, bf16, product.a);
    const memory::desc b = Layout(product.k, product.n, bf16, product.b);
    const memory::desc c =
        Layout(product.m, product.n, product.rounds ? bf16 : memory::data_type::f32,
               {.is_transposed = false, .stride = product.c_stride});
    dnnl::primitive_attr attributes;
    if (product.accumulate) {
      dnnl::post_ops additions;
      additions.append_sum();
      attributes.set_post_ops(additions);
    }
    const dnnl::matmul::primitive_desc made = Describe(a, b, c, attributes, engine_);
    // The reference implementation is there for tests: a loop over elements.
    if (!made || std::string_view(made.impl_info_str()).starts_with("ref")) return {};
    return {dnnl::matmul(made), memory(a, engine_, DNNL_MEMORY_NONE),
            memory(b, engine_, DNNL_MEMORY_NONE), memory(c, engine_, DNNL_MEMORY_NONE)};
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::map<Product, CompiledProduct> products_;
};

}  // namespace

Bf16Unit OneDnnBf16Unit() {
  // Instruction sets are sets of bits.
  const auto isa = static_cast<unsigned>(dnnl_get_effective_cpu_isa());
  const auto has = [isa](dnnl_cpu_isa_t wanted) {
    return (isa & static_cast<unsigned>(wanted)) == static_cast<unsigned>(wanted);
  };
  if (has(dnnl_cpu_isa_avx512_core_amx)) return Bf16Unit::kTiles;
  if (has(dnnl_cpu_isa_avx512_core_bf16)) return Bf16Unit::kDotProduct;
  return Bf16Unit::kNone;
}

void PrepareOneDnnMatmul() {
  static std::once_flag is_prepared;
  std::call_once(is_prepared, [] {
    if (OneDnnBf16Unit() == Bf16Unit::kNone) return;
    constexpr int64_t kSize = 16;
    const BFloat16 a[kSize * kSize] = {};
    BFloat16 c[kSize * kSize];
    OneDnnMatmul<BFloat16>(kSize, kSize, kSize, {a, kSize}, {a, kSize}, {c, kSize},
                           /*accumulate=*/false);
  });
}

template <typename C>
bool OneDnnMatmul(int64_t m, int64_t n, int64_t k, StridedMatrix<const BFloat16> a,
                  StridedMatrix<const BFloat16> b, StridedMatrix<C> c, bool accumulate) {
  const std::optional<RowMajor> result = AsRowMajor(m, n, c.row_stride, c.column_stride);
  if (!result.has_value()) return false;
  if (result->is_transposed) {  // c' = b' a'
    return OneDnnMatmul<C>(n, m, k, {b.data, b.column_stride, b.row_stride},
                           {a.data, a.column_stride, a.row_stride},
                           {c.data, c.column_stride, c.row_stride}, accumulate);
  }
  const std::optional<RowMajor> left = AsRowMajor(m, k, a.row_stride, a.column_stride);
  const std::optional<RowMajor> right = AsRowMajor(k, n, b.row_stride, b.column_stride);
  if (!left.has_value() || !right.has_value()) return false;
  RunOneDnnOnOneThread();
  const Product product = {.m = m,
                           .n = n,
                           .k = k,
                           .a = *left,
                           .b = *right,
                           .c_stride = result->stride,
                           .rounds = !std::is_same_v<C, float>,
                           .accumulate = accumulate};
  try {
    thread_local Products products;
    return products.Run(product, a.data, b.data, c.data);
  } catch (const dnnl::error&) {
    return false;  // the caller has loops of its own
  }
}

template bool OneDnnMatmul(int64_t, int64_t, int64_t, StridedMatrix<const BFloat16>,
                           StridedMatrix<const BFloat16>, StridedMatrix<BFloat16>, bool);
template bool OneDnnMatmul(int64_t, int64_t, int64_t, StridedMatrix<const BFloat16>,
                           StridedMatrix<const BFloat16>, StridedMatrix<float>, bool);

}  // namespace penstock::kernels
