// What the passes in oneDNN share. For kernels/cpu/onednn_*.cc alone.
//
// Thread rule: any thread; a primitive runs on the calling one.

#ifndef PENSTOCK_KERNELS_CPU_ONEDNN_PRIMITIVE_INTERNAL_H_
#define PENSTOCK_KERNELS_CPU_ONEDNN_PRIMITIVE_INTERNAL_H_

#include <cstddef>
#include <initializer_list>
#include <string_view>

#include "absl/status/status.h"
#include "oneapi/dnnl/dnnl.hpp"

#include "base/strings.h"

namespace penstock::kernels {

// What lies in a workspace begins at multiples of it.
inline constexpr size_t kOneDnnAlignment = 64;

inline size_t OneDnnAligned(size_t bytes) {
  return (bytes + kOneDnnAlignment - 1) / kOneDnnAlignment * kOneDnnAlignment;
}

// oneDNN uses the scratchpad that a run gives it, and allocates none.
inline dnnl::primitive_attr UserScratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

// Runs the primitive. Throws dnnl::error.
inline void Execute(const dnnl::primitive& primitive, const dnnl::stream& stream,
                    std::initializer_list<dnnl_exec_arg_t> arguments) {
  dnnl::error::wrap_c_api(
      dnnl_primitive_execute(primitive.get(), stream.get(), static_cast<int>(arguments.size()),
                             arguments.begin()),
      "cannot run a primitive");
}

inline absl::Status OneDnnError(std::string_view what, const dnnl::error& error) {
  return absl::InternalError(StrCat("oneDNN: ", what, ": ", error.what(), " (status ",
                                    static_cast<int>(error.status), ")"));
}

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_ONEDNN_PRIMITIVE_INTERNAL_H_
