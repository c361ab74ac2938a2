#include "kernels/cuda/library_attention.h"

#include <initializer_list>
#include <memory>
#include <string_view>
#include <utility>

#include "kernels/attention_tiles.h"
#include "kernels/cuda/blas.h"
#include "kernels/cuda/contraction_plan.h"

namespace penstock::kernels::cuda {
namespace {

bool IsPacked(const KernelSpec& spec) {
  return spec.op == "qkv_attention" || spec.op == "qkv_attention_grad";
}
bool IsGrad(const KernelSpec& spec) {
  return spec.op == "attention_grad" || spec.op == "qkv_attention_grad";
}

// The operand of the forward pass's statistics in a gradient.
int LseOperand(const KernelSpec& spec) { return IsPacked(spec) ? 2 : 4; }

bool HasLse(const KernelSpec& spec) { return spec.outputs.size() > 1 && spec.outputs[1].is_bound; }

// Whether all but the statistics is of the main type.
bool HasOneType(const KernelSpec& spec) {
  const DType dtype = spec.inputs[0].dtype;
  for (size_t i = 0; i < spec.inputs.size(); ++i) {
    const bool is_lse = IsGrad(spec) && static_cast<int>(i) == LseOperand(spec);
    if (spec.inputs[i].dtype != (is_lse ? DType::kF32 : dtype)) return false;
  }
  if (!IsGrad(spec)) return spec.outputs[0].dtype == dtype;
  for (const TileDesc& output : spec.outputs) {
    if (output.dtype != dtype) return false;
  }
  return true;
}

bool AreAligned(std::initializer_list<const void*> addresses) {
  for (const void* address : addresses) {
    if (reinterpret_cast<uintptr_t>(address) % kAttentionOperandAlignment != 0) return false;
  }
  return true;
}

// Whether a run is of the shape that the library has been asked for.
bool HasShape(const KernelSpec& spec, const KernelArgs& args, const LibraryAttentionShape& shape) {
  return !shape.sizes.is_causal ||
         LibraryShapeOf(spec, args.microbatch).sizes.causal_offset == shape.sizes.causal_offset;
}

// Where queries, keys and values lie, or their gradients: in one packed tensor or in three.
template <typename Byte>
struct Parts {
  Byte *q, *k, *v;
};
template <typename Byte, typename Addresses>
Parts<Byte> PartsOf(const KernelSpec& spec, const LibraryAttentionShape& shape,
                    const Addresses& addresses) {
  if (!IsPacked(spec)) {
    return {static_cast<Byte*>(addresses[0]), static_cast<Byte*>(addresses[1]),
            static_cast<Byte*>(addresses[2])};
  }
  auto* const qkv = static_cast<Byte*>(addresses[0]);
  const int64_t part = 2 * shape.sizes.heads * shape.sizes.width;  // bytes
  return {qkv, qkv + part, qkv + 2 * part};
}

LibraryAttentionOperands OperandsOf(const KernelSpec& spec, const KernelArgs& args,
                                    const LibraryAttentionShape& shape) {
  const auto parts = PartsOf<const char>(spec, shape, args.inputs);
  return {.q = parts.q,
          .k = parts.k,
          .v = parts.v,
          .o = args.outputs[0],
          .lse = OptionalOutput<float>(args, 1)};
}

LibraryAttentionGradOperands GradOperandsOf(const KernelSpec& spec, const KernelArgs& args,
                                            const LibraryAttentionShape& shape) {
  const auto parts = PartsOf<const char>(spec, shape, args.inputs);
  const auto grads = PartsOf<char>(spec, shape, args.outputs);
  const auto lse = static_cast<size_t>(LseOperand(spec));  // between o and its gradient
  return {.q = parts.q,
          .k = parts.k,
          .v = parts.v,
          .o = args.inputs[lse - 1],
          .lse = static_cast<const float*>(args.inputs[lse]),
          .d_o = args.inputs[lse + 1],
          .dq = grads.q,
          .dk = grads.k,
          .dv = grads.v};
}

KernelOr MakeLibraryKernel(const KernelSpec& spec, Stream& stream,
                           const LibraryAttentionShape& shape,
                           std::shared_ptr<LibraryAttention> attention,
                           std::shared_ptr<Kernel> own) {
  const bool has_lse = HasLse(spec);
  return MakeKernel(spec, stream,
                    [spec, shape, has_lse, attention = std::move(attention), own = std::move(own)](
                        const KernelArgs& args, CudaStream& to) -> absl::Status {
                      const LibraryAttentionOperands x = OperandsOf(spec, args, shape);
                      if (!HasShape(spec, args, shape) || (x.lse != nullptr) != has_lse ||
                          !AreAligned({x.q, x.k, x.v, x.o, x.lse})) {
                        return own->Run(args);
                      }
                      to.handle();  // makes its device current
                      return attention->Run(x, AlignedWorkspace(args.workspace));
                    });
}

KernelOr MakeLibraryKernel(const KernelSpec& spec, Stream& stream,
                           const LibraryAttentionShape& shape,
                           std::shared_ptr<LibraryAttentionGrad> grad,
                           std::shared_ptr<Kernel> own) {
  return MakeKernel(spec, stream,
                    [spec, shape, grad = std::move(grad), own = std::move(own)](
                        const KernelArgs& args, CudaStream& to) -> absl::Status {
                      const LibraryAttentionGradOperands x = GradOperandsOf(spec, args, shape);
                      if (!HasShape(spec, args, shape) ||
                          !AreAligned({x.q, x.k, x.v, x.o, x.lse, x.d_o, x.dq, x.dk, x.dv})) {
                        return own->Run(args);
                      }
                      to.handle();  // makes its device current
                      return grad->Run(x, AlignedWorkspace(args.workspace));
                    });
}

}  // namespace

LibraryAttentionShape LibraryShapeOf(const KernelSpec& spec, int64_t microbatch) {
  LibraryAttentionShape shape;
  shape.dtype = spec.inputs[0].dtype;
  if (IsPacked(spec)) {
    shape.sizes = PackedShape(spec, microbatch);
    const kernels::AttentionShape& s = shape.sizes;
    shape.q = RowStrides(s.queries, 3, s.heads, s.width);
    shape.k = shape.q;
    shape.o = RowStrides(s.queries, 1, s.heads, s.width);
  } else {
    shape.sizes = SeparateShape(spec, microbatch);
    const kernels::AttentionShape& s = shape.sizes;
    shape.q = SeparateStrides(s.heads, s.queries, s.width);
    shape.k = SeparateStrides(s.key_heads, s.keys, s.width);
    shape.o = shape.q;
  }
  shape.v = shape.k;
  return shape;
}

std::optional<LibraryAttentionShape> FindLibraryShape(const KernelSpec& spec) {
  const LibraryAttentionShape shape = LibraryShapeOf(spec, 0);
  if (!HasOneType(spec)) return std::nullopt;
  if (IsGrad(spec) ? !IsGradForLibrary(shape) : !IsForLibrary(shape)) return std::nullopt;
  return shape;
}

size_t LibraryAttentionWorkspace(const KernelSpec& spec) {
  const std::optional<LibraryAttentionShape> shape = FindLibraryShape(spec);
  if (!shape.has_value()) return 0;
  return (IsGrad(spec) ? AttentionGradWorkspaceBytes(shape->sizes) : kAttentionWorkspaceBytes) +
         kAttentionWorkspaceAlignment;
}

KernelOr CreateLibraryAttention(const KernelSpec& spec, Device& device, Stream& stream,
                                KernelOr own) {
  static_assert(kAttentionWorkspaceAlignment == kBlasWorkspaceAlignment);
  auto* const cuda_device = dynamic_cast<CudaDevice*>(&device);
  auto* const cuda_stream = dynamic_cast<CudaStream*>(&stream);
  if (!own.ok() || cuda_device == nullptr || cuda_stream == nullptr) return own;
  const std::optional<LibraryAttentionShape> shape = FindLibraryShape(spec);
  if (!shape.has_value()) return own;
  ASSIGN_OR_RETURN(AttentionLibrary* const library, cuda_device->attention());
  if (library == nullptr) return own;
  if (IsGrad(spec)) {
    ASSIGN_OR_RETURN(std::shared_ptr<LibraryAttentionGrad> grad,
                     library->CreateGrad(cuda_stream->handle(), *shape));
    if (grad == nullptr) return own;
    return MakeLibraryKernel(spec, stream, *shape, std::move(grad), *std::move(own));
  }
  ASSIGN_OR_RETURN(std::shared_ptr<LibraryAttention> attention,
                   library->Create(cuda_stream->handle(), *shape, HasLse(spec)));
  if (attention == nullptr) return own;
  return MakeLibraryKernel(spec, stream, *shape, std::move(attention), *std::move(own));
}

}  // namespace penstock::kernels::cuda
