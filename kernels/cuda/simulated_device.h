// A device on which the kernels of this folder run as simulated_simt.h runs them: kernels and
// copies when they are given to a stream, matrix products by their definition. Tests only.
//
// Thread rule: one thread. Include it behind the *.cu files whose kernels are to run.

#ifndef PENSTOCK_KERNELS_CUDA_SIMULATED_DEVICE_H_
#define PENSTOCK_KERNELS_CUDA_SIMULATED_DEVICE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "base/device.h"
#include "base/stream_graph.h"
#include "base/strings.h"
#include "kernels/cuda/blas.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/simt.h"

namespace penstock::kernels::cuda {

// A library of column-major matrix products, by its definition.
template <typename T, typename R>
class HostProduct : public BlasProduct {
 public:
  HostProduct(const BlasLayout& layout, int alignment, BlasEpilogue epilogue)
      : x_(layout), alignment_(alignment), epilogue_(epilogue) {}

  absl::Status Run(StreamHandle, const void* a_data, const void* b_data, void* c_data, bool adds,
                   void* workspace, const EpiloguePointers& epilogue) override {
    if (simulated::captured != nullptr) {
      simulated::captured->push_back([=, this] {
        Multiply(a_data, b_data, c_data, adds, workspace, epilogue);
        return 0;
      });
    } else {
      Multiply(a_data, b_data, c_data, adds, workspace, epilogue);
    }
    return absl::OkStatus();
  }

 private:
  void Multiply(const void* a_data, const void* b_data, void* c_data, bool adds, void* workspace,
                const EpiloguePointers& epilogue) {
    const T* a = static_cast<const T*>(a_data);
    const T* b = static_cast<const T*>(b_data);
    R* c = static_cast<R*>(c_data);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(workspace) % kBlasWorkspaceAlignment, 0u);
    const auto* bias = static_cast<const R*>(epilogue.bias);
    auto* z = static_cast<R*>(epilogue.z);
    const auto* r = static_cast<const R*>(epilogue.r);
    for (const void* matrix :
         {a_data, b_data, const_cast<const void*>(c_data), const_cast<const void*>(epilogue.bias),
          const_cast<const void*>(epilogue.z), epilogue.r}) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(matrix) % static_cast<uintptr_t>(alignment_), 0u);
    }
    auto* scratch = static_cast<unsigned char*>(workspace);
    scratch[0] = scratch[kBlasWorkspaceBytes - 1] = 0x11;
    if (x_.is_swapped) std::swap(a, b);
    for (int64_t batch = 0; batch < x_.batch; ++batch) {
      for (int64_t i = 0; i < x_.rows; ++i) {
        for (int64_t j = 0; j < x_.columns; ++j) {
          double sum = 0;
          for (int64_t k = 0; k < x_.k; ++k) {
            const double left = Widen(x_.transpose_a ? a[k + i * x_.lda] : a[i + k * x_.lda]);
            const double right = Widen(x_.transpose_b ? b[j + k * x_.ldb] : b[k + j * x_.ldb]);
            sum += left * right;
          }
          R& to = c[i + j * x_.ldc];
          if (adds) sum += Widen(to);
          if (IsOneOf({BlasEpilogue::kAdd, BlasEpilogue::kBiasAdd})) {
            sum += Widen(r[i + j * x_.ldc]);
          }
          if (IsOneOf({BlasEpilogue::kBias, BlasEpilogue::kBiasAdd, BlasEpilogue::kBiasGelu,
                       BlasEpilogue::kBiasGeluAux})) {
            sum += Widen(bias[i]);
          }
          if (epilogue_ == BlasEpilogue::kBiasGeluAux) {
            z[i + j * x_.ldc] = Narrow<R>(static_cast<Compute<R>>(sum));
          }
          if (IsOneOf({BlasEpilogue::kBiasGelu, BlasEpilogue::kBiasGeluAux})) sum = Gelu(sum);
          if (epilogue_ == BlasEpilogue::kGeluGrad) sum *= GeluSlope(Widen(z[i + j * x_.ldc]));
          to = Narrow<R>(static_cast<Compute<R>>(sum));
        }
      }
      a += x_.a_batch;
      b += x_.b_batch;
      c += x_.c_batch;
    }
  }

  bool IsOneOf(std::initializer_list<BlasEpilogue> epilogues) const {
    return std::find(epilogues.begin(), epilogues.end(), epilogue_) != epilogues.end();
  }

  // The tanh approximation, and its derivative.
  static constexpr double kRootTwoOverPi = 0.7978845608028654;
  static double Inner(double x) { return kRootTwoOverPi * (x + 0.044715 * x * x * x); }
  static double Gelu(double x) { return 0.5 * x * (1 + std::tanh(Inner(x))); }
  static double GeluSlope(double x) {
    const double t = std::tanh(Inner(x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kRootTwoOverPi * (1 + 3 * 0.044715 * x * x);
  }

  const BlasLayout x_;
  const int alignment_;
  const BlasEpilogue epilogue_;
};

class HostBlas : public Blas {
 public:
  absl::StatusOr<std::unique_ptr<BlasProduct>> Create(const BlasLayout& layout,
                                                      const BlasTypes& types, int alignment,
                                                      BlasEpilogue epilogue) override {
    if (!has_products) return nullptr;
    if (epilogue != BlasEpilogue::kNone) {
      if (!has_epilogues) return nullptr;
      const bool has_r = epilogue == BlasEpilogue::kAdd || epilogue == BlasEpilogue::kBiasAdd;
      if (has_r && !adds_matrices) return nullptr;
      EXPECT_EQ(layout.batch, 1);
      ++num_epilogues;
    }
    ++num_products;
    const auto make = [&]<typename T, typename R>(std::type_identity<T>, std::type_identity<R>) {
      return std::make_unique<HostProduct<T, R>>(layout, alignment, epilogue);
    };
    const auto make_half =
        [&]<typename T>(std::type_identity<T> type) -> std::unique_ptr<BlasProduct> {
      if (!IsHalf(types.result)) return make(type, std::type_identity<float>());
      return make(type, type);
    };
    if (types.operands == DType::kBF16) return make_half(std::type_identity<BFloat16>());
    if (types.operands == DType::kF16) return make_half(std::type_identity<Float16>());
    EXPECT_EQ(types.operands, types.result);
    if (types.operands == DType::kF64) {
      EXPECT_EQ(epilogue, BlasEpilogue::kNone);
      return make(std::type_identity<double>(), std::type_identity<double>());
    }
    return make(std::type_identity<float>(), std::type_identity<float>());
  }
  bool has_products = true;   // otherwise it has no algorithm at all
  bool has_epilogues = true;  // otherwise it has no algorithm for any
  bool adds_matrices = true;  // otherwise it has none for those with a matrix R
  int num_products = 0;       // with an epilogue and without
  int num_epilogues = 0;
};

class SimulatedEvent : public Event {
 public:
  bool IsDone() const override { return true; }
  const StreamError* error() const override { return has_error ? &failure : nullptr; }

  bool has_error = false;
  StreamError failure;
};

struct SimulatedGraph : StreamGraph {
  std::vector<std::function<int()>> work;
};

// Runs its work as it is given, unless it is capturing it or holds it back.
class SimulatedStream : public CudaStream, public CapturingStream {
 public:
  void Copy(void* to, const void* from, size_t num_bytes, CopyKind) override {
    Give([=] {
      std::memmove(to, from, num_bytes);
      return 0;
    });
  }
  void Record(Event* event) override {
    LaunchHeld();
    EXPECT_EQ(simulated::captured, nullptr) << "an event is recorded in a capture";
    auto* recorded = static_cast<SimulatedEvent*>(event);
    recorded->has_error = true;
    if (!failure_.status.ok()) {
      recorded->failure = failure_;
    } else if (fault_.kind != Fault::kNone) {
      recorded->failure = {FaultStatus(fault_), fault_.launch};
    } else {
      recorded->has_error = false;
    }
  }
  void Wait(const Event*) override { LaunchHeld(); }
  absl::Status Reset() override {
    LaunchHeld();
    fault_.kind = Fault::kNone;
    failure_ = {};
    return absl::OkStatus();
  }
  StreamHandle handle() override {
    LaunchHeld();
    return nullptr;
  }
  Fault* fault() override { return &fault_; }
  const volatile int32_t* device_fault() override { return &device_fault_; }
  PeerFault* peer_fault() override { return &peer_fault_; }
  uint64_t num_resets() const override { return 0; }
  void SetPeerLaunch(uint64_t) override {}
  absl::Status status() const override { return absl::OkStatus(); }
  void Zero(void* to, size_t num_bytes) override {
    Give([=] {
      std::memset(to, 0, num_bytes);
      return 0;
    });
  }
  const LaunchOffsets* offsets() override {
    return simulated::captured != nullptr ? &offsets_ : nullptr;
  }

  absl::Status BeginCapture() override {
    LaunchHeld();
    EXPECT_EQ(simulated::captured, nullptr);
    capture_ = std::make_unique<SimulatedGraph>();
    simulated::captured = &capture_->work;
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<StreamGraph>> EndCapture() override {
    LaunchHeld();
    simulated::captured = nullptr;
    return std::move(capture_);
  }
  void Launch(StreamGraph& graph, const GraphOffsets& offsets) override {
    LaunchHeld();
    offsets_ = {offsets.step, offsets.launch};
    for (const auto& work : static_cast<SimulatedGraph&>(graph).work) EXPECT_EQ(work(), 0);
    ++num_graph_launches;
  }

  static inline uint64_t num_graph_launches = 0;  // on all streams

 private:
  void FailHeld(LaunchResult result, std::string_view op, uint64_t launch) override {
    if (failure_.status.ok()) failure_ = {ToStatus(result, StrCat("launching ", op)), launch};
  }

  void Give(std::function<int()> work) {
    LaunchHeld();
    if (simulated::captured == nullptr) {
      work();
    } else {
      simulated::captured->push_back(std::move(work));
    }
  }

  LaunchOffsets offsets_;
  std::unique_ptr<SimulatedGraph> capture_;
  Fault fault_;
  StreamError failure_;  // of a launch that was held back
  int32_t device_fault_ = 0;
  PeerFault peer_fault_;
};

class SimulatedDevice : public CudaDevice {
 public:
  std::string kind() const override { return "cuda"; }
  bool is_synchronous() const override { return false; }
  absl::StatusOr<std::unique_ptr<Memory>> Allocate(size_t num_bytes, MemoryKind kind) override {
    return memory_->Allocate(num_bytes, kind);
  }
  std::unique_ptr<Stream> CreateStream() override { return std::make_unique<SimulatedStream>(); }
  std::unique_ptr<Event> CreateEvent() override { return std::make_unique<SimulatedEvent>(); }
  Blas& blas() override { return blas_; }
  HostBlas& host_blas() { return blas_; }

 private:
  const std::unique_ptr<Device> memory_ = CreateCpuDevice(1);
  HostBlas blas_;
};

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_SIMULATED_DEVICE_H_
