// The kinds of a job's devices: one for all, or one for each block of consecutive devices. A job
// gives them in cluster.device_kind, or host by host in cluster.host.
//
//   device_kind = "cuda"            all devices
//   device_kind = ["cpu", "cuda"]   the first half of them, and the second
//
// Thread rule: values and pure functions.

#ifndef PENSTOCK_CLI_DEVICE_LIST_H_
#define PENSTOCK_CLI_DEVICE_LIST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/job.h"

namespace penstock::cli {

// "emulated" is a device on the host that behaves like a GPU (base/emulated_device.h), for tests.
inline constexpr std::string_view kDeviceKinds[] = {"cpu", "cuda", "emulated"};

// An error that names the kinds that there are.
absl::Status CheckDeviceKind(std::string_view kind);

class DeviceList {
 public:
  // Consecutive devices.
  struct Block {
    std::string kind;
    int64_t count = 0;
    friend bool operator==(const Block&, const Block&) = default;
  };

  DeviceList() : DeviceList("cpu") {}
  // All devices of a job, however many.
  explicit DeviceList(std::string kind) : blocks_{Block{std::move(kind), 0}} {}
  // In the order of the devices. REQUIRES: at least one block, none without devices.
  explicit DeviceList(std::vector<Block> blocks);

  // Reads what ToString writes. In a list, a kind without a number is one device.
  static absl::StatusOr<DeviceList> Parse(std::string_view text);
  // "cuda", or "cpu:2,cuda:6".
  std::string ToString() const;

  // Devices beyond the last block are of its kind.
  const std::string& KindOf(int64_t device) const;
  // The number of devices of its kind before it.
  int64_t IndexInKind(int64_t device) const;
  // The number of devices of a kind among [first, first + count).
  int64_t Count(std::string_view kind, int64_t first, int64_t count) const;
  // The kinds of the devices [first, first + count), each once, in the order of the devices.
  std::vector<std::string> KindsOf(int64_t first, int64_t count) const;
  // The kinds of all devices, each once, sorted.
  std::vector<std::string> Kinds() const;
  bool Has(std::string_view kind) const;
  bool IsAll(std::string_view kind) const { return is_uniform() && Has(kind); }
  bool is_uniform() const { return blocks_.size() == 1; }
  // Of a job with `num_devices`.
  std::vector<Block> Blocks(int64_t num_devices) const;

  friend bool operator==(const DeviceList&, const DeviceList&) = default;

 private:
  std::vector<Block> blocks_;  // neighbours differ in kind; the count of a single one is 0
};

// Whether the job gives kinds for blocks or for hosts.
bool ListsDeviceKinds(const Job& job);

// An error, with the place of the key, if the devices cannot be divided as the job says.
absl::StatusOr<DeviceList> DeviceListOf(const Job& job, int64_t num_devices);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_DEVICE_LIST_H_
