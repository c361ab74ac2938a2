#include "kernels/cpu/onednn_pooling.h"

#include <array>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "oneapi/dnnl/dnnl.hpp"

#include "kernels/cpu/onednn.h"
#include "kernels/cpu/onednn_primitive_internal.h"

namespace penstock::kernels {
namespace {

using dnnl::memory;

// Planes, as they lie in tiles. To oneDNN they are the channels of one image.
memory::desc PlanesOf(int64_t count, const std::array<int64_t, 2>& plane) {
  return {{1, count, plane[0], plane[1]}, memory::data_type::f32, memory::format_tag::nchw};
}

// What a pooling is made for.
struct PoolingGeometry {
  explicit PoolingGeometry(const PoolingShape& shape)
      : x(PlanesOf(shape.num_planes, shape.in)),
        y(PlanesOf(shape.num_planes, shape.out)),
        strides({shape.window[0].stride, shape.window[1].stride}),
        taps({shape.window[0].taps, shape.window[1].taps}),
        low({shape.window[0].low, shape.window[1].low}),
        high({shape.window[0].high, shape.window[1].high}) {}

  memory::desc x;
  memory::desc y;
  memory::dims strides;
  memory::dims taps;
  memory::dims low;
  memory::dims high;
};

#if DNNL_VERSION_MAJOR >= 3

const memory::dims kNoDilation = {0, 0};

dnnl::pooling_forward::primitive_desc DescribePooling(const dnnl::engine& engine,
                                                      dnnl::prop_kind kind,
                                                      dnnl::algorithm algorithm,
                                                      const PoolingGeometry& g) {
  return {engine, kind,   algorithm,       g.x, g.y, g.strides, g.taps, kNoDilation,
          g.low,  g.high, UserScratchpad()};
}

dnnl::pooling_backward::primitive_desc DescribePoolingGradient(
    const dnnl::engine& engine, dnnl::algorithm algorithm, const PoolingGeometry& g,
    const dnnl::pooling_forward::primitive_desc& forward) {
  return {engine,      algorithm, g.x,    g.y,     g.strides,       g.taps,
          kNoDilation, g.low,     g.high, forward, UserScratchpad()};
}

#else  // descriptors of operations

dnnl::pooling_forward::primitive_desc DescribePooling(const dnnl::engine& engine,
                                                      dnnl::prop_kind kind,
                                                      dnnl::algorithm algorithm,
                                                      const PoolingGeometry& g) {
  const dnnl::pooling_forward::desc descriptor(kind, algorithm, g.x, g.y, g.strides, g.taps, g.low,
                                               g.high);
  return {descriptor, UserScratchpad(), engine};
}

dnnl::pooling_backward::primitive_desc DescribePoolingGradient(
    const dnnl::engine& engine, dnnl::algorithm algorithm, const PoolingGeometry& g,
    const dnnl::pooling_forward::primitive_desc& forward) {
  const dnnl::pooling_backward::desc descriptor(algorithm, g.x, g.y, g.strides, g.taps, g.low,
                                                g.high);
  return {descriptor, UserScratchpad(), engine, forward};
}

#endif

// Memory of oneDNN, and where in the workspace it lies if it does.
struct Place {
  memory of;
  size_t offset = 0;
};

}  // namespace

// The gradient of a maximum computes the maximum again, to learn where it was.
struct OneDnnPooling::Impl {
  PoolingPass pass;
  dnnl::engine engine;
  dnnl::stream stream;
  dnnl::primitive forward;
  dnnl::primitive backward;
  // Their gradients have the same layouts.
  memory x;
  memory y;
  memory dx;
  Place maxima;   // the results that the gradient has no use for
  Place indices;  // which tap was the largest
  Place scratchpad;
  size_t workspace_bytes = 0;

  Place Reserve(const memory::desc& desc) {
    const Place place = {memory(desc, engine, DNNL_MEMORY_NONE), workspace_bytes};
    workspace_bytes += OneDnnAligned(desc.get_size());
    return place;
  }

  // The scratchpad is reserved once, for the larger of both.
  void Compile(const PoolingShape& shape) {
    const PoolingGeometry geometry(shape);
    const auto algorithm = IsMaximum(pass) ? dnnl::algorithm::pooling_max
                                           : dnnl::algorithm::pooling_avg_include_padding;
    const auto kind =
        IsGradient(pass) ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    const auto forward_made = DescribePooling(engine, kind, algorithm, geometry);
    x = memory(geometry.x, engine, DNNL_MEMORY_NONE);
    y = memory(geometry.y, engine, DNNL_MEMORY_NONE);
    memory::desc of_scratchpad = forward_made.scratchpad_desc();
    if (pass != PoolingPass::kMeanGradient) forward = dnnl::pooling_forward(forward_made);
    if (IsGradient(pass)) {
      dx = memory(geometry.x, engine, DNNL_MEMORY_NONE);
      const auto made = DescribePoolingGradient(engine, algorithm, geometry, forward_made);
      backward = dnnl::pooling_backward(made);
      if (made.scratchpad_desc().get_size() > of_scratchpad.get_size()) {
        of_scratchpad = made.scratchpad_desc();
      }
    }
    if (pass == PoolingPass::kMaximumGradient) {
      maxima = Reserve(geometry.y);
      indices = Reserve(forward_made.workspace_desc());
    }
    scratchpad = Reserve(of_scratchpad);
  }

  void RunPass(float* a, float* b, float* result, std::byte* workspace) {
    scratchpad.of.set_data_handle(workspace + scratchpad.offset);
    switch (pass) {
      case PoolingPass::kMaximum:
      case PoolingPass::kMean:
        x.set_data_handle(a);
        y.set_data_handle(result);
        Execute(forward, stream,
                {{DNNL_ARG_SRC, x.get()},
                 {DNNL_ARG_DST, y.get()},
                 {DNNL_ARG_SCRATCHPAD, scratchpad.of.get()}});
        break;
      case PoolingPass::kMaximumGradient:
        x.set_data_handle(a);
        y.set_data_handle(b);
        dx.set_data_handle(result);
        maxima.of.set_data_handle(workspace + maxima.offset);
        indices.of.set_data_handle(workspace + indices.offset);
        Execute(forward, stream,
                {{DNNL_ARG_SRC, x.get()},
                 {DNNL_ARG_DST, maxima.of.get()},
                 {DNNL_ARG_WORKSPACE, indices.of.get()},
                 {DNNL_ARG_SCRATCHPAD, scratchpad.of.get()}});
        Execute(backward, stream,
                {{DNNL_ARG_DIFF_DST, y.get()},
                 {DNNL_ARG_DIFF_SRC, dx.get()},
                 {DNNL_ARG_WORKSPACE, indices.of.get()},
                 {DNNL_ARG_SCRATCHPAD, scratchpad.of.get()}});
        break;
      case PoolingPass::kMeanGradient:
        y.set_data_handle(a);
        dx.set_data_handle(result);
        Execute(backward, stream,
                {{DNNL_ARG_DIFF_DST, y.get()},
                 {DNNL_ARG_DIFF_SRC, dx.get()},
                 {DNNL_ARG_SCRATCHPAD, scratchpad.of.get()}});
        break;
    }
  }
};

OneDnnPooling::OneDnnPooling(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

OneDnnPooling::~OneDnnPooling() = default;

bool HasOneDnnPooling() { return true; }

absl::StatusOr<std::unique_ptr<OneDnnPooling>> OneDnnPooling::Create(const PoolingShape& shape,
                                                                     PoolingPass pass) {
  RunOneDnnOnOneThread();
  try {
    auto impl = std::make_unique<Impl>();
    impl->pass = pass;
    impl->engine = dnnl::engine(dnnl::engine::kind::cpu, 0);
    impl->stream = dnnl::stream(impl->engine);
    impl->Compile(shape);
    return std::unique_ptr<OneDnnPooling>(new OneDnnPooling(std::move(impl)));
  } catch (const dnnl::error& error) {
    return OneDnnError("pooling", error);
  }
}

size_t OneDnnPooling::workspace_bytes() const { return impl_->workspace_bytes; }

absl::Status OneDnnPooling::Run(const float* a, const float* b, float* result, void* workspace) {
  RunOneDnnOnOneThread();
  try {
    // oneDNN takes what it only reads as mutable, too.
    impl_->RunPass(const_cast<float*>(a), const_cast<float*>(b), result,
                   static_cast<std::byte*>(workspace));
  } catch (const dnnl::error& error) {
    return OneDnnError("pooling", error);
  }
  return absl::OkStatus();
}

}  // namespace penstock::kernels
