#include "planner/fit.h"

#include <string>

#include "base/counted.h"
#include "base/format.h"
#include "base/strings.h"

namespace penstock::planner {

absl::Status CheckFits(const FoldedPlan& plan,
                       const std::vector<uint64_t>& memory_bytes_per_device) {
  if (memory_bytes_per_device.size() != plan.num_devices()) {
    return absl::InvalidArgumentError(StrCat("the plan has ", Counted(plan.num_devices(), "device"),
                                             ", but the memory of ", memory_bytes_per_device.size(),
                                             " is given"));
  }
  size_t num_too_small = 0;
  std::string message;
  for (uint32_t d = 0; d < plan.num_devices(); ++d) {
    const DevicePlan& device = plan.ProgramOnDevice(d);
    const uint64_t available_bytes = memory_bytes_per_device[d];
    if (device.arena_bytes <= available_bytes) continue;
    if (++num_too_small > 1) continue;
    message = StrCat("device ", d, " needs ", FormatBytes(device.arena_bytes), " (",
                     device.arena_bytes, " bytes): state ", FormatBytes(device.state_bytes),
                     ", channels ", FormatBytes(device.channel_bytes), ", workspace ",
                     FormatBytes(device.workspace_bytes), "; it has ", FormatBytes(available_bytes),
                     " (", available_bytes, " bytes)");
  }
  if (num_too_small == 0) return absl::OkStatus();
  if (num_too_small > 1) StrAppend(&message, "; ", num_too_small - 1, " more devices do not fit");
  return absl::ResourceExhaustedError(message);
}

}  // namespace penstock::planner
