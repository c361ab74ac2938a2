// penstock stack: what each device of a running or hanging job waits for.

#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "cli/environment.h"
#include "cli/help_text.h"
#include "cli/job_status_text.h"
#include "cli/status_sockets.h"

#include "actors/cluster/status_client.h"
#include "base/status_macros.h"

namespace penstock::cli {
namespace {

struct StackOptions {
  std::string address;
  std::string key_file;
  bool is_json = false;
};

absl::Status ShowStacks(const Environment& environment, const StackOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<actors::StatusClient> client,
                   actors::StatusClient::Create());
  ASSIGN_OR_RETURN(const actors::StatusAddress address,
                   FindJob(options.address, options.key_file, *client));
  ASSIGN_OR_RETURN(const actors::JobStatus status, AskJob(address, *client));
  environment.out << (options.is_json ? JobStatusJson(status, nullptr) + "\n" : StackText(status));
  return absl::OkStatus();
}

}  // namespace

void AddStackCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<StackOptions>();
  CLI::App* command =
      app.add_subcommand("stack", "Print what each device of a running or hanging job waits for.");
  command->footer(WrapText(std::string("The job is not interrupted. ") + kJobAddressHelp +
                               "\n\nA device is printed below the one that it waits for; the root "
                               "of a chain is the device to look at: it runs, its process does not "
                               "answer, or it has no step to run.",
                           kHelpColumns, 0));
  command->add_option("ADDRESS", options->address, "Job (the only one on this host)");
  command
      ->add_option("--key-file", options->key_file,
                   "Read the job's key from this file (the environment variable PENSTOCK_KEY)")
      ->option_text("FILE");
  command->add_flag("--json", options->is_json, "Print one JSON object");
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return ShowStacks(environment, *options); };
  });
}

}  // namespace penstock::cli
