#include "transport/ucx/ucx_transport.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include <ucp/api/ucp.h>

#include "base/format.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "transport/ucx/arrival_watch.h"
#include "transport/ucx/shared_memory.h"
#include "transport/ucx/ucx_endpoint.h"
#include "transport/ucx/ucx_log.h"
#include "transport/ucx/ucx_status.h"
#include "transport/ucx/wire.h"

namespace penstock::transport {
namespace {

using ucx::ArrivalWatch;
using ucx::ConnectionState;
using ucx::FromUcs;
using ucx::ProcessAddress;
using ucx::UcxEndpoint;

// Whether UCX_TLS lets UCX use shared memory; a setting for what it does not use makes it complain.
bool MayShareMemory() {
  const char* transports = std::getenv("UCX_TLS");
  if (transports == nullptr) return true;
  for (const std::string_view name : {"posix", "sysv", "sm", "shm", "mm", "all", "^"}) {
    if (std::string_view(transports).find(name) != std::string_view::npos) return true;
  }
  return false;
}

// Changes the defaults of the settings that UCX's environment does not name.
absl::Status SetDefaults(const UcxOptions& options, ucp_config_t* config) {
  const auto set = [config](const std::string& name, const std::string& value) {
    if (std::getenv(StrCat("UCX_", name).c_str()) != nullptr) return absl::OkStatus();
    return FromUcs(ucp_config_modify(config, name.c_str(), value.c_str()),
                   StrCat(name, "=", value));
  };
  RETURN_IF_ERROR(set("NET_DEVICES", options.interfaces));
  RETURN_IF_ERROR(set("KEEPALIVE_INTERVAL", "100ms"));
  // Without, endpoints that handle errors do not use shared memory, and tcp slips in.
  if (MayShareMemory()) RETURN_IF_ERROR(set("MM_ERROR_HANDLING", "y"));
  return absl::OkStatus();
}

// The parts of a destroyed transport that UCX may still use.
struct LeakedTransport {
  std::unique_ptr<UcxOptions> options;
  std::unique_ptr<Transport> local;
  std::vector<std::unique_ptr<ucx::PeerMemory>> peer_memory;
  std::vector<std::shared_ptr<const void>> owners;
  std::unique_ptr<ucx::Receiver::Transfers> transfers;
  std::vector<std::unique_ptr<UcxEndpoint>> endpoints;
};

struct LeakedTransports {
  absl::Mutex mutex;
  std::vector<LeakedTransport> transports ABSL_GUARDED_BY(mutex);
};

class UcxTransportImpl final : public UcxTransport {
 public:
  explicit UcxTransportImpl(const UcxOptions& options)
      : own_options_(std::make_unique<UcxOptions>(options)),
        options_(*own_options_),
        local_(CreateInprocTransport(options.transport)) {}

  ~UcxTransportImpl() override {
    is_closing_.store(true, std::memory_order_relaxed);
    if (starter_.joinable()) starter_.join();
    watch_.reset();
    AwaitConnections();
    const auto deadline = std::chrono::steady_clock::now() + options_.release_timeout;
    bool has_leaked_worker = false;
    std::string transferring;
    for (const auto& endpoint : endpoints_) {
      endpoint->Close(deadline);
      has_leaked_worker |= endpoint->is_leaked();
      if (endpoint->IsTransferring()) {
        StrAppend(&transferring, transferring.empty() ? "" : ", ",
                  endpoint->DescribeTransferring());
      }
    }
    if (!transferring.empty()) {
      LeakMemory(transferring);
      return;
    }
    endpoints_.clear();
    const absl::MutexLock lock(&mutex_);
    if (context_ == nullptr) return;
    for (ucp_mem_h handle : memory_) ucp_mem_unmap(context_, handle);
    if (!has_leaked_worker) ucp_cleanup(context_);
  }

  absl::Status Open() {
    const uint32_t num_devices = options_.transport.num_devices;
    if (options_.num_local_devices == 0 || options_.first_device >= num_devices ||
        options_.num_local_devices > num_devices - options_.first_device) {
      return absl::InvalidArgumentError(StrCat(options_.num_local_devices, " local devices from ",
                                               options_.first_device, " are not among the ",
                                               num_devices, " of the transport"));
    }
    if (!options_.peers.empty() && options_.peers.size() != options_.num_local_devices) {
      return absl::InvalidArgumentError(StrCat("peers of ", options_.peers.size(),
                                               " devices are given for ",
                                               options_.num_local_devices));
    }
    RETURN_IF_ERROR(OpenContext());
    if (MayShareMemory()) shared_ = ucx::SharedMemory::Create();
    std::vector<UcxEndpoint*> endpoints;
    for (uint32_t i = 0; i < options_.num_local_devices; ++i) {
      const uint32_t device = options_.first_device + i;
      ASSIGN_OR_RETURN(Endpoint * local, local_->OpenEndpoint(device));
      ASSIGN_OR_RETURN(std::unique_ptr<UcxEndpoint> endpoint,
                       UcxEndpoint::Create(options_, context_, device, local, transfers_.get()));
      endpoints.push_back(endpoint.get());
      endpoints_.push_back(std::move(endpoint));
    }
    ASSIGN_OR_RETURN(watch_, ArrivalWatch::Create(std::move(endpoints), options_));
    ASSIGN_OR_RETURN(starter_, StartThread("connections", [this] { ProgressUntilEstablished(); }));
    return absl::OkStatus();
  }

  std::string name() const override { return "ucx"; }
  uint32_t num_devices() const override { return options_.transport.num_devices; }

  absl::StatusOr<Endpoint*> OpenEndpoint(uint32_t device) override {
    if (!IsLocal(device)) {
      return absl::InvalidArgumentError(StrCat("device ", device, " is not among the ",
                                               options_.num_local_devices, " of this process from ",
                                               options_.first_device));
    }
    return endpoints_[device - options_.first_device].get();
  }

  absl::Status RegisterMemory(void* data, size_t num_bytes) override {
    if (num_bytes == 0) return absl::OkStatus();
    uint64_t place = ucx::kNoPlace;
    if (shared_ != nullptr && ucx::SharedMemory::BeginsHugePage(data)) {
      place = shared_->Share(data, num_bytes);
    }
    ucp_mem_map_params_t params = {};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    params.address = data;
    params.length = num_bytes;
    ucp_mem_h handle = nullptr;
    RETURN_IF_ERROR(FromUcs(ucp_mem_map(context_, &params, &handle), "registering memory"));
    {
      const absl::MutexLock lock(&mutex_);
      memory_.push_back(handle);
    }
    for (const auto& endpoint : endpoints_) endpoint->AddMemory(data, num_bytes, handle, place);
    return absl::OkStatus();
  }

  void Hold(std::shared_ptr<const void> owner, uint64_t num_bytes) override {
    const absl::MutexLock lock(&mutex_);
    owners_.push_back(std::move(owner));
    num_held_bytes_ += num_bytes;
  }

  TransportStats stats() const override {
    TransportStats stats = local_->stats();
    for (const auto& endpoint : endpoints_) endpoint->AddStats(&stats);
    return stats;
  }

  void Wait(int fd, int timeout_ms) override { watch_->Wait(fd, timeout_ms); }

  std::string LocalAddress() const override {
    ProcessAddress address;
    address.generation = options_.transport.generation;
    address.first_device = options_.first_device;
    address.network_namespace = network_namespace_;
    if (shared_ != nullptr) address.shared = shared_->address();
    address.network_addresses = ucx::OwnAddresses();
    for (const auto& endpoint : endpoints_) address.devices.push_back(endpoint->address());
    return ucx::EncodeAddress(address);
  }

  absl::Status Connect(uint32_t first_device, std::string_view bytes) override {
    ASSIGN_OR_RETURN(const ProcessAddress address, ucx::DecodeAddress(bytes));
    const uint32_t num_devices = options_.transport.num_devices;
    if (address.generation != options_.transport.generation) {
      return absl::FailedPreconditionError(
          StrCat("the peer's address belongs to another session: it has generation ",
                 address.generation, ", this transport has ", options_.transport.generation));
    }
    if (address.first_device != first_device || first_device >= num_devices ||
        address.devices.size() > num_devices - first_device) {
      return absl::InvalidArgumentError(
          StrCat("the peer's address is wrong: it is for ", address.devices.size(),
                 " devices from device ", address.first_device, ", but devices from ", first_device,
                 " were expected, of ", num_devices, " in all"));
    }
    const bool is_in_namespace = address.network_namespace == network_namespace_;
    ucx::PeerMemory* memory = nullptr;
    if (shared_ != nullptr && is_in_namespace) {
      std::unique_ptr<ucx::PeerMemory> opened = ucx::PeerMemory::Open(address.shared);
      const absl::MutexLock lock(&mutex_);
      memory = opened.get();
      if (memory != nullptr) peer_memory_.push_back(std::move(opened));
    }
    const auto network_addresses =
        std::make_shared<const std::vector<ucx::NetworkAddress>>(address.network_addresses);
    for (uint32_t i = 0; i < address.devices.size(); ++i) {
      const uint32_t device = first_device + i;
      if (IsLocal(device)) {
        return absl::InvalidArgumentError(
            StrCat("the peer's address is wrong: device ", device, " belongs to this process"));
      }
      for (uint32_t local = 0; local < options_.num_local_devices; ++local) {
        UcxEndpoint& endpoint = *endpoints_[local];
        if (IsPeer(local, device)) {
          const ProcessAddress::Device& peer = address.devices[i];
          RETURN_IF_ERROR(endpoint.Connect(device, peer.key,
                                           is_in_namespace ? peer.worker : peer.network, memory,
                                           network_addresses));
        } else {
          endpoint.LeaveUnconnected(device, memory);
        }
      }
    }
    const absl::MutexLock lock(&mutex_);
    processes_.emplace_back(first_device, static_cast<uint32_t>(address.devices.size()));
    return absl::OkStatus();
  }

  void FailPeer(uint32_t device, const absl::Status& cause) override {
    uint32_t first = device;
    uint32_t count = 1;
    {
      const absl::MutexLock lock(&mutex_);
      for (const auto& [begin, size] : processes_) {
        if (device - begin >= size) continue;
        first = begin;
        count = size;
      }
    }
    if (IsLocal(first) || first >= num_devices()) return;
    for (const auto& endpoint : endpoints_) {
      for (uint32_t i = 0; i < count; ++i) endpoint->FailPeer(first + i, cause);
    }
  }

 private:
  // UCX uses memory of requests for ever: whatever it may touch is never freed.
  void LeakMemory(const std::string& transferring) {
    // One for the process, never destroyed: UCX may read or write this memory until the
    // process ends, so nothing that ends before may own it. That it stays reachable tells leak
    // checkers that it is kept on purpose.
    static auto* const leaked = new LeakedTransports();
    const auto on_leak = std::exchange(own_options_->on_leak, nullptr);
    own_options_->on_unreleased = nullptr;
    own_options_->on_cut_link = nullptr;
    const absl::MutexLock lock(&mutex_);
    {
      const absl::MutexLock leaked_lock(&leaked->mutex);
      leaked->transports.push_back({std::move(own_options_), std::move(local_),
                                    std::move(peer_memory_), std::move(owners_),
                                    std::move(transfers_), std::move(endpoints_)});
    }
    if (!on_leak) return;
    on_leak(num_held_bytes_,
            StrCat("data plane: ", FormatBytes(num_held_bytes_),
                   " of memory are never freed, as UCX cannot let go of ", transferring));
  }

  bool IsLocal(uint32_t device) const {
    return device - options_.first_device < options_.num_local_devices;
  }

  // Whether the local device of this index exchanges messages with `device`.
  bool IsPeer(uint32_t local, uint32_t device) const {
    if (options_.peers.empty()) return true;
    const std::vector<uint32_t>& peers = options_.peers[local];
    return std::find(peers.begin(), peers.end(), device) != peers.end();
  }

  // Peers connect before the owners of the endpoints are there, and may still when these have left.
  void ProgressUntilEstablished() {
    constexpr std::chrono::milliseconds kMaxPause{100};
    std::chrono::milliseconds pause{1};
    while (!is_closing_.load(std::memory_order_relaxed)) {
      bool are_driven = true;
      bool are_established = true;
      for (const auto& endpoint : endpoints_) {
        are_driven &= endpoint->is_driven();
        are_established &= endpoint->ProgressConnections() == ConnectionState::kEstablished;
      }
      if (are_driven && are_established) return;
      if (are_driven) pause = std::min(2 * pause, kMaxPause);
      std::this_thread::sleep_for(pause);
    }
  }

  // All endpoints are moved along together: peers that close, too, wait for each of them.
  void AwaitConnections() {
    constexpr std::chrono::milliseconds kOneSidedTimeout{500};
    const auto begin = std::chrono::steady_clock::now();
    for (;;) {
      ConnectionState least = ConnectionState::kEstablished;
      for (const auto& endpoint : endpoints_) {
        least = std::min(least, endpoint->ProgressConnections());
      }
      const auto waited = std::chrono::steady_clock::now() - begin;
      if (least == ConnectionState::kEstablished || waited >= options_.answer_timeout) return;
      if (least == ConnectionState::kOneSided && waited >= kOneSidedTimeout) return;
      std::this_thread::yield();
    }
  }

  absl::Status OpenContext() {
    const ucx::LogScope log;
    ucp_config_t* config = nullptr;
    RETURN_IF_ERROR(
        FromUcs(ucp_config_read(nullptr, nullptr, &config), "reading the settings of UCX", log));
    const absl::Status set = SetDefaults(options_, config);
    ucp_params_t params = {};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED |
                        UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    params.mt_workers_shared = 1;
    params.estimated_num_eps = options_.peers.empty() ? options_.transport.num_devices : 1;
    for (const std::vector<uint32_t>& peers : options_.peers) {
      params.estimated_num_eps = std::max(params.estimated_num_eps, peers.size());
    }
    const ucs_status_t status = set.ok() ? ucp_init(&params, config, &context_) : UCS_OK;
    ucp_config_release(config);
    RETURN_IF_ERROR(set);
    RETURN_IF_ERROR(FromUcs(
        status, StrCat("starting UCX on ", ucx::DescribeInterfaces(options_.interfaces)), log));
    log.PassWarnings(options_.on_warning);
    return absl::OkStatus();
  }

  std::unique_ptr<UcxOptions> own_options_;
  const UcxOptions& options_;
  std::unique_ptr<Transport> local_;
  const uint64_t network_namespace_ = ucx::NetworkNamespace();
  std::unique_ptr<ucx::SharedMemory> shared_;  // null: this process shares nothing
  ucp_context_h context_ = nullptr;
  // Over the network, of all endpoints.
  std::unique_ptr<ucx::Receiver::Transfers> transfers_ =
      std::make_unique<ucx::Receiver::Transfers>();
  std::vector<std::unique_ptr<UcxEndpoint>> endpoints_;
  std::unique_ptr<ArrivalWatch> watch_;
  std::thread starter_;
  std::atomic<bool> is_closing_{false};

  absl::Mutex mutex_;
  std::vector<ucp_mem_h> memory_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<ucx::PeerMemory>> peer_memory_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<const void>> owners_ ABSL_GUARDED_BY(mutex_);  // see Hold
  uint64_t num_held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Of each process, the first device and the number of devices.
  std::vector<std::pair<uint32_t, uint32_t>> processes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<UcxTransport>> CreateUcxTransport(const UcxOptions& options) {
  auto transport = std::make_unique<UcxTransportImpl>(options);
  RETURN_IF_ERROR(transport->Open());
  return transport;
}

}  // namespace penstock::transport
