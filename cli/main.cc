// The `penstock` command: builds the registries and hands them to the command line.

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "cli/environment.h"
#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/spdlog.h"

#include "actors/cluster/starter_watch.h"
#include "penstock/load_plugin.h"

namespace {

// UCX takes SIGHUP for a debugging aid of its own as soon as it is loaded, which is before main().
// So a terminal that is closed would not end a job, and whether nohup has started this process
// would be forgotten. What was before UCX is seen before any library begins: by a function of the
// program's .preinit_array, which may use nothing but the system's calls.
bool ignores_hangups = false;

__attribute__((no_sanitize("address", "thread", "undefined"))) void SeeHangups(int, char**,
                                                                               char**) {
  // As the kernel has it: the handler, then what does not matter here.
  static uintptr_t action[16];
  constexpr size_t kSignalSetBytes = 8;
  if (syscall(SYS_rt_sigaction, SIGHUP, nullptr, action, kSignalSetBytes) == 0) {
    ignores_hangups = action[0] == reinterpret_cast<uintptr_t>(SIG_IGN);
  }
}

__attribute__((section(".preinit_array"), used)) void (*const see_hangups)(int, char**,
                                                                           char**) = SeeHangups;

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == penstock::cli::kWatchStarters) {
    penstock::actors::WatchStarters(STDIN_FILENO);
    return 0;
  }
  signal(SIGHUP, ignores_hangups ? SIG_IGN : SIG_DFL);
#ifdef NDEBUG
  // Debian's Abseil looks for cycles of mutexes at every lock, which takes several times as long.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
  // Standard output is for results.
  spdlog::set_default_logger(spdlog::stderr_color_mt("penstock"));
  spdlog::set_pattern("%^%l%$: %v");

  penstock::cli::Registries registries = penstock::cli::BuiltinRegistries();
  const penstock::cli::Environment environment = {
      .registries = registries,
      .out = std::cout,
      .err = std::cerr,
      .err_is_terminal = isatty(STDERR_FILENO) != 0,
      .called_as = argv[0],
      .out_is_terminal = isatty(STDOUT_FILENO) != 0,
      .load_plugin =
          [&registries](const std::string& path) { return penstock::LoadPlugin(path, registries); },
  };
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return penstock::cli::RunCommandLine(environment, arguments);
}
