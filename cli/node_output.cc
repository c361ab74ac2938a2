#include "cli/node_output.h"

#include <utility>

#include "base/counted.h"
#include "base/strings.h"

namespace penstock::cli {

NodeOutput::NodeOutput(Print print, std::function<absl::Time()> now)
    : print_(std::move(print)), now_(std::move(now)) {}

void NodeOutput::Add(uint32_t rank, std::string_view host, std::string_view line) {
  const absl::MutexLock lock(&mutex_);
  std::deque<std::string>& last = last_[rank];
  if (last.size() == kMaxLast) last.pop_front();
  last.emplace_back(line);

  const absl::Time now = now_();
  while (!by_age_.empty() && watched_.find(by_age_.front())->second.until <= now) ForgetOldest();
  if (const auto it = watched_.find(line); it != watched_.end()) {
    ++it->second.num_repeated;
    it->second.ranks.insert(rank);
    return;
  }
  if (by_age_.size() == kMaxWatched) ForgetOldest();
  by_age_.emplace_back(line);
  watched_.emplace(line, Watched{now + kWindow, 0, {}});
  print_(StrCat("[", rank, " ", host, "] ", line, "\n"));
}

void NodeOutput::Tell(std::string text) {
  const absl::MutexLock lock(&mutex_);
  print_(std::move(text));
}

void NodeOutput::Flush() {
  const absl::MutexLock lock(&mutex_);
  while (!by_age_.empty()) ForgetOldest();
}

std::vector<std::string> NodeOutput::LastLines(uint32_t rank) const {
  const absl::MutexLock lock(&mutex_);
  const auto it = last_.find(rank);
  if (it == last_.end()) return {};
  return {it->second.begin(), it->second.end()};
}

void NodeOutput::ForgetOldest() {
  const auto it = watched_.find(by_age_.front());
  const Watched& watched = it->second;
  if (watched.num_repeated > 0) {
    print_(StrCat("[", RankRanges(watched.ranks), "] ", it->first, " (",
                  Counted(watched.num_repeated, "more time"), ")\n"));
  }
  watched_.erase(it);
  by_age_.pop_front();
}

std::string RankRanges(const std::set<uint32_t>& ranks) {
  std::string text;
  for (auto it = ranks.begin(); it != ranks.end();) {
    const uint32_t first = *it;
    uint32_t last = first;
    for (++it; it != ranks.end() && *it == last + 1; ++it) last = *it;
    StrAppend(&text, text.empty() ? "" : ", ", first);
    if (last > first) StrAppend(&text, "-", last);
  }
  return text;
}

}  // namespace penstock::cli
