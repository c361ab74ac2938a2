#include "base/tensor_memory.h"

#include "base/format.h"
#include "base/machine.h"
#include "base/strings.h"

namespace penstock {

absl::Status CheckFitsMemory(const TensorType& type) {
  const uint64_t limit = MachineMemoryBytes();
  if (static_cast<uint64_t>(type.num_elements()) <= limit / ByteSize(type.dtype)) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(StrCat(ToString(type), " is larger than the memory of this ",
                                             "machine, ", FormatBytes(limit)));
}

}  // namespace penstock
