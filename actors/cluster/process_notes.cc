#include <signal.h>

#include "actors/cluster/agent_tree.h"
#include "actors/cluster/child_process.h"
#include "actors/cluster/process_notes_internal.h"
#include "base/machine.h"

namespace penstock::actors {

void ProcessNotes::OnLaunched(const LaunchCommand& command) {
  if (command.remote_host.empty()) return;
  Process& process = processes_[command.rank];
  process.starter = command.arguments[0];
  process.remote_host = command.remote_host;
}

void ProcessNotes::OnLine(uint32_t rank, std::string_view line) {
  if (line == out_of_memory_line_) processes_[rank].is_out_of_memory = true;
  const auto it = processes_.find(rank);
  if (it == processes_.end() || it->second.starter.empty()) return;
  it->second.last_line = line.substr(0, kMaxStarterLineBytes);
}

std::string ProcessNotes::NoteOf(uint32_t rank, int wait_status, std::string_view note) const {
  const auto it = processes_.find(rank);
  if (!note.empty() || it == processes_.end()) return std::string(note);
  const Process& process = it->second;
  if (process.is_out_of_memory && ShellStatus(wait_status) == 128 + SIGKILL) {
    return kProbablyOutOfMemory;
  }
  if (process.starter.empty()) return "";
  return StarterNote(process.starter, HostName(), process.remote_host, wait_status,
                     process.last_line);
}

}  // namespace penstock::actors
