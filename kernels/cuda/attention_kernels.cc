// Attention in all its layouts: heads [b, h, s, d], the packed [b, s, 3, h, d], and the steps of
// ring attention.

#include <algorithm>

#include "kernels/attention_tiles.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/library_attention.h"
#include "kernels/tile.h"

namespace penstock::kernels::cuda {
namespace {

// An error if the kernels cannot do it; otherwise prepares those of the types on the stream's
// device.
template <typename T, typename R>
absl::Status CheckAttention(const KernelSpec& spec, int64_t width, Stream& stream) {
  if (width < 1 || width > kMaxHeadWidth) {
    return absl::UnimplementedError(StrCat("the cuda kernel for ", spec.op,
                                           " takes heads of width 1 to ", kMaxHeadWidth, ", not ",
                                           width));
  }
  auto* cuda_stream = dynamic_cast<CudaStream*>(&stream);
  if (cuda_stream == nullptr || cuda_stream->fault() == nullptr) return absl::OkStatus();
  cuda_stream->handle();  // makes the device current
  return ToStatus(PrepareAttention<T, R>(), StrCat("preparing ", spec.op));
}

// K<T, R>::Create for the types of a spec.
template <template <typename, typename> class K>
KernelOr CreateOf(const KernelSpec& spec, Device&, Stream& stream) {
  return WithResultType(DeviceFloats(), spec,
                        [&]<typename T, typename R>(std::type_identity<T>, std::type_identity<R>) {
                          return K<T, R>::Create(spec, stream);
                        });
}

// The same by the library of the device, where it takes the spec (library_attention.h).
template <template <typename, typename> class K>
KernelOr CreateByLibrary(const KernelSpec& spec, Device& device, Stream& stream) {
  return CreateLibraryAttention(spec, device, stream, CreateOf<K>(spec, device, stream));
}

size_t ForwardBytes(const KernelSpec& spec, int) { return LibraryAttentionWorkspace(spec); }

// ---- q[b, h, s, d], k[b, g, t, d], v[b, g, t, d].

template <typename T, typename R>
struct Attention {
  static KernelOr Create(const KernelSpec& spec, Stream& stream) {
    RETURN_IF_ERROR((CheckAttention<T, R>(spec, spec.inputs[0].shape[3], stream)));
    return MakeKernel(spec, stream, [spec](const KernelArgs& args, CudaStream& to) {
      const AttentionShape shape = {SeparateShape(spec, args.microbatch)};
      const HeadStrides queries = SeparateStrides(shape.heads, shape.queries, shape.width);
      const HeadStrides keys = SeparateStrides(shape.key_heads, shape.keys, shape.width);
      AttentionOperands<T, R> x;
      x.q = {Input<T>(args, 0), queries};
      x.k = {Input<T>(args, 1), keys};
      x.v = {Input<T>(args, 2), keys};
      x.o = {Output<R>(args, 0), queries};
      x.lse = OptionalOutput<float>(args, 1);
      return Launched(spec, LaunchAttention(to.handle(), shape, x));
    });
  }
};

template <typename T, typename R>
struct AttentionGrad {
  static KernelOr Create(const KernelSpec& spec, Stream& stream) {
    RETURN_IF_ERROR((CheckAttention<T, R>(spec, spec.inputs[0].shape[3], stream)));
    return MakeKernel(spec, stream, [spec](const KernelArgs& args, CudaStream& to) {
      const AttentionShape shape = {SeparateShape(spec, args.microbatch)};
      const HeadStrides queries = SeparateStrides(shape.heads, shape.queries, shape.width);
      const HeadStrides keys = SeparateStrides(shape.key_heads, shape.keys, shape.width);
      AttentionGradOperands<T, R> x;
      x.q = {Input<T>(args, 0), queries};
      x.k = {Input<T>(args, 1), keys};
      x.v = {Input<T>(args, 2), keys};
      x.o = {Input<T>(args, 3), queries};
      x.lse = Input<float>(args, 4);
      x.d_o = {Input<T>(args, 5), queries};
      x.dq = {Output<R>(args, 0), queries};
      x.dk = {Output<R>(args, 1), keys};
      x.dv = {Output<R>(args, 2), keys};
      x.deltas = static_cast<float*>(args.workspace);
      return Launched(spec, LaunchAttentionGrad(to.handle(), shape, x));
    });
  }
};

size_t DeltaBytes(int64_t batch, int64_t heads, int64_t queries) {
  return static_cast<size_t>(batch * heads * queries) * sizeof(float);
}

size_t AttentionGradBytes(const KernelSpec& spec, int) {
  const Shape& q = spec.inputs[0].shape;
  return std::max(DeltaBytes(q[0], q[1], q[2]), LibraryAttentionWorkspace(spec));
}

// The parts of one tile, one after the other.
template <typename T, typename R>
struct AttentionParts {
  static KernelOr Create(const KernelSpec& spec, Stream& stream) {
    RETURN_IF_ERROR((CheckAttention<T, R>(spec, spec.inputs[0].shape[3], stream)));
    return MakeKernel(spec, stream, [spec](const KernelArgs& args, CudaStream& to) -> absl::Status {
      const TileDesc& k = spec.inputs[1];
      const TileDesc& o = spec.outputs[0];
      const AttentionShape whole = {SeparateShape(spec, args.microbatch)};
      const HeadStrides queries = SeparateStrides(whole.heads, whole.queries, whole.width);
      const HeadStrides keys = SeparateStrides(whole.key_heads, whole.keys, whole.width);
      const int64_t num_rows = whole.batch * whole.heads * whole.queries;
      const int64_t first_key = TileBegin(k, 2, args.microbatch);
      const int64_t first_part = TileBegin(o, 0, args.microbatch);
      for (int64_t part = 0; part < o.shape[0]; ++part) {
        const Range seen = PartOf(GlobalExtent(k, 2), first_part + part, GlobalExtent(o, 0));
        const int64_t begin = seen.begin - first_key;
        if (begin < 0 || begin + seen.size() > whole.keys) {
          return absl::InternalError(StrCat("attention_parts: the keys [", seen.begin, ", ",
                                            seen.end, ") of part ", first_part + part,
                                            " are not inside the tile of ", whole.keys, " keys at ",
                                            first_key));
        }
        AttentionShape shape = whole;
        shape.keys = seen.size();
        shape.causal_offset -= begin;
        AttentionOperands<T, R> x;
        x.q = {Input<T>(args, 0), queries};
        x.k = {Input<T>(args, 1) + begin * keys.row, keys};
        x.v = {Input<T>(args, 2) + begin * keys.row, keys};
        x.o = {Output<R>(args, 0) + part * num_rows * whole.width, queries};
        x.lse = Output<float>(args, 1) + part * num_rows;
        RETURN_IF_ERROR(Launched(spec, LaunchAttention(to.handle(), shape, x)));
      }
      return absl::OkStatus();
    });
  }
};

// ---- qkv[b, s, 3, h, d] with its result o[b, s, h, d].

template <typename T, typename R>
struct QkvAttention {
  static KernelOr Create(const KernelSpec& spec, Stream& stream) {
    RETURN_IF_ERROR((CheckAttention<T, R>(spec, spec.inputs[0].shape[4], stream)));
    return MakeKernel(spec, stream, [spec](const KernelArgs& args, CudaStream& to) {
      const AttentionShape shape = {PackedShape(spec, args.microbatch)};
      const HeadStrides packed = RowStrides(shape.queries, 3, shape.heads, shape.width);
      const int64_t part = shape.heads * shape.width;
      const T* qkv = Input<T>(args, 0);
      AttentionOperands<T, R> x;
      x.q = {qkv, packed};
      x.k = {qkv + part, packed};
      x.v = {qkv + 2 * part, packed};
      x.o = {Output<R>(args, 0), RowStrides(shape.queries, 1, shape.heads, shape.width)};
      x.lse = OptionalOutput<float>(args, 1);
      return Launched(spec, LaunchAttention(to.handle(), shape, x));
    });
  }
};

template <typename T, typename R>
struct QkvAttentionGrad {
  static KernelOr Create(const KernelSpec& spec, Stream& stream) {
    RETURN_IF_ERROR((CheckAttention<T, R>(spec, spec.inputs[0].shape[4], stream)));
    return MakeKernel(spec, stream, [spec](const KernelArgs& args, CudaStream& to) {
      const AttentionShape shape = {PackedShape(spec, args.microbatch)};
      const HeadStrides packed = RowStrides(shape.queries, 3, shape.heads, shape.width);
      const HeadStrides rows = RowStrides(shape.queries, 1, shape.heads, shape.width);
      const int64_t part = shape.heads * shape.width;
      const T* qkv = Input<T>(args, 0);
      R* dqkv = Output<R>(args, 0);
      AttentionGradOperands<T, R> x;
      x.q = {qkv, packed};
      x.k = {qkv + part, packed};
      x.v = {qkv + 2 * part, packed};
      x.o = {Input<T>(args, 1), rows};
      x.lse = Input<float>(args, 2);
      x.d_o = {Input<T>(args, 3), rows};
      x.dq = {dqkv, packed};
      x.dk = {dqkv + part, packed};
      x.dv = {dqkv + 2 * part, packed};
      x.deltas = static_cast<float*>(args.workspace);
      return Launched(spec, LaunchAttentionGrad(to.handle(), shape, x));
    });
  }
};

size_t QkvAttentionGradBytes(const KernelSpec& spec, int) {
  const Shape& qkv = spec.inputs[0].shape;
  return std::max(DeltaBytes(qkv[0], qkv[3], qkv[1]), LibraryAttentionWorkspace(spec));
}

// ---- Steps of ring attention: q[b, s, h, d] and kv[b, t, 2, g, d].

// The part of the queries that a part of the keys is at the place of.
template <typename T, typename R>
struct BlockAttention {
  static KernelOr Create(const KernelSpec& spec, Stream& stream) {
    RETURN_IF_ERROR((CheckAttention<T, R>(spec, spec.inputs[0].shape[3], stream)));
    return MakeKernel(spec, stream, [spec](const KernelArgs& args, CudaStream& to) -> absl::Status {
      const Shape& q = spec.inputs[0].shape;
      const Shape& kv_shape = spec.inputs[1].shape;
      const int64_t row = q[2] * q[3];
      const HeadStrides queries = RowStrides(q[1], 1, q[2], q[3]);
      const HeadStrides keys = RowStrides(kv_shape[1], 2, kv_shape[3], q[3]);
      const int64_t values = kv_shape[3] * q[3];  // behind the keys of a row
      for (const AttentionBlock& block : BlocksOf(spec, args.microbatch)) {
        const T* kv = Input<T>(args, 1) + block.key * keys.row;
        AttentionOperands<T, R> x;
        x.q = {Input<T>(args, 0) + block.query * row, queries};
        x.k = {kv, keys};
        x.v = {kv + values, keys};
        x.o = {Output<R>(args, 0) + block.query * row, queries};
        x.lse = Output<float>(args, 1) + block.query;
        if (spec.inputs.size() > 2) {
          x.so_far = Input<R>(args, 2) + block.query * row;
          x.lse_so_far = Input<float>(args, 3) + block.query;
        }
        RETURN_IF_ERROR(Launched(spec, LaunchAttention(to.handle(), {block.shape}, x)));
      }
      return absl::OkStatus();
    });
  }
};

// The result may take the place of what the queries have so far.
bool CanAliasSoFar(const KernelSpec& spec, int input) {
  return input == 2 && CanAliasElementwise(spec, input);
}

template <typename T, typename R>
struct BlockAttentionGrad {
  static KernelOr Create(const KernelSpec& spec, Stream& stream) {
    RETURN_IF_ERROR((CheckAttention<T, R>(spec, spec.inputs[0].shape[3], stream)));
    return MakeKernel(spec, stream, [spec](const KernelArgs& args, CudaStream& to) -> absl::Status {
      const Shape& q = spec.inputs[0].shape;
      const Shape& kv_shape = spec.inputs[1].shape;
      const int64_t row = q[2] * q[3];
      const HeadStrides queries = RowStrides(q[1], 1, q[2], q[3]);
      const HeadStrides keys = RowStrides(kv_shape[1], 2, kv_shape[3], q[3]);
      const int64_t values = kv_shape[3] * q[3];  // behind the keys of a row
      if (q[1] == 0) {
        // A tile may have keys and none of their queries.
        to.Zero(args.outputs[1], spec.outputs[1].num_bytes());
        return absl::OkStatus();
      }
      for (const AttentionBlock& block : BlocksOf(spec, args.microbatch)) {
        const T* kv = Input<T>(args, 1) + block.key * keys.row;
        R* dkv = Output<R>(args, 1) + block.key * keys.row;
        const int64_t query = block.query * row;
        AttentionGradOperands<T, R> x;
        x.q = {Input<T>(args, 0) + query, queries};
        x.k = {kv, keys};
        x.v = {kv + values, keys};
        x.o = {Input<T>(args, 2) + query, queries};
        x.lse = Input<float>(args, 3) + block.query;
        x.d_o = {Input<T>(args, 4) + query, queries};
        x.dq = {Output<R>(args, 0) + query, queries};
        x.dk = {dkv, keys};
        x.dv = {dkv + values, keys};
        x.deltas = static_cast<float*>(args.workspace);
        RETURN_IF_ERROR(Launched(spec, LaunchAttentionGrad(to.handle(), {block.shape}, x)));
      }
      return absl::OkStatus();
    });
  }
};

size_t BlockAttentionGradBytes(const KernelSpec& spec, int) {
  const Shape& q = spec.inputs[0].shape;
  return DeltaBytes(q[0], q[2], q[1]);
}

// ---- With a cache of keys and values.

template <typename T, typename R>
struct CachedAttention {
  static KernelOr Create(const KernelSpec& spec, Stream& stream) {
    RETURN_IF_ERROR((CheckAttention<T, R>(spec, spec.outputs[1].shape[3], stream)));
    ASSIGN_OR_RETURN(const Indices::Type start_type, IndexType(spec, 2));
    return MakeKernel(
        spec, stream, [spec, start_type](const KernelArgs& args, CudaStream& to) -> absl::Status {
          const Shape& o = spec.outputs[1].shape;
          const Shape& cache_shape = spec.inputs[1].shape;
          const Indices starts = {args.inputs[2], start_type};
          const AttentionShape shape = {{.batch = o[0],
                                         .heads = o[2],
                                         .key_heads = cache_shape[3],
                                         .queries = o[1],
                                         .keys = cache_shape[1],
                                         .width = o[3],
                                         .is_causal = true,
                                         .causal_offset = 0,
                                         .lse_rows = o[1]},
                                        starts};
          const int64_t row = shape.heads * shape.width;
          const int64_t key_row = shape.key_heads * shape.width;
          const T* q = Input<T>(args, 0);
          const bool is_packed = spec.inputs.size() == 3;
          T* cache = Output<T>(args, 0);
          if (args.inputs[1] != args.outputs[0]) {
            to.Copy(cache, args.inputs[1], spec.inputs[1].num_bytes(), CopyKind::kDeviceToDevice);
          }
          const CacheUpdate<T> update = {.batch = o[0],
                                         .rows = o[1],
                                         .size = shape.keys,
                                         .row_width = key_row,
                                         .keys = is_packed ? q + row : Input<T>(args, 3),
                                         .values = is_packed ? q + 2 * row : Input<T>(args, 4),
                                         .stride = is_packed ? 3 * row : key_row,
                                         .starts = starts,
                                         .site = SiteOf(args, to)};
          RETURN_IF_ERROR(Launched(spec, LaunchCacheUpdate(to.handle(), update, cache)));
          const HeadStrides cached = RowStrides(shape.keys, 2, shape.key_heads, shape.width);
          AttentionOperands<T, R> x;
          x.q = {q, RowStrides(shape.queries, is_packed ? 3 : 1, shape.heads, shape.width)};
          x.k = {cache, cached};
          x.v = {cache + key_row, cached};
          x.o = {Output<R>(args, 1), RowStrides(shape.queries, 1, shape.heads, shape.width)};
          return Launched(spec, LaunchAttention(to.handle(), shape, x));
        });
  }
};

}  // namespace

void AddAttentionKernels(KernelRegistry* registry) {
  AddKernel(registry, "attention",
            {.workspace_bytes = ForwardBytes, .create = CreateByLibrary<Attention>});
  AddKernel(registry, "attention_grad",
            {.workspace_bytes = AttentionGradBytes, .create = CreateByLibrary<AttentionGrad>});
  AddKernel(registry, "attention_parts", {.create = CreateOf<AttentionParts>});
  AddKernel(registry, "qkv_attention",
            {.workspace_bytes = ForwardBytes, .create = CreateByLibrary<QkvAttention>});
  AddKernel(
      registry, "qkv_attention_grad",
      {.workspace_bytes = QkvAttentionGradBytes, .create = CreateByLibrary<QkvAttentionGrad>});
  AddKernel(registry, "block_attention",
            {.create = CreateOf<BlockAttention>, .can_alias = CanAliasSoFar});
  AddKernel(registry, "block_attention_grad",
            {.workspace_bytes = BlockAttentionGradBytes, .create = CreateOf<BlockAttentionGrad>});
  AddKernel(registry, "cached_attention", {.create = CreateOf<CachedAttention>});
}

}  // namespace penstock::kernels::cuda
