#include "actors/cluster/agent_tree.h"

#include <sys/wait.h>

#include <algorithm>

#include "absl/strings/numbers.h"

#include "actors/cluster/launcher_internal.h"
#include "actors/cluster/node_place.h"
#include "actors/cluster/oom_kills.h"
#include "base/strings.h"

namespace penstock::actors {

std::string ToText(absl::Span<const TreeHost> hosts) {
  std::string text;
  for (const TreeHost& host : hosts) {
    StrAppend(&text, text.empty() ? "" : ",", host.host, "/", host.num_ranks);
  }
  return text;
}

absl::StatusOr<std::vector<TreeHost>> ParseTreeHosts(std::string_view text) {
  std::vector<TreeHost> hosts;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(item.size() + 1, text.size()));
    const size_t slash = item.rfind('/');
    TreeHost host;
    host.host = std::string(item.substr(0, slash));
    // A host that begins so would be an option of the program that starts it.
    if (slash == std::string_view::npos || host.host.empty() || host.host[0] == '-' ||
        !absl::SimpleAtoi(std::string(item.substr(slash + 1)), &host.num_ranks) ||
        host.num_ranks == 0) {
      return absl::InvalidArgumentError(
          StrCat("\"", std::string(item), "\" is not HOST/NUMBER, a host and its nodes"));
    }
    hosts.push_back(std::move(host));
  }
  return hosts;
}

uint32_t NumRanks(absl::Span<const TreeHost> hosts) {
  uint32_t count = 0;
  for (const TreeHost& host : hosts) count += host.num_ranks;
  return count;
}

std::vector<absl::Span<const TreeHost>> SplitHosts(absl::Span<const TreeHost> hosts,
                                                   uint32_t fanout) {
  const size_t num_parts = std::min<size_t>(hosts.size(), fanout);
  std::vector<absl::Span<const TreeHost>> parts;
  for (size_t i = 0; i < num_parts; ++i) {
    const size_t begin =
        parts.empty() ? 0 : parts.back().data() + parts.back().size() - hosts.data();
    const size_t left = num_parts - i;
    parts.push_back(hosts.subspan(begin, (hosts.size() - begin + left - 1) / left));
  }
  return parts;
}

LaunchCommand CommandOfPart(const TreeOptions& options, absl::Span<const TreeHost> part,
                            uint32_t first_rank) {
  const TreeHost& head = part.front();
  LaunchCommand command;
  command.rank = first_rank;
  command.remote_host = head.host;
  std::vector<std::string> words = options.node_command;
  words.insert(words.end(), {"--rank", StrCat(first_rank)});
  if (part.size() > 1 || head.num_ranks > 1) {
    command.agent_ranks = NumRanks(part);
    words.insert(words.end(), {"--slots", StrCat(head.num_ranks)});
    if (!options.pinning.empty()) words.insert(words.end(), {"--pin", options.pinning});
  }
  if (part.size() > 1) {
    words.insert(words.end(),
                 {"--below", ToText(part.subspan(1)), "--fanout", StrCat(options.fanout)});
    for (const std::string& word : options.through) words.push_back(StrCat("--through=", word));
  }
  words.insert(words.end(), {"--key-file", options.key_file.empty() ? "-" : options.key_file});
  if (options.key_file.empty()) command.input = StrCat(options.key, "\n");
  std::vector<std::string> through = options.through;
  through.push_back(head.host);
  command.arguments = RunThrough(std::move(through), /*joins_arguments=*/true, words);
  return command;
}

std::vector<std::string> RunThrough(std::vector<std::string> through, bool joins_arguments,
                                    absl::Span<const std::string> words) {
  std::vector<std::string> quoted;
  for (const std::string& word : words) quoted.push_back(QuoteForShell(word));
  const std::string script = WatchedForMemory(StrJoin(quoted, " "));
  if (joins_arguments) {
    through.push_back(StrCat("exec sh -c ", QuoteForShell(script)));
  } else {
    through.insert(through.end(), {"/bin/sh", "-c", script});
  }
  return through;
}

std::string StarterNote(std::string_view program, std::string_view host, std::string_view remote,
                        int wait_status, std::string_view last_line) {
  constexpr int kFailedItself = 255;
  if (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != kFailedItself) return "";
  program.remove_prefix(program.rfind('/') + 1);  // npos + 1 is 0
  // Lines of ssh itself end with a carriage return, too.
  while (!last_line.empty() && last_line.back() == '\r') last_line.remove_suffix(1);
  std::string remedy;
  if (last_line.find("Host key verification failed") != std::string_view::npos) {
    const std::string_view address = remote.substr(remote.find('@') + 1);  // without the user
    remedy = StrCat(" ssh on ", host, " does not trust the key of ", address,
                    ": connect to it once by hand (ssh ", remote, "), or add its key there with ",
                    "ssh-keyscan ", address, " >> ~/.ssh/known_hosts");
  }
  return StrCat(" (", program, " on ", host, last_line.empty() ? "" : ": ", last_line, remedy, ")");
}

}  // namespace penstock::actors
