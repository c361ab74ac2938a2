#include "transport/collective.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"

#include "base/copy_bytes.h"
#include "base/dtype.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "transport/collectives/flow.h"
#include "transport/collectives/schedule.h"
#include "transport/reduce.h"

namespace penstock::transport {
namespace {

absl::Status Invalid(const CollectiveSpec& spec, const std::string& what) {
  return absl::InvalidArgumentError(
      StrCat(Name(spec.kind), " on channel ", spec.channel, ": ", what));
}

absl::Status CheckCounts(const CollectiveSpec& spec) {
  constexpr int64_t kMaxElements = int64_t{1} << 48;
  const size_t n = spec.devices.size();
  size_t num_counts = n;
  if (spec.kind == CollectiveKind::kAllToAll) num_counts = n * n;
  if (spec.kind == CollectiveKind::kBroadcast) num_counts = 1;
  if (spec.counts.size() != num_counts) {
    return Invalid(
        spec, StrCat("a group of ", n, " needs ", num_counts, " counts, not ", spec.counts.size()));
  }
  int64_t total = 0;
  for (int64_t count : spec.counts) {
    if (count < 0) return Invalid(spec, StrCat("the count ", count, " is negative"));
    if (count > kMaxElements - total) return Invalid(spec, "more than 2^48 elements");
    total += count;
  }
  if (!TensorsAddUp(spec)) {
    return Invalid(spec, StrCat("it cannot move ", spec.tensors.size(),
                                " tensors of these counts: they do not add up"));
  }
  const auto element_bytes = static_cast<int64_t>(ByteSize(spec.dtype));
  if (spec.chunk_bytes < element_bytes) {
    return Invalid(
        spec, StrCat("chunks of ", spec.chunk_bytes, " bytes cannot hold a ", Name(spec.dtype)));
  }
  if (!FitsMessages(spec)) {
    return Invalid(spec, StrCat("chunks of ", spec.chunk_bytes, " bytes make more than the ",
                                kMaxMessages, " messages that a run can number"));
  }
  return absl::OkStatus();
}

std::vector<bool> CanView(const CollectiveSpec& spec, const Endpoint& endpoint) {
  std::vector<bool> can_view;
  for (uint32_t device : spec.devices) can_view.push_back(endpoint.CanView(device));
  return can_view;
}

class FlowCollective final : public Collective {
 public:
  FlowCollective(const CollectiveSpec& spec, int rank, Endpoint& endpoint)
      : name_(StrCat(Name(spec.kind), " on channel ", spec.channel, ", rank ", rank, " of ",
                     spec.devices.size())),
        schedule_(MakeSchedule(spec, rank, CanView(spec, endpoint))),
        scratch_(schedule_.scratch_bytes) {
    for (const auto& flow : schedule_.flows) flow->Prepare();
    run_.endpoint = &endpoint;
    run_.channel = spec.channel;
    run_.inputs.resize(NumTensors(spec));
    run_.outputs.resize(NumTensors(spec));
    run_.scratch = scratch_.data();
  }

  ~FlowCollective() override { Cancel(); }

  void StartTensors(const void* const* inputs, void* const* outputs, uint64_t sequence,
                    uint32_t flags) override {
    if (!Settle()) {
      run_.status = Named(absl::FailedPreconditionError("peers still read what the last run sent"));
      return;
    }
    run_.sequence = sequence;
    for (size_t t = 0; t < run_.inputs.size(); ++t) {
      run_.inputs[t] = static_cast<std::byte*>(const_cast<void*>(inputs[t]));
      run_.outputs[t] = static_cast<std::byte*>(outputs[t]);
    }
    run_.flags = flags;
    run_.status = absl::OkStatus();
    if (sequence >= kMaxRuns) {
      Fail(absl::OutOfRangeError(StrCat("run ", sequence, " is beyond the last, ", kMaxRuns - 1)));
      return;
    }
    for (const auto& flow : schedule_.flows) flow->Start();
    phase_ = Phase::kRunning;
    Advance();  // the peers get what they wait for before the copies are made
    for (const LocalCopy& copy : schedule_.copies) {
      const std::byte* from = run_.At(Buffer::kInput, copy.tensor, copy.input_offset);
      std::byte* to = run_.At(Buffer::kOutput, copy.tensor, copy.output_offset);
      if (from != to && copy.num_bytes > 0) std::memmove(to, from, copy.num_bytes);
    }
  }

  bool Poll() override {
    if (phase_ == Phase::kRunning) Advance();
    return phase_ != Phase::kRunning;
  }

  const absl::Status& status() const override { return run_.status; }
  uint32_t flags() const override { return run_.flags; }

  void Cancel() override {
    if (phase_ != Phase::kRunning) return;
    Fail(absl::CancelledError("the run was cancelled"));
  }

  bool Settle() override {
    if (phase_ == Phase::kFailed) {
      bool is_settled = true;
      for (const auto& flow : schedule_.flows) is_settled &= flow->Settle(run_.endpoint);
      if (is_settled) phase_ = Phase::kSettled;
    }
    return phase_ == Phase::kSettled;
  }

 private:
  enum class Phase : uint8_t { kSettled, kRunning, kFailed };

  absl::Status Named(const absl::Status& cause) const {
    return absl::Status(cause.code(), StrCat(name_, ": ", cause.message()));
  }

  // Until nothing moves: what one flow finishes may let another go on.
  void Advance() {
    bool advanced = true;
    while (advanced) {
      advanced = false;
      for (const auto& flow : schedule_.flows) {
        advanced |= flow->Advance(&run_);
        if (!run_.status.ok()) {
          Fail(run_.status);
          return;
        }
      }
    }
    for (const auto& flow : schedule_.flows) {
      if (!flow->is_over()) return;
    }
    if (schedule_.result_bytes > 0) {
      CopyBytes(run_.outputs[0], scratch_.data(), static_cast<size_t>(schedule_.result_bytes));
    }
    phase_ = Phase::kSettled;
  }

  void Fail(const absl::Status& cause) {
    run_.status = Named(cause);
    phase_ = Phase::kFailed;
    for (const auto& flow : schedule_.flows) flow->Cancel(run_.endpoint);
    Settle();
  }

  const std::string name_;
  Schedule schedule_;
  std::vector<std::byte> scratch_;
  Run run_;
  Phase phase_ = Phase::kSettled;
};

}  // namespace

absl::Status CheckCollective(const CollectiveSpec& spec, uint32_t num_devices) {
  if (spec.kind > CollectiveKind::kPermute || spec.algorithm > CollectiveAlgorithm::kHierarchical ||
      spec.reduce > ReduceOp::kProd || static_cast<int>(spec.dtype) >= kNumDTypes) {
    return absl::InvalidArgumentError(
        StrCat("the collective on channel ", spec.channel,
               " has an unknown kind, algorithm, reduction or dtype"));
  }
  const size_t n = spec.devices.size();
  if (n == 0) return Invalid(spec, "the group is empty");
  if (n > num_devices) {
    return Invalid(spec, StrCat("a group of ", n, " among ", num_devices, " devices"));
  }
  absl::flat_hash_set<uint32_t> seen;
  for (uint32_t device : spec.devices) {
    if (device >= num_devices) {
      return Invalid(spec, StrCat("device ", device, " of ", num_devices));
    }
    if (!seen.insert(device).second) {
      return Invalid(spec, StrCat("device ", device, " is in the group twice"));
    }
  }
  RETURN_IF_ERROR(CheckCounts(spec));
  const size_t num_hosts = spec.algorithm == CollectiveAlgorithm::kHierarchical ? n : 0;
  if (spec.hosts.size() != num_hosts) {
    return Invalid(spec, StrCat("a ", Name(spec.algorithm), " group of ", n, " needs the hosts of ",
                                num_hosts, " ranks, not of ", spec.hosts.size()));
  }
  if (spec.kind == CollectiveKind::kBroadcast && spec.root >= n) {
    return Invalid(spec, StrCat("root ", spec.root, " of a group of ", n));
  }
  if (spec.kind == CollectiveKind::kPermute) {
    std::vector<uint32_t> peers = spec.peers;
    std::sort(peers.begin(), peers.end());
    std::vector<uint32_t> ranks(n);
    std::iota(ranks.begin(), ranks.end(), 0);
    if (peers != ranks) {
      return Invalid(spec, StrCat("the peers are no permutation of the ranks below ", n));
    }
  }
  if (IsReduction(spec) && FindFold(spec.reduce, spec.dtype) == nullptr) {
    return Invalid(spec, StrCat("no such reduction of ", Name(spec.dtype)));
  }
  return absl::OkStatus();
}

std::vector<uint32_t> CollectivePeers(const CollectiveSpec& spec, uint32_t device) {
  const auto member = std::find(spec.devices.begin(), spec.devices.end(), device);
  return PeersOf(spec, static_cast<int>(member - spec.devices.begin()));
}

uint64_t CollectiveBufferBytes(const CollectiveSpec& spec, int rank,
                               const std::vector<bool>& can_view) {
  const Schedule schedule = MakeSchedule(spec, rank, can_view);
  int64_t num_bytes = schedule.scratch_bytes;
  for (const auto& flow : schedule.flows) num_bytes += flow->buffer_bytes();
  return static_cast<uint64_t>(num_bytes);
}

absl::StatusOr<std::unique_ptr<Collective>> CreateCollective(const CollectiveSpec& spec, int rank,
                                                             Endpoint& endpoint) {
  if (rank < 0 || static_cast<size_t>(rank) >= spec.devices.size()) {
    return Invalid(spec, StrCat("rank ", rank, " of a group of ", spec.devices.size()));
  }
  return std::make_unique<FlowCollective>(spec, rank, endpoint);
}

}  // namespace penstock::transport
