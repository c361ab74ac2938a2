#include "bench/collectives_bench.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <utility>

#include "base/blocks.h"
#include "base/device.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "bench/pin_process.h"
#include "bench/pipe_io.h"
#include "transport/collective.h"
#include "transport/ucx/ucx_transport.h"

namespace penstock::bench {
namespace {

using transport::Collective;
using transport::Endpoint;
using transport::kNoFlags;
using transport::UcxOptions;
using transport::UcxTransport;
using Clock = std::chrono::steady_clock;

constexpr size_t kHugePage = 2 << 20;
constexpr std::chrono::seconds kPatience{60};

// Looks at the transport before the core is offered to others, and where there are fewer cores than
// processes.
constexpr int kLooks = 1024;
constexpr int kOversubscribedLooks = 16;

// Runs of a few tenths of a second.
int RoundsOf(size_t num_bytes, int max_rounds) {
  constexpr size_t kTotal = size_t{1} << 29;
  return std::min(static_cast<int>(std::clamp<size_t>(kTotal / (num_bytes + 1), 12, 1000)),
                  max_rounds);
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

uint32_t HostOf(const CollectivesBenchOptions& options, int rank) {
  const auto num_hosts = std::max<int>(1, static_cast<int>(options.hosts.size()));
  return static_cast<uint32_t>(BlockOf(rank, num_hosts, options.num_processes));
}

CollectiveSpec SpecOf(const CollectivesBenchOptions& options, const CollectiveCase& measured,
                      uint32_t channel) {
  CollectiveSpec spec;
  spec.kind = measured.kind;
  spec.algorithm = measured.algorithm;
  spec.chunk_bytes = measured.chunk_bytes;
  spec.channel = channel;
  const auto elements = static_cast<int64_t>(measured.num_bytes / ByteSize(spec.dtype));
  const int n = options.num_processes;
  for (int rank = 0; rank < n; ++rank) {
    spec.devices.push_back(static_cast<uint32_t>(rank));
    if (spec.algorithm == CollectiveAlgorithm::kHierarchical) {
      spec.hosts.push_back(HostOf(options, rank));
    }
  }
  const bool is_split = spec.kind != CollectiveKind::kAllGather;
  const int num_rows = spec.kind == CollectiveKind::kAllToAll ? n : 1;
  for (int row = 0; row < num_rows; ++row) {
    for (int r = 0; r < n; ++r) {
      spec.counts.push_back(is_split ? elements * (r + 1) / n - elements * r / n : elements);
    }
  }
  return spec;
}

// Whole numbers, so that sums are exact in any order.
float ElementOf(int rank, int64_t i) { return static_cast<float>(rank * 17 + i % 251); }

// One of the processes. Says why it fails, and fails by its exit status.
class Member {
 public:
  // `is_oversubscribed`: more processes than cores.
  Member(const CollectivesBenchOptions& options, int rank, bool is_oversubscribed, int fd)
      : options_(options),
        rank_(rank),
        n_(options.num_processes),
        is_oversubscribed_(is_oversubscribed),
        fd_(fd) {}

  // Gives the parent this process's address and gets those of all.
  bool Join() {
    UcxOptions options;
    const auto num_channels = static_cast<uint32_t>(options_.cases.size() + 1);
    options.transport = {
        .num_devices = static_cast<uint32_t>(n_), .generation = 0, .num_channels = num_channels};
    options.first_device = static_cast<uint32_t>(rank_);
    if (!options_.hosts.empty()) options.interfaces = "eth0";
    auto transport = transport::CreateUcxTransport(options);
    if (!transport.ok()) {
      Fail(transport.status());
      return false;
    }
    transport_ = *std::move(transport);
    endpoint_ = *transport_->OpenEndpoint(options.first_device);
    const std::string mine = transport_->LocalAddress();
    auto size = static_cast<uint32_t>(mine.size());
    if (!WriteAll(fd_, &size, sizeof(size)) || !WriteAll(fd_, mine.data(), mine.size())) {
      return false;
    }
    for (int peer = 0; peer < n_; ++peer) {
      if (!ReadAll(fd_, &size, sizeof(size))) return false;
      std::string theirs(size, '\0');
      if (!ReadAll(fd_, theirs.data(), size)) return false;
      if (peer == rank_) continue;
      const absl::Status connected = transport_->Connect(static_cast<uint32_t>(peer), theirs);
      if (!connected.ok()) {
        Fail(connected);
        return false;
      }
    }
    CollectiveCase barrier;
    barrier.num_bytes = sizeof(float) * static_cast<size_t>(n_);
    barrier_ = MakeCollective(SpecOf(options_, barrier, num_channels - 1));
    return MakeArena();
  }

  // Rank 0 tells the parent each result as it comes.
  bool Measure() {
    for (size_t i = 0; i < options_.cases.size(); ++i) {
      const CollectiveCase& measured = options_.cases[i];
      const double us = measured.is_copy ? MeasureCopy(measured.num_bytes)
                                         : MeasureCase(measured, static_cast<uint32_t>(i));
      if (!Report(us)) return false;
    }
    return true;
  }

 private:
  bool MakeArena() {
    size_t most = kHugePage;
    size_t most_output = most;
    for (const CollectiveCase& measured : options_.cases) {
      const bool is_gather = measured.kind == CollectiveKind::kAllGather;
      most = std::max(most, measured.num_bytes);
      most_output = std::max(most_output, measured.num_bytes * (is_gather ? n_ : 1));
    }
    input_bytes_ = (most + kHugePage - 1) / kHugePage * kHugePage;
    const size_t num_bytes = input_bytes_ + most_output + kHugePage;
    auto memory = CreateCpuDevice(1)->Allocate(num_bytes, MemoryKind::kDevice);
    if (!memory.ok()) return false;
    memory_ = *std::move(memory);
    arena_ = memory_->data();
    return transport_->RegisterMemory(arena_, num_bytes).ok();
  }

  bool Report(double us) { return !has_failed_ && (rank_ != 0 || WriteAll(fd_, &us, sizeof(us))); }

  std::byte* input() { return arena_; }
  std::byte* output() { return arena_ + input_bytes_; }

  std::unique_ptr<Collective> MakeCollective(const CollectiveSpec& spec) {
    auto collective = transport::CreateCollective(spec, rank_, *endpoint_);
    if (transport::CheckCollective(spec, static_cast<uint32_t>(n_)).ok() && collective.ok()) {
      return *std::move(collective);
    }
    has_failed_ = true;
    return nullptr;
  }

  void Run(Collective& collective, const void* from, void* to, uint64_t sequence) {
    collective.Start(from, to, sequence, kNoFlags);
    const uint64_t patient_looks = is_oversubscribed_ ? kOversubscribedLooks : kLooks;
    const auto deadline = Clock::now() + kPatience;
    for (uint64_t looks = 1; !collective.Poll(); ++looks) {
      endpoint_->Progress();
      if (looks % patient_looks == 0) sched_yield();
      if (looks % (1 << 20) == 0 && Clock::now() > deadline) collective.Cancel();
    }
    if (!collective.status().ok()) Fail(collective.status());
  }

  void Fail(const absl::Status& cause) {
    if (!has_failed_) std::cerr << "process " << rank_ << ": " << cause << std::endl;
    has_failed_ = true;
  }

  // What a run has made of the inputs that ElementOf gives.
  bool IsRight(const CollectiveSpec& spec) const {
    const auto* found = reinterpret_cast<const float*>(arena_ + input_bytes_);
    int64_t begin = 0;
    for (int r = 0; r < rank_; ++r) begin += spec.counts[static_cast<size_t>(r)];
    for (int64_t i = 0; i < OutputCount(spec, rank_); ++i) {
      float expected = 0;
      int source = 0;
      int64_t at = i;
      switch (spec.kind) {
        case CollectiveKind::kReduceScatter:
          at += begin;
          [[fallthrough]];
        case CollectiveKind::kAllReduce:
          for (int r = 0; r < n_; ++r) expected += ElementOf(r, at);
          break;
        default: {
          const int64_t part = spec.counts[static_cast<size_t>(rank_)];
          source = static_cast<int>(part == 0 ? 0 : i / part);
          at = i % std::max<int64_t>(part, 1);
          if (spec.kind == CollectiveKind::kAllToAll) at += begin;
          expected = ElementOf(source, at);
        }
      }
      if (found[i] != expected) return false;
    }
    return true;
  }

  double MeasureCase(const CollectiveCase& measured, uint32_t channel) {
    const CollectiveSpec spec = SpecOf(options_, measured, channel);
    const std::unique_ptr<Collective> collective = MakeCollective(spec);
    if (collective == nullptr) return 0;
    auto* elements = reinterpret_cast<float*>(input());
    const int64_t count = InputCount(spec, rank_);
    for (int64_t i = 0; i < count; ++i) elements[i] = ElementOf(rank_, i);
    Run(*collective, input(), output(), 0);
    if (!has_failed_ && !IsRight(spec)) Fail(absl::DataLossError("a result is wrong"));
    // Sums of zeros stay zeros in place.
    std::memset(input(), 0, measured.num_bytes);
    Synchronize();
    const int rounds = RoundsOf(measured.num_bytes, options_.max_rounds);
    const int warm_ups = rounds / 8 + 1;
    std::vector<double> times;
    const bool is_in_place = spec.kind == CollectiveKind::kAllReduce;
    for (int i = 0; i < warm_ups + rounds && !has_failed_; ++i) {
      const auto begin = Clock::now();
      Run(*collective, input(), is_in_place ? input() : output(), static_cast<uint64_t>(i) + 1);
      if (i >= warm_ups) times.push_back(Microseconds(Clock::now() - begin));
    }
    return has_failed_ ? 0 : Median(std::move(times));
  }

  double MeasureCopy(size_t num_bytes) {
    constexpr size_t kBytesARound = 16 << 20;  // beside which a barrier is nothing
    const size_t copies = std::max<size_t>(1, kBytesARound / num_bytes);
    const int rounds = std::min(12, options_.max_rounds);
    std::vector<double> times;
    Synchronize();
    for (int i = 0; i < rounds && !has_failed_; ++i) {
      const auto begin = Clock::now();
      for (size_t copy = 0; copy < copies; ++copy) {
        std::memcpy(output(), input(), num_bytes);
        asm volatile("" ::: "memory");
      }
      Synchronize();
      times.push_back(Microseconds(Clock::now() - begin) / static_cast<double>(copies));
    }
    return has_failed_ ? 0 : Median(std::move(times));
  }

  void Synchronize() {
    if (has_failed_) return;
    std::vector<float> values(static_cast<size_t>(n_));
    Run(*barrier_, values.data(), values.data(), num_barriers_++);
  }

  static double Microseconds(Clock::duration duration) {
    return std::chrono::duration<double, std::micro>(duration).count();
  }

  const CollectivesBenchOptions& options_;
  const int rank_;
  const int n_;
  const bool is_oversubscribed_;
  const int fd_;
  std::unique_ptr<Memory> memory_;  // outlives the transport
  std::unique_ptr<UcxTransport> transport_;
  Endpoint* endpoint_ = nullptr;
  std::unique_ptr<Collective> barrier_;
  uint64_t num_barriers_ = 0;
  std::byte* arena_ = nullptr;  // in memory_
  size_t input_bytes_ = 0;
  bool has_failed_ = false;
};

// From here on this process makes others that share the network of a namespace, and memory with
// each other alone.
absl::Status EnterHost(const std::string& name) {
  const int fd = open(StrCat("/run/netns/", name).c_str(), O_RDONLY | O_CLOEXEC);
  absl::Status status;
  if (fd < 0 || setns(fd, CLONE_NEWNET) != 0 || unshare(CLONE_NEWIPC) != 0) {
    status = absl::ErrnoToStatus(errno, StrCat("entering the network namespace ", name));
  }
  if (fd >= 0) close(fd);
  return status;
}

// Brings this process back to where it was.
class Home {
 public:
  Home()
      : network_(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)),
        ipc_(open("/proc/self/ns/ipc", O_RDONLY | O_CLOEXEC)) {}
  ~Home() {
    for (const int fd : {network_, ipc_}) {
      if (fd < 0) continue;
      setns(fd, 0);  // nothing happens to who never left
      close(fd);
    }
  }
  Home(const Home&) = delete;
  Home& operator=(const Home&) = delete;

 private:
  const int network_;
  const int ipc_;
};

[[noreturn]] void RunMember(const CollectivesBenchOptions& options, int rank, int fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const bool is_oversubscribed = options.num_processes > UsableCores();
  PinProcess(rank, options.num_processes);
  if (!options.transports.empty()) setenv("UCX_TLS", options.transports.c_str(), 1);
  bool is_ok = false;
  {
    Member member(options, rank, is_oversubscribed, fd);
    is_ok = member.Join() && member.Measure();
    char mark = 0;  // none goes before all are through
    is_ok = is_ok && WriteAll(fd, &mark, 1) && ReadAll(fd, &mark, 1);
  }
  _exit(is_ok ? 0 : 1);
}

// The parent's side: hands round the addresses, and reads what rank 0 has measured.
bool Conduct(const std::vector<int>& fds, std::vector<double>* result) {
  std::string addresses;
  for (const int fd : fds) {
    uint32_t size = 0;
    if (!ReadAll(fd, &size, sizeof(size))) return false;
    std::string address(size, '\0');
    if (!ReadAll(fd, address.data(), size)) return false;
    addresses.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(address);
  }
  for (const int fd : fds) {
    if (!WriteAll(fd, addresses.data(), addresses.size())) return false;
  }
  for (double& us : *result) {
    if (!ReadAll(fds[0], &us, sizeof(us))) return false;
  }
  char mark = 0;
  for (const int fd : fds) {
    if (!ReadAll(fd, &mark, 1)) return false;
  }
  for (const int fd : fds) {
    if (!WriteAll(fd, &mark, 1)) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::vector<double>> MeasureCollectives(const CollectivesBenchOptions& options) {
  const Home home;
  std::vector<int> fds;
  std::vector<pid_t> pids;
  absl::Status status;
  for (int rank = 0; rank < options.num_processes && status.ok(); ++rank) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
      status = absl::ErrnoToStatus(errno, "socketpair");
      break;
    }
    fds.push_back(pair[0]);
    if (!options.hosts.empty() &&
        (rank == 0 || HostOf(options, rank) != HostOf(options, rank - 1))) {
      status = EnterHost(options.hosts[HostOf(options, rank)]);
    }
    const pid_t pid = status.ok() ? fork() : -1;
    if (pid == 0) {
      for (const int fd : fds) close(fd);
      RunMember(options, rank, pair[1]);
    }
    close(pair[1]);
    if (pid < 0 && status.ok()) status = absl::ErrnoToStatus(errno, "fork");
    if (pid > 0) pids.push_back(pid);
  }
  std::vector<double> result(options.cases.size());
  if (status.ok() && !Conduct(fds, &result)) {
    status = absl::UnavailableError(
        StrCat(options.num_processes, " processes could not be measured over ",
               options.transports.empty() ? std::string("the transports that UCX chooses")
                                          : options.transports));
  }
  for (const int fd : fds) close(fd);
  for (const pid_t pid : pids) {
    if (!status.ok()) kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  RETURN_IF_ERROR(status);
  return result;
}

double LeastTraffic(CollectiveKind kind, int num_processes) {
  switch (kind) {
    case CollectiveKind::kReduceScatter:
      return 1 + 1.0 / num_processes;
    case CollectiveKind::kAllGather:
      return 2.0 * num_processes;
    default:
      return 2;
  }
}

}  // namespace penstock::bench
