// penstock node: one process of a job over several.

#include <cstdlib>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "cli/environment.h"
#include "cli/files.h"

#include "actors/cluster/node.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

struct Options {
  actors::NodeOptions node;
  std::string key_file;
};

absl::Status Run(const Environment& environment, Options options) {
  if (!options.key_file.empty()) {
    ASSIGN_OR_RETURN(options.node.key, ReadTextFile(options.key_file, 4096));
    while (!options.node.key.empty() && options.node.key.back() == '\n') {
      options.node.key.pop_back();
    }
  } else if (const char* key = std::getenv("PENSTOCK_KEY")) {
    options.node.key = key;
  } else {
    return absl::InvalidArgumentError(
        "the job's key is missing: set PENSTOCK_KEY or give --key-file");
  }
  options.node.kernels = &environment.registries.kernels;
  options.node.policies = &environment.registries.policies;
  return actors::RunNode(options.node);
}

}  // namespace

void AddNodeCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("node", "Be one process of a job over several");
  command->footer(
      "`penstock run --procs` starts its nodes itself; `penstock run --listen` says what to type "
      "on each host.\n");
  command
      ->add_option("--join", options->node.coordinator,
                   "Address of the coordinator: HOST:PORT, unix:PATH or unix-abstract:NAME")
      ->required();
  command->add_option("--rank", options->node.rank, "The rank to have (any that is free)")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--interface", options->node.interfaces,
                      "Network interfaces for the data, separated by commas (lo)");
  command->add_option("--key-file", options->key_file,
                      "File with the job's key, instead of PENSTOCK_KEY in the environment");
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return Run(environment, *options); };
  });
}

}  // namespace penstock::cli
