#include "kernels/cuda/cuda_device.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "base/status_macros.h"
#include "base/stream_graph.h"
#include "base/strings.h"
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/device_code.h"

namespace penstock::kernels::cuda {
namespace {

// Whether work that was asked after is still running. CUDA then also keeps the answer as the last
// error of the thread, where a library that looks for errors of its own would find it.
bool IsRunning(cudaError_t query) {
  if (query != cudaErrorNotReady) return false;
  cudaGetLastError();
  return true;
}

// What the streams of a device and their events share.
struct DeviceState {
  ~DeviceState() {
    if (fault != nullptr) cudaFreeHost(const_cast<int32_t*>(fault));
  }

  int index = 0;
  volatile int32_t* fault = nullptr;  // GpuStream::device_fault

  // Makes the device current on this thread.
  cudaError_t Select() const { return cudaSetDevice(index); }
};

class CudaMemory : public Memory {
 public:
  CudaMemory(std::shared_ptr<const DeviceState> state, MemoryKind kind, std::byte* data,
             size_t num_bytes)
      : Memory(data, num_bytes), state_(std::move(state)), kind_(kind) {}
  // Both calls wait for work that uses the memory.
  ~CudaMemory() override {
    state_->Select();
    if (kind_ == MemoryKind::kDevice) {
      cudaFree(data());
    } else {
      cudaFreeHost(data());
    }
  }

 private:
  const std::shared_ptr<const DeviceState> state_;
  const MemoryKind kind_;
};

// What a device writes of a stream's errors.
struct PinnedErrors {
  Fault fault;
  PeerFault peer;
};

// The errors of a stream. Its events share them, because they may outlive it.
struct ErrorState {
  ~ErrorState() {
    if (pinned != nullptr) cudaFreeHost(pinned);
  }

  PinnedErrors* pinned = nullptr;
  absl::Status of_host;              // the first call that failed
  uint64_t host_launch = kNoLaunch;  // what it was to launch
  uint64_t peer_launch = kNoLaunch;  // GpuStream::SetPeerLaunch
  // Streams that this one has waited for, and those that they have.
  std::vector<std::shared_ptr<ErrorState>> upstream;

  bool has_fault() const { return pinned->fault.kind != Fault::kNone; }
  bool has_peer_fault() const { return pinned->peer.flags[0] != 0 || pinned->peer.flags[1] != 0; }

  bool has_error() const {
    const auto is_failed = [](const ErrorState& state) {
      return !state.of_host.ok() || state.has_fault() || state.has_peer_fault();
    };
    return is_failed(*this) || std::any_of(upstream.begin(), upstream.end(),
                                           [&](const auto& other) { return is_failed(*other); });
  }

  // What the device has found itself comes before what others have told it.
  StreamError first_error() const {
    if (!of_host.ok()) return {of_host, host_launch};
    if (has_fault()) return {FaultStatus(pinned->fault), pinned->fault.launch};
    for (const auto& other : upstream) {
      if (!other->of_host.ok()) return {other->of_host, other->host_launch};
      if (other->has_fault()) {
        return {FaultStatus(other->pinned->fault), other->pinned->fault.launch};
      }
    }
    const absl::Status of_peer =
        absl::AbortedError("a device of the collective or message has failed");
    if (has_peer_fault()) return {of_peer, peer_launch};
    for (const auto& other : upstream) {
      if (other->has_peer_fault()) return {of_peer, other->peer_launch};
    }
    return {};
  }
};

class CudaEvent : public Event {
 public:
  CudaEvent(std::shared_ptr<const DeviceState> state, bool is_timed)
      : state_(std::move(state)), is_timed_(is_timed) {
    creation_ = state_->Select();
    if (creation_ == cudaSuccess) {
      creation_ =
          cudaEventCreateWithFlags(&event_, is_timed ? cudaEventDefault : cudaEventDisableTiming);
    }
  }
  ~CudaEvent() override {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }

  bool IsDone() const override {
    if (errors_ == nullptr || is_done_) return true;  // never recorded, or seen before
    const cudaError_t query = cudaEventQuery(event_);
    if (IsRunning(query)) return false;
    is_done_ = true;
    if (has_error_) return true;  // since it was recorded
    if (query != cudaSuccess) {
      error_ = {ToStatus(query, "work of a stream"), kNoLaunch};
      has_error_ = true;
    } else if (errors_->has_error()) {
      error_ = errors_->first_error();
      has_error_ = true;
    }
    return true;
  }
  const StreamError* error() const override { return has_error_ ? &error_ : nullptr; }
  int64_t NsSince(const Event& earlier) const override {
    const auto& other = static_cast<const CudaEvent&>(earlier);
    float milliseconds = 0;
    if (!is_timed_ || !other.is_timed_ || state_->Select() != cudaSuccess) return -1;
    const cudaError_t found = cudaEventElapsedTime(&milliseconds, other.event_, event_);
    if (found != cudaSuccess) {
      cudaGetLastError();  // that there is no time is no failure of the work
      return -1;
    }
    return static_cast<int64_t>(1e6 * static_cast<double>(milliseconds));
  }

  cudaEvent_t handle() const { return event_; }
  cudaError_t creation() const { return creation_; }
  const std::shared_ptr<ErrorState>& errors() const { return errors_; }

  // Called as the event is recorded, with the stream's error so far. If recording failed, nothing
  // is known of the work before it, and the event is done at once.
  void StartOver(std::shared_ptr<ErrorState> errors, bool is_recorded) {
    errors_ = std::move(errors);
    is_done_ = !is_recorded;
    has_error_ = !errors_->of_host.ok();
    if (has_error_) error_ = {errors_->of_host, errors_->host_launch};
  }

 private:
  const std::shared_ptr<const DeviceState> state_;
  const bool is_timed_;
  cudaEvent_t event_ = nullptr;
  cudaError_t creation_ = cudaSuccess;
  std::shared_ptr<ErrorState> errors_;  // of the recording stream
  mutable bool is_done_ = false;
  mutable bool has_error_ = false;
  mutable StreamError error_;
};

class CudaGraph : public StreamGraph {
 public:
  CudaGraph(std::shared_ptr<const DeviceState> state, cudaGraphExec_t graph, bool uses_offsets)
      : state_(std::move(state)), graph_(graph), uses_offsets_(uses_offsets) {}
  ~CudaGraph() override {
    state_->Select();
    cudaGraphExecDestroy(graph_);
  }

  cudaGraphExec_t handle() const { return graph_; }
  // Whether a kernel of it reads the offsets.
  bool uses_offsets() const { return uses_offsets_; }

 private:
  const std::shared_ptr<const DeviceState> state_;
  const cudaGraphExec_t graph_;
  const bool uses_offsets_;
};

class StreamImpl : public CudaStream, public CapturingStream {
 public:
  explicit StreamImpl(std::shared_ptr<const DeviceState> state)
      : state_(std::move(state)), errors_(std::make_shared<ErrorState>()) {
    void* pinned = nullptr;
    if (!Check(state_->Select(), "selecting the device") ||
        !Check(cudaHostAlloc(&pinned, sizeof(PinnedErrors),
                             cudaHostAllocPortable | cudaHostAllocMapped),
               "pinning memory for a stream's errors")) {
      return;
    }
    errors_->pinned = new (pinned) PinnedErrors;
    errors_->pinned->fault.of_device = state_->fault;
    Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  }

  // Drops launches that are held back: no event can come after them.
  ~StreamImpl() override {
    errors_->upstream.clear();  // streams may have waited for each other
    if (stream_ == nullptr) return;
    state_->Select();
    // Bounded: CUDA frees the stream itself when its work is done.
    const SteadyClock clock;
    const int64_t begin_ns = clock.NowNs();
    while (IsRunning(cudaStreamQuery(stream_)) && clock.NowNs() - begin_ns < kMaxDestroyWaitNs) {
      sched_yield();
    }
    cudaStreamDestroy(stream_);
  }

  void Copy(void* to, const void* from, size_t num_bytes, CopyKind kind) override {
    if (num_bytes == 0 || stream_ == nullptr) return;
    LaunchHeld();
    static constexpr cudaMemcpyKind kKinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                                cudaMemcpyDeviceToDevice};
    if (!Check(state_->Select(), "selecting the device")) return;
    Check(cudaMemcpyAsync(to, from, num_bytes, kKinds[static_cast<int>(kind)], stream_), "copying");
  }

  void Record(Event* event) override {
    LaunchHeld();
    auto* recorded = static_cast<CudaEvent*>(event);
    const bool is_recorded =
        Check(recorded->creation(), "making an event") && stream_ != nullptr &&
        Check(state_->Select(), "selecting the device") &&
        Check(cudaEventRecord(recorded->handle(), stream_), "recording an event");
    recorded->StartOver(errors_, is_recorded);
  }

  void Wait(const Event* event) override {
    LaunchHeld();
    const auto* awaited = static_cast<const CudaEvent*>(event);
    if (awaited->errors() == nullptr || awaited->errors() == errors_) return;
    Follow(awaited->errors());
    for (const auto& other : awaited->errors()->upstream) Follow(other);
    if (stream_ == nullptr || !Check(state_->Select(), "selecting the device")) return;
    Check(cudaStreamWaitEvent(stream_, awaited->handle(), 0), "waiting for an event");
  }

  absl::Status Reset() override {
    if (stream_ == nullptr) return errors_->of_host;
    LaunchHeld();
    RETURN_IF_ERROR(ToStatus(state_->Select(), "selecting the device"));
    RETURN_IF_ERROR(ToStatus(cudaStreamSynchronize(stream_), "resetting a stream"));
    cudaGetLastError();  // of a call that failed and left nothing behind
    errors_->pinned->fault.kind = Fault::kNone;
    for (volatile int32_t& flag : errors_->pinned->peer.flags) flag = 0;
    *state_->fault = 0;
    ++num_resets_;
    errors_->of_host = absl::OkStatus();
    errors_->host_launch = kNoLaunch;
    errors_->upstream.clear();
    return absl::OkStatus();
  }

  StreamHandle handle() override {
    LaunchHeld();
    Check(state_->Select(), "selecting the device");
    return stream_;
  }
  Fault* fault() override { return stream_ != nullptr ? &errors_->pinned->fault : nullptr; }
  const volatile int32_t* device_fault() override { return state_->fault; }
  PeerFault* peer_fault() override { return stream_ != nullptr ? &errors_->pinned->peer : nullptr; }
  uint64_t num_resets() const override { return num_resets_; }
  void SetPeerLaunch(uint64_t launch) override { errors_->peer_launch = launch; }

  absl::Status status() const override { return errors_->of_host; }

  void Zero(void* to, size_t num_bytes) override {
    if (num_bytes == 0 || stream_ == nullptr) return;
    LaunchHeld();
    if (!Check(state_->Select(), "selecting the device")) return;
    Check(cudaMemsetAsync(to, 0, num_bytes, stream_), "zeroing memory");
  }

  const LaunchOffsets* offsets() override {
    if (!is_capturing_) return nullptr;
    uses_offsets_ = true;
    return reinterpret_cast<const LaunchOffsets*>(offsets_->data());
  }

  absl::Status BeginCapture() override {
    if (stream_ == nullptr) return errors_->of_host;
    LaunchHeld();
    RETURN_IF_ERROR(Named(state_->Select(), "selecting the device"));
    if (offsets_ == nullptr) {
      void* data = nullptr;
      RETURN_IF_ERROR(Named(cudaMalloc(&data, sizeof(LaunchOffsets)), "allocating offsets"));
      offsets_ = std::make_unique<CudaMemory>(state_, MemoryKind::kDevice,
                                              static_cast<std::byte*>(data), sizeof(LaunchOffsets));
    }
    // Other threads may make calls that capturing does not allow, such as allocations.
    RETURN_IF_ERROR(Named(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
                          "beginning to capture"));
    is_capturing_ = true;
    uses_offsets_ = false;
    of_capture_ = absl::OkStatus();
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<StreamGraph>> EndCapture() override {
    LaunchHeld();
    is_capturing_ = false;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t instance = nullptr;
    absl::Status status = of_capture_;
    status.Update(Named(state_->Select(), "selecting the device"));
    status.Update(Named(cudaStreamEndCapture(stream_, &graph), "capturing"));
    if (status.ok()) status = Named(cudaGraphInstantiate(&instance, graph, 0), "making a graph");
    // Otherwise the first launch would take the time and the memory.
    if (status.ok()) status = Named(cudaGraphUpload(instance, stream_), "loading a graph");
    if (graph != nullptr) cudaGraphDestroy(graph);
    if (!status.ok()) {
      if (instance != nullptr) cudaGraphExecDestroy(instance);
      cudaGetLastError();  // it is known
      return status;
    }
    return std::make_unique<CudaGraph>(state_, instance, uses_offsets_);
  }

  void Launch(StreamGraph& graph, const GraphOffsets& offsets) override {
    LaunchHeld();
    if (stream_ == nullptr || !Check(state_->Select(), "selecting the device")) return;
    const auto& launched = static_cast<const CudaGraph&>(graph);
    if (launched.uses_offsets()) {
      auto* to = reinterpret_cast<LaunchOffsets*>(offsets_->data());
      const auto stored =
          static_cast<cudaError_t>(StoreOffsets(stream_, to, {offsets.step, offsets.launch}));
      // With the offsets of another launch it would compute something else.
      if (!Check(stored, "storing the offsets of a graph")) return;
    }
    Check(cudaGraphLaunch(launched.handle(), stream_), "launching a graph");
  }

 private:
  void FailHeld(LaunchResult result, std::string_view op, uint64_t launch) override {
    if (!is_capturing_ && errors_->of_host.ok()) errors_->host_launch = launch;
    Check(static_cast<cudaError_t>(result), StrCat("launching ", op));
  }

  absl::Status Named(cudaError_t error, std::string_view what) const {
    if (error == cudaSuccess) return absl::OkStatus();
    return ToStatus(error, StrCat("cuda device ", state_->index, ": ", what));
  }

  // Keeps the first error. Returns whether there is none.
  bool Check(cudaError_t error, std::string_view what) {
    if (error == cudaSuccess) return true;
    (is_capturing_ ? of_capture_ : errors_->of_host).Update(Named(error, what));
    return false;
  }

  void Follow(const std::shared_ptr<ErrorState>& other) {
    if (other == errors_) return;
    auto& upstream = errors_->upstream;
    if (std::find(upstream.begin(), upstream.end(), other) == upstream.end()) {
      upstream.push_back(other);
    }
  }

  const std::shared_ptr<const DeviceState> state_;
  const std::shared_ptr<ErrorState> errors_;
  cudaStream_t stream_ = nullptr;
  uint64_t num_resets_ = 0;
  std::unique_ptr<CudaMemory> offsets_;  // LaunchOffsets; null before the first capture
  bool is_capturing_ = false;
  bool uses_offsets_ = false;  // what is being captured does
  absl::Status of_capture_;    // the first call that failed in it
};

class CudaDeviceImpl : public CudaDevice {
 public:
  CudaDeviceImpl(std::shared_ptr<const DeviceState> state, std::unique_ptr<Blas> blas,
                 AttentionChoice attention_choice)
      : state_(std::move(state)), blas_(std::move(blas)), attention_choice_(attention_choice) {}
  ~CudaDeviceImpl() override { state_->Select(); }  // for the handles of libraries, which go next

  std::string kind() const override { return "cuda"; }
  bool is_synchronous() const override { return false; }

  absl::StatusOr<std::unique_ptr<Memory>> Allocate(size_t num_bytes, MemoryKind kind) override {
    RETURN_IF_ERROR(ToStatus(state_->Select(), "selecting the device"));
    void* data = nullptr;
    const size_t wanted = std::max<size_t>(num_bytes, 1);
    if (kind == MemoryKind::kDevice) {
      RETURN_IF_ERROR(
          ToStatus(cudaMalloc(&data, wanted),
                   StrCat("allocating ", num_bytes, " bytes on cuda device ", state_->index)));
    } else {
      // Pinned also for kHost: copies then never block.
      RETURN_IF_ERROR(ToStatus(cudaHostAlloc(&data, wanted, cudaHostAllocPortable),
                               StrCat("pinning ", num_bytes, " bytes of the host")));
    }
    auto memory =
        std::make_unique<CudaMemory>(state_, kind, static_cast<std::byte*>(data), num_bytes);
    if (kind == MemoryKind::kDevice) {
      // Streams do not wait for the default stream, so this waits for the zeros.
      RETURN_IF_ERROR(ToStatus(cudaMemset(data, 0, wanted), "zeroing memory"));
      RETURN_IF_ERROR(ToStatus(cudaDeviceSynchronize(), "zeroing memory"));
    } else {
      std::memset(data, 0, wanted);
    }
    return memory;
  }

  // A stream that could not be made carries the error to its events.
  std::unique_ptr<Stream> CreateStream() override { return std::make_unique<StreamImpl>(state_); }
  std::unique_ptr<Event> CreateEvent() override {
    return std::make_unique<CudaEvent>(state_, /*is_timed=*/false);
  }
  std::unique_ptr<Event> CreateTimedEvent() override {
    return std::make_unique<CudaEvent>(state_, /*is_timed=*/true);
  }

  Blas& blas() override { return *blas_; }

  // Without the libraries, kernels of this folder compute; `penstock doctor` says why.
  ConvolutionLibrary* convolutions() override {
    return Find(CreateCudnn, &convolutions_).ok() ? convolutions_->value().get() : nullptr;
  }
  absl::StatusOr<AttentionLibrary*> attention() override {
    if (attention_choice_ == AttentionChoice::kOwn) return nullptr;
    const bool is_required = attention_choice_ == AttentionChoice::kLibrary;
    const absl::Status found =
        Find([is_required] { return CreateCudnnAttention(is_required); }, &attention_);
    if (found.ok()) return attention_->value().get();
    if (is_required) return found;
    return nullptr;
  }

 private:
  // Not set until it is asked for.
  template <typename Library>
  using Found = std::optional<absl::StatusOr<std::unique_ptr<Library>>>;

  // Has `create` make the library at the first call; why there is none.
  template <typename Create, typename Library>
  absl::Status Find(const Create& create, Found<Library>* library) {
    if (!library->has_value()) {
      const absl::Status selected = ToStatus(state_->Select(), "selecting the device");
      if (selected.ok()) {
        *library = create();
      } else {
        *library = selected;
      }
    }
    return (*library)->status();
  }

  const std::shared_ptr<const DeviceState> state_;
  const std::unique_ptr<Blas> blas_;
  const AttentionChoice attention_choice_;
  Found<AttentionLibrary> attention_;
  Found<ConvolutionLibrary> convolutions_;
};

// An error unless this build has code for the device, which is current.
absl::Status CheckDeviceCode(int index) {
  const LaunchResult found = FindDeviceCode();
  if (found == cudaSuccess) return absl::OkStatus();
  if (found != cudaErrorNoKernelImageForDevice && found != cudaErrorInvalidDeviceFunction) {
    return ToStatus(found, StrCat("loading the kernels on cuda device ", index));
  }
  cudaGetLastError();  // it is known
  cudaDeviceProp device = {};
  RETURN_IF_ERROR(ToStatus(cudaGetDeviceProperties(&device, index),
                           StrCat("reading the properties of cuda device ", index)));
  const int lowest = LowestArchitecture();
  return absl::FailedPreconditionError(StrCat(
      "cuda device ", index, " (", device.name, ") has compute capability ", device.major, ".",
      device.minor, ", and this build has kernels for ", lowest / 10, ".", lowest % 10,
      " and later ones: build it with -DCMAKE_CUDA_ARCHITECTURES=", device.major, device.minor));
}

}  // namespace

void CudaStream::Hold(LaunchBatch* batch, bool has_room, LaunchBatch::Ranges reads,
                      LaunchBatch::Ranges writes, std::string_view op, uint64_t launch) {
  if (held_ != batch || !has_room || batch->MustFollow(reads, writes)) LaunchHeld();
  if (held_ == nullptr) {
    held_ = batch;
    held_op_ = op;
    held_launch_ = launch;
  }
  batch->Touch(reads, writes);
}

void CudaStream::LaunchHeld() {
  if (held_ == nullptr) return;
  LaunchBatch* const batch = std::exchange(held_, nullptr);
  const LaunchResult result = batch->Launch(handle());
  if (result != 0) FailHeld(result, held_op_, held_launch_);
}

absl::Status ToStatus(LaunchResult result, std::string_view what) {
  const auto error = static_cast<cudaError_t>(result);
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      StrCat(what, ": ", cudaGetErrorName(error), " (", cudaGetErrorString(error), ")");
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

absl::Status FaultStatus(const Fault& fault) {
  return absl::InvalidArgumentError(
      StrCat("index ", fault.value, " lies outside [0, ", fault.limit, ")"));
}

absl::StatusOr<std::unique_ptr<CudaDevice>> OpenCudaDevice(int index, CreateBlas* create_blas) {
  ASSIGN_OR_RETURN(const AttentionChoice attention_choice,
                   ParseAttentionChoice(std::getenv(kAttentionVariable)));
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess) {
    return absl::FailedPreconditionError(
        StrCat("this machine has no GPU that CUDA can use: ", cudaGetErrorString(counted)));
  }
  if (index < 0 || index >= count) {
    return absl::FailedPreconditionError(
        StrCat("there is no cuda device ", index, ": CUDA sees ", count));
  }
  auto state = std::make_shared<DeviceState>();
  state->index = index;
  RETURN_IF_ERROR(ToStatus(state->Select(), StrCat("selecting cuda device ", index)));
  RETURN_IF_ERROR(CheckDeviceCode(index));
  void* fault = nullptr;
  RETURN_IF_ERROR(
      ToStatus(cudaHostAlloc(&fault, sizeof(int32_t), cudaHostAllocPortable | cudaHostAllocMapped),
               "pinning memory for a device's errors"));
  state->fault = new (fault) int32_t(0);
  ASSIGN_OR_RETURN(std::unique_ptr<Blas> blas,
                   create_blas != nullptr ? create_blas() : CreateCublas());
  return std::make_unique<CudaDeviceImpl>(std::move(state), std::move(blas), attention_choice);
}

}  // namespace penstock::kernels::cuda
