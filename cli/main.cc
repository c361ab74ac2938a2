// The `penstock` command: builds the registries and hands them to the command line.

#include <unistd.h>

#include <iostream>
#include <string>
#include <vector>

#include "cli/environment.h"
#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/spdlog.h"

#include "penstock/load_plugin.h"

int main(int argc, char** argv) {
  // Standard output is for results.
  spdlog::set_default_logger(spdlog::stderr_color_mt("penstock"));
  spdlog::set_pattern("%^%l%$: %v");

  penstock::cli::Registries registries = penstock::cli::BuiltinRegistries();
  const penstock::cli::Environment environment = {
      .registries = registries,
      .out = std::cout,
      .err = std::cerr,
      .err_is_terminal = isatty(STDERR_FILENO) != 0,
      .out_is_terminal = isatty(STDOUT_FILENO) != 0,
      .load_plugin =
          [&registries](const std::string& path) { return penstock::LoadPlugin(path, registries); },
  };
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return penstock::cli::RunCommandLine(environment, arguments);
}
