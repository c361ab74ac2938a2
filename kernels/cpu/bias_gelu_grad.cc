#include "kernels/cpu/bias.h"
#include "kernels/cpu/gelu.h"

namespace penstock::kernels {

KernelDef BiasGeluGradKernel() {
  return {.create = [](const KernelSpec& spec, Device& device, Stream& stream) -> KernelOr {
            return DispatchGelu(spec, [&]<typename G>(G) {
              return BiasDef<FloatsAndBFloat16>(
                         [](auto x, auto b, auto dy) { return dy * G::Slope(x + b); })
                  .create(spec, device, stream);
            });
          },
          .can_alias = CanAliasBias};
}

}  // namespace penstock::kernels
