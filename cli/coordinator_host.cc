#include "cli/coordinator_host.h"

#include <filesystem>
#include <sstream>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "cli/program_output.h"

#include "actors/cluster/network_interface.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

// The name by which ssh connects to a host, which may have an alias in its configuration
// (HostName); empty: it does not say, or is another program.
std::string NameForSsh(std::vector<std::string> program, const std::string& host) {
  if (std::filesystem::path(program[0]).filename() != "ssh") return "";
  program.insert(program.end(), {"-G", "--", host});
  const absl::StatusOr<std::string> settings = OutputOf(std::move(program), "");
  if (!settings.ok()) return "";
  constexpr std::string_view kName = "hostname ";
  std::istringstream lines(*settings);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kName)) return line.substr(kName.size());
  }
  return "";
}

}  // namespace

std::string CoordinatorHost(std::ostream& err, const std::vector<std::string>& program,
                            const std::string& host) {
  const std::string name = host.substr(host.find('@') + 1);  // without the user
  absl::StatusOr<std::string> address = actors::AddressTowards(name);
  if (address.ok()) return *address;
  if (const std::string for_ssh = NameForSsh(program, host); !for_ssh.empty() && for_ssh != name) {
    const absl::StatusOr<std::string> there = actors::AddressTowards(for_ssh);
    if (there.ok()) return *there;
  }
  const std::string other = actors::ReachableAddress();
  err << "note: " << ToStd(address.status().message()) << "; its nodes connect to " << other
      << " (--listen sets another address)" << std::endl;
  return other;
}

}  // namespace penstock::cli
