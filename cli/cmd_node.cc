// penstock node: one process of a job over several.

#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "cli/environment.h"
#include "cli/files.h"
#include "cli/option_checks.h"

#include "actors/cluster/job_key.h"
#include "actors/cluster/node.h"
#include "actors/cluster/socket_address.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

struct Options {
  actors::NodeOptions node;
  std::string key_file;
  bool is_quiet = false;
};

constexpr size_t kMaxKeyBytes = 4096;

// The first line of the standard input, without its end; what follows stays there.
absl::StatusOr<std::string> ReadLine() {
  std::string line;
  char c = 0;
  while (line.size() < kMaxKeyBytes && read(STDIN_FILENO, &c, 1) == 1 && c != '\n') line += c;
  return line;
}

absl::StatusOr<std::string> ReadKey(const Options& options) {
  std::string key;
  std::string source = "PENSTOCK_KEY";
  if (!options.key_file.empty()) {
    source = StrCat("--key-file ", options.key_file);
    absl::StatusOr<std::string> text =
        options.key_file == "-" ? ReadLine() : ReadTextFile(options.key_file, kMaxKeyBytes);
    if (!text.ok()) {
      return absl::Status(text.status().code(),
                          StrCat("--key-file ", ToStd(text.status().message())));
    }
    key = *std::move(text);
    while (!key.empty() && key.back() == '\n') key.pop_back();
  } else if (const char* variable = std::getenv("PENSTOCK_KEY")) {
    key = variable;
  } else {
    return absl::InvalidArgumentError(
        "the job's key is missing: set PENSTOCK_KEY or give --key-file");
  }
  if (const absl::Status parsed = actors::ParseJobKey(key).status(); !parsed.ok()) {
    return absl::InvalidArgumentError(
        StrCat(source, ": ", ToStd(parsed.message()),
               "; copy it from the command that `penstock run --listen` prints"));
  }
  return key;
}

absl::Status Run(const Environment& environment, Options options) {
  const absl::Status address = actors::CheckJoinAddress(options.node.coordinator);
  if (!address.ok()) {
    return absl::InvalidArgumentError(
        StrCat("--join ", ToStd(address.message()),
               "; use the address that `penstock run --listen` prints"));
  }
  ASSIGN_OR_RETURN(options.node.key, ReadKey(options));
  options.node.kernels = &environment.registries.kernels;
  options.node.policies = &environment.registries.policies;
  if (!options.is_quiet) {
    options.node.on_joined = [&err = environment.err](const actors::NodeDescription& node) {
      err << StrCat("joined as ", ToString(node), "\n") << std::flush;
    };
  }
  RETURN_IF_ERROR(actors::RunNode(options.node));
  if (!options.is_quiet) environment.err << "the job is done" << std::endl;
  return absl::OkStatus();
}

}  // namespace

void AddNodeCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("node", "Join a job as one of its processes.");
  command->footer(
      "`penstock run --procs N` starts its own nodes. `penstock run --listen ADDRESS` prints the\n"
      "`penstock node` command that starts one of them, with the job's key.");
  command
      ->add_option("--join", options->node.coordinator,
                   "Address of the coordinator: HOST:PORT, unix:PATH or unix-abstract:NAME "
                   "(required)")
      ->option_text("ADDRESS")
      ->required();
  command->add_option("--rank", options->node.rank, "Rank of this node (lowest free rank)")
      ->option_text("N")
      ->check(AtLeast(0));
  command
      ->add_option("--interface", options->node.interfaces,
                   "Network interfaces for tensor data, separated by commas (that of the route to "
                   "the coordinator)")
      ->option_text("NAMES");
  command
      ->add_option("--key-file", options->key_file,
                   "Read the job's key from this file; -: from the first line of the standard "
                   "input (the environment variable PENSTOCK_KEY)")
      ->option_text("FILE");
  command->add_flag("--quiet", options->is_quiet,
                    "Do not report that this node has joined, and that the job is done");
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return Run(environment, *options); };
  });
}

}  // namespace penstock::cli
