#include "kernels/emulated/emulated_kernels.h"

#include <string>
#include <utility>

#include "base/emulated_device.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::kernels {
namespace {

class EmulatedKernel : public Kernel {
 public:
  EmulatedKernel(std::unique_ptr<Kernel> kernel, EmulatedStream* stream)
      : kernel_(std::move(kernel)), stream_(stream) {}

  absl::Status Run(const KernelArgs& args) override {
    EmulatedRun& run = stream_->BeginLaunch();
    run.function = &RunHost;
    run.context = kernel_.get();
    run.pointers.assign(args.inputs.begin(), args.inputs.end());
    run.pointers.insert(run.pointers.end(), args.outputs.begin(), args.outputs.end());
    run.pointers.push_back(args.workspace);
    run.values = {args.inputs.size(), args.seed, static_cast<uint64_t>(args.step),
                  static_cast<uint64_t>(args.microbatch)};
    run.step_value = 2;
    run.launch = args.launch;
    stream_->EndLaunch();
    return absl::OkStatus();
  }

 private:
  // On the device.
  static absl::Status RunHost(void* context, const EmulatedRun& run) {
    const size_t num_inputs = run.values[0];
    const absl::Span<void* const> pointers = run.pointers;
    KernelArgs args;
    args.inputs = pointers.first(num_inputs);
    args.outputs = pointers.subspan(num_inputs, pointers.size() - num_inputs - 1);
    args.workspace = pointers.back();
    args.seed = run.values[1];
    args.step = static_cast<int64_t>(run.values[2]);
    args.microbatch = static_cast<int64_t>(run.values[3]);
    return static_cast<Kernel*>(context)->Run(args);
  }

  const std::unique_ptr<Kernel> kernel_;
  EmulatedStream* const stream_;
};

}  // namespace

KernelRegistry EmulatedKernels(const KernelRegistry& registry) {
  KernelRegistry emulated;
  for (const std::string_view name : registry.Names()) {
    KernelDef def = *registry.Find(name);
    if (def.create != nullptr) {
      def.create = [create = def.create](
                       const KernelSpec& spec, Device& device,
                       Stream& stream) -> absl::StatusOr<std::unique_ptr<Kernel>> {
        auto* host = dynamic_cast<EmulatedDevice*>(&device);
        auto* queue = dynamic_cast<EmulatedStream*>(&stream);
        if (host == nullptr || queue == nullptr) {
          return absl::FailedPreconditionError(StrCat("the emulated kernel for ", spec.op,
                                                      " needs an emulated device, not a ",
                                                      device.kind(), " device"));
        }
        ASSIGN_OR_RETURN(std::unique_ptr<Kernel> kernel,
                         create(spec, host->host_device(), host->host_stream()));
        return std::make_unique<EmulatedKernel>(std::move(kernel), queue);
      };
    }
    emulated.Add(std::string(name), std::move(def)).IgnoreError();  // the names are distinct
  }
  return emulated;
}

}  // namespace penstock::kernels
