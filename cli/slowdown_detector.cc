#include "cli/slowdown_detector.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "fmt/format.h"

namespace penstock::cli {

SlowdownDetector::SlowdownDetector(std::vector<uint32_t> hosts)
    : host_of_device_(std::move(hosts)) {
  uint32_t num_hosts = 0;
  for (const uint32_t host : host_of_device_) num_hosts = std::max(num_hosts, host + 1);
  hosts_.resize(num_hosts);
}

std::vector<planner::SlowHost> SlowdownDetector::Add(
    absl::Span<const actors::DeviceStepReport> devices) {
  int64_t step_ns = 0;
  for (const actors::DeviceStepReport& device : devices) {
    if (device.device >= host_of_device_.size()) continue;
    hosts_[host_of_device_[device.device]].busy_ns +=
        std::max<int64_t>(device.wall_ns - device.wait_ns, 0);
    step_ns = std::max(step_ns, device.wall_ns);
  }
  window_ns_ += step_ns;
  if (++num_steps_ < kMinSteps || window_ns_ < kWindowNs) return {};
  return EndWindow();
}

double SlowdownDetector::Host::RateOf(double step_ns) {
  if (fastest_ns == 0 || step_ns < fastest_ns) {
    second_ns = std::exchange(fastest_ns, step_ns);
  } else if (second_ns == 0 || step_ns < second_ns) {
    second_ns = step_ns;
  }
  return second_ns == 0 ? 1 : std::min(second_ns / step_ns, 1.0);
}

std::vector<planner::SlowHost> SlowdownDetector::EndWindow() {
  std::vector<double> rates;
  for (Host& host : hosts_) {
    const double step_ns = static_cast<double>(std::max<int64_t>(host.busy_ns, 1)) / num_steps_;
    rates.push_back(host.RateOf(step_ns));
    host.busy_ns = 0;
  }
  window_ns_ = 0;
  num_steps_ = 0;
  std::vector<const planner::SlowHost*> slow(hosts_.size(), nullptr);
  const std::vector<planner::SlowHost> found = planner::FindSlowHosts(rates);
  for (const planner::SlowHost& host : found) slow[static_cast<size_t>(host.host)] = &host;
  std::vector<planner::SlowHost> news;
  for (size_t i = 0; i < hosts_.size(); ++i) {
    Host& host = hosts_[i];
    host.num_slow = slow[i] != nullptr ? host.num_slow + 1 : 0;
    host.num_fast = slow[i] == nullptr ? host.num_fast + 1 : 0;
    if (host.num_fast >= kNumWindows) host.is_slow = false;
    if (host.num_slow < kNumWindows || std::exchange(host.is_slow, true)) continue;
    if (++host.num_found > kMaxFound) continue;
    news.push_back(*slow[i]);
  }
  return news;
}

std::vector<uint32_t> HostsOfDevices(const std::vector<actors::NodeDescription>& nodes,
                                     std::vector<uint32_t>* first_ranks) {
  std::map<std::string_view, uint32_t> numbers;
  std::vector<uint32_t> hosts;
  for (const actors::NodeDescription& node : nodes) {
    const auto [it, is_new] =
        numbers.try_emplace(node.host, static_cast<uint32_t>(first_ranks->size()));
    if (is_new) first_ranks->push_back(node.rank);
    const size_t end = size_t{node.first_device} + node.num_devices;
    hosts.resize(std::max(hosts.size(), end), it->second);
    std::fill(hosts.begin() + node.first_device, hosts.begin() + static_cast<std::ptrdiff_t>(end),
              it->second);
  }
  return hosts;
}

std::string SlowdownNote(const std::string& host, const planner::SlowHost& slow) {
  return fmt::format("note: {} has become {:.0f} % slower than the other hosts\n", host,
                     100 * (1 - slow.part));
}

}  // namespace penstock::cli
