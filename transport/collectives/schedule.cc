#include "transport/collectives/schedule.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "base/dtype.h"
#include "base/stream_copy.h"
#include "transport/reduce.h"

namespace penstock::transport {
namespace {

// A ring's reduction runs in this many lanes, each a chunk behind the other, so that one lane's
// chunk travels while the other's is folded.
constexpr int64_t kRingLanes = 2;

// Partial results that a lane of a ring reduce_scatter holds between fold and send. With two, a
// fold waits only for the send of the fold before the last, which waits for nothing later than
// itself.
constexpr int64_t kScratchSlots = 2;

// If a chunk holds a rank's data and all ranks together have at most this much, each rank of a
// direct all_reduce reduces everything itself: at such sizes latency outweighs the transfer.
constexpr int64_t kWholeBytes = 64 << 10;

int64_t ChunkElements(const CollectiveSpec& spec) {
  return spec.chunk_bytes / static_cast<int64_t>(ByteSize(spec.dtype));
}

// An empty block travels too, as one message of no bytes: flags must reach everyone.
int64_t NumChunks(const CollectiveSpec& spec, int64_t count) {
  const int64_t chunk_elements = ChunkElements(spec);
  return std::max<int64_t>(1, (count - 1) / chunk_elements + 1);
}

// The same of a block, which lies in several pieces of memory where there are several tensors.
int64_t NumBlockChunks(const CollectiveSpec& spec, size_t block) {
  if (spec.tensors.empty()) return NumChunks(spec, spec.counts[block]);
  int64_t chunks = 0;
  for (const std::vector<int64_t>& counts : spec.tensors) {
    if (counts[block] > 0) chunks += NumChunks(spec, counts[block]);
  }
  return std::max<int64_t>(1, chunks);
}

int64_t MaxChunks(const CollectiveSpec& spec) {
  int64_t most = 1;
  for (size_t block = 0; block < spec.counts.size(); ++block) {
    most = std::max(most, NumBlockChunks(spec, block));
  }
  return most;
}

// Elements of one tensor that travel as a chunk.
struct Stretch {
  uint32_t tensor = 0;
  int64_t begin = 0;  // in the tensor's part of the block
  int64_t count = 0;
};

class Builder {
 public:
  Builder(const CollectiveSpec& spec, int rank, const std::vector<bool>& can_view)
      : spec_(spec),
        n_(static_cast<int>(spec.devices.size())),
        rank_(rank),
        can_view_(can_view),
        element_bytes_(static_cast<int64_t>(ByteSize(spec.dtype))),
        chunk_elements_(ChunkElements(spec)),
        max_chunks_(MaxChunks(spec)) {
    for (size_t t = 0; t < NumTensors(spec); ++t) {
      const std::vector<int64_t>& counts = CountsOf(t);
      offsets_.emplace_back();
      std::exclusive_scan(counts.begin(), counts.end(), std::back_inserter(offsets_.back()),
                          int64_t{0});
    }
  }

  Schedule Build() {
    if (n_ == 1) {
      for (uint32_t t = 0; t < offsets_.size(); ++t) Keep(0, 0, InputCount(spec_, 0, t), t);
      return std::move(schedule_);
    }
    const bool is_hierarchical = spec_.algorithm == CollectiveAlgorithm::kHierarchical;
    const bool is_ring = spec_.algorithm == CollectiveAlgorithm::kRing;
    if (is_hierarchical) FindHosts();
    if (spec_.kind != CollectiveKind::kAllToAll && spec_.kind != CollectiveKind::kPermute) {
      CutBlocks();
    }
    switch (spec_.kind) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kReduceScatter:
        is_hierarchical ? HierarchicalReduce() : is_ring ? RingReduce() : DirectReduce();
        break;
      case CollectiveKind::kAllGather:
        for (uint32_t t = 0; t < offsets_.size(); ++t) {
          Keep(0, offsets_[t][rank_], CountsOf(t)[rank_], t);
        }
        is_hierarchical ? HierarchicalGather() : is_ring ? RingGather() : DirectGather();
        break;
      case CollectiveKind::kAllToAll:
        AllToAll();
        break;
      case CollectiveKind::kBroadcast:
        if (rank_ == static_cast<int>(spec_.root)) Keep(0, 0, spec_.counts[0]);
        is_hierarchical ? HierarchicalBroadcast() : is_ring ? ChainBroadcast() : DirectBroadcast();
        break;
      case CollectiveKind::kPermute:
        Permute();
        break;
    }
    return std::move(schedule_);
  }

 private:
  enum class Holds : uint8_t { kAll, kOne };

  bool is_all_reduce() const { return spec_.kind == CollectiveKind::kAllReduce; }
  int Rank(int rank) const { return ((rank % n_) + n_) % n_; }
  uint32_t Device(int rank) const { return spec_.devices[Rank(rank)]; }

  template <typename FlowType, typename... Args>
  FlowType* NewFlow(Args&&... args) {
    auto flow = std::make_unique<FlowType>(std::forward<Args>(args)...);
    FlowType* result = flow.get();
    schedule_.flows.push_back(std::move(flow));
    return result;
  }

  // Folds terms of these ranks, in this order; this rank among them.
  FoldFlow* NewFold(const std::vector<int>& ranks, bool is_streamed = false) {
    std::vector<uint32_t> terms;
    bool can_view = true;
    for (int rank : ranks) {
      terms.push_back(rank == rank_ ? FoldFlow::kOwn : Device(rank));
      can_view &= rank == rank_ || can_view_[rank];
    }
    return NewFlow<FoldFlow>(std::move(terms), FindFoldSteps(spec_.reduce, spec_.dtype),
                             element_bytes_, can_view, is_streamed);
  }

  // Whether elements are more than caches hold.
  bool IsMuch(int64_t count) const {
    return count * element_bytes_ >= static_cast<int64_t>(kStreamBytes);
  }

  // Receives from a rank into the output: much of it past the caches.
  Flow* NewReceive(int from) {
    if (!IsMuch(OutputCount(spec_, rank_)) || !can_view_[Rank(from)]) {
      return NewFlow<ReceiveFlow>(Device(from));
    }
    return NewFold({Rank(from)});
  }

  std::vector<int> AllRanks() const {
    std::vector<int> ranks(n_);
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  void Keep(int64_t input_element, int64_t output_element, int64_t count, uint32_t tensor = 0) {
    schedule_.copies.push_back({tensor, input_element * element_bytes_,
                                output_element * element_bytes_, count * element_bytes_});
  }

  const std::vector<int64_t>& CountsOf(size_t tensor) const {
    return spec_.tensors.empty() ? spec_.counts : spec_.tensors[tensor];
  }

  // Tensor by tensor, and each in chunks.
  void CutBlocks() {
    blocks_.resize(spec_.counts.size());
    for (size_t block = 0; block < blocks_.size(); ++block) {
      for (uint32_t t = 0; t < offsets_.size(); ++t) {
        const int64_t count = CountsOf(t)[block];
        for (int64_t begin = 0; begin < count; begin += chunk_elements_) {
          blocks_[block].push_back({t, begin, std::min(chunk_elements_, count - begin)});
        }
      }
      if (blocks_[block].empty()) blocks_[block].emplace_back();
    }
  }

  int64_t NumChunksOf(int block) const { return static_cast<int64_t>(blocks_[block].size()); }

  // Chunk `c` of a block. The buffer holds all blocks, or this one alone. Blocks that pass between
  // the same two ranks in one direction have different `numbers`.
  Chunk ChunkOf(Buffer buffer, Holds holds, int block, int64_t c, int64_t number) const {
    const Stretch& stretch = blocks_[block][c];
    const int64_t element = holds == Holds::kAll ? offsets_[stretch.tensor][block] : 0;
    Chunk chunk;
    chunk.buffer = buffer;
    chunk.tensor = stretch.tensor;
    chunk.offset = (element + stretch.begin) * element_bytes_;
    chunk.num_bytes = stretch.count * element_bytes_;
    chunk.message = static_cast<uint64_t>(number * max_chunks_ + c);
    return chunk;
  }

  // All chunks of a block. With `after`, chunk c waits until that has finished c + 1.
  void AddBlock(Flow* flow, Buffer buffer, Holds holds, int block, int64_t number,
                const Flow* after = nullptr) const {
    for (int64_t c = 0; c < NumChunksOf(block); ++c) {
      Chunk chunk = ChunkOf(buffer, holds, block, c, number);
      chunk.after = after;
      chunk.after_count = c + 1;
      flow->Add(chunk);
    }
  }

  // All chunks of `count` elements that begin at `element` of `buffer`.
  void AddRange(Flow* flow, Buffer buffer, int64_t element, int64_t count) const {
    for (int64_t c = 0; c < NumChunks(spec_, count); ++c) {
      const int64_t begin = c * chunk_elements_;
      Chunk chunk;
      chunk.buffer = buffer;
      chunk.offset = (element + begin) * element_bytes_;
      chunk.num_bytes = std::min(chunk_elements_, count - begin) * element_bytes_;
      chunk.message = static_cast<uint64_t>(c);
      flow->Add(chunk);
    }
  }

  bool IsFoldedWhole() const {
    const int64_t num_bytes = InputCount(spec_, rank_) * element_bytes_;
    return is_all_reduce() && num_bytes <= spec_.chunk_bytes && n_ * num_bytes <= kWholeBytes;
  }

  // Every rank sends all it has to every other, in one chunk.
  void WholeReduce() {
    const int64_t count = InputCount(spec_, rank_);
    Chunk chunk;
    chunk.num_bytes = count * element_bytes_;
    for (int step = 1; step < n_; ++step) {
      NewFlow<SendFlow>(Device(rank_ + step))->Add(chunk);
    }
    chunk.buffer = Buffer::kScratch;
    NewFold(AllRanks())->Add(chunk);
    schedule_.scratch_bytes = schedule_.result_bytes = chunk.num_bytes;
  }

  void DirectReduce() {
    if (IsFoldedWhole()) {
      WholeReduce();
      return;
    }
    std::vector<Flow*> sends(n_);
    for (int step = 1; step < n_; ++step) {
      const int peer = Rank(rank_ + step);
      sends[peer] = NewFlow<SendFlow>(Device(peer));
      AddBlock(sends[peer], Buffer::kInput, Holds::kAll, peer, peer);
    }
    // A result that is not sent on would only take room in the caches.
    const bool is_streamed = !is_all_reduce() && IsMuch(InputCount(spec_, rank_));
    FoldFlow* fold = NewFold(AllRanks(), is_streamed);
    const Holds result = is_all_reduce() ? Holds::kAll : Holds::kOne;
    for (int64_t c = 0; c < NumChunksOf(rank_); ++c) {
      Chunk chunk = ChunkOf(Buffer::kOutput, result, rank_, c, rank_);
      chunk.own_offset = ChunkOf(Buffer::kInput, Holds::kAll, rank_, c, rank_).offset;
      fold->Add(chunk);
    }
    if (!is_all_reduce()) return;
    for (int step = 1; step < n_; ++step) {
      const int peer = Rank(rank_ + step);
      AddBlock(NewFlow<SendFlow>(Device(peer)), Buffer::kOutput, result, rank_, n_ + rank_, fold);
      AddBlock(NewReceive(peer), Buffer::kOutput, Holds::kAll, peer, n_ + peer, sends[peer]);
    }
  }

  void DirectGather() {
    for (int step = 1; step < n_; ++step) {
      const int to = Rank(rank_ + step);
      const int from = Rank(rank_ - step);
      AddBlock(NewFlow<SendFlow>(Device(to)), Buffer::kInput, Holds::kOne, rank_, rank_);
      AddBlock(NewReceive(from), Buffer::kOutput, Holds::kAll, from, from);
    }
  }

  // Step s sends block rank-1-s to the next rank and folds block rank-2-s from the one before, so
  // that the last step folds the rank's own. A lane has the chunks c, c + lanes, ..., and takes
  // each through all steps before the next: then few partial results are held at a time.
  void RingReduce() {
    struct Lane {
      SendFlow* send = nullptr;
      FoldFlow* fold = nullptr;
      int64_t num_partials = 0;
      std::vector<int64_t> partial_sends;  // by partial: chunks sent once it has been
    };
    std::vector<Lane> lanes(std::min(kRingLanes, max_chunks_));
    for (Lane& lane : lanes) {
      lane.send = NewFlow<SendFlow>(Device(rank_ + 1));
      lane.fold = NewFold({Rank(rank_ - 1), rank_});
    }
    const int64_t slot_elements =
        std::min(chunk_elements_, *std::max_element(spec_.counts.begin(), spec_.counts.end()));
    const auto num_lanes = static_cast<int64_t>(lanes.size());
    if (!is_all_reduce()) {
      schedule_.scratch_bytes = num_lanes * kScratchSlots * slot_elements * element_bytes_;
    }
    std::vector<Done> block_sent(n_ * max_chunks_);
    std::vector<Done> result_folded(max_chunks_);
    for (int64_t c = 0; c < max_chunks_; ++c) {
      const int64_t lane_number = c % num_lanes;
      Lane& lane = lanes[lane_number];
      // Where the chunk of partial result `partial` lies, of a block with such an offset.
      const auto place_partial = [&](Chunk* chunk, int64_t partial) {
        if (is_all_reduce()) return;
        chunk->buffer = Buffer::kScratch;
        chunk->offset = (lane_number * kScratchSlots + partial % kScratchSlots) * slot_elements *
                        element_bytes_;
      };
      for (int step = 0; step < n_ - 1; ++step) {
        const int sent = Rank(rank_ - 1 - step);
        if (c < NumChunksOf(sent)) {
          Chunk chunk =
              ChunkOf(step == 0 ? Buffer::kInput : Buffer::kOutput, Holds::kAll, sent, c, sent);
          if (step > 0) {
            place_partial(&chunk, lane.num_partials - 1);
            chunk.after = lane.fold;
            chunk.after_count = lane.fold->num_chunks();
          }
          lane.send->Add(chunk);
          block_sent[sent * max_chunks_ + c] = {lane.send, lane.send->num_chunks()};
          if (step > 0) lane.partial_sends.push_back(lane.send->num_chunks());
        }
        const int folded = Rank(rank_ - 2 - step);
        if (c < NumChunksOf(folded)) {
          const bool is_result = folded == rank_ && !is_all_reduce();
          Chunk chunk =
              ChunkOf(Buffer::kOutput, is_result ? Holds::kOne : Holds::kAll, folded, c, folded);
          chunk.own_offset = ChunkOf(Buffer::kInput, Holds::kAll, folded, c, folded).offset;
          if (folded != rank_) {
            const int64_t partial = lane.num_partials++;
            place_partial(&chunk, partial);
            if (partial >= kScratchSlots) {
              chunk.after = lane.send;
              chunk.after_count = lane.partial_sends[partial - kScratchSlots];
            }
          }
          lane.fold->Add(chunk);
          if (folded == rank_) result_folded[c] = {lane.fold, lane.fold->num_chunks()};
        }
      }
    }
    if (is_all_reduce()) RingGather(result_folded, block_sent);
  }

  // So many chunks of a flow have been finished.
  struct Done {
    const Flow* flow = nullptr;
    int64_t count = 0;
  };

  // Step s sends block rank-s and receives block rank-1-s. After a reduction, chunk c of the own
  // block waits for `result_folded`[c], and a chunk is received over the own term of it only when
  // that `block_sent`[block * max_chunks + c].
  void RingGather(const std::vector<Done>& result_folded = {},
                  const std::vector<Done>& block_sent = {}) {
    auto* send = NewFlow<SendFlow>(Device(rank_ + 1));
    auto* receive = NewReceive(rank_ - 1);
    for (int step = 0; step < n_ - 1; ++step) {
      const int sent = Rank(rank_ - step);
      const int64_t before = receive->num_chunks() - NumChunksOf(sent);
      for (int64_t c = 0; c < NumChunksOf(sent); ++c) {
        Chunk chunk = ChunkOf(Buffer::kOutput, Holds::kAll, sent, c, n_ + sent);
        if (step > 0) {
          chunk.after = receive;
          chunk.after_count = before + c + 1;
        } else if (!result_folded.empty()) {
          chunk.after = result_folded[c].flow;
          chunk.after_count = result_folded[c].count;
        } else {
          chunk = ChunkOf(Buffer::kInput, Holds::kOne, sent, c, n_ + sent);
        }
        send->Add(chunk);
      }
      const int received = Rank(rank_ - 1 - step);
      for (int64_t c = 0; c < NumChunksOf(received); ++c) {
        Chunk chunk = ChunkOf(Buffer::kOutput, Holds::kAll, received, c, n_ + received);
        if (!block_sent.empty()) {
          const Done& own = block_sent[received * max_chunks_ + c];
          chunk.after = own.flow;
          chunk.after_count = own.count;
        }
        receive->Add(chunk);
      }
    }
  }

  void FindHosts() {
    host_of_.resize(n_);
    for (int rank = 0; rank < n_; ++rank) {
      const auto first = std::find(spec_.hosts.begin(), spec_.hosts.end(), spec_.hosts[rank]) -
                         spec_.hosts.begin();
      host_of_[rank] = first == rank ? static_cast<int>(hosts_.size()) : host_of_[first];
      if (first == rank) hosts_.emplace_back();
      hosts_[host_of_[rank]].push_back(rank);
    }
  }

  // The rank of a host that takes part in what `owner` folds or hands out, for the others there.
  int DelegateOf(int owner, int host) const {
    const std::vector<int>& peers = hosts_[host_of_[owner]];
    const auto place = std::find(peers.begin(), peers.end(), owner) - peers.begin();
    return hosts_[host][static_cast<size_t>(place) % hosts_[host].size()];
  }

  // A block that the owner has in `from` goes to its place in everybody's output: from the owner to
  // the delegates, and on within the hosts. It is there once `is_there` has finished as many
  // chunks; a receive over this rank's own term waits until that `was_read`.
  void HandOut(int owner, int block, int64_t number, Buffer from, const Flow* is_there,
               const Flow* was_read) {
    const int host = host_of_[rank_];
    const int delegate = DelegateOf(owner, host);
    if (rank_ != owner) {
      const int source = rank_ == delegate ? owner : delegate;
      auto* receive = NewReceive(source);
      AddBlock(receive, Buffer::kOutput, Holds::kAll, block, number, was_read);
      if (rank_ != delegate) return;
      from = Buffer::kOutput;
      is_there = receive;
    }
    const Holds holds = from == Buffer::kInput ? Holds::kOne : Holds::kAll;
    const auto send = [&](int peer) {
      AddBlock(NewFlow<SendFlow>(Device(peer)), from, holds, block, number, is_there);
    };
    if (rank_ == owner) {
      for (size_t i = 1; i < hosts_.size(); ++i) {
        send(DelegateOf(owner, static_cast<int>((host + i) % hosts_.size())));
      }
    }
    for (int peer : hosts_[host]) {
      if (peer != rank_) send(peer);
    }
  }

  // This rank's part in the reduction of `owner`'s block; returns the flow that reads its own
  // term last, and in *result the one that folds the whole.
  const Flow* FoldBlock(int owner, const Flow** result) {
    const int host = host_of_[rank_];
    const int delegate = DelegateOf(owner, host);
    if (rank_ != delegate) {
      auto* send = NewFlow<SendFlow>(Device(delegate));
      AddBlock(send, Buffer::kInput, Holds::kAll, owner, owner);
      return send;
    }
    const bool is_partial = hosts_[host].size() > 1;
    const bool is_owner = rank_ == owner;
    // The results of this host lie in the output, where that has room for them, else a few
    // chunks at a time in scratch memory.
    const bool is_staged = !is_owner && !is_all_reduce();
    const int64_t slot_bytes = std::min(chunk_elements_, spec_.counts[owner]) * element_bytes_;
    const int64_t scratch = schedule_.scratch_bytes;
    if (is_partial && is_staged) schedule_.scratch_bytes += kScratchSlots * slot_bytes;
    FoldFlow* fold = is_partial ? NewFold(hosts_[host]) : nullptr;
    Flow* last = nullptr;
    if (is_owner) {
      std::vector<int> delegates;
      for (int h = 0; h < static_cast<int>(hosts_.size()); ++h) {
        delegates.push_back(DelegateOf(owner, h));
      }
      last = hosts_.size() > 1 ? NewFold(delegates) : fold;
      *result = last;
    } else {
      last = NewFlow<SendFlow>(Device(owner));
    }
    const Holds result_holds = is_all_reduce() ? Holds::kAll : Holds::kOne;
    for (int64_t c = 0; c < NumChunksOf(owner); ++c) {
      const Chunk own = ChunkOf(Buffer::kInput, Holds::kAll, owner, c, owner);
      Chunk partial = own;
      if (is_partial) {
        partial = ChunkOf(Buffer::kOutput, result_holds, owner, c, owner);
        partial.own_offset = own.offset;
        if (is_staged) {
          partial.buffer = Buffer::kScratch;
          partial.offset = scratch + c % kScratchSlots * slot_bytes;
          if (c >= kScratchSlots) {
            partial.after = last;
            partial.after_count = c - kScratchSlots + 1;
          }
        }
        fold->Add(partial);
        if (last == fold) continue;
        partial.after = fold;
        partial.after_count = c + 1;
      }
      if (is_owner) {
        partial.own_buffer = partial.buffer;
        partial.own_offset = partial.offset;
        const Chunk whole = ChunkOf(Buffer::kOutput, result_holds, owner, c, owner);
        partial.buffer = whole.buffer;
        partial.offset = whole.offset;
      }
      last->Add(partial);
    }
    return last;
  }

  void HierarchicalReduce() {
    std::vector<const Flow*> was_read(n_);
    const Flow* result = nullptr;
    for (int step = 0; step < n_; ++step) {
      const int owner = Rank(rank_ + 1 + step);
      was_read[owner] = FoldBlock(owner, &result);
    }
    if (!is_all_reduce()) return;
    for (int step = 0; step < n_; ++step) {
      const int owner = Rank(rank_ + step);
      HandOut(owner, owner, n_ + owner, Buffer::kOutput, result, was_read[owner]);
    }
  }

  void HierarchicalGather() {
    for (int step = 0; step < n_; ++step) {
      const int owner = Rank(rank_ + step);
      HandOut(owner, owner, owner, Buffer::kInput, nullptr, nullptr);
    }
  }

  void HierarchicalBroadcast() {
    HandOut(static_cast<int>(spec_.root), 0, 0, Buffer::kInput, nullptr, nullptr);
  }

  void AllToAll() {
    const auto count = [this](int from, int to) { return spec_.counts[from * n_ + to]; };
    std::vector<int64_t> output_offsets(n_);
    for (int from = 1; from < n_; ++from) {
      output_offsets[from] = output_offsets[from - 1] + count(from - 1, rank_);
    }
    const auto input_offset = [this](int to) {
      return offsets_[0][rank_ * n_ + to] - offsets_[0][rank_ * n_];
    };
    Keep(input_offset(rank_), output_offsets[rank_], count(rank_, rank_));
    for (int step = 1; step < n_; ++step) {
      const int to = Rank(rank_ + step);
      const int from = Rank(rank_ - step);
      // In a halo exchange most ranks have nothing for each other.
      if (count(rank_, to) > 0) {
        AddRange(NewFlow<SendFlow>(Device(to)), Buffer::kInput, input_offset(to), count(rank_, to));
      }
      if (count(from, rank_) > 0) {
        AddRange(NewReceive(from), Buffer::kOutput, output_offsets[from], count(from, rank_));
      }
    }
  }

  void DirectBroadcast() {
    const int root = static_cast<int>(spec_.root);
    if (rank_ != root) {
      AddBlock(NewReceive(root), Buffer::kOutput, Holds::kOne, 0, 0);
      return;
    }
    for (int step = 1; step < n_; ++step) {
      AddBlock(NewFlow<SendFlow>(Device(root + step)), Buffer::kInput, Holds::kOne, 0, 0);
    }
  }

  void ChainBroadcast() {
    const int position = Rank(rank_ - static_cast<int>(spec_.root));
    Flow* receive = nullptr;
    if (position > 0) {
      receive = NewReceive(rank_ - 1);
      AddBlock(receive, Buffer::kOutput, Holds::kOne, 0, 0);
    }
    if (position < n_ - 1) {
      AddBlock(NewFlow<SendFlow>(Device(rank_ + 1)),
               position == 0 ? Buffer::kInput : Buffer::kOutput, Holds::kOne, 0, 0, receive);
    }
  }

  void Permute() {
    const int to = static_cast<int>(spec_.peers[rank_]);
    const auto found = std::find(spec_.peers.begin(), spec_.peers.end(), uint32_t(rank_));
    const int from = static_cast<int>(found - spec_.peers.begin());
    if (to == rank_) {
      Keep(0, 0, spec_.counts[rank_]);
      return;
    }
    AddRange(NewFlow<SendFlow>(Device(to)), Buffer::kInput, 0, spec_.counts[rank_]);
    AddRange(NewReceive(from), Buffer::kOutput, 0, spec_.counts[from]);
  }

  const CollectiveSpec& spec_;
  const int n_;
  const int rank_;
  const std::vector<bool>& can_view_;
  const int64_t element_bytes_;
  const int64_t chunk_elements_;
  const int64_t max_chunks_;
  std::vector<std::vector<int64_t>> offsets_;  // of each tensor, by block: elements
  std::vector<std::vector<Stretch>> blocks_;   // the chunks of each block
  // Of a hierarchical collective.
  std::vector<std::vector<int>> hosts_;  // the ranks of each, in rank order; by their first rank
  std::vector<int> host_of_;             // by rank: index into hosts_
  Schedule schedule_;
};

}  // namespace

Schedule MakeSchedule(const CollectiveSpec& spec, int rank, const std::vector<bool>& can_view) {
  return Builder(spec, rank, can_view).Build();
}

std::vector<uint32_t> PeersOf(const CollectiveSpec& spec, int rank) {
  std::set<uint32_t> peers;
  for (const bool can_view : {false, true}) {
    const Schedule schedule =
        MakeSchedule(spec, rank, std::vector<bool>(spec.devices.size(), can_view));
    for (const std::unique_ptr<Flow>& flow : schedule.flows) {
      const std::vector<uint32_t> more = flow->peers();
      peers.insert(more.begin(), more.end());
    }
  }
  return {peers.begin(), peers.end()};
}

bool IsReduction(const CollectiveSpec& spec) {
  return spec.kind == CollectiveKind::kAllReduce || spec.kind == CollectiveKind::kReduceScatter;
}

bool FitsMessages(const CollectiveSpec& spec) {
  return static_cast<uint64_t>(MaxChunks(spec)) <= kMaxMessages / (2 * spec.devices.size());
}

}  // namespace penstock::transport
