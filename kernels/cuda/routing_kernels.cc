// Kernels of mixtures of experts.

#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/routing.h"

namespace penstock::kernels::cuda {
namespace {

// Of the tiles of slots [..., s, k] and of places [e, ..., c, d].
absl::StatusOr<RoutingShape> RoutingOf(const KernelSpec& spec, int slots_input,
                                       const TileDesc& places) {
  const Shape& slots = spec.inputs[slots_input].shape;
  const int capacity_dim = Rank(places) - 2;
  RoutingShape shape;
  shape.choices = slots.back();
  shape.tokens = slots[slots.size() - 2];
  shape.experts = places.shape[0];
  shape.capacity = places.shape[capacity_dim];
  shape.width = places.shape.back();
  for (int i = 1; i < capacity_dim; ++i) shape.groups *= places.shape[i];
  shape.global_experts = GlobalExtent(places, 0);
  shape.global_capacity = GlobalExtent(places, capacity_dim);
  ASSIGN_OR_RETURN(shape.slots.type, IndexType(spec, slots_input));
  return shape;
}

// With what changes from run to run.
RoutingShape At(const RoutingShape& shape, const TileDesc& places, const void* slots,
                int64_t microbatch) {
  RoutingShape run = shape;
  run.first_expert = TileBegin(places, 0, microbatch);
  run.first_place = TileBegin(places, Rank(places) - 2, microbatch);
  run.slots.data = slots;
  return run;
}

KernelOr CreateDispatch(const KernelSpec& spec, Device&, Stream& stream) {
  ASSIGN_OR_RETURN(const RoutingShape shape, RoutingOf(spec, 1, spec.outputs[0]));
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(spec, stream, [spec, shape](const KernelArgs& args, CudaStream& to) {
      const T* weights = args.inputs.size() > 2 ? Input<T>(args, 2) : nullptr;
      return Launched(
          spec,
          LaunchDispatch(to.handle(), At(shape, spec.outputs[0], args.inputs[1], args.microbatch),
                         Input<T>(args, 0), weights, Output<T>(args, 0)));
    });
  });
}

KernelOr CreateCombine(const KernelSpec& spec, Device&, Stream& stream) {
  ASSIGN_OR_RETURN(const RoutingShape shape, RoutingOf(spec, 1, spec.inputs[0]));
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(spec, stream, [spec, shape](const KernelArgs& args, CudaStream& to) {
      const T* weights = args.inputs.size() > 2 ? Input<T>(args, 2) : nullptr;
      return Launched(
          spec,
          LaunchCombine(to.handle(), At(shape, spec.inputs[0], args.inputs[1], args.microbatch),
                        Input<T>(args, 0), weights, Output<T>(args, 0)));
    });
  });
}

KernelOr CreateCombineWeightGrad(const KernelSpec& spec, Device&, Stream& stream) {
  ASSIGN_OR_RETURN(const RoutingShape shape, RoutingOf(spec, 2, spec.inputs[1]));
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(spec, stream, [spec, shape](const KernelArgs& args, CudaStream& to) {
      return Launched(
          spec, LaunchCombineWeightGrad(to.handle(),
                                        At(shape, spec.inputs[1], args.inputs[2], args.microbatch),
                                        Input<T>(args, 0), Input<T>(args, 1), Output<T>(args, 0)));
    });
  });
}

KernelOr CreateExpertSlots(const KernelSpec& spec, Device&, Stream& stream) {
  const Shape& chosen = spec.inputs[0].shape;
  ExpertSlotsParams params;
  params.choices = chosen.back();
  params.tokens = chosen[chosen.size() - 2];
  for (size_t i = 0; i + 2 < chosen.size(); ++i) params.groups *= chosen[i];
  params.experts = spec.attributes.GetInt("experts", 1);
  params.capacity = spec.attributes.GetInt("capacity", 1);
  ASSIGN_OR_RETURN(params.chosen.type, IndexType(spec, 0));
  return MakeKernel(spec, stream, [spec, params](const KernelArgs& args, CudaStream& to) {
    ExpertSlotsParams run = params;
    run.chosen.data = args.inputs[0];
    run.site = SiteOf(args, to);
    return Launched(spec, LaunchExpertSlots(to.handle(), run, Output<int64_t>(args, 0),
                                            OptionalOutput<int64_t>(args, 1)));
  });
}

KernelOr CreateTopK(const KernelSpec& spec, Device&, Stream& stream) {
  const Rows rows = RowsOf(spec.inputs[0]);
  const int64_t k = spec.attributes.GetInt("k", 1);
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(spec, stream, [spec, rows, k](const KernelArgs& args, CudaStream& to) {
      return Launched(spec, LaunchTopK(to.handle(), rows.count, rows.size, k, Input<T>(args, 0),
                                       Output<T>(args, 0), Output<int64_t>(args, 1)));
    });
  });
}

}  // namespace

void AddRoutingKernels(KernelRegistry* registry) {
  AddKernel(registry, "dispatch", {.create = CreateDispatch});
  AddKernel(registry, "combine", {.create = CreateCombine});
  AddKernel(registry, "combine_weight_grad", {.create = CreateCombineWeightGrad});
  AddKernel(registry, "expert_slots", {.create = CreateExpertSlots});
  AddKernel(registry, "top_k", {.create = CreateTopK});
}

}  // namespace penstock::kernels::cuda
