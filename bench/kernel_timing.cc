#include "bench/kernel_timing.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/random.h"
#include "base/status_macros.h"

namespace penstock::bench {
namespace {

constexpr int kNumBatches = 7;
constexpr int64_t kBatchNs = 4'000'000;  // at least, of one batch

}  // namespace

kernels::TileDesc WholeTile(Shape shape, DType dtype) {
  kernels::TileDesc tile;
  tile.dtype = dtype;
  tile.shape = shape;
  tile.global = shape;
  tile.offset = Shape(shape.size(), 0);
  tile.microbatch_stride = Shape(shape.size(), 0);
  return tile;
}

kernels::KernelSpec MakeKernelSpec(std::string op, graph::Attributes attributes,
                                   std::vector<kernels::TileDesc> inputs,
                                   std::vector<kernels::TileDesc> outputs) {
  kernels::KernelSpec spec;
  spec.op = std::move(op);
  spec.attributes = std::move(attributes);
  spec.inputs = std::move(inputs);
  spec.outputs = std::move(outputs);
  return spec;
}

absl::StatusOr<PreparedKernel> PreparedKernel::Create(const kernels::KernelSpec& spec) {
  const kernels::KernelRegistry registry = kernels::CpuKernels();
  const kernels::KernelDef* def = registry.Find(spec.op);
  if (def == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("the cpu has no kernel ", spec.op));
  }
  PreparedKernel prepared;
  prepared.device_ = CreateCpuDevice(1);
  prepared.stream_ = prepared.device_->CreateStream();
  const auto allocate = [&](size_t num_bytes) {
    prepared.memory_.push_back(prepared.device_->Allocate(num_bytes, MemoryKind::kDevice).value());
    return static_cast<void*>(prepared.memory_.back()->data());
  };
  for (const kernels::TileDesc& tile : spec.inputs) {
    void* const input = allocate(tile.num_bytes());
    prepared.inputs_.push_back(input);
    prepared.num_bytes_ += tile.num_bytes();
    for (int64_t i = 0; i < tile.num_elements(); ++i) {
      if (tile.dtype == DType::kF32) {
        static_cast<float*>(input)[i] = RandomUniform({1, 0, 0}, i);
      } else if (tile.dtype == DType::kF64) {
        static_cast<double*>(input)[i] = RandomUniform({1, 0, 0}, i);
      } else if (tile.dtype == DType::kI64) {
        static_cast<int64_t*>(input)[i] = 1;
      } else if (tile.dtype == DType::kI32) {
        static_cast<int32_t*>(input)[i] = 1;
      } else {
        std::memset(static_cast<uint8_t*>(input) + i * ByteSize(tile.dtype), 0,
                    ByteSize(tile.dtype));
      }
    }
  }
  for (const kernels::TileDesc& tile : spec.outputs) {
    prepared.outputs_.push_back(allocate(tile.num_bytes()));
    prepared.num_bytes_ += tile.num_bytes();
  }
  prepared.workspace_ = allocate(def->workspace_bytes ? def->workspace_bytes(spec, 1) : 0);
  ASSIGN_OR_RETURN(prepared.kernel_, def->create(spec, *prepared.device_, *prepared.stream_));
  return prepared;
}

absl::Status PreparedKernel::Run() {
  kernels::KernelArgs args;
  args.inputs = inputs_;
  args.outputs = outputs_;
  args.workspace = workspace_;
  return kernel_->Run(args);
}

absl::StatusOr<double> MeasureKernelSeconds(const kernels::KernelSpec& spec) {
  ASSIGN_OR_RETURN(PreparedKernel kernel, PreparedKernel::Create(spec));
  RETURN_IF_ERROR(kernel.Run());
  const SteadyClock clock;
  double best = std::numeric_limits<double>::infinity();
  for (int batch = 0; batch < kNumBatches; ++batch) {
    const int64_t begin = clock.NowNs();
    int64_t now = begin;
    int64_t runs = 0;
    while (now - begin < kBatchNs) {
      RETURN_IF_ERROR(kernel.Run());
      ++runs;
      now = clock.NowNs();
    }
    best = std::min(best, 1e-9 * static_cast<double>(now - begin) / static_cast<double>(runs));
  }
  return best;
}

}  // namespace penstock::bench
