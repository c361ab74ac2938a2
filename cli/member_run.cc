#include "cli/member_run.h"

#include <signal.h>

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "cli/etcd_board.h"
#include "cli/failure_report.h"
#include "cli/job_key_option.h"
#include "cli/join_job.h"
#include "cli/member_board.h"
#include "cli/munge_text.h"
#include "cli/node_process.h"
#include "cli/parent_watch.h"
#include "cli/pmix_board.h"
#include "cli/processes.h"

#include "actors/cluster/child_process.h"
#include "actors/cluster/end_report.h"
#include "actors/cluster/job_key.h"
#include "actors/cluster/network_interface.h"
#include "actors/cluster/node.h"
#include "actors/cluster/socket_address.h"
#include "base/counted.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

// For the report of how the node has died: what has started the members ends them soon.
constexpr absl::Duration kReportTimeout = absl::Seconds(1);
// For an address from a board, before the board is asked again.
constexpr absl::Duration kAddressPatience = absl::Seconds(1);
// Before a coordinator that refuses is asked again.
constexpr absl::Duration kRejoinPause = absl::Milliseconds(100);

absl::Status WithRendezvousStatus(absl::Status status) {
  if (!status.ok()) {
    status.SetPayload(actors::kShellStatusPayload, absl::Cord(StrCat(kNoRendezvousStatus)));
  }
  return status;
}

absl::Status ApplyOptions(const MemberOptions& options, LaunchMember* member) {
  if (options.size > 0) member->size = options.size;
  if (member->size == 0 && member->starter.empty()) {
    return absl::InvalidArgumentError(
        "launch: nothing says how many processes find each other through --rendezvous: add "
        "--members");
  }
  if (member->size == 0) {
    return absl::InvalidArgumentError(StrCat("launch: ", member->starter,
                                             " does not say how many processes there are: add "
                                             "--members"));
  }
  if (member->rank >= member->size) {
    return absl::InvalidArgumentError(StrCat("launch: this is rank ", member->rank, " of ",
                                             Counted(member->size, "process", "es"),
                                             ", counted from 0"));
  }
  if (options.coordinator.empty()) return absl::OkStatus();
  const absl::Status address = actors::CheckJoinAddress(options.coordinator);
  if (!address.ok() || actors::IsUnixAddress(options.coordinator)) {
    return absl::InvalidArgumentError(
        StrCat("--coordinator '", options.coordinator, "': expected HOST:PORT of rank 0"));
  }
  const actors::SocketAddress parts = actors::SplitAddress(options.coordinator);
  member->host = parts.host;
  member->port = std::stol(parts.port);
  return absl::OkStatus();
}

std::string NoKey(const LaunchMember& member) {
  const std::string started = member.starter.empty()
                                  ? ""
                                  : StrCat(member.starter, " has started this as one of ",
                                           Counted(member.size, "process", "es"), ", and ");
  const char* const by_srun = member.starter == "srun"
                                  ? "; `srun --mpi=pmix` passes one on. To start nodes from this "
                                    "shell, add --launcher slurm"
                                  : "";
  return StrCat("launch: ", started,
                "the job's key is missing: write one to a file that each process can read (openssl "
                "rand -hex 32 > key; chmod 600 key), and add --key-file",
                by_srun);
}

bool HasKey(const MemberOptions& options) {
  return !options.key_file.empty() || !EnvironmentVariable("PENSTOCK_KEY").empty();
}

// How the processes find each other; null: by the address that all know. A process without a rank
// takes one.
absl::StatusOr<std::unique_ptr<MemberBoard>> FindBoard(const Environment& environment,
                                                       const MemberOptions& options,
                                                       LaunchMember* member) {
  const bool has_key = HasKey(options);
  if (!options.rendezvous.empty()) {
    if (!has_key) return absl::InvalidArgumentError(NoKey(*member));
    ASSIGN_OR_RETURN(EtcdAccess access, EtcdAccessOf(EnvironmentVariable));
    ASSIGN_OR_RETURN(std::unique_ptr<EtcdBoard> etcd,
                     EtcdBoard::Create(options.rendezvous, std::move(access),
                                       [&err = environment.err](const std::string& line) {
                                         err << StrCat(line, "\n") << std::flush;
                                       }));
    const absl::StatusOr<int64_t> rank =
        etcd->TakeRank(member->rank, member->size, absl::Seconds(options.join_timeout_s));
    RETURN_IF_ERROR(WithRendezvousStatus(rank.status()));
    member->rank = *rank;
    return etcd;
  }
  // A process alone needs nobody.
  if (member->size == 1) return std::unique_ptr<MemberBoard>();
  const bool has_address = !member->host.empty() && member->port > 0;
  if (has_address && has_key) return std::unique_ptr<MemberBoard>();
  // PMIx tells what of the two is not known.
  if (PmixBoard::HasServer(EnvironmentVariable)) {
    absl::StatusOr<std::unique_ptr<PmixBoard>> pmix = PmixBoard::Connect();
    RETURN_IF_ERROR(WithRendezvousStatus(pmix.status()));
    return *std::move(pmix);
  }
  if (has_address) return absl::InvalidArgumentError(NoKey(*member));
  return absl::InvalidArgumentError(
      StrCat("launch: ", member->starter,
             " does not say where rank 0 is, and there is no PMIx server: set MASTER_ADDR and "
             "MASTER_PORT, or add --coordinator HOST:PORT or --rendezvous"));
}

// Ranks of a host are neighbours, as starters place them by default.
std::vector<actors::NodePlace> PlacesOf(const LaunchMember& member) {
  std::vector<actors::NodePlace> places(static_cast<size_t>(member.size));
  for (size_t rank = 0; rank < places.size(); ++rank) places[rank].is_awaited = rank > 0;
  const std::vector<int64_t>& sizes = member.host_sizes;
  if (std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) != member.size) return places;
  const bool has_names = member.hosts.size() == sizes.size();
  auto place = places.begin();
  for (size_t host = 0; host < sizes.size(); ++host) {
    for (int64_t i = 0; i < sizes[host]; ++i, ++place) {
      place->is_host_named = has_names;
      place->host = has_names ? member.hosts[host] : StrCat("host ", host);
    }
  }
  return places;
}

// Where rank 0 listens: at the address that the others connect to, if it is one of this host's.
absl::StatusOr<std::string> ListenAddress(const LaunchMember& member,
                                          const MemberOptions& options) {
  const auto port = static_cast<unsigned>(member.port);
  if (!options.listen.empty()) {
    const absl::Status address = actors::CheckListenAddress(options.listen);
    if (!address.ok() || actors::IsUnixAddress(options.listen)) {
      return absl::InvalidArgumentError(
          StrCat("--listen '", options.listen, "': expected HOST or HOST:PORT of rank 0"));
    }
    const actors::SocketAddress parts = actors::SplitAddress(options.listen);
    if (parts.port.empty()) return actors::JoinAddress(parts.host, port);
    if (port == 0 || parts.port == StrCat(port)) return options.listen;
    return absl::InvalidArgumentError(StrCat("--listen ", options.listen,
                                             ": the others connect to port ", port,
                                             "; give the host alone"));
  }
  if (options.insecure) return actors::JoinAddress(member.host, port);
  // They are told the address, and reach this host there or not at all.
  if (member.host.empty()) return actors::JoinAddress(actors::ReachableAddress(), port);
  const std::string own = actors::OwnAddressOf(member.host);
  if (!own.empty()) return actors::JoinAddress(own, port);
  const bool is_ipv6 = member.host.find(':') != std::string::npos;
  return actors::JoinAddress(is_ipv6 ? "::" : "0.0.0.0", port);
}

// Tells a board where rank 0 listens, and the key, if it is not empty.
absl::Status TellOthers(MemberBoard& board, const std::string& address, std::string key,
                        const KeySeal& seal, absl::Duration timeout) {
  if (!key.empty() && seal != nullptr) {
    ASSIGN_OR_RETURN(key, seal(key));
  }
  return board.Post({address, std::move(key)}, timeout);
}

// How a board passes the key on, for the user.
std::string DescribeKeyOnBoard(const MemberBoard& board, const std::string& starter,
                               const KeySeal& seal) {
  if (seal != nullptr) {
    return "launch: munge encrypts the job's key on its way to the other processes\n";
  }
  return StrCat("note: ", board.name(),
                " passes the key on without encryption, unless this cluster has that of its own; "
                "where others can read its network, ",
                starter == "mpirun" ? "start the job through ssh (launch -H HOSTS), or " : "",
                "put a key into a file on each host, and add --key-file\n");
}

absl::Status RunFirst(const Environment& environment, const LaunchMember& member,
                      const MemberOptions& options, MemberBoard* board,
                      const std::function<absl::Status(const Environment&, int64_t)>& run_job) {
  Environment there = environment;
  LaunchPlan& plan = there.launch;
  plan.places = PlacesOf(member);
  plan.insecure = options.insecure;
  plan.starter = member.command;
  plan.needs_variables = member.command.empty() && member.size > 1;
  ASSIGN_OR_RETURN(plan.listen, ListenAddress(member, options));
  plan.join_timeout = absl::Seconds(options.join_timeout_s);
  const bool tells_key = board != nullptr && board->keeps_secrets() && !HasKey(options);
  const KeySeal seal = tells_key ? SealOfAllocation() : nullptr;
  absl::Status told;
  if (board != nullptr) {
    plan.on_listening = [&](const std::string& address, const std::string& key) {
      told = WithRendezvousStatus(
          TellOthers(*board, address, tells_key ? key : "", seal, plan.join_timeout));
      if (told.ok()) return;
      // The others will not come, which is an error of its own later.
      there.err << StrCat("note: ", ToStd(told.message()), "\n") << std::flush;
    };
  }
  if (!tells_key && (member.size > 1 || HasKey(options))) {
    ASSIGN_OR_RETURN(plan.key, ReadJobKey(options.key_file));
  }
  environment.err << StrCat("launch: rank 0 of ", Counted(member.size, "process", "es"),
                            member.starter.empty()
                                ? ""
                                : StrCat(" that ", member.starter, " has started"),
                            " coordinates",
                            board != nullptr
                                ? StrCat(", and tells its address ",
                                         tells_key ? "and the key " : "", "through ", board->name())
                                : "",
                            "\n")
                  << std::flush;
  if (tells_key) {
    environment.err << DescribeKeyOnBoard(*board, member.command, seal) << std::flush;
  }
  const absl::Status done = run_job(there, member.size);
  return done.ok() ? told : done;
}

// What the process of a member's node does.
NodeProcess::Work NodeWork(const Environment& environment, const MemberOptions& options) {
  // The log is kept from the first task on.
  auto log_folder = std::make_shared<std::string>(options.log_folder);
  return [&environment, &options, log_folder](const NodeProcess::Task& task,
                                              const NodeProcess::Events& events) {
    bool has_joined = false;
    actors::NodeOptions node;
    node.rank = static_cast<int>(task.rank);
    node.coordinator = task.coordinator;
    node.key = task.key;
    node.insecure = options.insecure;
    node.connect_timeout = task.connect_timeout;
    node.is_watched = task.is_watched;
    node.on_joined = [&](const actors::NodeDescription&) {
      has_joined = true;
      events.on_joined();
    };
    node.on_rejoin = events.on_rejoin;
    absl::Status status = JoinJob(environment, node, options.device, /*is_quiet=*/false,
                                  std::exchange(*log_folder, ""));
    // The log has it, too.
    if (!task.may_fail || has_joined || !absl::IsUnavailable(status)) {
      TellError(environment.err, &status);
    }
    return status;
  };
}

// The node's process has died: by a signal, or it has said why.
absl::Status ReportDeath(const actors::EndReport& report, const NodeProcess::End& end) {
  if (end.has_joined) (void)actors::ReportEnd(report, kReportTimeout);
  absl::Status status =
      absl::UnavailableError(StrCat("node ", report.rank, " (pid ", report.pid, " on ", HostName(),
                                    ") ", ToStd(end.status.message())));
  if (const int shell_status = actors::ShellStatus(report.wait_status); shell_status > 0) {
    status.SetPayload(actors::kShellStatusPayload, absl::Cord(StrCat(shell_status)));
  }
  return status;
}

// Joins where rank 0 listens. A board may tell where a rank 0 that was killed has listened, so the
// board is asked again until somebody answers there.
absl::Status RunOther(const LaunchMember& member, const MemberOptions& options, MemberBoard* board,
                      NodeProcess* process) {
  const absl::Time deadline = absl::Now() + absl::Seconds(options.join_timeout_s);
  NodeProcess::Task task;
  task.rank = member.rank;
  task.is_watched = process->is_own();
  task.may_fail = board != nullptr;
  const pid_t pid = process->pid();
  while (true) {
    if (board != nullptr) {
      absl::StatusOr<MemberNotice> notice = board->Await(deadline - absl::Now());
      RETURN_IF_ERROR(WithRendezvousStatus(notice.status()));
      task.coordinator = notice->address;
      task.key = notice->key;
      task.connect_timeout = kAddressPatience;
    } else {
      task.coordinator = actors::JoinAddress(member.host, static_cast<unsigned>(member.port));
      task.connect_timeout = deadline - absl::Now();
    }
    if (task.key.empty()) {
      ASSIGN_OR_RETURN(task.key, ReadJobKey(options.key_file));
    } else if (IsSealedWithMunge(task.key)) {
      ASSIGN_OR_RETURN(task.key, OpenSentKey(task.key));
    }
    NodeProcess::End end = process->Run(task);
    while (end.is_to_rejoin && end.status.ok()) {
      // Rank 0 makes its plan meanwhile. Where it has listened before, it may still accept a
      // connection that it then closes.
      const absl::Time again = absl::Now() + absl::Seconds(options.join_timeout_s);
      task.may_fail = true;
      do {
        task.connect_timeout = again - absl::Now();
        end = process->Run(task);
        // A coordinator that is about to close refuses at once.
        if (!end.has_joined) absl::SleepFor(kRejoinPause);
      } while (!end.has_joined && !end.wait_status.has_value() && absl::IsUnavailable(end.status) &&
               absl::Now() < again);
    }
    if (end.wait_status.has_value()) {
      return ReportDeath({.coordinator = task.coordinator,
                          .key = task.key,
                          .insecure = options.insecure,
                          .rank = static_cast<uint32_t>(task.rank),
                          .pid = pid,
                          .wait_status = *end.wait_status,
                          .is_out_of_memory = end.is_out_of_memory},
                         end);
    }
    const bool is_told = !task.may_fail || end.has_joined || !absl::IsUnavailable(end.status);
    if (is_told) MarkTold(&end.status);
    if (end.has_joined || !absl::IsUnavailable(end.status)) return end.status;
    if (board == nullptr || absl::Now() > deadline) {
      return WithRendezvousStatus(std::move(end.status));
    }
  }
}

}  // namespace

absl::Status RunMember(const Environment& environment, LaunchMember member,
                       const MemberOptions& options,
                       const std::function<absl::Status(const Environment&, int64_t)>& run_job) {
  RETURN_IF_ERROR(ApplyOptions(options, &member));
  if (options.insecure) {
    if (member.host.empty()) {
      return absl::InvalidArgumentError("--insecure needs --coordinator, with a loopback address");
    }
    RETURN_IF_ERROR(actors::CheckIsInsecureAddress(member.host));
  }
  // Before anything else has threads. The node of rank 0 is a process of its own in any case, as
  // all that the coordinator starts; whether this is rank 0 may not be known yet.
  std::unique_ptr<NodeProcess> process;
  if (member.rank != 0) process = std::make_unique<NodeProcess>(NodeWork(environment, options));
  const ParentWatch watch(environment.err, member.starter);
  ASSIGN_OR_RETURN(const std::unique_ptr<MemberBoard> board,
                   FindBoard(environment, options, &member));
  if (member.rank == 0) {
    process = nullptr;
    absl::Status status = RunFirst(environment, member, options, board.get(), run_job);
    // mpirun, which ends all members so when one has died, waits for this one, and answers nobody
    // meanwhile.
    if (board != nullptr && ExitStatus(status) == 128 + SIGTERM) board->Abandon();
    return status;
  }
  absl::Status status = RunOther(member, options, board.get(), process.get());
  TellError(environment.err, &status);  // the board, which goes now, may wait for an answer
  return status;
}

}  // namespace penstock::cli
