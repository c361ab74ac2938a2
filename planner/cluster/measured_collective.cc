#include "planner/cluster/measured_collective.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "fmt/format.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/cluster/measured_collective_internal.h"

namespace penstock::planner {
namespace {

// Permutes are measured as all_to_alls, and broadcasts as gathers.
constexpr std::array kKinds = {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                               CollectiveKind::kAllGather, CollectiveKind::kAllToAll};
constexpr std::array kSpreads = {GroupSpread::kOneHost, GroupSpread::kOneRankEach,
                                 GroupSpread::kSeveralEach};
constexpr std::array kAlgorithms = {CollectiveAlgorithm::kDirect, CollectiveAlgorithm::kRing,
                                    CollectiveAlgorithm::kHierarchical};
constexpr int64_t kMaxRanks = 1 << 16;
constexpr int64_t kMaxBytes = int64_t{1} << 50;
constexpr double kMaxUs = 1e12;

template <typename... Parts>
absl::Status InvalidCollective(const Parts&... parts) {
  return absl::InvalidArgumentError(StrCat(parts...));
}

// The value that is called so.
template <typename T, size_t N>
absl::StatusOr<T> ReadName(const Entry& entry, const std::array<T, N>& values) {
  ASSIGN_OR_RETURN(const std::string name, ReadString(entry));
  std::vector<std::string_view> known;
  for (const T value : values) {
    if (Name(value) == name) return value;
    known.push_back(Name(value));
  }
  return entry.Error(StrCat("unknown value \"", name, "\"; expected ", StrJoin(known, ", ")));
}

absl::StatusOr<std::vector<Entry>> ReadList(const Entry& entry, std::string_view what,
                                            int64_t most) {
  if (!entry.value->is_array()) return entry.Expected(what);
  std::vector<Entry> elements;
  for (const toml::value& element : entry.value->as_array()) {
    elements.push_back(entry.Element(element));
    if (static_cast<int64_t>(elements.size()) > most) {
      return elements.back().Error(StrCat("expected at most ", most, " elements"));
    }
  }
  return elements;
}

}  // namespace

std::string_view Name(GroupSpread spread) {
  switch (spread) {
    case GroupSpread::kOneHost:
      return "one host";
    case GroupSpread::kOneRankEach:
      return "a rank each";
    case GroupSpread::kSeveralEach:
      return "several each";
  }
  return "?";
}

absl::Status CheckMeasuredCollective(const MeasuredCollective& measured) {
  if (std::find(kKinds.begin(), kKinds.end(), measured.kind) == kKinds.end()) {
    return InvalidCollective("a ", Name(measured.kind), " is not measured by itself");
  }
  if (measured.num_ranks < 2 || measured.num_ranks > kMaxRanks) {
    return InvalidCollective("ranks = ", measured.num_ranks, ": expected 2 to ", kMaxRanks);
  }
  if (measured.algorithms.empty() || measured.times.empty()) {
    return InvalidCollective("nothing was measured: expected algorithms, and times by them");
  }
  for (const CollectiveVariant& variant : measured.algorithms) {
    if (variant.chunk_bytes < kMinChunkBytes || variant.chunk_bytes > kMaxChunkBytes) {
      return InvalidCollective("chunks of ", variant.chunk_bytes, " bytes: expected ",
                               kMinChunkBytes, " to ", kMaxChunkBytes);
    }
    if (variant.algorithm == CollectiveAlgorithm::kHierarchical &&
        measured.spread != GroupSpread::kSeveralEach) {
      return InvalidCollective("a hierarchical variant needs hosts with several ranks each");
    }
  }
  int64_t last = -1;
  for (const CollectiveTimes& row : measured.times) {
    if (row.num_bytes <= last || row.num_bytes > kMaxBytes) {
      return InvalidCollective(row.num_bytes, " bytes after ", last,
                               ": expected growing sizes up to ", kMaxBytes);
    }
    last = row.num_bytes;
    if (row.us.size() != measured.algorithms.size()) {
      return InvalidCollective(row.us.size(), " times for ", row.num_bytes,
                               " bytes: expected one for each ", "of the ",
                               measured.algorithms.size(), " algorithms");
    }
    if (*std::max_element(row.us.begin(), row.us.end()) <= 0) {
      return InvalidCollective("no time for ", row.num_bytes, " bytes");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<MeasuredCollective> ReadMeasuredCollective(const Section& section) {
  RETURN_IF_ERROR(section.CheckKeys({"kind", "spread", "ranks", "algorithms", "us"}));
  MeasuredCollective measured;
  ASSIGN_OR_RETURN(const Entry kind, section.Get("kind"));
  ASSIGN_OR_RETURN(measured.kind, ReadName(kind, kKinds));
  ASSIGN_OR_RETURN(const Entry spread, section.Get("spread"));
  ASSIGN_OR_RETURN(measured.spread, ReadName(spread, kSpreads));
  RETURN_IF_ERROR(section.Read("ranks", int64_t{2}, kMaxRanks, &measured.num_ranks));
  ASSIGN_OR_RETURN(const Entry algorithms, section.Get("algorithms"));
  constexpr std::string_view kPairs = "a list of pairs [algorithm, bytes of a chunk]";
  ASSIGN_OR_RETURN(const std::vector<Entry> pairs,
                   ReadList(algorithms, kPairs, kMaxCollectiveVariants));
  for (const Entry& pair : pairs) {
    ASSIGN_OR_RETURN(const std::vector<Entry> parts, ReadList(pair, kPairs, 2));
    if (parts.size() != 2) return pair.Error(StrCat("expected ", kPairs));
    CollectiveVariant& variant = measured.algorithms.emplace_back();
    ASSIGN_OR_RETURN(variant.algorithm, ReadName(parts[0], kAlgorithms));
    ASSIGN_OR_RETURN(variant.chunk_bytes, ReadInteger(parts[1], kMinChunkBytes, kMaxChunkBytes));
  }
  ASSIGN_OR_RETURN(const Entry times, section.Get("us"));
  constexpr std::string_view kTimes = "a list of rows [bytes, microseconds by each variant...]";
  ASSIGN_OR_RETURN(const std::vector<Entry> rows, ReadList(times, kTimes, kMaxMeasuredTimes));
  for (const Entry& row : rows) {
    ASSIGN_OR_RETURN(const std::vector<Entry> parts,
                     ReadList(row, kTimes, kMaxCollectiveVariants + 1));
    if (parts.empty()) return row.Error(StrCat("expected ", kTimes));
    CollectiveTimes& entry = measured.times.emplace_back();
    ASSIGN_OR_RETURN(entry.num_bytes, ReadInteger(parts[0], 0, kMaxBytes));
    for (size_t i = 1; i < parts.size(); ++i) {
      ASSIGN_OR_RETURN(entry.us.emplace_back(), ReadNumber(parts[i], 0, kMaxUs));
    }
  }
  if (const absl::Status status = CheckMeasuredCollective(measured); !status.ok()) {
    return absl::InvalidArgumentError(
        StrCat(section.Place(), ": [[collective]]: ", ToStd(status.message())));
  }
  return measured;
}

absl::StatusOr<std::vector<MeasuredCollective>> ParseMeasuredCollectives(std::string_view text,
                                                                         std::string_view file) {
  ASSIGN_OR_RETURN(const toml::value root, ParseToml(text, std::string(file)));
  const Section whole(file, "", root);
  RETURN_IF_ERROR(whole.CheckKeys({"collective"}));
  ASSIGN_OR_RETURN(const std::vector<const toml::value*> tables,
                   whole.Tables("collective", kMaxMeasuredCollectives));
  std::vector<MeasuredCollective> all;
  for (const toml::value* table : tables) {
    ASSIGN_OR_RETURN(all.emplace_back(),
                     ReadMeasuredCollective(Section(file, "collective", *table)));
  }
  return all;
}

std::string FormatMeasuredCollective(const MeasuredCollective& measured) {
  std::vector<std::string> algorithms;
  for (const CollectiveVariant& variant : measured.algorithms) {
    algorithms.push_back(StrCat("[\"", Name(variant.algorithm), "\", ", variant.chunk_bytes, "]"));
  }
  std::string text = StrCat("\n[[collective]]\nkind = \"", Name(measured.kind), "\"\nspread = \"",
                            Name(measured.spread), "\"\nranks = ", measured.num_ranks,
                            "\nalgorithms = [", StrJoin(algorithms, ", "), "]\nus = [\n");
  for (const CollectiveTimes& row : measured.times) {
    StrAppend(&text, "  [", row.num_bytes);
    for (const double us : row.us) StrAppend(&text, ", ", fmt::format("{}", us));
    StrAppend(&text, "],\n");
  }
  return StrCat(text, "]\n");
}

}  // namespace penstock::planner
