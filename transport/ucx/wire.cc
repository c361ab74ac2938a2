#include "transport/ucx/wire.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"

namespace penstock::transport::ucx {
namespace {

constexpr uint64_t kMagic = 0x34584355'6b6e6570;  // "penkUCX4"
constexpr uint32_t kMaxDevices = 4096;
constexpr uint64_t kMaxWorkerBytes = 64 << 10;  // of one address; real ones have a few hundred
constexpr uint8_t kMaxNetworkAddresses = 64;

// FNV-1a, 64 bits.
uint64_t CheckSum(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  }
  return hash;
}

template <typename T>
void Put(std::string* bytes, T value) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Takes a T from the front; false if there are not enough bytes.
template <typename T>
bool Get(std::string_view* bytes, T* value) {
  if (bytes->size() < sizeof(T)) return false;
  std::memcpy(value, bytes->data(), sizeof(T));
  bytes->remove_prefix(sizeof(T));
  return true;
}

}  // namespace

std::string EncodeAddress(const ProcessAddress& address) {
  std::string bytes;
  Put(&bytes, kMagic);
  Put(&bytes, address.generation);
  Put(&bytes, address.first_device);
  Put(&bytes, address.network_namespace);
  Put(&bytes, address.shared);
  const auto num_addresses = static_cast<uint8_t>(
      std::min<size_t>(address.network_addresses.size(), kMaxNetworkAddresses));
  Put(&bytes, num_addresses);
  for (uint8_t i = 0; i < num_addresses; ++i) {
    Put(&bytes, static_cast<uint8_t>(address.network_addresses[i].size()));
    bytes += address.network_addresses[i];
  }
  Put(&bytes, static_cast<uint32_t>(address.devices.size()));
  for (const ProcessAddress::Device& device : address.devices) {
    Put(&bytes, device.key);
    for (const std::string& worker : {device.worker, device.network}) {
      Put(&bytes, static_cast<uint64_t>(worker.size()));
      bytes += worker;
    }
  }
  Put(&bytes, CheckSum(bytes));
  return bytes;
}

absl::StatusOr<ProcessAddress> DecodeAddress(std::string_view bytes) {
  const absl::Status malformed =
      absl::InvalidArgumentError("the address of a process is malformed");
  uint64_t check_sum = 0;
  if (bytes.size() < sizeof(check_sum)) return malformed;
  std::string_view rest = bytes.substr(0, bytes.size() - sizeof(check_sum));
  std::memcpy(&check_sum, bytes.data() + rest.size(), sizeof(check_sum));
  if (check_sum != CheckSum(rest)) return malformed;

  ProcessAddress address;
  uint64_t magic = 0;
  uint8_t num_addresses = 0;
  uint32_t num_devices = 0;
  if (!Get(&rest, &magic) || magic != kMagic || !Get(&rest, &address.generation) ||
      !Get(&rest, &address.first_device) || !Get(&rest, &address.network_namespace) ||
      !Get(&rest, &address.shared) || !Get(&rest, &num_addresses) ||
      num_addresses > kMaxNetworkAddresses) {
    return malformed;
  }
  for (uint8_t i = 0; i < num_addresses; ++i) {
    uint8_t size = 0;
    if (!Get(&rest, &size) || (size != 4 && size != 16) || size > rest.size()) return malformed;
    address.network_addresses.emplace_back(rest.substr(0, size));
    rest.remove_prefix(size);
  }
  if (!Get(&rest, &num_devices) || num_devices == 0 || num_devices > kMaxDevices) return malformed;
  for (uint32_t i = 0; i < num_devices; ++i) {
    ProcessAddress::Device device;
    if (!Get(&rest, &device.key)) return malformed;
    for (std::string* worker : {&device.worker, &device.network}) {
      uint64_t size = 0;
      if (!Get(&rest, &size) || size == 0 || size > kMaxWorkerBytes || size > rest.size()) {
        return malformed;
      }
      *worker = rest.substr(0, size);
      rest.remove_prefix(size);
    }
    address.devices.push_back(std::move(device));
  }
  if (!rest.empty()) return malformed;
  return address;
}

}  // namespace penstock::transport::ucx
