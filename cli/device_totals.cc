#include "cli/device_totals.h"

#include <algorithm>

namespace penstock::cli {
namespace {

// Raises `last` to `now` and returns by how much. What is read while a device works may be a little
// less than what was read before.
int64_t Raise(int64_t now, int64_t* last) {
  const int64_t by = std::max<int64_t>(now - *last, 0);
  *last += by;
  return by;
}

}  // namespace

void DeviceTotals::Add(uint64_t session, const planner::Plan& plan,
                       const std::vector<actors::DeviceSnapshot>& devices, int64_t now_ns) {
  std::vector<Counts>& last = last_[session];
  last.resize(std::max(last.size(), devices.size()));
  for (uint32_t d = 0; d < devices.size(); ++d) {
    const actors::DeviceSnapshot& state = devices[d];
    if (state.state == actors::DeviceSnapshot::State::kSilent) continue;
    const auto [it, is_new] = totals_.try_emplace(d);
    Total& total = it->second;
    if (is_new) {
      total.device.device = d;
      total.device.stage = d < plan.devices.size() ? plan.devices[d].stage : 0;
      total.begin_ns = now_ns - state.age_ns;
    }
    total.seen_ns = now_ns;
    total.device.busy_ns += Raise(state.age_ns - state.idle_ns, &last[d].busy_ns);
    total.device.collective_ns += Raise(state.collective_ns, &last[d].collective_ns);
    total.device.transfer_ns += Raise(state.transfer_ns, &last[d].transfer_ns);
    total.device.microbatches += Raise(state.microbatches, &last[d].microbatches);
  }
}

std::vector<DeviceTotals::Device> DeviceTotals::Read(int64_t now_ns, bool is_idle) {
  std::vector<Device> devices;
  for (auto& [index, total] : totals_) {
    Device& device = total.device;
    if (is_idle) total.seen_ns = now_ns;
    // Not the sum of what sessions call idle: one that waits while another runs is idle, too.
    const int64_t rest =
        total.seen_ns - total.begin_ns - device.busy_ns - device.collective_ns - device.transfer_ns;
    device.nothing_ns = std::max(device.nothing_ns, rest);
    devices.push_back(device);
  }
  return devices;
}

}  // namespace penstock::cli
