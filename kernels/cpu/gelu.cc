#include "kernels/cpu/gelu.h"

#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

KernelDef GeluKernel() {
  return {.create = [](const KernelSpec& spec, Device& device, Stream& stream) -> KernelOr {
            return DispatchGelu(spec, [&]<typename G>(G) {
              return UnaryDef<FloatsAndBFloat16>([](auto x) { return G::Value(x); })
                  .create(spec, device, stream);
            });
          },
          .can_alias = CanAliasElementwise};
}

}  // namespace penstock::kernels
