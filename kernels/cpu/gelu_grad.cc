#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gelu.h"

namespace penstock::kernels {

KernelDef GeluGradKernel() {
  return {.create = [](const KernelSpec& spec, Device& device, Stream& stream) -> KernelOr {
            return DispatchGelu(spec, [&]<typename G>(G) {
              return BinaryDef<FloatsAndBFloat16>([](auto x, auto dy) { return dy * G::Slope(x); })
                  .create(spec, device, stream);
            });
          },
          .can_alias = CanAliasElementwise};
}

}  // namespace penstock::kernels
