#include "cli/member_run.h"

#include <cstdlib>
#include <memory>
#include <utility>

#include "cli/job_key_option.h"
#include "cli/pmix_job.h"
#include "cli/processes.h"

#include "actors/cluster/job_key.h"
#include "actors/cluster/node.h"
#include "actors/cluster/socket_address.h"
#include "base/counted.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

// Names of what rank 0 tells through PMIx.
constexpr char kAddress[] = "penstock.address";
constexpr char kKey[] = "penstock.key";

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

// How the processes find each other: through PMIx where rank 0's address or the key are not known.
absl::StatusOr<std::unique_ptr<PmixJob>> ConnectPmix(const LaunchMember& member,
                                                     const MemberOptions& options) {
  const bool has_address = !member.host.empty() && member.port > 0;
  const bool has_key = !options.key_file.empty() || !Variable("PENSTOCK_KEY").empty();
  if (has_address && has_key) return std::unique_ptr<PmixJob>();
  if (PmixJob::HasServer(Variable)) return PmixJob::Connect();
  if (!has_address) {
    return absl::InvalidArgumentError(
        StrCat("launch: ", member.starter,
               " does not say where rank 0 is, and there is no PMIx "
               "server: set MASTER_ADDR and MASTER_PORT, or add --coordinator HOST:PORT"));
  }
  return absl::InvalidArgumentError(StrCat(
      "launch: the job's key is missing, and there is no PMIx server to tell it: write one "
      "to a file that each process can read (openssl rand -hex 32 > key; chmod 600 key), and "
      "add --key-file"));
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
                      const MemberOptions& options, PmixJob* pmix,
                      const std::function<absl::Status(const Environment&, int64_t)>& run_job) {
  Environment there = environment;
  LaunchPlan& plan = there.launch;
  plan.places = PlacesOf(member);
  plan.listen = actors::JoinAddress(member.host.find(':') != std::string::npos ? "::" : "0.0.0.0",
                                    static_cast<unsigned>(member.port));
  plan.join_timeout = absl::Seconds(options.join_timeout_s);
  absl::Status told;
  if (pmix != nullptr) {
    plan.on_listening = [&told, pmix](const std::string& address, const std::string& key) {
      told = pmix->Publish({{kAddress, address}, {kKey, key}});
    };
  } else {
    ASSIGN_OR_RETURN(plan.key, ReadJobKey(options.key_file));
  }
  environment.err << StrCat("launch: rank 0 of ", Counted(member.size, "process", "es"), " that ",
                            member.starter, " has started coordinates",
                            pmix != nullptr ? ", and tells its address through PMIx" : "", "\n")
                  << std::flush;
  const absl::Status done = run_job(there, member.size);
  return told.ok() ? done : told;
}

absl::Status RunOther(const Environment& environment, const LaunchMember& member,
                      const MemberOptions& options, PmixJob* pmix) {
  const absl::Duration timeout = absl::Seconds(options.join_timeout_s);
  actors::NodeOptions node;
  if (pmix != nullptr) {
    const absl::StatusOr<std::string> address = pmix->Await(kAddress, timeout);
    const absl::StatusOr<std::string> key = pmix->Await(kKey, timeout);
    RETURN_IF_ERROR(WithRendezvousStatus(address.status()));
    RETURN_IF_ERROR(WithRendezvousStatus(key.status()));
    node.coordinator = *address;
    node.key = *key;
  } else {
    node.coordinator = actors::JoinAddress(member.host, static_cast<unsigned>(member.port));
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
  ASSIGN_OR_RETURN(const std::unique_ptr<PmixJob> pmix, ConnectPmix(member, options));
  if (member.rank == 0) return RunFirst(environment, member, options, pmix.get(), run_job);
  return RunOther(environment, member, options, pmix.get());
}

}  // namespace penstock::cli
