#include "cli/device_list.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "cli/host_layout.h"

#include "base/counted.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

constexpr int64_t kMaxDevices = 1 << 16;

// Blocks of equally many devices, one for each kind.
absl::StatusOr<std::vector<DeviceList::Block>> EqualBlocks(const std::vector<std::string>& kinds,
                                                           int64_t num_devices) {
  const auto count = static_cast<int64_t>(kinds.size());
  if (num_devices % count != 0) {
    return absl::InvalidArgumentError(StrCat(
        Counted(count, "kind"), " for ", Counted(num_devices, "device"),
        ": give a kind for each device, or for each of several equally large blocks of devices"));
  }
  std::vector<DeviceList::Block> blocks;
  for (const std::string& kind : kinds) blocks.push_back({kind, num_devices / count});
  return blocks;
}

bool IsByHost(const std::vector<Job::Host>& hosts) {
  return std::any_of(hosts.begin(), hosts.end(),
                     [](const Job::Host& host) { return !host.device_kinds.empty(); });
}

}  // namespace

absl::Status CheckDeviceKind(std::string_view kind) {
  if (std::find(std::begin(kDeviceKinds), std::end(kDeviceKinds), kind) != std::end(kDeviceKinds)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(StrCat("unknown kind of device \"", kind, "\"; expected \"",
                                           StrJoin(kDeviceKinds, "\", \""), "\""));
}

DeviceList::DeviceList(std::vector<Block> blocks) {
  for (Block& block : blocks) {
    if (!blocks_.empty() && blocks_.back().kind == block.kind) {
      blocks_.back().count += block.count;
    } else {
      blocks_.push_back(std::move(block));
    }
  }
  if (is_uniform()) blocks_[0].count = 0;
}

absl::StatusOr<DeviceList> DeviceList::Parse(std::string_view text) {
  std::vector<Block> blocks;
  for (const absl::string_view part : absl::StrSplit(ToAbsl(text), ',')) {
    const std::pair<std::string, std::string> block = absl::StrSplit(part, absl::MaxSplits(':', 1));
    RETURN_IF_ERROR(CheckDeviceKind(block.first));
    blocks.push_back({block.first, 0});
    int64_t& count = blocks.back().count;
    if (part.find(':') == absl::string_view::npos) {
      count = 1;
    } else if (!absl::SimpleAtoi(block.second, &count) || count < 1 || count > kMaxDevices) {
      return absl::InvalidArgumentError(
          StrCat("expected a number of devices of a kind, such as cpu:2, not ", ToStd(part)));
    }
  }
  return DeviceList(std::move(blocks));
}

std::string DeviceList::ToString() const {
  if (is_uniform()) return blocks_[0].kind;
  std::string text;
  for (const Block& block : blocks_) {
    StrAppend(&text, text.empty() ? "" : ",", block.kind, ":", block.count);
  }
  return text;
}

std::vector<DeviceList::Block> DeviceList::Blocks(int64_t num_devices) const {
  std::vector<Block> blocks;
  int64_t left = num_devices;
  for (size_t i = 0; i < blocks_.size() && left > 0; ++i) {
    const bool is_last = i + 1 == blocks_.size();
    blocks.push_back({blocks_[i].kind, is_last ? left : std::min(blocks_[i].count, left)});
    left -= blocks.back().count;
  }
  return blocks;
}

const std::string& DeviceList::KindOf(int64_t device) const {
  size_t block = 0;
  for (int64_t end = blocks_[0].count; block + 1 < blocks_.size() && device >= end;) {
    end += blocks_[++block].count;
  }
  return blocks_[block].kind;
}

int64_t DeviceList::Count(std::string_view kind, int64_t first, int64_t count) const {
  int64_t number = 0;
  int64_t begin = 0;
  for (const Block& block : Blocks(first + count)) {
    if (block.kind == kind) {
      number += std::max<int64_t>(begin + block.count - std::max(begin, first), 0);
    }
    begin += block.count;
  }
  return number;
}

int64_t DeviceList::IndexInKind(int64_t device) const { return Count(KindOf(device), 0, device); }

std::vector<std::string> DeviceList::KindsOf(int64_t first, int64_t count) const {
  std::vector<std::string> kinds;
  int64_t end = 0;
  for (const Block& block : Blocks(first + count)) {
    end += block.count;
    if (end > first && std::find(kinds.begin(), kinds.end(), block.kind) == kinds.end()) {
      kinds.push_back(block.kind);
    }
  }
  return kinds;
}

std::vector<std::string> DeviceList::Kinds() const {
  std::vector<std::string> kinds;
  for (const Block& block : blocks_) kinds.push_back(block.kind);
  std::sort(kinds.begin(), kinds.end());
  kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
  return kinds;
}

bool DeviceList::Has(std::string_view kind) const {
  return std::any_of(blocks_.begin(), blocks_.end(),
                     [&](const Block& block) { return block.kind == kind; });
}

bool ListsDeviceKinds(const Job& job) {
  return job.cluster.device_kinds.size() > 1 || IsByHost(job.cluster.host);
}

absl::StatusOr<DeviceList> DeviceListOf(const Job& job, int64_t num_devices) {
  const std::vector<std::string>& kinds = job.cluster.device_kinds;
  const std::vector<Job::Host>& hosts = job.cluster.host;
  if (!IsByHost(hosts)) {
    if (kinds.size() == 1) return DeviceList(kinds[0]);
    absl::StatusOr<std::vector<DeviceList::Block>> blocks = EqualBlocks(kinds, num_devices);
    if (!blocks.ok()) return AtKey(job, {"cluster.device_kind"}, blocks.status());
    return DeviceList(*std::move(blocks));
  }
  if (kinds.size() > 1) {
    return AtKey(
        job, {"cluster.device_kind"},
        absl::InvalidArgumentError(
            "cluster.host gives the kinds of devices of hosts; give one kind here, for the "
            "hosts without device_kind"));
  }
  RETURN_IF_ERROR(HostDevicesOf(job, num_devices).status());
  std::vector<DeviceList::Block> all;
  for (const Job::Host& host : hosts) {
    const absl::StatusOr<std::vector<DeviceList::Block>> blocks =
        EqualBlocks(host.device_kinds.empty() ? kinds : host.device_kinds, host.devices);
    if (!blocks.ok()) {
      return AtKey(job, {"cluster.host"},
                   absl::Status(blocks.status().code(), StrCat("device_kind of ", host.name, ": ",
                                                               ToStd(blocks.status().message()))));
    }
    all.insert(all.end(), blocks->begin(), blocks->end());
  }
  return DeviceList(std::move(all));
}

}  // namespace penstock::cli
