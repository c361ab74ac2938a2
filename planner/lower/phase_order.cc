#include "planner/lower/phase_order.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

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
    Touched needed(buffers);
    needed.Add((*actors)[i]);
    std::vector<bool> stays(i - begin);
    for (size_t k = i; k-- > begin;) {
      stays[k - begin] = needed.MustFollow((*actors)[k]);
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

}  // namespace penstock::planner
