// The device on a runtime that this file fakes: what the device asks of CUDA, and what becomes of
// errors. The functions below take the place of those of CUDA's runtime.

#include "kernels/cuda/cuda_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <cuda_runtime_api.h>

#include "base/stream_graph.h"
#include "kernels/cuda/cuda_kernel.h"

namespace {

// Work of a stream runs one piece at a time, when some stream or event is asked whether it is done.
struct FakeEvent {
  int num_records = 0;
  int num_reached = 0;
  bool is_timed = false;
  int64_t reached_at = 0;  // FakeCuda::num_rounds
};
using FakeWork = std::function<bool()>;  // returns false while it has to wait
struct FakeGraph {
  std::deque<FakeWork> work;
};
struct FakeStream {
  std::deque<FakeWork> work;
  FakeGraph* capture = nullptr;  // what it is given goes there
  bool has_broken_capture = false;

  void Give(FakeWork given) {
    (capture != nullptr ? capture->work : work).push_back(std::move(given));
  }
};

struct FakeCuda {
  int num_devices = 2;
  int current = -1;
  std::vector<int> selected;  // by calls that need a device
  std::vector<cudaMemcpyKind> copy_kinds;
  std::vector<unsigned> host_flags;       // of cudaHostAlloc
  cudaError_t code = cudaSuccess;         // of a look for a kernel's code
  cudaError_t count_error = cudaSuccess;  // of cudaGetDeviceCount
  cudaError_t next_error = cudaSuccess;   // of the next call that can fail
  cudaError_t sticky = cudaSuccess;       // of all calls from now on
  cudaError_t last = cudaSuccess;         // that cudaGetLastError returns
  std::vector<FakeStream*> streams;
  int num_graphs = 0;          // that are not destroyed
  int num_offsets_stored = 0;  // launches of the kernel that does so
  int num_uploads = 0;
  std::vector<cudaStreamCaptureMode> capture_modes;
  int num_allocations = 0;  // that are not freed

  int64_t num_rounds = 0;  // half a microsecond each

  // What a call returns stays behind as the last error.
  cudaError_t Return(cudaError_t error) {
    if (error != cudaSuccess) last = error;
    return error;
  }
  cudaError_t Take() {
    if (sticky != cudaSuccess) return Return(sticky);
    const cudaError_t error = next_error;
    next_error = cudaSuccess;
    return Return(error);
  }
  void RunSome() {
    ++num_rounds;
    for (FakeStream* stream : streams) {
      if (!stream->work.empty() && stream->work.front()()) stream->work.pop_front();
    }
  }
};
FakeCuda* fake = nullptr;

FakeStream* Of(cudaStream_t stream) { return reinterpret_cast<FakeStream*>(stream); }
FakeEvent* Of(cudaEvent_t event) { return reinterpret_cast<FakeEvent*>(event); }

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = fake->num_devices;
  return fake->count_error;
}
cudaError_t cudaSetDevice(int device) {
  fake->current = device;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) { return fake->code; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* device, int) {
  std::strcpy(device->name, "Tesla T4");
  device->major = 7;
  device->minor = 5;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** data, size_t num_bytes) {
  fake->selected.push_back(fake->current);
  const cudaError_t error = fake->Take();
  if (error != cudaSuccess) return error;
  *data = std::malloc(num_bytes);
  std::memset(*data, 0x7f, num_bytes);
  ++fake->num_allocations;
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  std::free(data);
  --fake->num_allocations;
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, size_t num_bytes, unsigned flags) {
  fake->host_flags.push_back(flags);
  return cudaMalloc(data, num_bytes);
}
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }
cudaError_t cudaMemset(void* data, int value, size_t num_bytes) {
  std::memset(data, value, num_bytes);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaGetLastError() {
  const cudaError_t last = fake->last;
  fake->last = fake->sticky;
  return last;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  fake->selected.push_back(fake->current);
  const cudaError_t error = fake->Take();
  if (error != cudaSuccess) return error;
  if (flags != cudaStreamNonBlocking) return cudaErrorInvalidValue;
  fake->streams.push_back(new FakeStream);
  *stream = reinterpret_cast<cudaStream_t>(fake->streams.back());
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  fake->selected.push_back(fake->current);
  const cudaError_t error = fake->Take();
  if (error != cudaSuccess) return error;
  fake->capture_modes.push_back(mode);
  Of(stream)->capture = new FakeGraph;
  Of(stream)->has_broken_capture = false;
  ++fake->num_graphs;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  FakeStream* captured = Of(stream);
  *graph = nullptr;
  if (captured->has_broken_capture) {
    delete captured->capture;
    --fake->num_graphs;
  } else {
    *graph = reinterpret_cast<cudaGraph_t>(captured->capture);
  }
  captured->capture = nullptr;
  return captured->has_broken_capture ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* instance, cudaGraph_t graph,
                                 unsigned long long) {  // NOLINT(google-runtime-int)
  const cudaError_t error = fake->Take();
  if (error != cudaSuccess) return error;
  *instance =
      reinterpret_cast<cudaGraphExec_t>(new FakeGraph(*reinterpret_cast<FakeGraph*>(graph)));
  ++fake->num_graphs;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<FakeGraph*>(graph);
  --fake->num_graphs;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  return cudaGraphDestroy(reinterpret_cast<cudaGraph_t>(graph));
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  ++fake->num_uploads;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  fake->selected.push_back(fake->current);
  const cudaError_t error = fake->Take();
  if (error != cudaSuccess) return error;
  for (const FakeWork& work : reinterpret_cast<FakeGraph*>(graph)->work) Of(stream)->Give(work);
  return cudaSuccess;
}
// The one kernel that the device itself launches stores the offsets of graphs.
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void*, void** args) {
  using penstock::kernels::cuda::LaunchOffsets;
  auto* const to = *static_cast<LaunchOffsets**>(args[0]);
  const LaunchOffsets offsets = *static_cast<const LaunchOffsets*>(args[1]);
  ++fake->num_offsets_stored;
  Of(config->stream)->Give([=] {
    *to = offsets;
    return true;
  });
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::erase(fake->streams, Of(stream));
  delete Of(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  fake->RunSome();
  if (fake->sticky != cudaSuccess) return fake->Return(fake->sticky);
  return fake->Return(Of(stream)->work.empty() ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  for (int i = 0; i < 1000 && !Of(stream)->work.empty(); ++i) fake->RunSome();
  return fake->sticky;
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t num_bytes, cudaStream_t stream) {
  fake->selected.push_back(fake->current);
  const cudaError_t error = fake->Take();
  if (error != cudaSuccess) return error;
  Of(stream)->Give([=] {
    std::memset(data, value, num_bytes);
    return true;
  });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t num_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  fake->selected.push_back(fake->current);
  fake->copy_kinds.push_back(kind);
  const cudaError_t error = fake->Take();
  if (error != cudaSuccess) {
    Of(stream)->has_broken_capture = true;
    return error;
  }
  Of(stream)->Give([=] {
    std::memcpy(to, from, num_bytes);
    return true;
  });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (flags != cudaEventDisableTiming && flags != cudaEventDefault) return cudaErrorInvalidValue;
  fake->selected.push_back(fake->current);
  auto* const made = new FakeEvent;
  made->is_timed = flags == cudaEventDefault;
  *event = reinterpret_cast<cudaEvent_t>(made);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete Of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  fake->selected.push_back(fake->current);
  const cudaError_t error = fake->Take();
  if (error != cudaSuccess) return error;
  FakeEvent* recorded = Of(event);
  const int number = ++recorded->num_records;
  Of(stream)->work.push_back([=] {
    recorded->num_reached = std::max(recorded->num_reached, number);
    recorded->reached_at = fake->num_rounds;
    return true;
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  fake->RunSome();
  if (fake->sticky != cudaSuccess) return fake->Return(fake->sticky);
  const bool is_done = Of(event)->num_reached == Of(event)->num_records;
  return fake->Return(is_done ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  if (!Of(begin)->is_timed || !Of(end)->is_timed) return fake->Return(cudaErrorInvalidValue);
  const cudaError_t error = fake->Take();
  if (error != cudaSuccess) return error;
  *milliseconds = 5e-4f * static_cast<float>(Of(end)->reached_at - Of(begin)->reached_at);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  fake->selected.push_back(fake->current);
  const FakeEvent* awaited = Of(event);
  const int number = awaited->num_records;
  Of(stream)->work.push_back([=] { return awaited->num_reached >= number; });
  return cudaSuccess;
}

}  // extern "C"

namespace penstock::kernels::cuda {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kTimeoutNs = 10'000'000'000;

absl::StatusOr<std::unique_ptr<Blas>> CreateNoBlas() { return nullptr; }

class CudaDeviceTest : public ::testing::Test {
 protected:
  CudaDeviceTest() { fake = &cuda_; }

  std::unique_ptr<CudaDevice> Open(int index = 1) {
    auto device = OpenCudaDevice(index, CreateNoBlas);
    EXPECT_TRUE(device.ok()) << device.status();
    return *std::move(device);
  }
  // A kernel of the stream finds a bad index.
  static void Report(Stream& stream, uint64_t launch) {
    Fault& fault = *dynamic_cast<CudaStream&>(stream).fault();
    fault.value = 9;
    fault.limit = 4;
    fault.launch = launch;
    fault.kind = Fault::kIndexOutside;
  }

  FakeCuda cuda_;
};

TEST_F(CudaDeviceTest, EventsAreDoneWhenTheirStreamHasCopied) {
  const auto device = Open();
  const auto memory = *device->Allocate(8, MemoryKind::kDevice);
  const auto event = device->CreateEvent();
  const auto stream = device->CreateStream();
  EXPECT_TRUE(event->IsDone());  // never recorded
  int64_t number = 5;
  EXPECT_EQ(*reinterpret_cast<int64_t*>(memory->data()), 0);  // zeroed
  stream->Copy(memory->data(), &number, 8, CopyKind::kHostToDevice);
  int64_t back = 0;
  stream->Copy(&back, memory->data(), 8, CopyKind::kDeviceToHost);
  stream->Record(event.get());
  EXPECT_FALSE(event->IsDone());
  EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs), absl::OkStatus());
  EXPECT_EQ(back, 5);
  EXPECT_THAT(cuda_.selected, Each(1));
}

// A library that is called next would take "not ready" for an error of its own.
TEST_F(CudaDeviceTest, AskingAfterRunningWorkLeavesNoError) {
  const auto device = Open();
  const auto event = device->CreateEvent();
  auto stream = device->CreateStream();
  int a = 1;
  int b = 0;
  for (int i = 0; i < 3; ++i) stream->Copy(&b, &a, sizeof(a), CopyKind::kDeviceToDevice);
  stream->Record(event.get());
  EXPECT_FALSE(event->IsDone());
  EXPECT_EQ(cuda_.last, cudaSuccess);
  stream = nullptr;  // waits for the rest
  EXPECT_EQ(cuda_.last, cudaSuccess);
}

// Other code on the thread may have selected another device before any call.
TEST_F(CudaDeviceTest, EveryCallSelectsTheDevice) {
  const auto device = Open();
  cuda_.current = 0;
  const auto memory = *device->Allocate(8, MemoryKind::kDevice);
  cuda_.current = 0;
  const auto pinned = *device->Allocate(8, MemoryKind::kPinned);
  cuda_.current = 0;
  const auto event = device->CreateEvent();
  cuda_.current = 0;
  const auto stream = device->CreateStream();
  cuda_.current = 0;
  const auto other = device->CreateStream();
  cuda_.current = 0;
  stream->Copy(memory->data(), pinned->data(), 8, CopyKind::kHostToDevice);
  cuda_.current = 0;
  stream->Copy(pinned->data(), memory->data(), 8, CopyKind::kDeviceToHost);
  cuda_.current = 0;
  stream->Copy(memory->data() + 4, memory->data(), 4, CopyKind::kDeviceToDevice);
  cuda_.current = 0;
  dynamic_cast<CudaStream&>(*stream).Zero(memory->data(), 8);
  cuda_.current = 0;
  stream->Record(event.get());
  cuda_.current = 0;
  other->Wait(event.get());
  cuda_.current = 0;
  dynamic_cast<CudaStream&>(*stream).handle();
  EXPECT_EQ(cuda_.current, 1);
  EXPECT_EQ(cuda_.selected.size(), 14u);
  EXPECT_THAT(cuda_.selected, Each(1));
  EXPECT_THAT(cuda_.copy_kinds, ElementsAre(cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                            cudaMemcpyDeviceToDevice));
  // The errors of the device, which kernels write, the memory, and the errors of two streams.
  const unsigned mapped = cudaHostAllocPortable | cudaHostAllocMapped;
  EXPECT_THAT(cuda_.host_flags, ElementsAre(mapped, cudaHostAllocPortable, mapped, mapped));
}

TEST_F(CudaDeviceTest, TimedEventsTellTheTimeBetweenThem) {
  const auto device = Open();
  const auto begin = device->CreateTimedEvent();
  const auto end = device->CreateTimedEvent();
  const auto plain = device->CreateEvent();
  const auto stream = device->CreateStream();
  int a = 1;
  int b = 2;
  stream->Record(begin.get());
  for (int i = 0; i < 3; ++i) stream->Copy(&b, &a, sizeof(a), CopyKind::kDeviceToDevice);
  stream->Record(end.get());
  EXPECT_EQ(WaitUntilDone(*stream, *plain, kTimeoutNs), absl::OkStatus());
  EXPECT_NEAR(static_cast<double>(end->NsSince(*begin)), 4 * 500, 1);  // a round each
  EXPECT_EQ(end->NsSince(*plain), -1);
  EXPECT_EQ(plain->NsSince(*begin), -1);
  // That there is no time is no error of the stream.
  cuda_.next_error = cudaErrorInvalidResourceHandle;
  EXPECT_EQ(end->NsSince(*begin), -1);
  EXPECT_EQ(cuda_.last, cudaSuccess);
  EXPECT_EQ(WaitUntilDone(*stream, *plain, kTimeoutNs), absl::OkStatus());
}

TEST_F(CudaDeviceTest, MemoryIsZeroedInTheOrderOfTheStream) {
  const auto device = Open();
  const auto event = device->CreateEvent();
  const auto stream = device->CreateStream();
  int a = 7;
  int b = 0;
  stream->Copy(&b, &a, sizeof(a), CopyKind::kDeviceToDevice);
  dynamic_cast<CudaStream&>(*stream).Zero(&a, sizeof(a));
  EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs), absl::OkStatus());
  EXPECT_EQ(a, 0);
  EXPECT_EQ(b, 7);
}

TEST_F(CudaDeviceTest, AStreamWaitsForAnEventOfAnother) {
  const auto device = Open();
  const auto event = device->CreateEvent();
  const auto last = device->CreateEvent();
  const auto first = device->CreateStream();
  const auto second = device->CreateStream();
  int a = 1;
  int b = 2;
  int c = 3;
  first->Copy(&b, &a, sizeof(a), CopyKind::kDeviceToDevice);
  first->Copy(&b, &a, sizeof(a), CopyKind::kDeviceToDevice);
  first->Record(event.get());
  second->Wait(event.get());
  second->Copy(&c, &b, sizeof(b), CopyKind::kDeviceToDevice);
  EXPECT_EQ(WaitUntilDone(*second, *last, kTimeoutNs), absl::OkStatus());
  EXPECT_EQ(c, 1);
}

TEST_F(CudaDeviceTest, AReportOfAKernelReachesTheStreamsThatWait) {
  const auto device = Open();
  const auto event = device->CreateEvent();
  const auto faulty = device->CreateStream();
  const auto next = device->CreateStream();
  const auto last = device->CreateStream();
  const auto other = device->CreateStream();
  faulty->Record(event.get());
  next->Wait(event.get());
  next->Record(event.get());
  last->Wait(event.get());
  Report(*faulty, 7);
  for (Stream* stream : {faulty.get(), next.get(), last.get()}) {
    EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs),
              absl::InvalidArgumentError("index 9 lies outside [0, 4)"));
    ASSERT_NE(event->error(), nullptr);
    EXPECT_EQ(event->error()->launch, 7u);
  }
  EXPECT_EQ(WaitUntilDone(*other, *event, kTimeoutNs), absl::OkStatus());
  EXPECT_EQ(event->error(), nullptr);
  for (Stream* stream : {faulty.get(), next.get(), last.get()}) {
    EXPECT_EQ(stream->Reset(), absl::OkStatus());
  }
  EXPECT_EQ(WaitUntilDone(*last, *event, kTimeoutNs), absl::OkStatus());
}

// Streams that wait for each other do not keep each other's errors alive.
TEST_F(CudaDeviceTest, AllMemoryIsFreed) {
  {
    const auto device = Open();
    const auto event = device->CreateEvent();
    const auto a = device->CreateStream();
    const auto b = device->CreateStream();
    a->Record(event.get());
    b->Wait(event.get());
    b->Record(event.get());
    a->Wait(event.get());
    EXPECT_EQ(WaitUntilDone(*a, *event, kTimeoutNs), absl::OkStatus());
    EXPECT_EQ(cuda_.num_allocations, 3);  // the errors of the device and of both streams
  }
  EXPECT_EQ(cuda_.num_allocations, 0);
  EXPECT_TRUE(cuda_.streams.empty());
}

TEST_F(CudaDeviceTest, AFailedCallIsAnErrorOfTheStreamUntilItIsReset) {
  const auto device = Open();
  const auto event = device->CreateEvent();
  const auto stream = device->CreateStream();
  int a = 1;
  int b = 2;
  cuda_.next_error = cudaErrorInvalidValue;
  stream->Copy(&b, &a, sizeof(a), CopyKind::kDeviceToDevice);
  EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs).message(),
            "cuda device 1: copying: cudaErrorInvalidValue (invalid argument)");
  ASSERT_NE(event->error(), nullptr);
  EXPECT_EQ(event->error()->launch, kNoLaunch);
  EXPECT_EQ(stream->Reset(), absl::OkStatus());
  stream->Copy(&b, &a, sizeof(a), CopyKind::kDeviceToDevice);
  EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs), absl::OkStatus());
  EXPECT_EQ(b, 1);
}

// The work before the call that failed may still use memory.
TEST_F(CudaDeviceTest, AFailedCallDoesNotHideTheWorkBeforeIt) {
  const auto device = Open();
  const auto event = device->CreateEvent();
  const auto stream = device->CreateStream();
  int a = 1;
  int b = 2;
  stream->Copy(&b, &a, sizeof(a), CopyKind::kDeviceToDevice);
  cuda_.next_error = cudaErrorInvalidValue;
  stream->Copy(&a, &b, sizeof(a), CopyKind::kDeviceToDevice);
  stream->Record(event.get());
  EXPECT_FALSE(event->IsDone());
  EXPECT_FALSE(WaitUntilDone(*stream, *event, kTimeoutNs).ok());
  EXPECT_EQ(b, 1);
}

TEST_F(CudaDeviceTest, AfterAStickyErrorNothingRecovers) {
  const auto device = Open();
  const auto event = device->CreateEvent();
  const auto stream = device->CreateStream();
  stream->Record(event.get());
  cuda_.sticky = cudaErrorIllegalAddress;
  EXPECT_TRUE(event->IsDone());
  ASSERT_NE(event->error(), nullptr);
  EXPECT_THAT(std::string(event->error()->status.message()), HasSubstr("cudaErrorIllegalAddress"));
  EXPECT_THAT(std::string(stream->Reset().message()),
              HasSubstr("resetting a stream: cudaErrorIllegalAddress"));
}

// What a collective has brought from other devices.
TEST_F(CudaDeviceTest, AFaultOfAnotherDeviceIsAnErrorUntilTheReset) {
  const auto device = Open();
  const auto event = device->CreateEvent();
  const auto stream = device->CreateStream();
  auto& gpu_stream = dynamic_cast<CudaStream&>(*stream);
  EXPECT_EQ(*gpu_stream.device_fault(), 0);
  gpu_stream.SetPeerLaunch(6);
  gpu_stream.peer_fault()->flags[1] = 1;
  EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs).code(), absl::StatusCode::kAborted);
  ASSERT_NE(event->error(), nullptr);
  EXPECT_EQ(event->error()->launch, 6u);
  // What the stream has found itself says more.
  Report(*stream, 7);
  EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stream->Reset(), absl::OkStatus());
  EXPECT_EQ(gpu_stream.num_resets(), 1u);
  EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs), absl::OkStatus());
}

TEST_F(CudaDeviceTest, AStreamThatCannotBeMadeHasTheError) {
  const auto device = Open();
  const auto event = device->CreateEvent();
  cuda_.next_error = cudaErrorMemoryAllocation;
  const auto stream = device->CreateStream();
  EXPECT_EQ(dynamic_cast<CudaStream&>(*stream).fault(), nullptr);
  EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(stream->Reset().ok());
  EXPECT_EQ(dynamic_cast<CudaStream&>(*stream).status().code(),
            absl::StatusCode::kResourceExhausted);
  // Kernels on it say why they do not run.
  KernelSpec spec;
  spec.op = "exp";
  const auto kernel = MakeKernel(
      spec, *stream, [](const KernelArgs&, CudaStream&) { return absl::InternalError("it ran"); });
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  EXPECT_EQ((*kernel)->Run({}).message(),
            "cuda device 1: pinning memory for a stream's errors: cudaErrorMemoryAllocation (out "
            "of memory)");
}

TEST_F(CudaDeviceTest, ALackOfMemoryNamesAmountAndDevice) {
  const auto device = Open();
  cuda_.next_error = cudaErrorMemoryAllocation;
  const auto memory = device->Allocate(1000, MemoryKind::kDevice);
  EXPECT_EQ(memory.status(),
            absl::ResourceExhaustedError("allocating 1000 bytes on cuda device 1: "
                                         "cudaErrorMemoryAllocation (out of memory)"));
}

TEST_F(CudaDeviceTest, ADeviceThatTheBuildHasNoCodeForIsRefused) {
  cuda_.code = cudaErrorNoKernelImageForDevice;
  const absl::Status status = OpenCudaDevice(1, CreateNoBlas).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("cuda device 1 (Tesla T4) has compute capability 7.5, and this build has "
                        "kernels for "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("-DCMAKE_CUDA_ARCHITECTURES=75"));
}

TEST_F(CudaDeviceTest, DevicesThatAreNotThereAreNamed) {
  EXPECT_EQ(OpenCudaDevice(2, CreateNoBlas).status(),
            absl::FailedPreconditionError("there is no cuda device 2: CUDA sees 2"));
  cuda_.count_error = cudaErrorNoDevice;
  EXPECT_EQ(OpenCudaDevice(0, CreateNoBlas).status().code(), absl::StatusCode::kFailedPrecondition);
}

// ---- Launches that are held back.

// A stand-in for a kernel that adds 1 to each of several numbers.
class CountBatch : public LaunchBatch {
 public:
  CountBatch() : LaunchBatch(8, 8) {}

  void Add(int* number, CudaStream& stream, uint64_t launch) {
    const MemoryRange writes[] = {{number, sizeof(*number)}};
    stream.Hold(this, numbers_.size() < 3, {}, writes, "count", launch);
    numbers_.push_back(number);
  }

  int num_launches = 0;
  LaunchResult result = 0;

 private:
  LaunchResult LaunchEntries(StreamHandle stream) override {
    ++num_launches;
    reinterpret_cast<FakeStream*>(stream)->Give([numbers = numbers_] {
      for (int* number : numbers) ++*number;
      return true;
    });
    numbers_.clear();
    return result;
  }

  std::vector<int*> numbers_;
};

TEST_F(CudaDeviceTest, WhatIsHeldBackIsLaunchedBeforeAllElse) {
  const auto device = Open();
  const auto event = device->CreateEvent();
  const auto stream = device->CreateStream();
  const auto other = device->CreateStream();
  auto& cuda_stream = dynamic_cast<CudaStream&>(*stream);
  auto& capturing = dynamic_cast<CapturingStream&>(*stream);
  CountBatch* const batch = cuda_stream.BatchOf<CountBatch>();
  EXPECT_EQ(cuda_stream.BatchOf<CountBatch>(), batch);
  int numbers[8] = {};
  int copy = 7;
  // Launches so far, those that are held back included.
  const auto launches = [&] {
    EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs), absl::OkStatus());
    return batch->num_launches;
  };
  for (int i = 0; i < 3; ++i) batch->Add(&numbers[i], cuda_stream, 0);
  EXPECT_EQ(batch->num_launches, 0);
  EXPECT_EQ(launches(), 1);
  EXPECT_THAT(numbers, ElementsAre(1, 1, 1, 0, 0, 0, 0, 0));
  for (int& number : numbers) batch->Add(&number, cuda_stream, 0);  // three at most
  EXPECT_EQ(launches(), 4);
  EXPECT_THAT(numbers, ElementsAre(2, 2, 2, 1, 1, 1, 1, 1));
  for (int i = 0; i < 2; ++i) batch->Add(&numbers[0], cuda_stream, 0);  // one after the other
  EXPECT_EQ(launches(), 6);
  EXPECT_EQ(numbers[0], 4);

  batch->Add(&numbers[0], cuda_stream, 0);
  stream->Copy(&copy, &numbers[0], sizeof(copy), CopyKind::kDeviceToDevice);
  EXPECT_EQ(batch->num_launches, 7);
  EXPECT_EQ(launches(), 7);
  EXPECT_EQ(copy, 5);
  batch->Add(&numbers[0], cuda_stream, 0);
  cuda_stream.Zero(&numbers[0], sizeof(numbers[0]));
  EXPECT_EQ(launches(), 8);
  EXPECT_EQ(numbers[0], 0);
  batch->Add(&numbers[0], cuda_stream, 0);
  cuda_stream.handle();
  EXPECT_EQ(batch->num_launches, 9);
  other->Record(event.get());
  batch->Add(&numbers[0], cuda_stream, 0);
  stream->Wait(event.get());
  EXPECT_EQ(batch->num_launches, 10);

  // Neither is what comes before a capture part of it, nor what comes in it left for later.
  batch->Add(&numbers[0], cuda_stream, 0);
  ASSERT_EQ(capturing.BeginCapture(), absl::OkStatus());
  EXPECT_EQ(batch->num_launches, 11);
  batch->Add(&numbers[1], cuda_stream, 0);
  const auto graph = capturing.EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(launches(), 12);
  EXPECT_EQ(numbers[0], 3);
  EXPECT_EQ(numbers[1], 2);
  batch->Add(&numbers[1], cuda_stream, 0);
  capturing.Launch(**graph, {});
  EXPECT_EQ(batch->num_launches, 13);
  EXPECT_EQ(launches(), 13);
  EXPECT_EQ(numbers[1], 4);
}

TEST_F(CudaDeviceTest, AFailedLaunchOfABatchNamesItsFirst) {
  const auto device = Open();
  const auto event = device->CreateEvent();
  const auto stream = device->CreateStream();
  auto& cuda_stream = dynamic_cast<CudaStream&>(*stream);
  auto& capturing = dynamic_cast<CapturingStream&>(*stream);
  CountBatch* const batch = cuda_stream.BatchOf<CountBatch>();
  int numbers[2] = {};
  batch->result = cudaErrorInvalidValue;
  batch->Add(&numbers[0], cuda_stream, 42);
  batch->Add(&numbers[1], cuda_stream, 43);
  EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs).message(),
            "cuda device 1: launching count: cudaErrorInvalidValue (invalid argument)");
  ASSERT_NE(event->error(), nullptr);
  EXPECT_EQ(event->error()->launch, 42u);
  EXPECT_EQ(stream->Reset(), absl::OkStatus());
  EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs), absl::OkStatus());

  ASSERT_EQ(capturing.BeginCapture(), absl::OkStatus());
  batch->Add(&numbers[0], cuda_stream, 42);
  EXPECT_EQ(capturing.EndCapture().status().message(),
            "cuda device 1: launching count: cudaErrorInvalidValue (invalid argument)");
  batch->result = 0;
  batch->Add(&numbers[0], cuda_stream, 42);
  EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs), absl::OkStatus());
}

// ---- Graphs.

// A stand-in for a kernel: *to = step, which it gets as kernels of this folder do.
void StoreStep(CudaStream& stream, uint64_t step, uint64_t* to) {
  const LaunchOffsets* offsets = stream.offsets();
  reinterpret_cast<FakeStream*>(stream.handle())->Give([=] {
    *to = step + (offsets != nullptr ? offsets->step : 0);
    return true;
  });
}

TEST_F(CudaDeviceTest, AGraphRepeatsWhatWasCaptured) {
  const auto device = Open();
  const auto event = device->CreateEvent();
  const auto stream = device->CreateStream();
  auto& capturing = dynamic_cast<CapturingStream&>(*stream);
  int a = 1;
  int b = 2;
  ASSERT_EQ(capturing.BeginCapture(), absl::OkStatus());
  stream->Copy(&b, &a, sizeof(a), CopyKind::kDeviceToDevice);
  dynamic_cast<CudaStream&>(*stream).Zero(&a, sizeof(a));
  const auto graph = capturing.EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  // Other threads of the process may allocate meanwhile.
  EXPECT_THAT(cuda_.capture_modes, ElementsAre(cudaStreamCaptureModeThreadLocal));
  EXPECT_EQ(cuda_.num_uploads, 1);
  EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs), absl::OkStatus());
  EXPECT_EQ(b, 2);  // it has not run
  for (const int value : {5, 6}) {
    a = value;
    capturing.Launch(**graph, {});
    EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs), absl::OkStatus());
    EXPECT_EQ(b, value);
    EXPECT_EQ(a, 0);
  }
  EXPECT_EQ(cuda_.num_offsets_stored, 0);  // no kernel reads them
  EXPECT_THAT(cuda_.selected, Each(1));
}

// Launches of the same graph that are under way together have offsets of their own.
TEST_F(CudaDeviceTest, KernelsInAGraphSeeTheStepOfItsLaunch) {
  const auto device = Open();
  const auto event = device->CreateEvent();
  const auto stream = device->CreateStream();
  auto& cuda_stream = dynamic_cast<CudaStream&>(*stream);
  auto& capturing = dynamic_cast<CapturingStream&>(*stream);
  uint64_t seen = 0;
  uint64_t copies[3] = {};
  StoreStep(cuda_stream, 3, &seen);  // without a graph
  EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs), absl::OkStatus());
  EXPECT_EQ(seen, 3u);
  ASSERT_EQ(capturing.BeginCapture(), absl::OkStatus());
  StoreStep(cuda_stream, 4, &seen);
  const auto graph = capturing.EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (uint64_t i = 0; i < 3; ++i) {
    capturing.Launch(**graph, {.step = 10 * i});
    stream->Copy(&copies[i], &seen, sizeof(seen), CopyKind::kDeviceToDevice);
  }
  EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs), absl::OkStatus());
  EXPECT_THAT(copies, ElementsAre(4u, 14u, 24u));
  EXPECT_EQ(cuda_stream.offsets(), nullptr);
}

TEST_F(CudaDeviceTest, AFailedCaptureLeavesTheStreamAsItWas) {
  const auto device = Open();
  const auto event = device->CreateEvent();
  const auto stream = device->CreateStream();
  auto& capturing = dynamic_cast<CapturingStream&>(*stream);
  int a = 1;
  int b = 2;
  const auto copy = [&] { stream->Copy(&b, &a, sizeof(a), CopyKind::kDeviceToDevice); };
  ASSERT_EQ(capturing.BeginCapture(), absl::OkStatus());
  cuda_.next_error = cudaErrorStreamCaptureUnsupported;
  copy();
  EXPECT_THAT(std::string(capturing.EndCapture().status().message()),
              HasSubstr("cuda device 1: copying: cudaErrorStreamCaptureUnsupported"));
  EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs), absl::OkStatus());
  ASSERT_EQ(capturing.BeginCapture(), absl::OkStatus());
  copy();
  cuda_.next_error = cudaErrorMemoryAllocation;
  EXPECT_EQ(capturing.EndCapture().status().code(), absl::StatusCode::kResourceExhausted);
  cuda_.next_error = cudaErrorInvalidValue;
  EXPECT_THAT(std::string(capturing.BeginCapture().message()),
              HasSubstr("beginning to capture: cudaErrorInvalidValue"));
  EXPECT_EQ(b, 2);
  copy();
  EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs), absl::OkStatus());
  EXPECT_EQ(b, 1);
  EXPECT_EQ(cuda_.num_graphs, 0);
}

TEST_F(CudaDeviceTest, AGraphThatCannotBeLaunchedIsAnErrorOfTheStream) {
  const auto device = Open();
  const auto event = device->CreateEvent();
  const auto stream = device->CreateStream();
  auto& capturing = dynamic_cast<CapturingStream&>(*stream);
  ASSERT_EQ(capturing.BeginCapture(), absl::OkStatus());
  const auto graph = capturing.EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  cuda_.next_error = cudaErrorInvalidValue;
  capturing.Launch(**graph, {});
  EXPECT_THAT(std::string(WaitUntilDone(*stream, *event, kTimeoutNs).message()),
              HasSubstr("cuda device 1: launching a graph: cudaErrorInvalidValue"));
}

TEST_F(CudaDeviceTest, GraphsAndOffsetsAreFreed) {
  {
    const auto device = Open();
    std::unique_ptr<StreamGraph> graph;
    const auto stream = device->CreateStream();
    auto& capturing = dynamic_cast<CapturingStream&>(*stream);
    ASSERT_EQ(capturing.BeginCapture(), absl::OkStatus());
    graph = capturing.EndCapture().value();
    EXPECT_EQ(cuda_.num_graphs, 1);
  }
  EXPECT_EQ(cuda_.num_graphs, 0);
  EXPECT_EQ(cuda_.num_allocations, 0);
}

}  // namespace
}  // namespace penstock::kernels::cuda
