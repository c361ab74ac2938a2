#include "kernels/cpu/onednn_convolution.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "oneapi/dnnl/dnnl.hpp"

#include "kernels/cpu/onednn.h"
#include "kernels/cpu/onednn_matmul.h"
#include "kernels/cpu/onednn_primitive_internal.h"

namespace penstock::kernels {
namespace {

using dnnl::memory;

// Images that are computed at once, with their results.
constexpr int64_t kImagesBytes = int64_t{1} << 20;

using Layouts = std::array<memory::desc, 3>;  // of x, w and y

// x, w and y, in `type`, as they lie in tiles, of `images` images. Gradients of weights are f32.
Layouts PlainLayouts(const ConvolutionShape& shape, ConvolutionPass pass, memory::data_type type,
                     int64_t images) {
  using Tag = memory::format_tag;
  const auto of_w = pass == ConvolutionPass::kWeightGradient ? memory::data_type::f32 : type;
  const auto& [taps_h, taps_w] = shape.window;
  const memory::dims x = {images, shape.groups * shape.c, shape.in[0], shape.in[1]};
  const memory::dims y = {images, shape.groups * shape.o, shape.out[0], shape.out[1]};
  const memory::desc w =
      shape.groups == 1
          ? memory::desc({shape.o, shape.c, taps_h.taps, taps_w.taps}, of_w, Tag::oihw)
          : memory::desc({shape.groups, shape.o, shape.c, taps_h.taps, taps_w.taps}, of_w,
                         Tag::goihw);
  return {memory::desc(x, type, Tag::nchw), w, memory::desc(y, type, Tag::nchw)};
}

// A pass with the layouts that it wants: x, w and y, or their gradients.
struct CompiledPass {
  dnnl::primitive primitive;
  Layouts layouts;
  memory::desc scratchpad;
  bool is_reference = false;  // a loop over elements, which is there for tests
};

// What a pass of a convolution is made for, beside its layouts.
struct Geometry {
  explicit Geometry(const graph::ImageWindow& window)
      : strides({window[0].stride, window[1].stride}),
        dilation({window[0].dilation - 1, window[1].dilation - 1}),
        low({window[0].low, window[1].low}),
        high({window[0].high, window[1].high}) {}

  memory::dims strides;
  memory::dims dilation;
  memory::dims low;
  memory::dims high;
};

constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;

using Forward = dnnl::convolution_forward;

#if DNNL_VERSION_MAJOR >= 3

// A layout that oneDNN chooses.
memory::desc AnyLayout(const memory::desc& plain) {
  return {plain.get_dims(), plain.get_data_type(), memory::format_tag::any};
}

Forward::primitive_desc DescribeForward(const dnnl::engine& engine, const Layouts& layouts,
                                        const Geometry& g) {
  const auto& [x, w, y] = layouts;
  return {engine,
          dnnl::prop_kind::forward_training,
          kAlgorithm,
          x,
          w,
          y,
          g.strides,
          g.dilation,
          g.low,
          g.high,
          UserScratchpad()};
}

template <typename Backward>
typename Backward::primitive_desc DescribeBackward(const dnnl::engine& engine,
                                                   const Layouts& layouts, const Geometry& g,
                                                   const Forward::primitive_desc& forward) {
  const auto& [x, w, y] = layouts;
  return {engine,  kAlgorithm,      x, w, y, g.strides, g.dilation, g.low, g.high,
          forward, UserScratchpad()};
}

#else  // descriptors of operations

memory::desc AnyLayout(const memory::desc& plain) {
  return {plain.dims(), plain.data_type(), memory::format_tag::any};
}

Forward::primitive_desc DescribeForward(const dnnl::engine& engine, const Layouts& layouts,
                                        const Geometry& g) {
  const auto& [x, w, y] = layouts;
  const Forward::desc descriptor(dnnl::prop_kind::forward_training, kAlgorithm, x, w, y, g.strides,
                                 g.dilation, g.low, g.high);
  return {descriptor, UserScratchpad(), engine};
}

template <typename Backward>
typename Backward::primitive_desc DescribeBackward(const dnnl::engine& engine,
                                                   const Layouts& layouts, const Geometry& g,
                                                   const Forward::primitive_desc& forward) {
  const auto& [x, w, y] = layouts;
  const typename Backward::desc descriptor(kAlgorithm, x, w, y, g.strides, g.dilation, g.low,
                                           g.high);
  return {descriptor, UserScratchpad(), engine, forward};
}

#endif

bool IsReference(const char* implementation) {
  return std::string_view(implementation).starts_with("ref");
}

CompiledPass Compile(const ConvolutionShape& shape, ConvolutionPass pass, memory::data_type type,
                     int64_t images, const dnnl::engine& engine) {
  Layouts of_forward = PlainLayouts(shape, ConvolutionPass::kResult, type, images);
  Layouts layouts = PlainLayouts(shape, pass, type, images);
  for (memory::desc& layout : of_forward) layout = AnyLayout(layout);
  for (memory::desc& layout : layouts) layout = AnyLayout(layout);
  const Geometry geometry(shape.window);
  const auto forward = DescribeForward(engine, of_forward, geometry);
  switch (pass) {
    case ConvolutionPass::kInputGradient: {
      using Backward = dnnl::convolution_backward_data;
      const auto made = DescribeBackward<Backward>(engine, layouts, geometry, forward);
      return {Backward(made),
              {made.diff_src_desc(), made.weights_desc(), made.diff_dst_desc()},
              made.scratchpad_desc(),
              IsReference(made.impl_info_str())};
    }
    case ConvolutionPass::kWeightGradient: {
      using Backward = dnnl::convolution_backward_weights;
      const auto made = DescribeBackward<Backward>(engine, layouts, geometry, forward);
      return {Backward(made),
              {made.src_desc(), made.diff_weights_desc(), made.diff_dst_desc()},
              made.scratchpad_desc(),
              IsReference(made.impl_info_str())};
    }
    case ConvolutionPass::kResult:
      break;
  }
  return {Forward(forward),
          {forward.src_desc(), forward.weights_desc(), forward.dst_desc()},
          forward.scratchpad_desc(),
          IsReference(forward.impl_info_str())};
}

memory::data_type TypeOf(DType dtype) {
  return dtype == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
}

// How many images are computed at once.
int64_t ImagesAtOnce(const ConvolutionShape& shape, ConvolutionPass pass, DType dtype) {
  if (pass == ConvolutionPass::kWeightGradient) return shape.n;
  const int64_t image_bytes =
      static_cast<int64_t>(ByteSize(dtype)) * ((shape.x_size() + shape.y_size()) / shape.n);
  return std::clamp<int64_t>(kImagesBytes / std::max<int64_t>(image_bytes, 1), 1, shape.n);
}

// One of x, w and y: where it lies, and the copy of it in the layout that the pass wants.
struct Side {
  memory plain;
  memory used;  // `plain` itself where the layouts are equal
  dnnl::primitive reorder;
  bool is_copied = false;
  size_t offset = 0;  // of the copy in the workspace
  size_t stride = 0;  // bytes from a chunk to the next; 0: the same for all
};

// A number of images that are computed at once, and how often.
struct Chunk {
  int64_t count = 0;
  std::array<Side, 3> sides;
  CompiledPass pass;
  memory scratchpad;
  size_t scratchpad_offset = 0;
  size_t workspace_bytes = 0;
};

// The arguments' names in x, w, y.
std::array<int, 3> ArgumentsOf(ConvolutionPass pass) {
  switch (pass) {
    case ConvolutionPass::kInputGradient:
      return {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST};
    case ConvolutionPass::kWeightGradient:
      return {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST};
    case ConvolutionPass::kResult:
      break;
  }
  return {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
}

// The places of the operands and of the result in x, w, y.
std::array<size_t, 3> PlacesOf(ConvolutionPass pass) {
  switch (pass) {
    case ConvolutionPass::kInputGradient:
      return {1, 2, 0};
    case ConvolutionPass::kWeightGradient:
      return {0, 2, 1};
    case ConvolutionPass::kResult:
      break;
  }
  return {0, 1, 2};
}

}  // namespace

struct OneDnnConvolution::Impl {
  memory::data_type type;
  std::array<int, 3> arguments;
  std::array<size_t, 3> places;
  dnnl::engine engine;
  dnnl::stream stream;
  std::vector<Chunk> chunks;

  Chunk MakeChunk(const ConvolutionShape& shape, ConvolutionPass pass, int64_t images,
                  int64_t count) const {
    Chunk chunk;
    chunk.count = count;
    chunk.pass = Compile(shape, pass, type, images, engine);
    const Layouts plain = PlainLayouts(shape, pass, type, images);
    for (size_t i = 0; i < 3; ++i) {
      Side& side = chunk.sides[i];
      const memory::desc& used = chunk.pass.layouts[i];
      side.plain = memory(plain[i], engine, DNNL_MEMORY_NONE);
      side.used = side.plain;
      side.is_copied = used != plain[i];
      if (i != 1) side.stride = plain[i].get_size();
      if (!side.is_copied) continue;
      side.used = memory(used, engine, DNNL_MEMORY_NONE);
      side.reorder = i == places[2] ? dnnl::reorder(side.used, side.plain)
                                    : dnnl::reorder(side.plain, side.used);
      side.offset = chunk.workspace_bytes;
      chunk.workspace_bytes += OneDnnAligned(used.get_size());
    }
    chunk.scratchpad = memory(chunk.pass.scratchpad, engine, DNNL_MEMORY_NONE);
    chunk.scratchpad_offset = chunk.workspace_bytes;
    chunk.workspace_bytes += OneDnnAligned(chunk.pass.scratchpad.get_size());
    return chunk;
  }

  void Reorder(const Side& side, bool is_result) const {
    const memory& from = is_result ? side.used : side.plain;
    const memory& to = is_result ? side.plain : side.used;
    Execute(side.reorder, stream, {{DNNL_ARG_FROM, from.get()}, {DNNL_ARG_TO, to.get()}});
  }

  // Moves `sides` on by the chunks that were computed.
  void RunChunk(Chunk& chunk, std::array<std::byte*, 3>& sides, std::byte* workspace) const {
    for (size_t i = 0; i < 3; ++i) {
      if (chunk.sides[i].is_copied) {
        chunk.sides[i].used.set_data_handle(workspace + chunk.sides[i].offset);
      }
    }
    chunk.scratchpad.set_data_handle(workspace + chunk.scratchpad_offset);
    for (int64_t at = 0; at < chunk.count; ++at) {
      for (size_t i = 0; i < 3; ++i) {
        Side& side = chunk.sides[i];
        side.plain.set_data_handle(sides[i]);
        sides[i] += side.stride;
        const bool is_new = at == 0 || side.stride != 0;
        if (side.is_copied && i != places[2] && is_new) Reorder(side, false);
      }
      Execute(chunk.pass.primitive, stream,
              {{arguments[0], chunk.sides[0].used.get()},
               {arguments[1], chunk.sides[1].used.get()},
               {arguments[2], chunk.sides[2].used.get()},
               {DNNL_ARG_SCRATCHPAD, chunk.scratchpad.get()}});
      if (chunk.sides[places[2]].is_copied) Reorder(chunk.sides[places[2]], true);
    }
  }
};

OneDnnConvolution::OneDnnConvolution(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

OneDnnConvolution::~OneDnnConvolution() = default;

bool HasOneDnnConvolution(const ConvolutionShape& shape, ConvolutionPass pass, DType dtype) {
  if (dtype != DType::kBF16) return dtype == DType::kF32;
  if (OneDnnBf16Unit() == Bf16Unit::kNone) return false;
  RunOneDnnOnOneThread();
  try {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    const int64_t images = ImagesAtOnce(shape, pass, dtype);
    return !Compile(shape, pass, TypeOf(dtype), images, engine).is_reference;
  } catch (const dnnl::error&) {
    return false;
  }
}

absl::StatusOr<std::unique_ptr<OneDnnConvolution>> OneDnnConvolution::Create(
    const ConvolutionShape& shape, ConvolutionPass pass, DType dtype) {
  RunOneDnnOnOneThread();
  try {
    auto impl = std::make_unique<Impl>();
    impl->type = TypeOf(dtype);
    impl->arguments = ArgumentsOf(pass);
    impl->places = PlacesOf(pass);
    impl->engine = dnnl::engine(dnnl::engine::kind::cpu, 0);
    impl->stream = dnnl::stream(impl->engine);
    const int64_t images = ImagesAtOnce(shape, pass, dtype);
    impl->chunks.push_back(impl->MakeChunk(shape, pass, images, shape.n / images));
    const int64_t rest = shape.n % images;
    if (rest > 0) impl->chunks.push_back(impl->MakeChunk(shape, pass, rest, 1));
    return std::unique_ptr<OneDnnConvolution>(new OneDnnConvolution(std::move(impl)));
  } catch (const dnnl::error& error) {
    return OneDnnError("convolution", error);
  }
}

size_t OneDnnConvolution::workspace_bytes() const {
  size_t bytes = 0;
  for (const Chunk& chunk : impl_->chunks) bytes = std::max(bytes, chunk.workspace_bytes);
  return bytes;
}

absl::Status OneDnnConvolution::Run(const void* a, const void* b, void* result, void* workspace) {
  RunOneDnnOnOneThread();
  std::array<std::byte*, 3> sides;
  // oneDNN takes what it only reads as mutable, too.
  sides[impl_->places[0]] = static_cast<std::byte*>(const_cast<void*>(a));
  sides[impl_->places[1]] = static_cast<std::byte*>(const_cast<void*>(b));
  sides[impl_->places[2]] = static_cast<std::byte*>(result);
  try {
    for (Chunk& chunk : impl_->chunks) {
      impl_->RunChunk(chunk, sides, static_cast<std::byte*>(workspace));
    }
  } catch (const dnnl::error& error) {
    return OneDnnError("convolution", error);
  }
  return absl::OkStatus();
}

}  // namespace penstock::kernels
