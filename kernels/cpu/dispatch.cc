#include <algorithm>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/routing.h"

namespace penstock::kernels {
namespace {

// Each row of the result is written once: the choices that go to it form a list, which is made
// first. Threads share the rows, and a list has the order of the choices, so every sum has one
// order.
template <typename T>
class Dispatch : public CpuKernel {
 public:
  Dispatch(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device), routing_(spec.inputs[1], spec.outputs[0]) {}

  absl::Status Run(const KernelArgs& args) override {
    const int64_t width = routing_.width();
    const int64_t choices = routing_.choices();
    // The first choice of row r is first[r], the one after choice i is next[i]; -1 ends a list.
    int64_t* first = static_cast<int64_t*>(args.workspace);
    int64_t* next = first + routing_.num_rows();
    MakeLists(args, first, next);
    const T* x = Input<T>(args, 0);
    const T* weights = args.inputs.size() > 2 ? Input<T>(args, 2) : nullptr;
    pool_.ParallelFor(routing_.num_rows(), GrainRows(width), [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        T* y = Output<T>(args, 0) + row * width;
        int64_t choice = first[row];
        if (choice < 0) {
          std::fill(y, y + width, T{});
          continue;
        }
        const auto token = [&] { return x + choice / choices * width; };
        const auto weight = [&] { return Splat(weights == nullptr ? T{1} : weights[choice]); };
        if (weights == nullptr) {
          std::copy(token(), token() + width, y);
        } else {
          Map(
              width, [w = weight()](auto v) { return v * w; }, y, token());
        }
        for (choice = next[choice]; choice >= 0; choice = next[choice]) {
          Map(
              width, [w = weight()](auto sum, auto v) { return sum + v * w; }, y, y, token());
        }
      }
    });
    return absl::OkStatus();
  }

 private:
  // Choices are numbered over all groups, as in the operand.
  void MakeLists(const KernelArgs& args, int64_t* first, int64_t* next) const {
    std::fill(first, first + routing_.num_rows(), int64_t{-1});
    const Routing::Rows row_of(routing_, args.microbatch);
    const IndexReader slots(args.inputs[1], spec_.inputs[1].dtype);
    const int64_t choices_a_group = routing_.choices_a_group();
    for (int64_t i = routing_.groups() * choices_a_group - 1; i >= 0; --i) {
      const int64_t row = row_of(i / choices_a_group, slots[i]);
      if (row < 0) continue;
      next[i] = first[row];
      first[row] = i;
    }
  }

  Routing routing_;
};

size_t DispatchWorkspace(const KernelSpec& spec, int) {
  const Routing routing(spec.inputs[1], spec.outputs[0]);
  return (routing.num_rows() + spec.inputs[1].num_elements()) * sizeof(int64_t);
}

KernelOr CreateDispatch(const KernelSpec& spec, Device& device, Stream& stream) {
  RETURN_IF_ERROR(CheckIndexDType(spec.op, spec.inputs[1].dtype));
  return CreateKernel<Dispatch, Floats>(spec, device, stream);
}

}  // namespace

KernelDef DispatchKernel() {
  return {.workspace_bytes = DispatchWorkspace, .create = CreateDispatch};
}

}  // namespace penstock::kernels
