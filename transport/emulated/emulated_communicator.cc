#include "transport/emulated/emulated_communicator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

#include "base/emulated_device.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "transport/reduce.h"

namespace penstock::transport {
namespace {

using Bytes = std::vector<std::byte>;

// The ranks whose terms of a block are folded with each other first, in order, and those results
// then: see base/collective.h.
std::vector<std::vector<int>> FoldOrder(const CollectiveSpec& spec, int block) {
  const int n = static_cast<int>(spec.devices.size());
  std::vector<std::vector<int>> order;
  if (spec.algorithm == CollectiveAlgorithm::kHierarchical) {
    std::map<uint32_t, size_t> place;  // of a host
    for (int rank = 0; rank < n; ++rank) {
      const auto [it, is_new] = place.try_emplace(spec.hosts[rank], order.size());
      if (is_new) order.emplace_back();
      order[it->second].push_back(rank);
    }
    return order;
  }
  const int first = spec.algorithm == CollectiveAlgorithm::kRing ? block + 1 : 0;
  order.resize(1);
  for (int i = 0; i < n; ++i) order[0].push_back((first + i) % n);
  return order;
}

// The result of one member, of one tensor.
class Result {
 public:
  // Of `inputs`, which hold one tensor behind the other.
  Result(const CollectiveSpec& spec, size_t tensor, const std::vector<Bytes>& inputs)
      : spec_(spec),
        counts_(spec.tensors.empty() ? spec.counts : spec.tensors[tensor]),
        inputs_(inputs),
        n_(static_cast<int>(spec.devices.size())),
        element_bytes_(static_cast<int64_t>(ByteSize(spec.dtype))) {
    for (int rank = 0; rank < n_; ++rank) {
      begins_.push_back(0);
      for (size_t t = 0; t < tensor; ++t) begins_.back() += InputCount(spec, rank, t);
    }
  }

  void Write(int rank, std::byte* to) const {
    switch (spec_.kind) {
      case CollectiveKind::kAllReduce:
        for (int block = 0; block < n_; ++block) to = Reduce(block, to);
        return;
      case CollectiveKind::kReduceScatter:
        Reduce(rank, to);
        return;
      case CollectiveKind::kAllGather:
        for (int source = 0; source < n_; ++source) to = Copy(source, 0, counts_[source], to);
        return;
      case CollectiveKind::kAllToAll:
        for (int source = 0; source < n_; ++source) {
          const auto row = counts_.begin() + source * n_;
          to = Copy(source, std::accumulate(row, row + rank, int64_t{0}), row[rank], to);
        }
        return;
      case CollectiveKind::kBroadcast:
        std::copy(inputs_[spec_.root].begin(), inputs_[spec_.root].end(), to);
        return;
      case CollectiveKind::kPermute: {
        const auto source = std::find(spec_.peers.begin(), spec_.peers.end(), rank);
        const Bytes& input = inputs_[source - spec_.peers.begin()];
        std::copy(input.begin(), input.end(), to);
        return;
      }
    }
  }

 private:
  std::byte* Copy(int rank, int64_t element, int64_t count, std::byte* to) const {
    const auto from = inputs_[rank].begin() + (begins_[rank] + element) * element_bytes_;
    return std::copy(from, from + count * element_bytes_, to);
  }

  std::byte* Reduce(int block, std::byte* to) const {
    const int64_t element = std::accumulate(counts_.begin(), counts_.begin() + block, int64_t{0});
    const int64_t count = counts_[block];
    if (count == 0) return to;
    std::vector<Bytes> of_ranks;
    std::vector<const std::byte*> terms;
    for (const std::vector<int>& ranks : FoldOrder(spec_, block)) {
      terms.clear();
      for (int rank : ranks) {
        terms.push_back(inputs_[rank].data() + (begins_[rank] + element) * element_bytes_);
      }
      of_ranks.emplace_back(count * element_bytes_);
      Fold(terms, count, of_ranks.back().data());
    }
    terms.clear();
    for (const Bytes& folded : of_ranks) terms.push_back(folded.data());
    Fold(terms, count, to);
    return to + count * element_bytes_;
  }

  void Fold(const std::vector<const std::byte*>& terms, int64_t count, std::byte* to) const {
    const FoldSteps steps = FindFoldSteps(spec_.reduce, spec_.dtype);
    if (terms.size() > 1 && spec_.algorithm != CollectiveAlgorithm::kRing) {
      Bytes partial(count * steps.partial_bytes);
      FoldTerms(steps, terms, partial.data(), to, count);
      return;
    }
    // Along a ring, each rank rounds what it passes on.
    std::copy(terms[0], terms[0] + count * element_bytes_, to);
    for (size_t i = 1; i < terms.size(); ++i) steps.pair(to, terms[i], to, count);
  }

  const CollectiveSpec& spec_;
  const std::vector<int64_t>& counts_;
  const std::vector<Bytes>& inputs_;
  const int n_;
  const int64_t element_bytes_;
  std::vector<int64_t> begins_;  // of the tensor in each rank's input: elements
};

// The state that members of a collective share. Two runs may be under way: the next one begins
// while some members have not left the last.
class Group {
 public:
  explicit Group(const CollectiveSpec& spec) : spec_(spec), devices_(spec.devices.size()) {
    for (uint64_t i = 0; i < runs_.size(); ++i) {
      runs_[i].number = i;
      for (size_t rank = 0; rank < devices_.size(); ++rank) {
        runs_[i].inputs.emplace_back(InputBytes(static_cast<int>(rank)));
      }
    }
  }

  const CollectiveSpec& spec() const { return spec_; }

  // The member's device, which is woken when others have arrived; null: it is gone.
  void SetDevice(int rank, EmulatedDevice* device) {
    const absl::MutexLock lock(&mutex_);
    devices_[rank] = device;
  }

  void WakeMembers() {
    const absl::MutexLock lock(&mutex_);
    WakeAll();
  }

  // Null `inputs` poison the run. Returns false if members have not left the last run but one: its
  // place is not free yet.
  bool Arrive(int rank, uint64_t number, const void* const* inputs) {
    const absl::MutexLock lock(&mutex_);
    Run& run = runs_[number % runs_.size()];
    if (run.number != number) {
      if (run.num_left < devices_.size()) return false;
      run.number = number;
      run.num_arrived = run.num_left = 0;
      run.is_poisoned = false;
    }
    if (inputs == nullptr) run.is_poisoned = true;
    std::byte* to = run.inputs[rank].data();
    for (size_t t = 0; inputs != nullptr && t < NumTensors(spec_); ++t) {
      const size_t num_bytes =
          static_cast<size_t>(InputCount(spec_, rank, t)) * ByteSize(spec_.dtype);
      if (num_bytes > 0) std::memcpy(to, inputs[t], num_bytes);
      to += num_bytes;
    }
    if (++run.num_arrived == devices_.size()) WakeAll();
    return true;
  }

  // Once all members have arrived: writes the result, unless the run is poisoned.
  bool Leave(int rank, uint64_t number, void* const* outputs, bool* is_poisoned) {
    const absl::MutexLock lock(&mutex_);
    Run& run = runs_[number % runs_.size()];
    if (run.num_arrived < devices_.size()) return false;
    *is_poisoned = run.is_poisoned;
    for (size_t t = 0; !run.is_poisoned && outputs != nullptr && t < NumTensors(spec_); ++t) {
      Result(spec_, t, run.inputs).Write(rank, static_cast<std::byte*>(outputs[t]));
    }
    if (++run.num_left == devices_.size()) WakeAll();
    return true;
  }

 private:
  struct Run {
    uint64_t number = 0;
    size_t num_arrived = 0;
    size_t num_left = 0;
    bool is_poisoned = false;
    std::vector<Bytes> inputs;  // by rank
  };

  size_t InputBytes(int rank) const {
    return static_cast<size_t>(InputCount(spec_, rank)) * ByteSize(spec_.dtype);
  }
  void WakeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (EmulatedDevice* device : devices_) {
      if (device != nullptr) device->Wake();
    }
  }

  const CollectiveSpec spec_;
  absl::Mutex mutex_;
  std::array<Run, 2> runs_ ABSL_GUARDED_BY(mutex_);
  std::vector<EmulatedDevice*> devices_ ABSL_GUARDED_BY(mutex_);
};

// The launches of the collectives of one communicator.
class Sequence {
 public:
  explicit Sequence(size_t num_members) : members_(num_members) {}

  // Counts the launch; its number among those of the member. An error: another member has launched
  // something else as its launch of that number.
  absl::Status Launch(int rank, uint32_t channel, uint64_t* number) {
    const absl::MutexLock lock(&mutex_);
    *number = members_[rank].num_launched++;
    if (is_broken_) return absl::OkStatus();
    if (*number == num_dropped_ + launches_.size()) launches_.push_back({channel, rank});
    const Launched& other = launches_[*number - num_dropped_];
    if (other.channel != channel) {
      is_broken_ = true;
      return absl::FailedPreconditionError(StrCat(
          "rank ", rank, " launches the collective on channel ", channel, " as number ", *number,
          " of its communicator, and rank ", other.rank, " has launched the one on channel ",
          other.channel, ": all members must launch in the same order"));
    }
    const auto slowest = std::min_element(
        members_.begin(), members_.end(),
        [](const Member& a, const Member& b) { return a.num_launched < b.num_launched; });
    while (num_dropped_ < slowest->num_launched) {
      launches_.pop_front();
      ++num_dropped_;
    }
    return absl::OkStatus();
  }

  // On the device: whether all that the member has launched before is over.
  bool IsNext(int rank, uint64_t number) {
    const absl::MutexLock lock(&mutex_);
    return is_broken_ || members_[rank].num_finished == number;
  }
  void Finish(int rank) {
    const absl::MutexLock lock(&mutex_);
    ++members_[rank].num_finished;
  }

 private:
  struct Member {
    uint64_t num_launched = 0;
    uint64_t num_finished = 0;
  };
  struct Launched {
    uint32_t channel = 0;
    int rank = 0;  // the first to launch it
  };

  absl::Mutex mutex_;
  std::vector<Member> members_ ABSL_GUARDED_BY(mutex_);
  std::deque<Launched> launches_ ABSL_GUARDED_BY(mutex_);  // that not all members have made
  uint64_t num_dropped_ ABSL_GUARDED_BY(mutex_) = 0;       // before these
  bool is_broken_ ABSL_GUARDED_BY(mutex_) = false;         // members have not agreed
};

class EmulatedCollective final : public StreamCollective {
 public:
  EmulatedCollective(std::shared_ptr<Group> group, std::shared_ptr<Sequence> sequence, int rank,
                     EmulatedDevice* device, EmulatedStream* stream, bool tells_failures)
      : group_(std::move(group)),
        sequence_(std::move(sequence)),
        rank_(rank),
        device_(device),
        stream_(stream),
        tells_failures_(tells_failures) {
    group_->SetDevice(rank_, device);
  }
  ~EmulatedCollective() override { group_->SetDevice(rank_, nullptr); }

  // Takes place in any case, so that the other members do not wait for it.
  absl::Status Launch(const StreamCollectiveArgs& args) override {
    uint64_t number = 0;
    absl::Status status = sequence_->Launch(rank_, group_->spec().channel, &number);
    EmulatedRun& run = stream_->BeginLaunch();
    run.retry = &RunHost;
    run.context = this;
    const size_t num_tensors = NumTensors(group_->spec());
    run.pointers.clear();
    for (size_t t = 0; t < num_tensors; ++t) {
      run.pointers.push_back(const_cast<void*>(args.inputs[t]));
    }
    run.pointers.insert(run.pointers.end(), args.outputs, args.outputs + num_tensors);
    run.values = {num_launched_++, args.is_poisoned, /*has arrived*/ 0, number};
    run.launch = args.launch;
    stream_->EndLaunch();
    if (!status.ok()) group_->WakeMembers();
    return status;
  }

 private:
  // On the device.
  static bool RunHost(void* context, EmulatedRun& run, bool has_error, absl::Status* status) {
    auto& self = *static_cast<EmulatedCollective*>(context);
    const bool is_sound = !has_error && run.values[1] == 0;
    if (run.values[2] == 0) {
      if (!self.sequence_->IsNext(self.rank_, run.values[3])) return false;
      if (!self.group_->Arrive(self.rank_, run.values[0],
                               is_sound ? run.pointers.data() : nullptr)) {
        return false;
      }
      run.values[2] = 1;
    }
    bool is_poisoned = false;
    void* const* outputs = run.pointers.data() + NumTensors(self.group_->spec());
    if (!self.group_->Leave(self.rank_, run.values[0], is_sound ? outputs : nullptr,
                            &is_poisoned)) {
      return false;
    }
    if (is_sound && is_poisoned && self.tells_failures_) {
      *status = absl::AbortedError("another device has failed");
    }
    self.sequence_->Finish(self.rank_);
    self.device_->Wake();  // the next of the sequence, on another stream
    return true;
  }

  const std::shared_ptr<Group> group_;
  const std::shared_ptr<Sequence> sequence_;
  const int rank_;
  EmulatedDevice* const device_;
  EmulatedStream* const stream_;
  const bool tells_failures_;
  uint64_t num_launched_ = 0;
};

// The groups of all communicators of a session, by channel, and the sequences of launches, by
// group of devices; each lives as long as its members.
class Groups {
 public:
  std::shared_ptr<Sequence> FindSequence(const CollectiveSpec& spec) {
    const absl::MutexLock lock(&mutex_);
    std::weak_ptr<Sequence>& known = sequences_[GroupOf(spec)];
    std::shared_ptr<Sequence> sequence = known.lock();
    if (sequence == nullptr) known = sequence = std::make_shared<Sequence>(spec.devices.size());
    return sequence;
  }

  absl::StatusOr<std::shared_ptr<Group>> Find(const CollectiveSpec& spec) {
    const absl::MutexLock lock(&mutex_);
    std::shared_ptr<Group> group = groups_[spec.channel].lock();
    if (group == nullptr) {
      group = std::make_shared<Group>(spec);
      groups_[spec.channel] = group;
    }
    if (!(group->spec() == spec)) {
      return absl::InvalidArgumentError(
          StrCat("the members of the collective on channel ", spec.channel,
                 " do not agree on what it does: all devices must run the same plan"));
    }
    return group;
  }

 private:
  absl::Mutex mutex_;
  std::map<uint32_t, std::weak_ptr<Group>> groups_ ABSL_GUARDED_BY(mutex_);
  std::map<DeviceGroup, std::weak_ptr<Sequence>> sequences_ ABSL_GUARDED_BY(mutex_);
};

// The groups that what some devices run belongs to; an error if these have none.
using FindGroups =
    std::function<absl::StatusOr<std::shared_ptr<Groups>>(const DeviceGroup& devices)>;

class EmulatedCommunicator final : public Communicator {
 public:
  EmulatedCommunicator(FindGroups find_groups, EmulatedDevice* device)
      : find_groups_(std::move(find_groups)), device_(device) {}

  absl::StatusOr<std::unique_ptr<StreamCollective>> Create(const CollectiveSpec& spec, int rank,
                                                           Stream& stream,
                                                           bool tells_failures) override {
    ASSIGN_OR_RETURN(const std::shared_ptr<Groups> groups, find_groups_(GroupOf(spec)));
    ASSIGN_OR_RETURN(std::shared_ptr<Group> group, groups->Find(spec));
    return std::make_unique<EmulatedCollective>(std::move(group), groups->FindSequence(spec), rank,
                                                device_, &dynamic_cast<EmulatedStream&>(stream),
                                                tells_failures);
  }

 private:
  const FindGroups find_groups_;
  EmulatedDevice* const device_;
};

CommunicatorFactory CreateFactory(FindGroups find_groups) {
  return [find_groups = std::move(find_groups)](
             uint32_t, Device& device,
             absl::Span<const DeviceGroup>) -> absl::StatusOr<std::unique_ptr<Communicator>> {
    auto* emulated = dynamic_cast<EmulatedDevice*>(&device);
    if (emulated == nullptr) {
      return absl::FailedPreconditionError(
          StrCat("emulated collectives need emulated devices, not a ", device.kind(), " device"));
    }
    return std::make_unique<EmulatedCommunicator>(find_groups, emulated);
  };
}

class EmulatedSource final : public CommunicatorSource {
 public:
  explicit EmulatedSource(std::function<std::string(uint32_t index)> hardware_of)
      : hardware_of_(std::move(hardware_of)) {}

  std::string name() const override { return "emulated communicators"; }
  std::string HardwareOf(uint32_t index) const override { return hardware_of_(index); }

  absl::StatusOr<std::string> CreateGroupId() override {
    const absl::MutexLock lock(&shared_->mutex);
    std::string id = StrCat("group ", shared_->groups.size());
    shared_->groups[id] = std::make_shared<Groups>();
    return id;
  }

  CommunicatorFactory CreateFactory(GroupIds ids) override {
    return transport::CreateFactory([ids = std::move(ids),
                                     shared = shared_](const DeviceGroup& devices)
                                        -> absl::StatusOr<std::shared_ptr<Groups>> {
      const absl::MutexLock lock(&shared->mutex);
      const auto id = ids.find(devices);
      const auto groups = id != ids.end() ? shared->groups.find(id->second) : shared->groups.end();
      if (groups == shared->groups.end()) {
        return absl::InvalidArgumentError(StrCat("the group of ", ToString(devices), " has no id"));
      }
      return groups->second;
    });
  }

 private:
  struct Shared {
    absl::Mutex mutex;
    std::map<std::string, std::shared_ptr<Groups>> groups ABSL_GUARDED_BY(mutex);  // by id
  };

  const std::function<std::string(uint32_t index)> hardware_of_;
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace

CommunicatorFactory CreateEmulatedCommunicators() {
  return CreateFactory(
      [groups = std::make_shared<Groups>()](const DeviceGroup&) { return groups; });
}

std::shared_ptr<CommunicatorSource> CreateEmulatedSource(
    std::function<std::string(uint32_t index)> hardware_of) {
  return std::make_shared<EmulatedSource>(std::move(hardware_of));
}

}  // namespace penstock::transport
