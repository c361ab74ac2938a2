#include "actors/cluster/cluster.h"

#include <unistd.h>

#include <mutex>
#include <string_view>
#include <utility>

#include "actors/cluster/child_process.h"
#include "actors/cluster/cluster_engine_internal.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/job_key.h"
#include "actors/cluster/node_supervisor_internal.h"
#include "actors/cluster/socket_address.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {

class Cluster::Impl {
 public:
  explicit Impl(const ClusterOptions& options) : options_(options) {}
  ~Impl() { Stop(); }

  absl::Status Start() {
    ASSIGN_OR_RETURN(const std::string key, CheckOptions());
    ASSIGN_OR_RETURN(loop_, control::ControlLoop::Start());
    supervisor_ = std::make_unique<NodeSupervisor>(options_, *loop_);
    RETURN_IF_ERROR(loop_->Await([this, &key] { return supervisor_->Listen(key); },
                                 options_.join_timeout, StrCat("listening at ", options_.listen)));
    if (options_.on_listening) options_.on_listening(supervisor_->address(), options_.key);
    RETURN_IF_ERROR(StartProcesses());
    return AwaitNodes();
  }

  const std::vector<NodeDescription>& nodes() const { return nodes_; }

  void Stop() {
    const std::lock_guard lock(stop_mutex_);
    if (loop_ == nullptr) return;
    const absl::Duration timeout = options_.stop_timeout + absl::Seconds(5);
    (void)loop_->Await([this] { return supervisor_->Stop(); }, timeout, "the end of the nodes");
    (void)loop_->Await(
        [this]() -> kj::Promise<void> {
          supervisor_->Close();
          return kj::READY_NOW;
        },
        timeout, "the end of the cluster");
    loop_ = nullptr;
    constexpr std::string_view kUnix = "unix:";
    if (!supervisor_->address().empty() && options_.listen.substr(0, kUnix.size()) == kUnix) {
      unlink(options_.listen.substr(kUnix.size()).c_str());
    }
  }

  void Kill() {
    const std::lock_guard lock(stop_mutex_);
    if (loop_ == nullptr) return;
    (void)loop_->Await(
        [this]() -> kj::Promise<void> {
          supervisor_->Kill();
          return kj::READY_NOW;
        },
        options_.stop_timeout, "the end of the nodes");
  }

  absl::StatusOr<std::unique_ptr<Engine>> StartEngine(const planner::Plan& plan,
                                                      EngineObserver* observer,
                                                      const SessionOptions& options) {
    auto engine = std::make_unique<ClusterEngine>(*loop_, *supervisor_, plan, observer,
                                                  options.timeout, options_.stop_timeout);
    RETURN_IF_ERROR(engine->Open(nodes_, options));
    return engine;
  }

 private:
  // Chooses what the options leave open. Returns the bytes of the key.
  absl::StatusOr<std::string> CheckOptions() {
    if (options_.num_processes < 1 || options_.num_processes > 65536) {
      return absl::InvalidArgumentError(
          StrCat("a job has 1 to 65536 processes, not ", options_.num_processes));
    }
    if (options_.key.empty()) {
      ASSIGN_OR_RETURN(options_.key, NewJobKey());
    }
    ASSIGN_OR_RETURN(std::string key, ParseJobKey(options_.key));
    if (options_.listen.empty()) {
      ASSIGN_OR_RETURN(const std::string name, NewJobKey());
      options_.listen = StrCat("unix-abstract:penstock-", getpid(), "-", name.substr(0, 16));
    }
    if (const absl::Status address = CheckListenAddress(options_.listen); !address.ok()) {
      return absl::InvalidArgumentError(StrCat("cannot listen at ", ToStd(address.message())));
    }
    return key;
  }

  // Starts the nodes on this host, if that is asked for.
  absl::Status StartProcesses() {
    if (options_.node_command.empty()) return absl::OkStatus();
    const std::vector<std::vector<int>> cores =
        DealCores(static_cast<int>(options_.num_processes), options_.max_cores);
    for (uint32_t rank = 0; rank < options_.num_processes; ++rank) {
      ChildCommand command;
      command.arguments = options_.node_command;
      for (const std::string& argument :
           {std::string("--join"), supervisor_->address(), std::string("--rank"), StrCat(rank)}) {
        command.arguments.push_back(argument);
      }
      command.environment = {{"PENSTOCK_KEY", options_.key}};
      if (options_.pin) command.cores = cores[rank];
      ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::Start(command));
      const auto started = std::make_shared<ChildProcess>(std::move(child));
      loop_->Post([this, rank, started] { supervisor_->Watch(rank, std::move(*started)); });
    }
    return absl::OkStatus();
  }

  absl::Status AwaitNodes() {
    const absl::Status joined =
        loop_->Await([this] { return supervisor_->AwaitJoined(); }, options_.join_timeout,
                     StrCat("the joining of ", options_.num_processes, " nodes"));
    std::vector<uint32_t> missing;
    const absl::Status listed = loop_->Await(
        [this, &missing]() -> kj::Promise<void> {
          missing = supervisor_->ranks().missing();
          nodes_ = supervisor_->ranks().nodes();
          return kj::READY_NOW;
        },
        options_.join_timeout, "the list of nodes");
    if (absl::IsDeadlineExceeded(joined)) {
      return absl::DeadlineExceededError(StrCat("not all nodes joined ", supervisor_->address(),
                                                " in ", absl::FormatDuration(options_.join_timeout),
                                                ": missing ranks ", StrJoin(missing, ", ")));
    }
    RETURN_IF_ERROR(joined);
    return listed;
  }

  ClusterOptions options_;
  std::vector<NodeDescription> nodes_;
  std::mutex stop_mutex_;
  std::unique_ptr<NodeSupervisor> supervisor_;
  std::unique_ptr<control::ControlLoop> loop_;  // last: its thread uses all of the above
};

Cluster::Cluster(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Cluster::~Cluster() = default;

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::Start(const ClusterOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<Cluster>(new Cluster(std::move(impl)));
}

const std::vector<NodeDescription>& Cluster::nodes() const { return impl_->nodes(); }

EngineFactory Cluster::engine_factory() {
  return
      [this](const planner::Plan& plan, EngineObserver* observer, const SessionOptions& options) {
        return impl_->StartEngine(plan, observer, options);
      };
}

void Cluster::Stop() { impl_->Stop(); }
void Cluster::Kill() { impl_->Kill(); }

}  // namespace penstock::actors
