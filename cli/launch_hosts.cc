#include "cli/launch_hosts.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

absl::Status Wrong(std::string_view entry, std::string_view what) {
  return absl::InvalidArgumentError(StrCat("'", entry, "': ", what));
}

// A number of at most 9 digits; nothing else.
std::optional<int64_t> NumberOf(std::string_view text) {
  int64_t number = 0;
  const bool has_digits =
      !text.empty() && text.size() <= 9 &&
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return isdigit(c) != 0; });
  if (!has_digits || !absl::SimpleAtoi(ToAbsl(text), &number)) return std::nullopt;
  return number;
}

// At the commas that are not in brackets.
std::vector<std::string_view> SplitEntries(std::string_view text) {
  std::vector<std::string_view> entries;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (i < text.size() && (c != ',' || depth > 0)) continue;
    entries.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  return entries;
}

bool IsIpv6(std::string_view bracketed) {
  const size_t end = bracketed.find(']');
  return bracketed.substr(0, 1) == "[" && end != std::string_view::npos &&
         bracketed.substr(0, end).find(':') != std::string_view::npos;
}

absl::Status CheckHost(std::string_view entry, std::string_view host) {
  if (host.empty()) return Wrong(entry, "the host is missing; expected HOST or HOST:SLOTS");
  // An option to ssh, srun or mpirun must not come from here.
  if (host[0] == '-') return Wrong(entry, "a host does not begin with '-'");
  for (const char c : host) {
    const auto byte = static_cast<unsigned char>(c);
    if (isalnum(byte) == 0 && std::string_view("-._:@%").find(c) == std::string_view::npos) {
      return Wrong(entry, StrCat("'", host, "' is not a host's name or address"));
    }
  }
  return absl::OkStatus();
}

// Appends `prefix` and what `rest` of an entry stands for.
absl::Status Expand(std::string_view entry, const std::string& prefix, std::string_view rest,
                    std::vector<std::string>* names) {
  const size_t open = rest.find('[');
  if (open == std::string_view::npos) {
    if (rest.find(']') != std::string_view::npos) return Wrong(entry, "'[' is missing");
    if (names->size() >= static_cast<size_t>(kMaxSlots)) {
      return Wrong(entry, StrCat("more than ", kMaxSlots, " hosts"));
    }
    names->push_back(StrCat(prefix, rest));
    return absl::OkStatus();
  }
  const size_t close = rest.find(']', open);
  if (close == std::string_view::npos) return Wrong(entry, "']' is missing");
  for (const std::string_view range : SplitEntries(rest.substr(open + 1, close - open - 1))) {
    const size_t dash = range.find('-');
    const std::string_view low = range.substr(0, dash);
    const std::string_view high = dash == std::string_view::npos ? low : range.substr(dash + 1);
    const std::optional<int64_t> first = NumberOf(low);
    const std::optional<int64_t> last = NumberOf(high);
    if (!first.has_value() || !last.has_value() || *first > *last) {
      return Wrong(entry, StrCat("'", range, "' is not a number or a range such as 01-16"));
    }
    if (*last - *first >= kMaxSlots) return Wrong(entry, StrCat("more than ", kMaxSlots, " hosts"));
    for (int64_t i = *first; i <= *last; ++i) {
      std::string number = StrCat(i);
      if (number.size() < low.size()) number.insert(0, low.size() - number.size(), '0');
      RETURN_IF_ERROR(Expand(entry, StrCat(prefix, rest.substr(0, open), number),
                             rest.substr(close + 1), names));
    }
  }
  return absl::OkStatus();
}

// Adds slots of a host, which may have some.
absl::Status AddSlots(std::string_view entry, const std::string& host, int64_t slots,
                      std::vector<HostSlots>* hosts) {
  RETURN_IF_ERROR(CheckHost(entry, host));
  int64_t sum = slots;
  for (const HostSlots& other : *hosts) sum += other.slots;
  if (sum > kMaxSlots) return Wrong(entry, StrCat("more than ", kMaxSlots, " slots"));
  const auto it = std::find_if(hosts->begin(), hosts->end(),
                               [&](const HostSlots& other) { return other.host == host; });
  if (it != hosts->end()) {
    it->slots += slots;
  } else {
    hosts->push_back({host, slots});
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ParseSlots(std::string_view entry, std::string_view text) {
  const std::optional<int64_t> slots = NumberOf(text);
  if (!slots.has_value() || *slots < 1 || *slots > kMaxSlots) {
    return Wrong(entry, StrCat("'", text, "' is not a number of slots from 1 to ", kMaxSlots));
  }
  return *slots;
}

// One of ParseHosts.
absl::Status AddEntry(std::string_view entry, std::vector<HostSlots>* hosts) {
  if (IsIpv6(entry)) {
    const size_t end = entry.find(']');
    const std::string_view rest = entry.substr(end + 1);
    int64_t slots = 1;
    if (!rest.empty()) {
      if (rest[0] != ':') return Wrong(entry, "expected ':' and a number of slots after ']'");
      ASSIGN_OR_RETURN(slots, ParseSlots(entry, rest.substr(1)));
    }
    return AddSlots(entry, std::string(entry.substr(1, end - 1)), slots, hosts);
  }
  const size_t colon = entry.rfind(':');
  int64_t slots = 1;
  if (colon != std::string_view::npos) {
    if (entry.find(':') != colon) {
      return Wrong(entry, "an IPv6 address stands in brackets, as in [::1]:2, and without a user");
    }
    ASSIGN_OR_RETURN(slots, ParseSlots(entry, entry.substr(colon + 1)));
  }
  std::vector<std::string> names;
  RETURN_IF_ERROR(Expand(entry, "", entry.substr(0, colon), &names));
  for (const std::string& name : names) RETURN_IF_ERROR(AddSlots(entry, name, slots, hosts));
  return absl::OkStatus();
}

struct Word {
  std::string_view text;
  size_t column = 0;  // from 1
};

// At white space. "KEY = VALUE" is one word, however many spaces it has.
std::vector<Word> SplitWords(std::string_view line) {
  const auto is_space = [line](size_t i) {
    return isspace(static_cast<unsigned char>(line[i])) != 0;
  };
  const auto skip_spaces = [&](size_t i) {
    while (i < line.size() && is_space(i)) ++i;
    return i;
  };
  const auto skip_word = [&](size_t i) {
    while (i < line.size() && !is_space(i) && line[i] != '=') ++i;
    return i;
  };
  std::vector<Word> words;
  for (size_t begin = skip_spaces(0); begin < line.size();) {
    size_t end = skip_word(begin);
    if (const size_t equals = skip_spaces(end); equals < line.size() && line[equals] == '=') {
      end = skip_word(skip_spaces(equals + 1));
    }
    words.push_back({line.substr(begin, end - begin), begin + 1});
    begin = skip_spaces(end);
  }
  return words;
}

// What a key of OpenMPI's host files says of a host. Keys of several words have '_' or '-'.
enum class HostKey { kSlots, kUser, kIgnored, kUnknown };

HostKey HostKeyOf(std::string_view text) {
  std::string key(text);
  std::replace(key.begin(), key.end(), '-', '_');
  const auto is_one_of = [&key](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), key) != names.end();
  };
  if (is_one_of({"slots", "slot", "cpu", "cpus", "count"})) return HostKey::kSlots;
  if (is_one_of({"username", "user_name"})) return HostKey::kUser;
  const bool is_maximum = is_one_of(
      {"max_slots", "slots_max", "max_cpu", "cpu_max", "max_cpus", "count_max", "max_count"});
  return is_maximum ? HostKey::kIgnored : HostKey::kUnknown;
}

constexpr char kExpectedKey[] = "expected slots=N or username=NAME";

// A line of a host file: what AddEntry adds.
struct HostLine {
  std::string host;
  std::string user;
  std::string slots;  // empty: not given
};

absl::Status AddToLine(std::string_view word, HostLine* line) {
  const size_t equals = word.find('=');
  if (equals == std::string_view::npos) return Wrong(word, kExpectedKey);
  const auto trimmed = [](std::string_view text) {
    return ToStd(absl::StripAsciiWhitespace(ToAbsl(text)));
  };
  const std::string_view value = trimmed(word.substr(equals + 1));
  switch (HostKeyOf(trimmed(word.substr(0, equals)))) {
    case HostKey::kIgnored:
      return absl::OkStatus();
    case HostKey::kUser:
      if (!line->user.empty() || line->host.find('@') != std::string::npos) {
        return Wrong(word, "the user of this host was given before");
      }
      if (value.empty()) return Wrong(word, "the user is missing");
      line->user = std::string(value);
      return absl::OkStatus();
    case HostKey::kSlots:
      if (!line->slots.empty() ||
          (!IsIpv6(line->host) && line->host.find(':') != std::string::npos)) {
        return Wrong(word, "the slots of this host were given before");
      }
      if (value.empty()) return Wrong(word, "the number of slots is missing");
      line->slots = std::string(value);
      return absl::OkStatus();
    case HostKey::kUnknown:
      break;
  }
  return Wrong(word, kExpectedKey);
}

}  // namespace

absl::StatusOr<std::vector<HostSlots>> ParseHosts(std::string_view text) {
  std::vector<HostSlots> hosts;
  for (const std::string_view entry : SplitEntries(text)) RETURN_IF_ERROR(AddEntry(entry, &hosts));
  return hosts;
}

absl::StatusOr<std::vector<HostSlots>> ParseHostFile(const std::string& file,
                                                     std::string_view text) {
  std::vector<HostSlots> hosts;
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    line = line.substr(0, line.find('#'));
    const std::vector<Word> words = SplitWords(line);
    if (words.empty()) continue;
    const auto at = [&](const Word& word, const absl::Status& status) {
      return absl::InvalidArgumentError(
          StrCat(file, ":", number, ":", word.column, ": ", ToStd(status.message())));
    };
    HostLine host = {std::string(words[0].text), "", ""};
    for (size_t i = 1; i < words.size(); ++i) {
      if (const absl::Status added = AddToLine(words[i].text, &host); !added.ok()) {
        return at(words[i], added);
      }
    }
    std::string entry = host.host;
    if (!host.slots.empty()) StrAppend(&entry, ":", host.slots);
    if (!host.user.empty()) {
      // An IPv6 address stands in brackets.
      entry.insert(IsIpv6(entry) ? 1 : 0, StrCat(host.user, "@"));
    }
    if (const absl::Status added = AddEntry(entry, &hosts); !added.ok()) return at(words[0], added);
  }
  if (hosts.empty()) return absl::InvalidArgumentError(StrCat(file, ": there is no host in it"));
  return hosts;
}

absl::StatusOr<std::vector<std::string>> ExpandNodeList(std::string_view text) {
  std::vector<std::string> names;
  for (const std::string_view entry : SplitEntries(text)) {
    const size_t first = names.size();
    RETURN_IF_ERROR(Expand(entry, "", entry, &names));
    for (size_t i = first; i < names.size(); ++i) RETURN_IF_ERROR(CheckHost(entry, names[i]));
  }
  return names;
}

absl::StatusOr<std::vector<int64_t>> ParseTasksPerNode(std::string_view text) {
  std::vector<int64_t> tasks;
  for (const std::string_view entry : SplitEntries(text)) {
    const size_t open = entry.find("(x");
    int64_t count = 1;
    if (open != std::string_view::npos) {
      if (entry.back() != ')') return Wrong(entry, "expected TASKS or TASKS(xNODES)");
      ASSIGN_OR_RETURN(count, ParseSlots(entry, entry.substr(open + 2, entry.size() - open - 3)));
    }
    ASSIGN_OR_RETURN(const int64_t of_node, ParseSlots(entry, entry.substr(0, open)));
    if (tasks.size() + static_cast<size_t>(count) > static_cast<size_t>(kMaxSlots)) {
      return Wrong(entry, StrCat("more than ", kMaxSlots, " nodes"));
    }
    tasks.insert(tasks.end(), static_cast<size_t>(count), of_node);
  }
  return tasks;
}

}  // namespace penstock::cli
