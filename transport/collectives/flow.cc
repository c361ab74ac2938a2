#include "transport/collectives/flow.h"

#include <algorithm>
#include <iterator>

#include "base/stream_copy.h"

namespace penstock::transport {

void Flow::Prepare() {
  num_slots_ = num_slots();
  requests_ = std::vector<Request>(num_slots_ * requests_per_chunk_);
}

int64_t Flow::max_chunk_bytes() const {
  int64_t most = 0;
  for (const Chunk& chunk : chunks_) most = std::max(most, chunk.num_bytes);
  return most;
}

bool Flow::CanPost() const {
  if (num_posted_ == num_chunks() || num_posted_ - num_finished_ == num_slots_) return false;
  const Chunk& chunk = chunks_[num_posted_];
  return chunk.after == nullptr || chunk.after->num_finished() >= chunk.after_count;
}

bool Flow::HasArrived(Run* run) {
  const Request* requests = RequestsOf(static_cast<int>(num_finished_ % num_slots_));
  uint32_t flags = 0;
  bool is_complete = true;
  for (int i = 0; i < requests_per_chunk_; ++i) {
    if (requests[i].state == Request::State::kFailed) {
      run->status = requests[i].status;
      return false;
    }
    is_complete &= requests[i].state == Request::State::kDone;
    flags |= requests[i].flags;
  }
  if (is_complete) run->flags |= flags;
  return is_complete;
}

bool Flow::Advance(Run* run) {
  bool advanced = false;
  for (;;) {
    bool moved = false;
    while (num_finished_ < num_posted_ && HasArrived(run)) {
      Finish(*run, chunks_[num_finished_], static_cast<int>(num_finished_ % num_slots_));
      ++num_finished_;
      moved = true;
    }
    if (!run->status.ok()) return advanced;
    while (CanPost()) {
      Post(*run, chunks_[num_posted_], static_cast<int>(num_posted_ % num_slots_));
      ++num_posted_;
      moved = true;
    }
    if (!moved) return advanced;
    advanced = true;
  }
}

void Flow::Cancel(Endpoint* endpoint) {
  for (Request& request : requests_) endpoint->Cancel(&request);
}

bool Flow::Settle(Endpoint* endpoint) {
  bool is_settled = true;
  for (Request& request : requests_) {
    if (request.state == Request::State::kPending) {
      is_settled = false;
    } else {
      Discard(endpoint, &request);
    }
  }
  return is_settled;
}

void SendFlow::Post(const Run& run, const Chunk& chunk, int slot) {
  run.endpoint->Send(peer_, run.TagOf(chunk.message),
                     run.At(chunk.buffer, chunk.tensor, chunk.offset),
                     static_cast<size_t>(chunk.num_bytes), run.flags, RequestsOf(slot));
}

void ReceiveFlow::Post(const Run& run, const Chunk& chunk, int slot) {
  run.endpoint->Recv(peer_, run.TagOf(chunk.message),
                     run.At(chunk.buffer, chunk.tensor, chunk.offset),
                     static_cast<size_t>(chunk.num_bytes), RequestsOf(slot));
}

namespace {

int NumPeers(const std::vector<uint32_t>& terms) {
  return static_cast<int>(terms.size() - std::count(terms.begin(), terms.end(), FoldFlow::kOwn));
}

}  // namespace

FoldFlow::FoldFlow(std::vector<uint32_t> terms, const FoldSteps& steps, int64_t element_bytes,
                   bool can_view, bool is_streamed)
    : Flow(NumPeers(terms), can_view ? kWindow : kStagingWindow),
      terms_(std::move(terms)),
      num_peers_(NumPeers(terms_)),
      steps_(steps),
      element_bytes_(element_bytes),
      can_view_(can_view),
      is_streamed_(is_streamed),
      term_bytes_(terms_.size()) {}

std::vector<uint32_t> FoldFlow::peers() const {
  std::vector<uint32_t> peers;
  std::copy_if(terms_.begin(), terms_.end(), std::back_inserter(peers),
               [](uint32_t term) { return term != kOwn; });
  return peers;
}

void FoldFlow::Prepare() {
  Flow::Prepare();
  staging_bytes_ = StagingBytes();
  staging_.resize(static_cast<size_t>(buffer_bytes()));
}

int64_t FoldFlow::StagingBytes() const {
  constexpr int64_t kAlignment = 64;
  return (max_chunk_bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t FoldFlow::buffer_bytes() const {
  return can_view_ ? 0 : num_slots() * num_peers_ * StagingBytes();
}

void FoldFlow::Post(const Run& run, const Chunk& chunk, int slot) {
  const auto num_bytes = static_cast<size_t>(chunk.num_bytes);
  int i = 0;
  for (uint32_t term : terms_) {
    if (term == kOwn) continue;
    Request* request = &RequestsOf(slot)[i];
    if (can_view_) {
      run.endpoint->View(term, run.TagOf(chunk.message), num_bytes, request);
    } else {
      run.endpoint->Recv(term, run.TagOf(chunk.message), StagingOf(slot, i), num_bytes, request);
    }
    ++i;
  }
}

void FoldFlow::Finish(const Run& run, const Chunk& chunk, int slot) {
  Request* requests = RequestsOf(slot);
  int i = 0;
  for (size_t t = 0; t < terms_.size(); ++t) {
    if (terms_[t] == kOwn) {
      term_bytes_[t] = run.At(chunk.own_buffer, chunk.tensor, chunk.own_offset);
    } else {
      term_bytes_[t] =
          can_view_ ? static_cast<const std::byte*>(requests[i].view) : StagingOf(slot, i);
      ++i;
    }
  }
  // Block by block, so that what is folded so far stays in the nearest cache and the buffer is
  // written last, when the own term that may lie there has been read.
  constexpr int64_t kBlockBytes = 8192;
  alignas(64) std::byte partial[kBlockBytes];
  alignas(64) std::byte streamed[kBlockBytes];
  std::byte* result = run.At(chunk.buffer, chunk.tensor, chunk.offset);
  const size_t num_terms = terms_.size();
  if (num_terms == 1) StreamCopy(result, term_bytes_[0], static_cast<size_t>(chunk.num_bytes));
  const int64_t block_bytes =
      num_terms == 2 ? kBlockBytes : kBlockBytes / steps_.partial_bytes * element_bytes_;
  for (int64_t at = 0; num_terms > 1 && at < chunk.num_bytes; at += block_bytes) {
    const int64_t num_bytes = std::min(block_bytes, chunk.num_bytes - at);
    std::byte* const target = is_streamed_ ? streamed : result + at;
    FoldTerms(steps_, term_bytes_, partial, target, num_bytes / element_bytes_);
    if (is_streamed_) StreamCopy(result + at, streamed, static_cast<size_t>(num_bytes));
    for (const std::byte*& term : term_bytes_) term += num_bytes;
  }
  for (int j = 0; j < num_peers_; ++j) Discard(run.endpoint, &requests[j]);
}

void FoldFlow::Discard(Endpoint* endpoint, Request* request) {
  if (!can_view_ || request->state != Request::State::kDone) return;
  endpoint->Release(request);
  request->state = Request::State::kIdle;
}

}  // namespace penstock::transport
