// Scaled dot-product attention through the graphs of cuDNN, which NVIDIA's header-only frontend
// builds. The only file that includes the frontend: it takes long to compile.
//
// The frontend finds cuDNN's functions by name in `cudnn_dlhandle`, and CUDA's in a runtime that it
// loads itself. Its exceptions end here.

#include <dlfcn.h>

#include <cmath>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "base/half.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/cuda/attention_library.h"
#include "kernels/cuda/cuda_library.h"
#include "kernels/cudnn/cudnn_api.h"

// The frontend tries the runtimes of several versions of CUDA, and complains on stderr if it finds
// more than one. It is given the one that this program has.
static void* OpenForCudnnFrontend(const char* name, int flags) {
  using penstock::StrCat;
  constexpr std::string_view kRuntime = "libcudart.so";
  if (!std::string_view(name).starts_with(kRuntime)) return dlopen(name, flags);
  const std::string own = StrCat(kRuntime, ".", CUDART_VERSION / 1000);
  if (name != own) return nullptr;
  const std::string path = StrCat(penstock::kernels::cuda::RuntimeFolder(), "/", own);
  void* const library = dlopen(path.c_str(), flags);
  return library != nullptr ? library : dlopen(name, flags);
}

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#define dlopen OpenForCudnnFrontend
#include <cudnn_frontend.h>
#undef dlopen

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}  // namespace cudnn_frontend

namespace penstock::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;

// What the frontend knows a tensor by.
enum Uid : int64_t {
  kQ = 1,
  kK = 2,
  kV = 3,
  kO = 4,
  kLse = 5,
  kOGrad = 6,
  kQGrad = 7,
  kKGrad = 8,
  kVGrad = 9,
};

// Earlier versions have bugs that the frontend lists, or want lengths of sequences in memory.
constexpr size_t kOldestVersion = 91600;

absl::Status ToStatus(fe::error_t error) {
  if (error.is_good()) return absl::OkStatus();
  return absl::InternalError(StrCat("cuDNN: attention: ", error.get_message()));
}

// f(), whose exceptions become errors.
template <typename F>
absl::Status Guarded(const F& f) {
  try {
    return f();
  } catch (const std::exception& exception) {
    return absl::InternalError(StrCat("cuDNN: attention: ", exception.what()));
  } catch (...) {
    return absl::InternalError("cuDNN: attention: an exception");
  }
}

// The heads of one call.
struct Heads {
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t key_heads = 0;
};

// Builds a graph for some heads of an attention.
class Builder {
 public:
  Builder(const LibraryAttentionShape& shape, const Heads& heads)
      : shape_(shape), heads_(heads), graph_(std::make_unique<Graph>()) {
    graph_
        ->set_io_data_type(shape.dtype == DType::kBF16 ? fe::DataType_t::BFLOAT16
                                                       : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    // The engine destroys a captured graph before the kernels that it was captured from.
    graph_->set_cuda_graph_retention(fe::CudaGraphRetention_t::NONE);
  }

  Graph& graph() { return *graph_; }
  std::unique_ptr<Graph> Take() { return std::move(graph_); }

  Tensor Queries(Uid uid, const HeadStrides& strides) {
    return graph_->tensor(Set(Tensor_attributes(), uid, QueryDims(), StridesOf(strides)));
  }
  Tensor Keys(Uid uid, const HeadStrides& strides) {
    return graph_->tensor(Set(Tensor_attributes(), uid, KeyDims(), StridesOf(strides)));
  }
  Tensor Statistics() {
    return graph_->tensor(Set(Tensor_attributes(), kLse, StatisticsDims(), StatisticsStrides())
                              .set_data_type(fe::DataType_t::FLOAT));
  }

  void SetQueries(const Tensor& result, Uid uid, const HeadStrides& strides) {
    Set(*result, uid, QueryDims(), StridesOf(strides)).set_output(true);
  }
  void SetKeys(const Tensor& result, Uid uid, const HeadStrides& strides) {
    Set(*result, uid, KeyDims(), StridesOf(strides)).set_output(true);
  }
  void SetStatistics(const Tensor& result) {
    Set(*result, kLse, StatisticsDims(), StatisticsStrides())
        .set_data_type(fe::DataType_t::FLOAT)
        .set_output(true);
  }

  // Scores are scaled by this.
  float scale() const { return 1 / std::sqrt(static_cast<float>(shape_.sizes.width)); }

 private:
  using Sizes = std::vector<int64_t>;

  static Tensor_attributes& Set(Tensor_attributes&& tensor, Uid uid, const Sizes& dims,
                                const Sizes& strides) {
    return Set(tensor, uid, dims, strides);
  }
  static Tensor_attributes& Set(Tensor_attributes& tensor, Uid uid, const Sizes& dims,
                                const Sizes& strides) {
    return tensor.set_uid(uid).set_dim(dims).set_stride(strides);
  }

  static Sizes StridesOf(const HeadStrides& strides) {
    return {strides.batch, strides.head, strides.row, 1};
  }
  Sizes QueryDims() const {
    return {heads_.batch, heads_.heads, shape_.sizes.queries, shape_.sizes.width};
  }
  Sizes KeyDims() const {
    return {heads_.batch, heads_.key_heads, shape_.sizes.keys, shape_.sizes.width};
  }
  Sizes StatisticsDims() const { return {heads_.batch, heads_.heads, shape_.sizes.queries, 1}; }
  Sizes StatisticsStrides() const {
    return {heads_.heads * shape_.sizes.queries, shape_.sizes.queries, 1, 1};
  }

  const LibraryAttentionShape& shape_;
  const Heads heads_;
  std::unique_ptr<Graph> graph_;
};

std::unique_ptr<Graph> ForwardGraph(const LibraryAttentionShape& shape, bool has_lse) {
  Builder builder(shape, {shape.sizes.batch, shape.sizes.heads, shape.sizes.key_heads});
  const Tensor q = builder.Queries(kQ, shape.q);
  const Tensor k = builder.Keys(kK, shape.k);
  const Tensor v = builder.Keys(kV, shape.v);
  auto options = fe::graph::SDPA_attributes();
  options.set_name("attention")
      .set_generate_stats(has_lse)
      .set_attn_scale(builder.scale())
      .set_implementation(fe::AttentionImplementation_t::COMPOSITE);
  if (shape.sizes.is_causal) options.set_causal_mask(true);
  const auto [o, statistics] = builder.graph().sdpa(q, k, v, options);
  builder.SetQueries(o, kO, shape.o);
  if (has_lse) builder.SetStatistics(statistics);
  return builder.Take();
}

std::unique_ptr<Graph> GradGraph(const LibraryAttentionShape& shape, const Heads& heads) {
  Builder builder(shape, heads);
  const Tensor q = builder.Queries(kQ, shape.q);
  const Tensor k = builder.Keys(kK, shape.k);
  const Tensor v = builder.Keys(kV, shape.v);
  const Tensor o = builder.Queries(kO, shape.o);
  const Tensor d_o = builder.Queries(kOGrad, shape.o);
  const Tensor statistics = builder.Statistics();
  auto options = fe::graph::SDPA_backward_attributes();
  options.set_name("attention_grad")
      .set_attn_scale(builder.scale())
      .set_deterministic_algorithm(true);
  if (shape.sizes.is_causal) options.set_causal_mask(true);
  const auto [dq, dk, dv] = builder.graph().sdpa_backward(q, k, v, o, d_o, statistics, options);
  builder.SetQueries(dq, kQGrad, shape.q);
  builder.SetKeys(dk, kKGrad, shape.k);
  builder.SetKeys(dv, kVGrad, shape.v);
  return builder.Take();
}

// A plan of at most so much workspace.
absl::Status BuildPlan(cudnnHandle_t handle, size_t workspace_bytes, Graph* graph) {
  const auto limit = static_cast<int64_t>(workspace_bytes);
  RETURN_IF_ERROR(ToStatus(graph->validate()));
  RETURN_IF_ERROR(ToStatus(graph->build_operation_graph(handle)));
  RETURN_IF_ERROR(ToStatus(graph->create_execution_plans({fe::HeurMode_t::A})));
  graph->deselect_workspace_greater_than(limit);
  graph->deselect_numeric_notes({fe::NumericalNote_t::NONDETERMINISTIC});
  RETURN_IF_ERROR(ToStatus(graph->check_support()));
  RETURN_IF_ERROR(ToStatus(graph->build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE)));
  int64_t wanted = 0;
  RETURN_IF_ERROR(ToStatus(graph->get_workspace_size(wanted)));
  if (wanted > limit) {
    return absl::ResourceExhaustedError(StrCat("cuDNN: attention: the plan takes ", wanted,
                                               " bytes of workspace, where ", limit,
                                               " are reserved"));
  }
  // Looks up functions of CUDA now rather than in the first run, which may be captured.
  fe::detail::has_current_context();
  return absl::OkStatus();
}

void* WithoutConst(const void* data) { return const_cast<void*>(data); }

class CudnnAttention : public LibraryAttention {
 public:
  CudnnAttention(cudnnHandle_t handle, std::shared_ptr<const Graph> graph, bool has_lse)
      : handle_(handle), graph_(std::move(graph)), has_lse_(has_lse) {}

  absl::Status Run(const LibraryAttentionOperands& x, void* workspace) override {
    return Guarded([&] {
      addresses_[kQ] = WithoutConst(x.q);
      addresses_[kK] = WithoutConst(x.k);
      addresses_[kV] = WithoutConst(x.v);
      addresses_[kO] = x.o;
      if (has_lse_) addresses_[kLse] = x.lse;
      return ToStatus(graph_->execute(handle_, addresses_, workspace));
    });
  }

 private:
  const cudnnHandle_t handle_;
  const std::shared_ptr<const Graph> graph_;
  const bool has_lse_;
  std::unordered_map<int64_t, void*> addresses_;
};

class CudnnAttentionGrad : public LibraryAttentionGrad {
 public:
  CudnnAttentionGrad(cudnnHandle_t handle, std::shared_ptr<const Graph> graph,
                     const LibraryAttentionShape& shape, const AttentionGradSlice& slice)
      : handle_(handle), graph_(std::move(graph)), shape_(shape), slice_(slice) {}

  absl::Status Run(const LibraryAttentionGradOperands& x, void* workspace) override {
    return Guarded([&]() -> absl::Status {
      const kernels::AttentionShape& sizes = shape_.sizes;
      for (int64_t batch = 0; batch < sizes.batch; batch += slice_.batch) {
        for (int64_t head = 0; head < sizes.key_heads; head += slice_.key_heads) {
          RETURN_IF_ERROR(RunSlice(x, batch, head, workspace));
        }
      }
      return absl::OkStatus();
    });
  }

 private:
  static void* At(const void* data, const HeadStrides& strides, int64_t batch, int64_t head) {
    static_assert(sizeof(BFloat16) == 2 && sizeof(Float16) == 2);
    return static_cast<char*>(WithoutConst(data)) +
           2 * (batch * strides.batch + head * strides.head);
  }

  absl::Status RunSlice(const LibraryAttentionGradOperands& x, int64_t batch, int64_t key_head,
                        void* workspace) {
    const kernels::AttentionShape& sizes = shape_.sizes;
    const int64_t head = key_head * (sizes.heads / sizes.key_heads);
    const float* const lse = x.lse + (batch * sizes.heads + head) * sizes.queries;
    addresses_[kQ] = At(x.q, shape_.q, batch, head);
    addresses_[kK] = At(x.k, shape_.k, batch, key_head);
    addresses_[kV] = At(x.v, shape_.v, batch, key_head);
    addresses_[kO] = At(x.o, shape_.o, batch, head);
    addresses_[kLse] = WithoutConst(lse);
    addresses_[kOGrad] = At(x.d_o, shape_.o, batch, head);
    addresses_[kQGrad] = At(x.dq, shape_.q, batch, head);
    addresses_[kKGrad] = At(x.dk, shape_.k, batch, key_head);
    addresses_[kVGrad] = At(x.dv, shape_.v, batch, key_head);
    return ToStatus(graph_->execute(handle_, addresses_, workspace));
  }

  const cudnnHandle_t handle_;
  const std::shared_ptr<const Graph> graph_;
  const LibraryAttentionShape shape_;
  const AttentionGradSlice slice_;
  std::unordered_map<int64_t, void*> addresses_;
};

class CudnnAttentionLibrary : public AttentionLibrary {
 public:
  CudnnAttentionLibrary(const CudnnApi& api, bool is_required)
      : api_(api), is_required_(is_required) {}
  ~CudnnAttentionLibrary() override {
    for (const auto& [stream, handle] : handles_) api_.destroy(handle);
  }

  absl::StatusOr<std::unique_ptr<LibraryAttention>> Create(StreamHandle stream,
                                                           const LibraryAttentionShape& shape,
                                                           bool has_lse) override {
    std::unique_ptr<LibraryAttention> made;
    RETURN_IF_ERROR(UnlessOptional(Guarded([&]() -> absl::Status {
      ASSIGN_OR_RETURN(const cudnnHandle_t handle, HandleOf(stream));
      ASSIGN_OR_RETURN(
          auto graph,
          Find(stream, shape, has_lse ? kForwardWithLse : kForward,
               [&]() -> absl::StatusOr<std::unique_ptr<Graph>> {
                 std::unique_ptr<Graph> built = ForwardGraph(shape, has_lse);
                 RETURN_IF_ERROR(BuildPlan(handle, kAttentionWorkspaceBytes, built.get()));
                 return built;
               }));
      made = std::make_unique<CudnnAttention>(handle, std::move(graph), has_lse);
      return absl::OkStatus();
    })));
    return made;
  }

  absl::StatusOr<std::unique_ptr<LibraryAttentionGrad>> CreateGrad(
      StreamHandle stream, const LibraryAttentionShape& shape) override {
    std::unique_ptr<LibraryAttentionGrad> made;
    RETURN_IF_ERROR(UnlessOptional(Guarded([&]() -> absl::Status {
      ASSIGN_OR_RETURN(const cudnnHandle_t handle, HandleOf(stream));
      const AttentionGradSlice slice = SliceOfGrad(shape.sizes);
      const Heads heads = {slice.batch,
                           slice.key_heads * (shape.sizes.heads / shape.sizes.key_heads),
                           slice.key_heads};
      ASSIGN_OR_RETURN(
          auto graph, Find(stream, shape, kGrad, [&]() -> absl::StatusOr<std::unique_ptr<Graph>> {
            std::unique_ptr<Graph> built = GradGraph(shape, heads);
            RETURN_IF_ERROR(
                BuildPlan(handle, AttentionGradWorkspaceBytes(shape.sizes), built.get()));
            return built;
          }));
      made = std::make_unique<CudnnAttentionGrad>(handle, std::move(graph), shape, slice);
      return absl::OkStatus();
    })));
    return made;
  }

 private:
  enum Pass : int64_t { kForward, kForwardWithLse, kGrad };

  // The graph of a pass, which all kernels of the shape on the stream share: cuDNN compiles code
  // for it, and a model has many layers. `build` makes it where there is none.
  template <typename F>
  absl::StatusOr<std::shared_ptr<const Graph>> Find(StreamHandle stream,
                                                    const LibraryAttentionShape& shape, Pass pass,
                                                    const F& build) {
    const kernels::AttentionShape& s = shape.sizes;
    std::vector<int64_t> key = {reinterpret_cast<intptr_t>(stream),
                                pass,
                                static_cast<int64_t>(shape.dtype),
                                s.batch,
                                s.heads,
                                s.key_heads,
                                s.queries,
                                s.keys,
                                s.width,
                                s.is_causal ? 1 : 0};
    for (const HeadStrides& strides : {shape.q, shape.k, shape.v, shape.o}) {
      key.insert(key.end(), {strides.batch, strides.head, strides.row});
    }
    std::weak_ptr<const Graph>& known = graphs_[std::move(key)];
    std::shared_ptr<const Graph> graph = known.lock();
    if (graph != nullptr) return graph;
    ASSIGN_OR_RETURN(graph, build());
    known = graph;
    return graph;
  }

  // Without the library, kernels of kernels/cuda/ compute: failing to build is an error only where
  // the library is required.
  absl::Status UnlessOptional(const absl::Status& built) const {
    return is_required_ ? built : absl::OkStatus();
  }

  // A handle for each stream: runs set nothing, so that they can be captured into graphs.
  absl::StatusOr<cudnnHandle_t> HandleOf(StreamHandle stream) {
    const auto known = handles_.find(stream);
    if (known != handles_.end()) return known->second;
    const auto check = [this](cudnnStatus_t status, std::string_view what) {
      if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
      return absl::InternalError(StrCat("cuDNN: ", what, ": ", api_.get_error_string(status)));
    };
    cudnnHandle_t handle = nullptr;
    RETURN_IF_ERROR(check(api_.create(&handle), "starting on a device"));
    const cudnnStatus_t set = api_.set_stream(handle, stream);
    if (set != CUDNN_STATUS_SUCCESS) api_.destroy(handle);
    RETURN_IF_ERROR(check(set, "setting the stream"));
    handles_[stream] = handle;
    return handle;
  }

  const CudnnApi api_;
  const bool is_required_;
  std::map<StreamHandle, cudnnHandle_t> handles_;
  std::map<std::vector<int64_t>, std::weak_ptr<const Graph>> graphs_;
};

// cuDNN, which the frontend then has, too.
absl::StatusOr<CudnnApi> LoadForAttention() {
  ASSIGN_OR_RETURN(const CudnnApi api, LoadCudnn());
  const size_t version = api.get_version();
  if (version < kOldestVersion) {
    const auto text = [](size_t v) { return StrCat(v / 10000, ".", v / 100 % 100); };
    return absl::FailedPreconditionError(
        StrCat("it takes cuDNN ", text(kOldestVersion), " or later, not ", text(version)));
  }
  static const absl::Status given = []() -> absl::Status {
    ASSIGN_OR_RETURN(fe::cudnn_dlhandle,
                     OpenCudaLibrary("cuDNN", CudnnLibraryName(), RuntimeFolder()));
    return absl::OkStatus();
  }();
  RETURN_IF_ERROR(given);
  return api;
}

}  // namespace

absl::Status FindCudnnAttention() { return LoadForAttention().status(); }

absl::StatusOr<std::unique_ptr<AttentionLibrary>> CreateCudnnAttention(bool is_required) {
  ASSIGN_OR_RETURN(const CudnnApi api, LoadForAttention());
  return std::make_unique<CudnnAttentionLibrary>(api, is_required);
}

}  // namespace penstock::kernels::cuda
