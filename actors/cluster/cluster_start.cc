#include "actors/cluster/cluster_start.h"

#include <utility>

#include "base/status_macros.h"

namespace penstock::actors {

void ClusterStart::Cancel(const absl::Status& cause) {
  const absl::MutexLock lock(&mutex_);
  cause_.Update(cause);
  if (hooks_.has_value()) hooks_->cancel(cause);
}

void ClusterStart::Kill() {
  const absl::MutexLock lock(&mutex_);
  cause_.Update(absl::CancelledError("the job was ended"));
  if (hooks_.has_value()) hooks_->kill();
}

std::vector<uint32_t> ClusterStart::MissingRanks() const {
  const absl::MutexLock lock(&mutex_);
  return hooks_.has_value() ? hooks_->missing_ranks() : std::vector<uint32_t>();
}

absl::Status ClusterStart::Attach(Hooks hooks) {
  const absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(cause_);
  hooks_ = std::move(hooks);
  return absl::OkStatus();
}

void ClusterStart::Detach() {
  const absl::MutexLock lock(&mutex_);
  hooks_.reset();
}

}  // namespace penstock::actors
