#include "cli/processes.h"

#include <memory>
#include <string_view>

#include "cli/line_printer.h"

#include "base/counted.h"
#include "base/strings.h"

namespace penstock::cli {
absl::StatusOr<std::unique_ptr<actors::Cluster>> StartProcesses(const Environment& environment,
                                                                int64_t count,
                                                                const std::string& listen) {
  actors::ClusterOptions options;
  options.num_processes = static_cast<uint32_t>(count);
  const auto printer = std::make_shared<LinePrinter>(environment.err);
  options.on_output = [printer](uint32_t rank, std::string_view host, std::string_view line) {
    printer->Print(StrCat("[", rank, " ", host, "] ", line, "\n"));
  };
  if (listen.empty()) {
    options.node_command = {environment.program, "node"};
  } else {
    options.listen = listen;
    options.join_timeout = absl::Minutes(10);
    options.on_listening = [&err = environment.err, count](const std::string& address,
                                                           const std::string& key) {
      err << "Waiting for " << Counted(count, "node") << ". On each host:\n  PENSTOCK_KEY=" << key
          << " penstock node --join " << address << std::endl;
    };
  }
  return actors::Cluster::Start(options);
}

}  // namespace penstock::cli
