#include "cli/member_run.h"

#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "cli/etcd_board.h"
#include "cli/job_key_option.h"
#include "cli/member_board.h"
#include "cli/pmix_board.h"
#include "cli/processes.h"

#include "actors/cluster/job_key.h"
#include "actors/cluster/node.h"
#include "actors/cluster/socket_address.h"
#include "base/counted.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

absl::Status WithRendezvousStatus(absl::Status status) {
  if (!status.ok()) {
    status.SetPayload(actors::kShellStatusPayload, absl::Cord(StrCat(kNoRendezvousStatus)));
  }
  return status;
}

absl::Status ApplyOptions(const MemberOptions& options, LaunchMember* member) {
  if (options.size > 0) member->size = options.size;
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

// How the processes find each other: etcd if it was asked for, otherwise PMIx where rank 0's
// address or the key are not known. Null: by the address that all know.
absl::StatusOr<std::unique_ptr<MemberBoard>> FindBoard(const LaunchMember& member,
                                                       const MemberOptions& options) {
  const bool has_key = !options.key_file.empty() || !Variable("PENSTOCK_KEY").empty();
  const std::string need_key =
      "launch: the job's key is missing: write one to a file that each process can read (openssl "
      "rand -hex 32 > key; chmod 600 key), and add --key-file";
  if (!options.rendezvous.empty()) {
    if (!has_key) return absl::InvalidArgumentError(need_key);
    return EtcdBoard::Create(options.rendezvous, absl::Seconds(options.join_timeout_s));
  }
  const bool has_address = !member.host.empty() && member.port > 0;
  if (has_address && has_key) return std::unique_ptr<MemberBoard>();
  if (PmixBoard::HasServer(Variable)) return PmixBoard::Connect();
  if (has_address) return absl::InvalidArgumentError(need_key);
  return absl::InvalidArgumentError(
      StrCat("launch: ", member.starter,
             " does not say where rank 0 is, and there is no PMIx server: set MASTER_ADDR and "
             "MASTER_PORT, or add --coordinator HOST:PORT or --rendezvous"));
}

// Ranks of a host are neighbours, as starters place them by default.
std::vector<actors::NodePlace> PlacesOf(const LaunchMember& member) {
  std::vector<actors::NodePlace> places(static_cast<size_t>(member.size));
  const bool knows_hosts = member.local_size > 0 && member.size % member.local_size == 0;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    places[rank].is_awaited = rank > 0;
    if (knows_hosts) {
      places[rank].host = StrCat("host ", static_cast<int64_t>(rank) / member.local_size);
    }
  }
  return places;
}

absl::Status RunFirst(const Environment& environment, const LaunchMember& member,
                      const MemberOptions& options, MemberBoard* board,
                      const std::function<absl::Status(const Environment&, int64_t)>& run_job) {
  Environment there = environment;
  LaunchPlan& plan = there.launch;
  plan.places = PlacesOf(member);
  plan.listen = actors::JoinAddress(member.host.find(':') != std::string::npos ? "::" : "0.0.0.0",
                                    static_cast<unsigned>(member.port));
  plan.join_timeout = absl::Seconds(options.join_timeout_s);
  const bool tells_key = board != nullptr && board->keeps_secrets();
  absl::Status told;
  if (board != nullptr) {
    plan.on_listening = [&](const std::string& address, const std::string& key) {
      told = board->Post({address, tells_key ? key : ""});
    };
  }
  if (!tells_key) {
    ASSIGN_OR_RETURN(plan.key, ReadJobKey(options.key_file));
  }
  environment.err << StrCat("launch: rank 0 of ", Counted(member.size, "process", "es"), " that ",
                            member.starter, " has started coordinates",
                            board != nullptr
                                ? StrCat(", and tells its address through ", board->name())
                                : "",
                            "\n")
                  << std::flush;
  const absl::Status done = run_job(there, member.size);
  return told.ok() ? done : told;
}

absl::Status RunOther(const Environment& environment, const LaunchMember& member,
                      const MemberOptions& options, MemberBoard* board) {
  const absl::Duration timeout = absl::Seconds(options.join_timeout_s);
  actors::NodeOptions node;
  node.coordinator = actors::JoinAddress(member.host, static_cast<unsigned>(member.port));
  if (board != nullptr) {
    absl::StatusOr<MemberNotice> notice = board->Await(timeout);
    RETURN_IF_ERROR(WithRendezvousStatus(notice.status()));
    node.coordinator = notice->address;
    node.key = notice->key;
  }
  if (node.key.empty()) {
    ASSIGN_OR_RETURN(node.key, ReadJobKey(options.key_file));
  }
  node.rank = static_cast<int>(member.rank);
  node.kernels = &environment.registries.kernels;
  node.policies = &environment.registries.policies;
  node.connect_timeout = timeout;
  bool has_joined = false;
  node.on_joined = [&](const actors::NodeDescription& description) {
    has_joined = true;
    environment.err << StrCat("joined as ", ToString(description), "\n") << std::flush;
  };
  absl::Status status = actors::RunNode(node);
  if (!has_joined && absl::IsUnavailable(status)) return WithRendezvousStatus(std::move(status));
  return status;
}

}  // namespace

absl::Status RunMember(const Environment& environment, LaunchMember member,
                       const MemberOptions& options,
                       const std::function<absl::Status(const Environment&, int64_t)>& run_job) {
  RETURN_IF_ERROR(ApplyOptions(options, &member));
  ASSIGN_OR_RETURN(const std::unique_ptr<MemberBoard> board, FindBoard(member, options));
  if (member.rank < 0) {
    const absl::StatusOr<int64_t> rank =
        board->TakeRank(member.size, absl::Seconds(options.join_timeout_s));
    RETURN_IF_ERROR(WithRendezvousStatus(rank.status()));
    member.rank = *rank;
  }
  if (member.rank == 0) return RunFirst(environment, member, options, board.get(), run_job);
  return RunOther(environment, member, options, board.get());
}

}  // namespace penstock::cli
