#include "cli/failure_report.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/cord.h"
#include "cli/node_log.h"
#include "cli/utf8.h"

#include "actors/cluster/node_place.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

constexpr char kToldPayload[] = "penstock/told";  // of an error that has been printed

}  // namespace

void TellError(std::ostream& err, absl::Status* status) {
  if (status->ok() || status->GetPayload(kToldPayload).has_value()) return;
  // It may hold what stands in a file.
  err << "penstock: " << PrintableUtf8(ToStd(status->message())) << std::endl;
  MarkTold(status);
}

void MarkTold(absl::Status* status) { status->SetPayload(kToldPayload, absl::Cord()); }

bool MayHaveBegun(int exit_status) {
  return exit_status != 126 && exit_status != 127 && exit_status != 255;
}

std::string DescribeLog(const FailedNode& node) {
  std::string where;
  if (!node.log_folder.empty()) {
    // Only of a node that has joined is the host known.
    where =
        node.host.empty()
            ? StrCat("in ", node.log_folder, " on its host, if it has begun")
            : StrCat("in ", node.host, ":",
                     LogPath(node.log_folder,
                             node.host_in_log.empty() ? node.host : node.host_in_log, node.rank));
  }
  if (node.last_lines.empty()) {
    return where.empty() ? "" : StrCat("note: the log of node ", node.rank, " is ", where, "\n");
  }
  std::string text = StrCat("The last lines of node ", node.rank);
  if (!node.host.empty()) StrAppend(&text, " on ", node.host);
  if (!where.empty()) StrAppend(&text, " (all are ", where, ")");
  StrAppend(&text, ":\n");
  for (const std::string& line : node.last_lines) StrAppend(&text, "  ", line, "\n");
  return text;
}

std::string ResumeCommand(const JobCommand& command) {
  const std::vector<std::string>& arguments = command.arguments;
  std::string text = command.starter.empty() ? "" : StrCat(command.starter, " ... ");
  StrAppend(&text, actors::QuoteForShell(command.program));
  for (const std::string& argument : arguments)
    StrAppend(&text, " ", actors::QuoteForShell(argument));
  const auto has = [&](std::string_view option) {
    return std::find(arguments.begin(), arguments.end(), option) != arguments.end();
  };
  if (has("--resume")) return text;
  // Options of `run` are behind this one.
  if (!arguments.empty() && arguments[0] == "launch" && !has("--")) StrAppend(&text, " --");
  StrAppend(&text, " --resume");
  return text;
}

std::string ResumeHint(const std::string& checkpoint_folder, bool is_certain,
                       const std::string& working_folder, const std::string& host,
                       const JobCommand& command) {
  if (checkpoint_folder.empty()) return "";
  return StrCat(
      "continue from the last checkpoint in ", checkpoint_folder, ", on ", host,
      is_certain ? "" : ", if one was written", ", with",
      command.needs_variables ? " (in each of its processes, with the variables that it had)" : "",
      ": cd ", actors::QuoteForShell(working_folder), " && ", ResumeCommand(command));
}

}  // namespace penstock::cli
