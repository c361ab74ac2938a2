#include "kernels/cpu/bias.h"
#include "kernels/cpu/gelu.h"

namespace penstock::kernels {

KernelDef BiasGeluKernel() {
  return {.create = [](const KernelSpec& spec, Device& device, Stream& stream) -> KernelOr {
            return DispatchGelu(spec, [&]<typename G>(G) {
              return BiasDef<FloatsAndBFloat16>([](auto x, auto b) { return G::Value(x + b); })
                  .create(spec, device, stream);
            });
          },
          .can_alias = CanAliasBias};
}

}  // namespace penstock::kernels
