#include "planner/lower/phase_order.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace penstock::planner {
namespace {

// What actors that stay in front read and write.
class Touched {
 public:
  explicit Touched(const std::vector<Buffer>& buffers) : buffers_(buffers) {}

  void Add(const DraftActor& actor) {
    for (const int input : actor.inputs) read_.insert(WholeOf(input));
    for (const int output : actor.outputs) written_.insert(WholeOf(output));
  }

  // Whether the actor, which comes before all of those, has to.
  bool MustFollow(const DraftActor& actor) const {
    const auto is_written = [this](int s) { return s >= 0 && written_.contains(WholeOf(s)); };
    const auto is_touched = [&](int s) {
      return is_written(s) || (s >= 0 && read_.contains(WholeOf(s)));
    };
    return std::any_of(actor.inputs.begin(), actor.inputs.end(), is_written) ||
           std::any_of(actor.outputs.begin(), actor.outputs.end(), is_touched);
  }

 private:
  int WholeOf(int s) const { return s < 0 || buffers_[s].whole < 0 ? s : buffers_[s].whole; }

  const std::vector<Buffer>& buffers_;
  absl::flat_hash_set<int> read_;
  absl::flat_hash_set<int> written_;
};

}  // namespace

void StartCommunicationEarly(const std::vector<Buffer>& buffers, std::vector<DraftActor>* actors) {
  size_t begin = 0;  // behind what has moved last
  for (size_t i = 0; i < actors->size(); ++i) {
    if (!(*actors)[i].is_async()) continue;
    if ((*actors)[i].after >= 0) {
      begin = i + 1;
      continue;
    }
    Touched needed(buffers);
    needed.Add((*actors)[i]);
    std::vector<bool> stays(i - begin);
    for (size_t k = i; k-- > begin;) {
      // What has been copied to the host gives its bytes back: that does not wait.
      stays[k - begin] =
          (*actors)[k].plan.kind == ActorKind::kCopy || needed.MustFollow((*actors)[k]);
      if (stays[k - begin]) needed.Add((*actors)[k]);
    }
    std::vector<DraftActor> behind;
    size_t next = begin;
    for (size_t k = begin; k < i; ++k) {
      if (stays[k - begin]) {
        if (next != k) (*actors)[next] = std::move((*actors)[k]);
        ++next;
      } else {
        behind.push_back(std::move((*actors)[k]));
      }
    }
    if (behind.empty()) {
      begin = i + 1;
      continue;
    }
    (*actors)[next++] = std::move((*actors)[i]);
    std::move(behind.begin(), behind.end(), actors->begin() + static_cast<std::ptrdiff_t>(next));
    begin = i + 1;
  }
}

void LimitWaitingBytes(const std::vector<Buffer>& buffers, const std::vector<int>& home, int index,
                       int64_t waiting_bytes, DraftPhase* phase) {
  const auto whole_of = [&](int s) { return buffers[s].whole < 0 ? s : buffers[s].whole; };
  const std::vector<DraftActor>& actors = phase->actors;
  // What is read in the phase, and the communication that reads it last.
  absl::flat_hash_set<int> read;
  absl::flat_hash_map<int, int> last_reader;
  for (size_t i = 0; i < actors.size(); ++i) {
    for (const int input : actors[i].inputs) {
      if (input < 0) continue;
      read.insert(whole_of(input));
      last_reader[whole_of(input)] = static_cast<int>(i);
    }
  }
  // Of a buffer of this phase alone: the communication that ends its life.
  const auto communication_of = [&](int s) {
    if (home[s] != index) return -1;
    const auto it = last_reader.find(s);
    if (it == last_reader.end()) return -1;
    const DraftActor& actor = actors[it->second];
    if (actor.plan.kind != ActorKind::kCollective) return -1;
    const bool is_awaited =
        std::any_of(actor.outputs.begin(), actor.outputs.end(),
                    [&](int output) { return output >= 0 && read.contains(whole_of(output)); });
    return is_awaited ? -1 : it->second;
  };
  struct Waiting {
    int actor = 0;
    int64_t bytes = 0;
  };
  std::deque<Waiting> waiting;
  int64_t held = 0;
  absl::flat_hash_set<int> written;
  for (int i = 0; i < static_cast<int>(actors.size()); ++i) {
    for (const int output : actors[i].outputs) {
      if (output < 0 || !written.insert(whole_of(output)).second) continue;
      if (communication_of(whole_of(output)) < 0) continue;
      const auto bytes = static_cast<int64_t>(buffers[whole_of(output)].bytes);
      while (waiting.size() > 1 && held + bytes > waiting_bytes) {
        phase->order.emplace_back(waiting.front().actor, i);
        held -= waiting.front().bytes;
        waiting.pop_front();
      }
    }
    int64_t bytes = 0;
    for (const int input : actors[i].inputs) {
      if (input < 0 || communication_of(whole_of(input)) != i) continue;
      bytes += static_cast<int64_t>(buffers[whole_of(input)].bytes);
    }
    if (bytes == 0) continue;
    waiting.push_back({i, bytes});
    held += bytes;
  }
}

}  // namespace penstock::planner
