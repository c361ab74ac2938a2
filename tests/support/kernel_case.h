// Runs one kernel against a naive reference in double: on whole tensors, on the tiles of several
// splits, in micro-batches, with aliased operands and twice.
//
// A case names each dimension of each operand and result by a letter, as einsum does. A lower-case
// letter may be split; one that a result lacks leaves that result partial. matmul is
//   {"matmul", {}, {{"mk"}, {"kn"}}, {{"mn"}}, {{'m', 5}, {'k', 7}, {'n', 4}}, reference}
// where the reference reads and writes elements at the current place of a loop:
//   [](Reference& r) { r.Loop("mnk", [&] { r.Out(0) += r.In(0) * r.In(1); }); }
//
// Thread rule: one thread.

#ifndef PENSTOCK_TESTS_SUPPORT_KERNEL_CASE_H_
#define PENSTOCK_TESTS_SUPPORT_KERNEL_CASE_H_

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"

#include "base/device.h"
#include "base/half.h"
#include "base/random.h"
#include "base/tensor.h"
#include "kernels/kernel.h"

namespace penstock::testing {

using Numbers = std::vector<double>;
using Sizes = std::map<char, int64_t>;

struct Operand {
  std::string labels;
  // Values lie in [low, high); integers and bools are rounded down.
  double low = -2;
  double high = 2;
  std::optional<DType> dtype = std::nullopt;  // none: the dtype under test
};

// The global tensors as a case's reference sees them.
class Reference {
 public:
  Reference(const Sizes& sizes, std::vector<std::string> in_labels,
            std::vector<std::string> out_labels)
      : sizes_(sizes), in_labels_(std::move(in_labels)), out_labels_(std::move(out_labels)) {
    for (const auto& [letter, size] : sizes_) size_[letter] = size;
    for (const std::string& labels : out_labels_)
      out.emplace_back(NumElements(ShapeOf(labels)), 0.0);
  }

  // Calls body at every place of the letters' index space, the last letter innermost.
  template <typename F>
  void Loop(const std::string& letters, F body) {
    LoopFrom(letters, 0, body);
  }

  int64_t& At(char letter) { return at_[letter]; }
  int64_t Size(char letter) const { return size_[letter]; }
  double& In(int i) { return in[i][Offset(in_labels_[i])]; }
  double& Out(int i) { return out[i][Offset(out_labels_[i])]; }
  // Row-major index of the current place in result i.
  int64_t OutIndex(int i) const { return Offset(out_labels_[i]); }

  Shape ShapeOf(const std::string& labels) const {
    Shape shape;
    for (char letter : labels) shape.push_back(sizes_.at(letter));
    return shape;
  }

  std::vector<Numbers> in;
  std::vector<Numbers> out;

 private:
  int64_t Offset(const std::string& labels) const {
    int64_t offset = 0;
    for (char letter : labels) offset = offset * size_[letter] + at_[letter];
    return offset;
  }

  template <typename F>
  void LoopFrom(const std::string& letters, size_t depth, F& body) {
    if (depth == letters.size()) return body();
    int64_t& at = at_[letters[depth]];
    const int64_t size = size_[letters[depth]];
    for (at = 0; at < size; ++at) LoopFrom(letters, depth + 1, body);
    at = 0;
  }

  Sizes sizes_;
  std::array<int64_t, 128> size_{};  // by letter
  std::array<int64_t, 128> at_{};
  std::vector<std::string> in_labels_;
  std::vector<std::string> out_labels_;
};

struct KernelCase {
  std::string op;
  graph::Attributes attributes;
  std::vector<Operand> inputs;
  std::vector<Operand> outputs;
  Sizes sizes;
  std::function<void(Reference&)> reference;
  std::vector<DType> dtypes = {DType::kF32, DType::kF64};
  // Relative to max(1, |expected|): for f32 and, times 1e-8, for f64; integers are exact.
  double tolerance = 1e-5;
  bool is_partial_max = false;  // partial results join by max instead of sum
  // Changes drawn operands, e.g. to make one depend on another.
  std::function<void(Reference&)> prepare = nullptr;
};

inline void PrintTo(const KernelCase& test, std::ostream* stream) { *stream << test.op; }

// ---- Elements of any dtype as doubles.

template <typename F>
auto WithElementType(DType dtype, F f) {
  switch (dtype) {
    case DType::kF32:
      return f(float{});
    case DType::kF64:
      return f(double{});
    case DType::kBF16:
      return f(BFloat16{});
    case DType::kF16:
      return f(Float16{});
    case DType::kI8:
      return f(int8_t{});
    case DType::kU8:
      return f(uint8_t{});
    case DType::kI32:
      return f(int32_t{});
    case DType::kI64:
      return f(int64_t{});
    default:
      return f(bool{});
  }
}

inline double GetElement(const Tensor& tensor, int64_t i) {
  return WithElementType(tensor.dtype(), [&]<typename T>(T) -> double {
    const T element = tensor.As<T>()[i];
    if constexpr (kIsHalf<T>) {
      return ToFloat(element);
    } else {
      return static_cast<double>(element);
    }
  });
}
inline void SetElement(Tensor& tensor, int64_t i, double value) {
  WithElementType(tensor.dtype(), [&]<typename T>(T) {
    if constexpr (kIsHalf<T>) {
      tensor.As<T>()[i] = FromFloat<T>(static_cast<float>(value));
    } else {
      tensor.As<T>()[i] = static_cast<T>(value);
    }
  });
}

// Positions of a tile in its global row-major tensor, in the tile's order.
inline std::vector<int64_t> TilePositions(const Shape& global, const Shape& begin,
                                          const Shape& shape) {
  std::vector<int64_t> positions;
  const int64_t count = NumElements(shape);
  const Shape strides = RowMajorStrides(global);
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i;
    int64_t position = 0;
    for (size_t d = shape.size(); d-- > 0;) {
      position += (begin[d] + rest % shape[d]) * strides[d];
      rest /= shape[d];
    }
    positions.push_back(position);
  }
  return positions;
}

// Makes and runs a kernel with a workspace of its own and outputs full of garbage.
class KernelRunner {
 public:
  explicit KernelRunner(int num_threads)
      : registry_(kernels::CpuKernels()),
        device_(CreateCpuDevice(num_threads)),
        stream_(device_->CreateStream()) {}

  const kernels::KernelDef& Def(const std::string& op) const {
    const kernels::KernelDef* def = registry_.Find(op);
    EXPECT_NE(def, nullptr) << op;
    return *def;
  }

  absl::StatusOr<std::unique_ptr<kernels::Kernel>> Create(const kernels::KernelSpec& spec) {
    const auto& def = Def(spec.op);
    const size_t num_bytes =
        def.workspace_bytes ? def.workspace_bytes(spec, device_->thread_pool()->size()) : 0;
    workspace_ = device_->Allocate(num_bytes + 64, MemoryKind::kDevice).value();
    std::memset(workspace_->data(), 0x7f, num_bytes);
    workspace_bytes_ = num_bytes;
    std::memset(workspace_->data() + num_bytes, 0x5a, 64);
    return def.create(spec, *device_, *stream_);
  }

  absl::Status Run(kernels::Kernel& kernel, const std::vector<Tensor>& inputs,
                   const std::vector<Tensor>& outputs, int64_t microbatch = 0, uint64_t seed = 7,
                   int64_t step = 3) {
    std::vector<void*> in;
    std::vector<void*> out;
    for (const Tensor& tensor : inputs) in.push_back(const_cast<void*>(tensor.data()));
    for (const Tensor& tensor : outputs) out.push_back(const_cast<void*>(tensor.data()));
    kernels::KernelArgs args{.inputs = in,
                             .outputs = out,
                             .workspace = workspace_->data(),
                             .seed = seed,
                             .step = step,
                             .microbatch = microbatch};
    absl::Status status = kernel.Run(args);
    for (int i = 0; i < 64; ++i) {
      EXPECT_EQ(std::to_integer<int>(workspace_->data()[workspace_bytes_ + i]), 0x5a)
          << "the kernel wrote behind its workspace";
    }
    return status;
  }

  static Tensor Garbage(DType dtype, const Shape& shape) {
    Tensor tensor(TensorType{dtype, shape});
    std::memset(tensor.data(), dtype == DType::kBool ? 1 : 0x7f, tensor.num_bytes());
    return tensor;
  }

 private:
  kernels::KernelRegistry registry_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Memory> workspace_;
  size_t workspace_bytes_ = 0;
};

// One way to lay a case out: how many parts each letter has on devices and in time.
struct Layout {
  std::map<char, int64_t> parts;
  char temporal = 0;  // 0: none
  int64_t microbatches = 1;

  std::string ToString() const {
    std::string text;
    for (const auto& [letter, count] : parts) text += fmt::format("{}={} ", letter, count);
    if (temporal != 0) text += fmt::format("{}={} micro-batches", temporal, microbatches);
    return text;
  }
};

class KernelCaseRun {
 public:
  KernelCaseRun(const KernelCase& test, DType dtype, int num_threads)
      : test_(test),
        dtype_(dtype),
        runner_(num_threads),
        reference_(test.sizes, LabelsOf(test.inputs), LabelsOf(test.outputs)) {
    uint64_t index = 0;
    for (const Operand& input : test_.inputs) {
      Numbers values(NumElements(reference_.ShapeOf(input.labels)));
      for (double& value : values) {
        value = input.low + (input.high - input.low) * RandomUniform({11, 1, 0}, index++);
        value = Round(value, DTypeFor(input));
      }
      reference_.in.push_back(std::move(values));
    }
    if (test_.prepare) test_.prepare(reference_);
    for (size_t i = 0; i < test_.inputs.size(); ++i) {
      for (double& value : reference_.in[i]) value = Round(value, DTypeFor(test_.inputs[i]));
    }
    test_.reference(reference_);
  }

  // Everything about one dtype.
  void CheckAll() {
    CheckLayout({});
    std::map<char, int64_t> all;
    for (const auto& [letter, size] : test_.sizes) {
      if (!std::islower(letter) || !IsUsed(letter)) continue;
      all[letter] = 2;
      for (int64_t parts : {int64_t{2}, int64_t{3}, size + 2}) CheckLayout({{{letter, parts}}});
      for (int64_t m = 2; m <= size; ++m) {
        if (size % m != 0) continue;
        CheckLayout({{}, letter, m});
        CheckLayout({{{letter, 2}}, letter, m});
        break;
      }
    }
    CheckLayout({all});
    CheckAliasing();
  }

 private:
  static std::vector<std::string> LabelsOf(const std::vector<Operand>& operands) {
    std::vector<std::string> labels;
    for (const Operand& operand : operands) labels.push_back(operand.labels);
    return labels;
  }
  bool IsUsed(char letter) const {
    const auto uses = [&](const Operand& operand) {
      return operand.labels.find(letter) != std::string::npos;
    };
    return std::any_of(test_.inputs.begin(), test_.inputs.end(), uses) ||
           std::any_of(test_.outputs.begin(), test_.outputs.end(), uses);
  }
  DType DTypeFor(const Operand& operand) const { return operand.dtype.value_or(dtype_); }

  static double Round(double value, DType dtype) {
    if (dtype == DType::kF64) return value;
    if (dtype == DType::kF32) return static_cast<float>(value);
    if (dtype == DType::kBool) return value >= 0 ? 1 : 0;
    return dtype == DType::kU8 ? std::floor(std::abs(value)) : std::floor(value);
  }

  // Where a device (its coordinate a letter) has its tile; the temporal axis is the major one.
  kernels::TileDesc TileOf(const Operand& operand, const Layout& layout,
                           const std::map<char, int64_t>& coordinates) const {
    kernels::TileDesc tile;
    tile.dtype = DTypeFor(operand);
    for (char letter : operand.labels) {
      const int64_t size = test_.sizes.at(letter);
      const bool is_temporal = letter == layout.temporal;
      const int64_t extent = is_temporal ? size / layout.microbatches : size;
      const auto parts = layout.parts.find(letter);
      const Range range = parts == layout.parts.end()
                              ? Range{0, extent}
                              : PartOf(extent, coordinates.at(letter), parts->second);
      tile.shape.push_back(range.size());
      tile.global.push_back(size);
      tile.offset.push_back(range.begin);
      tile.microbatch_stride.push_back(is_temporal ? extent : 0);
    }
    return tile;
  }
  static Shape BeginOf(const kernels::TileDesc& tile, int64_t microbatch) {
    Shape begin = tile.offset;
    for (size_t i = 0; i < begin.size(); ++i) begin[i] += microbatch * tile.microbatch_stride[i];
    return begin;
  }

  Tensor ReadTile(const kernels::TileDesc& tile, const Numbers& global, int64_t microbatch) const {
    Tensor tensor(TensorType{tile.dtype, tile.shape});
    int64_t i = 0;
    for (int64_t position : TilePositions(tile.global, BeginOf(tile, microbatch), tile.shape)) {
      SetElement(tensor, i++, global[position]);
    }
    return tensor;
  }

  // Puts a tile into the assembled result; parts of a partial result join.
  void WriteTile(const kernels::TileDesc& tile, const Tensor& tensor, int64_t microbatch,
                 bool is_partial, Numbers* global) const {
    int64_t i = 0;
    for (int64_t position : TilePositions(tile.global, BeginOf(tile, microbatch), tile.shape)) {
      double& to = (*global)[position];
      const double value = GetElement(tensor, i++);
      if (!is_partial) {
        to = value;
      } else {
        to = test_.is_partial_max ? std::max(to, value) : to + value;
      }
    }
  }

  void CheckLayout(const Layout& layout) {
    SCOPED_TRACE(fmt::format("{} on {}, layout {}", test_.op, Name(dtype_), layout.ToString()));
    std::vector<Numbers> results;
    for (const Numbers& expected : reference_.out) {
      results.emplace_back(expected.size(),
                           test_.is_partial_max ? -std::numeric_limits<double>::infinity() : 0.0);
    }
    std::map<char, int64_t> coordinates;
    for (const auto& [letter, parts] : layout.parts) coordinates[letter] = 0;
    for (;;) {
      ASSERT_NO_FATAL_FAILURE(RunDevice(layout, coordinates, &results));
      // The next device.
      auto it = coordinates.begin();
      for (; it != coordinates.end(); ++it) {
        if (++it->second < layout.parts.at(it->first)) break;
        it->second = 0;
      }
      if (it == coordinates.end()) break;
    }
    for (size_t r = 0; r < results.size(); ++r) {
      const DType dtype = DTypeFor(test_.outputs[r]);
      const double tolerance = dtype == DType::kF32   ? test_.tolerance
                               : dtype == DType::kF64 ? test_.tolerance * 1e-8
                                                      : 0;
      for (size_t i = 0; i < results[r].size(); ++i) {
        const double expected = reference_.out[r][i];
        const double actual = results[r][i];
        if (std::isnan(expected) ? std::isnan(actual) : expected == actual) continue;
        ASSERT_LE(std::abs(actual - expected), tolerance * std::max(1.0, std::abs(expected)))
            << "result " << r << ", element " << i << ": " << actual << " instead of " << expected;
      }
    }
  }

  void RunDevice(const Layout& layout, const std::map<char, int64_t>& coordinates,
                 std::vector<Numbers>* results) {
    kernels::KernelSpec spec;
    spec.op = test_.op;
    spec.attributes = test_.attributes;
    for (const Operand& input : test_.inputs) {
      spec.inputs.push_back(TileOf(input, layout, coordinates));
    }
    bool is_partial_in_time = layout.temporal != 0;
    std::vector<bool> is_partial;
    for (const Operand& output : test_.outputs) {
      spec.outputs.push_back(TileOf(output, layout, coordinates));
      const auto lacks = [&](char letter) {
        return output.labels.find(letter) == std::string::npos;
      };
      bool lacks_any = layout.temporal != 0 && lacks(layout.temporal);
      for (const auto& [letter, parts] : layout.parts) lacks_any = lacks_any || lacks(letter);
      is_partial.push_back(lacks_any);
      is_partial_in_time = is_partial_in_time && lacks(layout.temporal);
    }
    spec.accumulate = is_partial_in_time && runner_.Def(test_.op).supports_accumulate;

    auto kernel = runner_.Create(spec);
    ASSERT_TRUE(kernel.ok()) << kernel.status();
    std::vector<Tensor> outputs;
    for (const kernels::TileDesc& tile : spec.outputs) {
      outputs.push_back(KernelRunner::Garbage(tile.dtype, tile.shape));
    }
    for (int64_t m = 0; m < layout.microbatches; ++m) {
      std::vector<Tensor> inputs;
      for (size_t i = 0; i < spec.inputs.size(); ++i) {
        inputs.push_back(ReadTile(spec.inputs[i], reference_.in[i], m));
      }
      const absl::Status status = runner_.Run(**kernel, inputs, outputs, m);
      ASSERT_TRUE(status.ok()) << status;
      if (!spec.accumulate) {
        // The same bits again.
        for (size_t r = 0; r < outputs.size(); ++r) {
          const Tensor first = outputs[r].Clone();
          std::memset(outputs[r].data(), 1, outputs[r].num_bytes());
          ASSERT_TRUE(runner_.Run(**kernel, inputs, outputs, m).ok());
          ASSERT_EQ(std::memcmp(first.data(), outputs[r].data(), first.num_bytes()), 0)
              << "two runs differ in result " << r;
        }
      }
      if (spec.accumulate && m + 1 < layout.microbatches) continue;
      for (size_t r = 0; r < outputs.size(); ++r) {
        WriteTile(spec.outputs[r], outputs[r], m, is_partial[r], &(*results)[r]);
      }
    }
  }

  // Every operand that may share the first result's memory, on whole tensors.
  void CheckAliasing() {
    const kernels::KernelDef& def = runner_.Def(test_.op);
    if (!def.can_alias) return;
    kernels::KernelSpec spec;
    spec.op = test_.op;
    spec.attributes = test_.attributes;
    std::vector<Tensor> inputs;
    std::vector<Tensor> outputs;
    for (size_t i = 0; i < test_.inputs.size(); ++i) {
      spec.inputs.push_back(TileOf(test_.inputs[i], {}, {}));
      inputs.push_back(ReadTile(spec.inputs[i], reference_.in[i], 0));
    }
    for (const Operand& output : test_.outputs) {
      spec.outputs.push_back(TileOf(output, {}, {}));
      outputs.push_back(
          KernelRunner::Garbage(spec.outputs.back().dtype, spec.outputs.back().shape));
    }
    auto kernel = runner_.Create(spec);
    ASSERT_TRUE(kernel.ok()) << kernel.status();
    ASSERT_TRUE(runner_.Run(**kernel, inputs, outputs).ok());
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!def.can_alias(spec, i)) continue;
      SCOPED_TRACE(fmt::format("{} on {}, operand {} aliased", test_.op, Name(dtype_), i));
      std::vector<Tensor> shared_inputs = inputs;
      std::vector<Tensor> shared_outputs;
      for (const Tensor& output : outputs) shared_outputs.push_back(output.Clone());
      shared_inputs[i] = inputs[i].Clone();
      shared_outputs[0] = shared_inputs[i];
      ASSERT_TRUE(runner_.Run(**kernel, shared_inputs, shared_outputs).ok());
      for (size_t r = 0; r < outputs.size(); ++r) {
        ASSERT_EQ(std::memcmp(shared_outputs[r].data(), outputs[r].data(), outputs[r].num_bytes()),
                  0)
            << "result " << r;
      }
    }
  }

  const KernelCase& test_;
  DType dtype_;
  KernelRunner runner_;
  Reference reference_;
};

// Every dtype of a case, on one thread and on three.
inline void CheckKernelCase(const KernelCase& test) {
  for (DType dtype : test.dtypes) {
    for (int num_threads : {1, 3}) {
      SCOPED_TRACE(fmt::format("{} threads", num_threads));
      KernelCaseRun(test, dtype, num_threads).CheckAll();
    }
  }
}

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_KERNEL_CASE_H_
