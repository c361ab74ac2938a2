#include <algorithm>
#include <utility>

#include "actors/cluster/node_sessions_internal.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {

NodeSessions::NodeSessions(const NodeOptions& options,
                           NodeSession::TransportFactory create_transport)
    : options_(options), create_transport_(std::move(create_transport)) {}

absl::Status NodeSessions::Admit(uint32_t generation, uint64_t plan_bytes) {
  if (generation <= generation_) {
    return absl::FailedPreconditionError(StrCat("generation ", generation, " is over"));
  }
  generation_ = generation;
  if (sessions_.size() >= kMaxSessions) {
    return absl::ResourceExhaustedError("too many sessions are open");
  }
  if (plan_bytes > MemoryLimit(options_)) {
    return absl::ResourceExhaustedError(
        StrCat("a plan of ", plan_bytes, " bytes is larger than the memory"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> NodeSessions::Open(const SessionRequest& request, std::string_view plan,
                                               NodeSession::Tell tell) {
  auto session =
      std::make_unique<NodeSession>(options_, std::move(tell), num_untold_, bytes_leaked_);
  ASSIGN_OR_RETURN(std::string address, session->Open(request, plan, create_transport_));
  sessions_[request.generation] = std::move(session);
  return address;
}

absl::StatusOr<NodeSession*> NodeSessions::Find(uint32_t generation) const {
  const auto session = sessions_.find(generation);
  if (session != sessions_.end()) return session->second.get();
  return absl::FailedPreconditionError(StrCat("there is no session of generation ", generation));
}

void NodeSessions::Close(uint32_t generation) {
  {
    const absl::MutexLock lock(&inspectors_mutex_);
    inspectors_.erase(generation);
  }
  sessions_.erase(generation);
}

void NodeSessions::CloseAll() {
  {
    const absl::MutexLock lock(&inspectors_mutex_);
    inspectors_.clear();
  }
  sessions_.clear();
}

void NodeSessions::AddInspector(uint32_t generation, std::shared_ptr<LocalInspector> inspector) {
  const absl::MutexLock lock(&inspectors_mutex_);
  inspectors_[generation] = std::move(inspector);
}

std::shared_ptr<LocalInspector> NodeSessions::FindInspector(uint32_t generation) const {
  const absl::MutexLock lock(&inspectors_mutex_);
  const auto it = inspectors_.find(generation);
  return it == inspectors_.end() ? nullptr : it->second;
}

absl::Status NodeSessions::Keep(uint64_t number, const std::vector<uint32_t>& states,
                                const NodeSession& session) {
  if (kept_.contains(number)) return absl::AlreadyExistsError("kept before");
  if (kept_.size() >= kMaxKept) {
    return absl::ResourceExhaustedError("too many copies of states are kept");
  }
  const uint64_t limit = MemoryLimit(options_);
  ASSIGN_OR_RETURN(KeptTiles kept,
                   session.KeepStates(states, limit - std::min(limit, BytesInUse())));
  kept_.emplace(number, std::make_shared<const KeptTiles>(std::move(kept)));
  return absl::OkStatus();
}

std::shared_ptr<const KeptTiles> NodeSessions::FindKept(uint64_t number) const {
  const auto kept = kept_.find(number);
  return kept == kept_.end() ? nullptr : kept->second;
}

uint64_t NodeSessions::BytesInUse() const {
  uint64_t num_bytes = *bytes_leaked_;
  for (const auto& [generation, session] : sessions_) num_bytes += session->num_bytes();
  for (const auto& [number, kept] : kept_) num_bytes += kept->num_bytes();
  return num_bytes;
}

std::function<void(uint64_t bytes)> NodeSessions::CountLeaks() const {
  return [bytes_leaked = bytes_leaked_](uint64_t bytes) { *bytes_leaked += bytes; };
}

}  // namespace penstock::actors
