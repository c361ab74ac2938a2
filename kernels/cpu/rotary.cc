#include <algorithm>
#include <cmath>
#include <vector>

#include "graph/rotary_scaling.h"
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/sum.h"

namespace penstock::kernels {
namespace {

template <typename T>
class Rotary : public CpuKernel {
  using A = Arith<T>;

 public:
  Rotary(const KernelSpec& spec, Device& device) : CpuKernel(spec, device) {
    frequencies_ = graph::RotaryFrequencies(spec.attributes, spec.inputs[0].shape.back());
  }

  absl::Status Run(const KernelArgs& args) override {
    const TileDesc& x = spec_.inputs[0];
    const bool has_start = spec_.inputs.size() > 1;
    const int64_t batch = x.shape[0];
    const int64_t positions = x.shape[1];
    const int64_t row = x.num_elements() / std::max<int64_t>(batch * positions, 1);
    const int64_t first = TileBegin(x, 1, args.microbatch);
    const T* const from = Input<T>(args, 0);
    T* const to = Output<T>(args, 0);
    if (!has_start) {
      // The angles of a position serve all sequences.
      pool_.ParallelFor(positions, GrainRows(batch * row),
                        [&](int64_t begin, int64_t end, int /*thread*/) {
                          Angles angles(frequencies_.size());
                          for (int64_t s = begin; s < end; ++s) {
                            Turn(first + s, &angles);
                            for (int64_t b = 0; b < batch; ++b) {
                              const int64_t at = (b * positions + s) * row;
                              Rotate(angles, row, from + at, to + at);
                            }
                          }
                        });
      return absl::OkStatus();
    }
    const IndexReader start(args.inputs[1], spec_.inputs[1].dtype);
    pool_.ParallelFor(batch * positions, GrainRows(row),
                      [&](int64_t begin, int64_t end, int /*thread*/) {
                        Angles angles(frequencies_.size());
                        for (int64_t i = begin; i < end; ++i) {
                          Turn(first + i % positions + start[i / positions], &angles);
                          Rotate(angles, row, from + i * row, to + i * row);
                        }
                      });
    return absl::OkStatus();
  }

 private:
  // Of each pair of a row at one position.
  struct Angles {
    explicit Angles(size_t count) : cosines(count), sines(count) {}
    std::vector<A> cosines, sines;
  };

  void Turn(int64_t position, Angles* angles) const {
    const double sign = spec_.attributes.GetBool("inverse", false) ? -1 : 1;
    for (size_t i = 0; i < frequencies_.size(); ++i) {
      const double angle = static_cast<double>(position) * frequencies_[i];
      angles->cosines[i] = static_cast<A>(std::cos(angle));
      angles->sines[i] = static_cast<A>(sign * std::sin(angle));
    }
  }

  // `to` may be `from`.
  void Rotate(const Angles& angles, int64_t size, const T* from, T* to) const {
    const auto half = static_cast<int64_t>(frequencies_.size());
    if (half == 0) return;
    for (int64_t head = 0; head < size; head += 2 * half) {
      const T* const first = from + head;
      const auto rotate = [&](int64_t i, auto memory) {
        const Vec<T> a = memory.Load(first + i);
        const Vec<T> b = memory.Load(first + half + i);
        const Vec<T> cosine = memory.Load(angles.cosines.data() + i);
        const Vec<T> sine = memory.Load(angles.sines.data() + i);
        memory.Store(to + head + i, a * cosine - b * sine);
        memory.Store(to + head + half + i, b * cosine + a * sine);
      };
      int64_t i = 0;
      for (; i + kLanes<T> <= half; i += kLanes<T>) rotate(i, WholeVec());
      if (i < half) rotate(i, PartOfVec{half - i});
    }
  }

  std::vector<double> frequencies_;  // radians a position
};

KernelOr CreateRotary(const KernelSpec& spec, Device& device, Stream& stream) {
  if (spec.inputs.size() > 1) RETURN_IF_ERROR(CheckIndexDType(spec.op, spec.inputs[1].dtype));
  return CreateKernel<Rotary, FloatsAndBFloat16>(spec, device, stream);
}

}  // namespace

KernelDef RotaryKernel() { return {.create = CreateRotary, .can_alias = CanAliasFirst}; }

}  // namespace penstock::kernels
