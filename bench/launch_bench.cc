#include "bench/launch_bench.h"

#include <time.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "actors/cluster/cluster.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/job_key.h"
#include "actors/cluster/node.h"
#include "actors/cluster/node_agent_internal.h"
#include "actors/cluster/secure_channel_internal.h"
#include "base/device.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::bench {
namespace {

using actors::control::ControlLoop;

constexpr absl::Duration kTimeout = absl::Minutes(3);

double ThreadSeconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Agents on one event loop.
class Agents {
 public:
  Agents(const LaunchBenchOptions& options, uint32_t count, const std::string& address,
         const std::string& key)
      : count_(count), loop_(ControlLoop::Start().value()) {
    node_.coordinator = address;
    node_.key = key;
    node_.interfaces = "lo";
    key_ = actors::ParseJobKey(key).value();
    channel_ = actors::control::NodeChannel(address, key_).value();
    loop_->Post([this, at_once = options.num_at_once] {
      joining_ = std::make_unique<kj::TaskSet>(errors_);
      for (uint32_t i = 0; i < at_once; ++i) StartNext();
    });
  }
  ~Agents() {
    (void)loop_->Await(
        [this]() -> kj::Promise<void> {
          joining_ = nullptr;
          for (const auto& agent : agents_) agent->Disconnect();
          agents_.clear();
          return kj::READY_NOW;
        },
        kTimeout, "the end of the agents");
  }

  // The first one of an agent that has not joined.
  absl::Status error() const {
    const absl::MutexLock lock(&mutex_);
    return error_;
  }

 private:
  struct Errors final : kj::TaskSet::ErrorHandler {
    explicit Errors(Agents& agents) : owner(agents) {}
    void taskFailed(kj::Exception&& exception) override {
      owner.SetError(absl::UnavailableError(actors::control::SystemReason(exception)));
    }
    Agents& owner;
  };

  void SetError(const absl::Status& status) {
    const absl::MutexLock lock(&mutex_);
    error_.Update(status);
  }

  void StartNext() {
    if (agents_.size() == count_) return;
    const size_t index = agents_.size();
    agents_.push_back(std::make_unique<actors::NodeAgent>(node_, *loop_,
                                                          [this, index](const absl::Status&, bool) {
                                                            loop_->Post([this, index] {
                                                              if (index < agents_.size())
                                                                agents_[index]->Disconnect();
                                                            });
                                                          }));
    actors::NodeAgent& agent = *agents_.back();
    agent.SetChannel(channel_);
    joining_->add(loop_->io()
                      .provider->getNetwork()
                      .parseAddress(node_.coordinator.c_str())
                      .then([](kj::Own<kj::NetworkAddress> address) {
                        auto stream = address->connect();
                        return stream.attach(kj::mv(address));
                      })
                      .then([this, &agent](kj::Own<kj::AsyncIoStream> stream) {
                        return agent.Join(kj::mv(stream), key_);
                      })
                      .then([this](absl::Status&& joined) {
                        SetError(joined);
                        StartNext();
                      }));
  }

  const uint32_t count_;
  actors::NodeOptions node_;
  std::string key_;
  // Shared: each agent is the only one of its host, where what it makes delays nobody.
  std::shared_ptr<actors::control::SecureChannel> channel_;
  const std::unique_ptr<ControlLoop> loop_;
  // The loop's thread's:
  Errors errors_{*this};
  std::vector<std::unique_ptr<actors::NodeAgent>> agents_;
  std::unique_ptr<kj::TaskSet> joining_;
  mutable absl::Mutex mutex_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<LaunchFigures> MeasureAgents(const LaunchBenchOptions& options) {
  LaunchFigures figures;
  const SteadyClock clock;
  const uint64_t bytes_before = ResidentBytes();
  int64_t begin_ns = 0;
  std::vector<std::unique_ptr<Agents>> threads;
  clockid_t coordinator_clock{};
  double cpu_before = 0;
  actors::ClusterOptions cluster_options;
  cluster_options.num_processes = options.num_agents;
  cluster_options.listen = options.listen;
  cluster_options.join_timeout = kTimeout;
  cluster_options.stop_timeout = absl::Seconds(30);
  // Agents that share a core answer late while others join.
  cluster_options.heartbeat_interval = absl::Seconds(2);
  cluster_options.heartbeat_timeout = absl::Seconds(60);
  cluster_options.on_join = [&](const actors::NodeDescription&) {
    // The thread of the coordinator's event loop calls.
    if (cpu_before == 0) {
      pthread_getcpuclockid(pthread_self(), &coordinator_clock);
      cpu_before = ThreadSeconds(coordinator_clock);
    }
  };
  cluster_options.on_listening = [&](const std::string& address, const std::string& key) {
    begin_ns = clock.NowNs();
    for (uint32_t i = 0; i < options.num_threads; ++i) {
      const uint32_t count = options.num_agents * (i + 1) / options.num_threads -
                             options.num_agents * i / options.num_threads;
      threads.push_back(std::make_unique<Agents>(options, count, address, key));
    }
  };
  absl::StatusOr<std::unique_ptr<actors::Cluster>> cluster =
      actors::Cluster::Start(cluster_options);
  if (!cluster.ok() && !absl::IsDeadlineExceeded(cluster.status())) return cluster.status();
  for (const auto& agents : threads) {
    if (const absl::Status status = agents->error(); !status.ok()) return status;
  }
  RETURN_IF_ERROR(cluster.status());
  const int64_t joined_ns = clock.NowNs();
  figures.join_s = 1e-9 * static_cast<double>(joined_ns - begin_ns);
  figures.coordinator_cpu_us =
      1e6 * (ThreadSeconds(coordinator_clock) - cpu_before) / options.num_agents;
  // Where memory that was free is used again, less comes on top, or nothing.
  const uint64_t bytes = std::max(ResidentBytes(), bytes_before);
  figures.memory_bytes = static_cast<double>(bytes - bytes_before) / options.num_agents;
  RETURN_IF_ERROR((*cluster)->Stop());
  figures.stop_s = 1e-9 * static_cast<double>(clock.NowNs() - joined_ns);
  return figures;
}

absl::StatusOr<double> MeasureNodes(uint32_t count, const std::vector<std::string>& node_command,
                                    const std::string& listen) {
  const SteadyClock clock;
  const int64_t begin_ns = clock.NowNs();
  actors::ClusterOptions options;
  options.num_processes = count;
  options.node_command = node_command;
  options.listen = listen;
  options.join_timeout = kTimeout;
  ASSIGN_OR_RETURN(const std::unique_ptr<actors::Cluster> cluster, actors::Cluster::Start(options));
  const int64_t end_ns = clock.NowNs();
  RETURN_IF_ERROR(cluster->Stop());
  return 1e-9 * static_cast<double>(end_ns - begin_ns);
}

}  // namespace penstock::bench
