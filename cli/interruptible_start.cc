#include "cli/interruptible_start.h"

#include <algorithm>
#include <set>
#include <utility>

#include "cli/node_output.h"

#include "base/counted.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

// Of thousands, a line names some.
constexpr size_t kMaxNamedHosts = 8;

}  // namespace

InterruptibleStart::InterruptibleStart(Interrupts& interrupts, std::string where,
                                       std::vector<actors::NodePlace> places,
                                       uint32_t ranks_of_node)
    : interrupts_(interrupts), where_(std::move(where)) {
  interrupts_.SetStart(Interrupts::Start{
      .where = where_,
      .describe_missing =
          [this, places = std::move(places), ranks_of_node] {
            std::vector<uint32_t> ranks;
            for (const uint32_t node : start_.MissingRanks()) {
              for (uint32_t i = 0; i < ranks_of_node; ++i) {
                ranks.push_back(node * ranks_of_node + i);
              }
            }
            return ranks.empty() ? std::string()
                                 : StrCat("; missing: ", DescribeRanks(places, ranks));
          },
      .cancel = [this](const absl::Status& cause) { start_.Cancel(cause); },
      .kill = [this] { start_.Kill(); }});
  // Signals that came when nothing was being started.
  if (interrupts_.count() > 0) start_.Cancel(interrupts_.ToStatus(where_));
}

void InterruptibleStart::SetCluster(actors::Cluster& cluster) {
  interrupts_.SetStart(
      Interrupts::Start{.where = where_,
                        .describe_missing = [] { return std::string(); },
                        .cancel = [&cluster](const absl::Status&) { cluster.Kill(); },
                        .kill = [&cluster] { cluster.Kill(); }});
  // Signals that came when the start had just ended.
  if (interrupts_.count() > 0) cluster.Kill();
}

absl::Status InterruptibleStart::WithInterrupt(absl::Status status) const {
  // One that says so itself names who was missing.
  const bool says_so = status.GetPayload(actors::kShellStatusPayload).has_value();
  if (interrupts_.count() == 0 || (absl::IsCancelled(status) && says_so)) return status;
  return interrupts_.ToStatus(where_);
}

std::string DescribeRanks(const std::vector<actors::NodePlace>& places,
                          const std::vector<uint32_t>& ranks) {
  std::vector<std::pair<std::string, std::set<uint32_t>>> hosts;  // in the order of their ranks
  for (const uint32_t rank : ranks) {
    const bool is_named = rank < places.size() && places[rank].is_host_named;
    const std::string host = is_named ? places[rank].host : "";
    const auto it = std::find_if(hosts.begin(), hosts.end(),
                                 [&host](const auto& other) { return other.first == host; });
    (it != hosts.end() ? *it : hosts.emplace_back(host, std::set<uint32_t>())).second.insert(rank);
  }
  std::vector<std::string> texts;
  for (const auto& [host, of_host] : hosts) {
    if (texts.size() == kMaxNamedHosts) break;
    const std::string text = StrCat(of_host.size() == 1 ? "rank " : "ranks ", RankRanges(of_host));
    texts.push_back(host.empty() ? text : StrCat(host, " (", text, ")"));
  }
  const size_t num_others = hosts.size() - texts.size();
  if (num_others > 0) texts.push_back(Counted(num_others, "other host"));
  std::string last = texts.empty() ? "" : std::move(texts.back());
  if (texts.size() < 2) return last;
  texts.pop_back();
  return StrCat(StrJoin(texts, ", "), " and ", last);
}

}  // namespace penstock::cli
