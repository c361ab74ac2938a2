#include "bench/transport_bench.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <sstream>
#include <utility>

#include "base/device.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "bench/pin_process.h"
#include "bench/pipe_io.h"
#include "transport/ucx/ucx_transport.h"

namespace penstock::bench {
namespace {

using transport::Endpoint;
using transport::kNoFlags;
using transport::Request;
using transport::UcxOptions;
using transport::UcxTransport;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kTransportPatience{60};
constexpr int kInFlight = 2;
constexpr size_t kTransportHugePage = 2 << 20;

enum Channel : uint32_t { kPing, kPong, kStream, kEnd, kNumChannels };

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// Runs of a few tenths of a second.
int TransportRounds(size_t num_bytes, bool is_latency, int max_rounds) {
  const size_t total = size_t{is_latency ? 1u : 2u} << 30;
  return std::min(static_cast<int>(std::clamp<size_t>(total / (num_bytes + 1), 16, 100000)),
                  max_rounds);
}

// One of the two processes. Fails by its exit status, which the parent only reports.
class Side {
 public:
  Side(uint32_t device, int peer_fd, int result_fd, int max_rounds)
      : device_(device), peer_fd_(peer_fd), result_fd_(result_fd), max_rounds_(max_rounds) {}

  bool Join() {
    UcxOptions options;
    options.transport = {.num_devices = 2, .generation = 0, .num_channels = kNumChannels};
    options.first_device = device_;
    auto transport = transport::CreateUcxTransport(options);
    if (!transport.ok()) return false;
    transport_ = *std::move(transport);
    endpoint_ = *transport_->OpenEndpoint(device_);
    const std::string mine = transport_->LocalAddress();
    auto size = static_cast<uint32_t>(mine.size());
    if (!WriteAll(peer_fd_, &size, sizeof(size)) || !WriteAll(peer_fd_, mine.data(), mine.size()) ||
        !ReadAll(peer_fd_, &size, sizeof(size))) {
      return false;
    }
    std::string theirs(size, '\0');
    return ReadAll(peer_fd_, theirs.data(), size) && transport_->Connect(1 - device_, theirs).ok();
  }

  bool Measure(const std::vector<size_t>& sizes) {
    const size_t most = *std::max_element(sizes.begin(), sizes.end());
    const size_t arena_bytes =
        (most + kTransportHugePage - 1) / kTransportHugePage * kTransportHugePage;
    if (!MakeArena(arena_bytes)) return false;
    for (const size_t size : sizes) {
      const double values[] = {Latency(size), Bandwidth(size)};
      if (has_failed_) return false;
      if (device_ == 0 && !WriteAll(result_fd_, values, sizeof(values))) return false;
    }
    return true;
  }

  // After one exchange, which makes the connection.
  bool MeasureIdle() {
    if (!MakeArena(kTransportHugePage)) return false;
    Latency(8);
    if (has_failed_) return false;
    RestFor(std::chrono::milliseconds(300));
    const double cpu_begin = CpuSeconds();
    const auto begin = Clock::now();
    RestFor(std::chrono::seconds(3));
    const double share = (CpuSeconds() - cpu_begin) / Seconds(Clock::now() - begin);
    return device_ != 0 || WriteAll(result_fd_, &share, sizeof(share));
  }

 private:
  bool MakeArena(size_t num_bytes) {
    auto memory = CreateCpuDevice(1)->Allocate(num_bytes, MemoryKind::kDevice);
    if (!memory.ok()) return false;
    memory_ = *std::move(memory);
    arena_ = memory_->data();
    return transport_->RegisterMemory(arena_, num_bytes).ok();
  }

  // As a communication executor does without work.
  void RestFor(Clock::duration duration) {
    constexpr int kTimeoutMs = 100;
    for (const auto end = Clock::now() + duration; Clock::now() < end;) {
      endpoint_->PrepareSleep();
      if (!endpoint_->Progress()) transport_->Wait(-1, kTimeoutMs);
    }
  }

  static double CpuSeconds() {
    rusage usage = {};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }

  void Send(Channel channel, size_t num_bytes, Request* request) {
    endpoint_->Send(1 - device_, {0, channel, sent_[channel]++}, arena_, num_bytes, kNoFlags,
                    request);
  }
  void Recv(Channel channel, void* to, size_t num_bytes, Request* request) {
    endpoint_->Recv(1 - device_, {0, channel, received_[channel]++}, to, num_bytes, request);
  }
  void Await(const Request& request) {
    for (uint64_t polls = 1; !request.is_done() && !has_failed_; ++polls) {
      endpoint_->Progress();
      if (polls % (1 << 26) == 0) has_failed_ = true;
    }
    has_failed_ |= !request.status.ok();
  }

  double Latency(size_t num_bytes) {
    const int rounds = TransportRounds(num_bytes, true, max_rounds_);
    const int warm_ups = rounds / 8 + 1;
    Request send, recv;
    if (device_ == 1) {
      Recv(kPing, arena_, num_bytes, &recv);
      for (int i = 0; i < rounds + warm_ups; ++i) {
        Await(recv);
        if (i > 0) Await(send);
        if (i + 1 < rounds + warm_ups) Recv(kPing, arena_, num_bytes, &recv);
        Send(kPong, num_bytes, &send);
      }
      Await(send);
      return 0;
    }
    Clock::time_point begin;
    for (int i = 0; i < rounds + warm_ups; ++i) {
      if (i == warm_ups) begin = Clock::now();
      Recv(kPong, arena_, num_bytes, &recv);
      Send(kPing, num_bytes, &send);
      Await(recv);
      Await(send);
    }
    return Seconds(Clock::now() - begin) * 1e6 / rounds / 2;
  }

  // As ucx_perftest does it, all messages come from one buffer and go to one, so that caches help
  // both alike.
  double Bandwidth(size_t num_bytes) {
    const int rounds = TransportRounds(num_bytes, false, max_rounds_);
    const int warm_ups = rounds / 8 + kInFlight;
    const int total = rounds + warm_ups;
    Request requests[kInFlight];
    Request end;
    const auto post = [&](int i) {
      if (i >= total) return;
      if (device_ == 0) {
        Send(kStream, num_bytes, &requests[i % kInFlight]);
      } else {
        Recv(kStream, arena_, num_bytes, &requests[i % kInFlight]);
      }
    };
    if (device_ == 0) Recv(kEnd, nullptr, 0, &end);
    Clock::time_point begin;
    for (int i = 0; i < kInFlight; ++i) post(i);
    for (int i = 0; i < total; ++i) {
      if (i == warm_ups) begin = Clock::now();
      Await(requests[i % kInFlight]);
      post(i + kInFlight);
    }
    if (device_ == 1) Send(kEnd, 0, &end);
    Await(end);
    return static_cast<double>(num_bytes) * rounds / Seconds(Clock::now() - begin);
  }

  const uint32_t device_;
  const int peer_fd_;
  const int result_fd_;
  const int max_rounds_;
  std::unique_ptr<Memory> memory_;  // outlives the transport
  std::unique_ptr<UcxTransport> transport_;
  Endpoint* endpoint_ = nullptr;
  std::byte* arena_ = nullptr;  // in memory_
  uint64_t sent_[kNumChannels] = {};
  uint64_t received_[kNumChannels] = {};
  bool has_failed_ = false;
};

// Runs `work` in two processes, and reads what device 0 has to say.
template <typename Work>
absl::Status RunPair(const TransportBenchOptions& options, std::vector<double>* results,
                     const Work& work) {
  const std::string& transports = options.transports;
  int peers[2];
  int result[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, peers) != 0) {
    return absl::ErrnoToStatus(errno, "socketpair");
  }
  if (pipe2(result, O_CLOEXEC) != 0) {
    const absl::Status status = absl::ErrnoToStatus(errno, "pipe2");
    for (int fd : peers) close(fd);
    return status;
  }
  pid_t pids[2] = {-1, -1};
  for (uint32_t device = 0; device < 2; ++device) {
    pids[device] = fork();
    if (pids[device] != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    PinProcess(static_cast<int>(device), 2);
    if (!transports.empty()) setenv("UCX_TLS", transports.c_str(), 1);
    bool is_ok = false;
    {
      Side side(device, peers[device], result[1], options.max_rounds);
      is_ok = side.Join() && work(side);
      char mark = 0;  // neither goes before the other is through
      is_ok = is_ok && WriteAll(peers[device], &mark, 1) && ReadAll(peers[device], &mark, 1);
    }
    _exit(is_ok ? 0 : 1);
  }
  close(result[1]);
  for (int fd : peers) close(fd);
  absl::Status status;
  if (!ReadAll(result[0], results->data(), results->size() * sizeof(double))) {
    status = absl::UnavailableError(
        StrCat("two processes could not be measured over ",
               transports.empty() ? std::string("the transports that UCX chooses") : transports));
  }
  close(result[0]);
  for (const pid_t pid : pids) {
    if (pid <= 0) continue;
    if (!status.ok()) kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  return status;
}

// --- ucx_perftest --------------------------------------------------------------------------------

// A port that is free now.
int FindPort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool is_bound =
      fd >= 0 && bind(fd, generic, size) == 0 && getsockname(fd, generic, &size) == 0;
  if (fd >= 0) close(fd);
  return is_bound ? ntohs(address.sin_port) : 0;
}

// Starts side `index` of ucx_perftest; its output can be read from *output.
pid_t StartPerftest(const std::vector<std::string>& arguments, const std::string& transports,
                    int index, int* output) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return -1;
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    PinProcess(index, 2);
    dup2(fds[1], STDOUT_FILENO);
    dup2(fds[1], STDERR_FILENO);
    // As the transport sets it where nothing is said (ucx_transport.cc).
    if (!transports.empty()) setenv("UCX_TLS", transports.c_str(), 1);
    setenv("UCX_NET_DEVICES", "lo", 0);
    setenv("UCX_KEEPALIVE_INTERVAL", "100ms", 0);
    setenv("UCX_MM_ERROR_HANDLING", "y", 0);
    setenv("UCX_WARN_UNUSED_ENV_VARS", "n", 0);
    std::vector<char*> argv;
    for (const std::string& argument : arguments)
      argv.push_back(const_cast<char*>(argument.data()));
    argv.push_back(nullptr);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  close(fds[1]);
  *output = fds[0];
  return pid;
}

std::string ReadToEnd(int fd) {
  std::string text;
  char buffer[4096];
  pollfd entry = {fd, POLLIN, 0};
  while (poll(&entry, 1, std::chrono::milliseconds(kTransportPatience).count()) == 1) {
    const ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}

// The numbers of the last line: iterations, three times in microseconds, MiB/s twice, messages/s
// twice. Empty where ucx_perftest is not installed or fails.
std::vector<double> TryPerftest(const std::string& test, size_t num_bytes, int rounds,
                                bool handles_errors, const std::string& transports) {
  const std::string port = StrCat(FindPort());
  int server_output = -1;
  const pid_t server =
      StartPerftest({"ucx_perftest", "-f", "-p", port}, transports, 0, &server_output);
  if (server < 0) return {};
  std::vector<double> numbers;
  constexpr int kAttempts = 20;  // until the server listens
  std::vector<std::string> arguments = {
      "ucx_perftest", "-f",           "-p", port,
      "-t",           test,           "-s", StrCat(num_bytes),
      "-n",           StrCat(rounds), "-w", StrCat(rounds / 8 + 1)};
  if (handles_errors) arguments.emplace_back("-e");
  arguments.emplace_back("127.0.0.1");
  for (int attempt = 0; attempt < kAttempts && numbers.size() < 8; ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    int output = -1;
    const pid_t client = StartPerftest(arguments, transports, 1, &output);
    if (client < 0) break;
    std::istringstream text(ReadToEnd(output));
    close(output);
    int status = 0;
    kill(client, SIGKILL);  // it has closed its output: it is over or hangs
    waitpid(client, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127) break;
    for (std::string line; std::getline(text, line);) {
      std::istringstream words(line);
      std::vector<double> found;
      for (double value; words >> value;) found.push_back(value);
      if (found.size() == 8) numbers = found;
    }
  }
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
  close(server_output);
  return numbers.size() == 8 ? numbers : std::vector<double>();
}

// A run of it fails now and then, and its server goes with it: once more from the beginning.
std::vector<double> RunPerftest(const std::string& test, size_t num_bytes, int rounds,
                                bool handles_errors, const std::string& transports) {
  constexpr int kTries = 3;
  std::vector<double> numbers;
  for (int i = 0; i < kTries && numbers.empty(); ++i) {
    numbers = TryPerftest(test, num_bytes, rounds, handles_errors, transports);
  }
  return numbers;
}

}  // namespace

bool HasPerftest() {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access(StrCat(folder, "/ucx_perftest").c_str(), X_OK) == 0) return true;
  }
  return false;
}

absl::StatusOr<std::vector<TransportBenchRow>> MeasureTransport(
    const TransportBenchOptions& options) {
  std::vector<size_t> sizes = options.sizes;
  const bool runs_perftest = options.runs_perftest && HasPerftest();
  if (sizes.empty()) sizes.assign(std::begin(kMessageSizes), std::end(kMessageSizes));
  std::vector<double> values(2 * sizes.size());
  RETURN_IF_ERROR(RunPair(options, &values, [&sizes](Side& side) { return side.Measure(sizes); }));
  std::vector<TransportBenchRow> rows;
  for (size_t i = 0; i < sizes.size(); ++i) {
    TransportBenchRow& row = rows.emplace_back();
    row.num_bytes = sizes[i];
    row.ours = {values[2 * i], values[2 * i + 1]};
    if (!runs_perftest) continue;
    const auto perftest = [&](bool handles_errors) {
      const auto run = [&](const std::string& test, bool is_latency) {
        return RunPerftest(test, sizes[i],
                           TransportRounds(sizes[i], is_latency, options.max_rounds),
                           handles_errors, options.transports);
      };
      const std::vector<double> latency = run("tag_lat", true);
      const std::vector<double> bandwidth = run("tag_bw", false);
      MessageSpeed speed;
      if (!latency.empty()) speed.one_way_us = latency[3];
      if (!bandwidth.empty()) speed.bytes_per_s = bandwidth[5] * (1 << 20);
      return speed;
    };
    row.perftest = perftest(true);
    row.plain_perftest = perftest(false);
  }
  return rows;
}

absl::StatusOr<double> MeasureIdleTransport(const TransportBenchOptions& options) {
  std::vector<double> share(1);
  RETURN_IF_ERROR(RunPair(options, &share, [](Side& side) { return side.MeasureIdle(); }));
  return share[0];
}

}  // namespace penstock::bench
