// What is known of the end of a process of a job besides its status: from what it has printed last,
// and from the program that has started it.
//
//   notes.OnLaunched(command);
//   notes.OnLine(1, "ssh: connect to host far port 22: No route to host");
//   notes.NoteOf(1, wait_status, "");  // " (ssh on n1: ssh: connect to host far port 22: ...)"
//
// Thread rule: one thread, that of the launcher's events.

#ifndef PENSTOCK_ACTORS_CLUSTER_PROCESS_NOTES_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_PROCESS_NOTES_INTERNAL_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "actors/cluster/launcher_internal.h"
#include "actors/cluster/oom_kills.h"

namespace penstock::actors {

class ProcessNotes {
 public:
  void OnLaunched(const LaunchCommand& command);
  void OnLine(uint32_t rank, std::string_view line);
  // As Launcher::Events::on_exit has it, which may have said `note` itself.
  std::string NoteOf(uint32_t rank, int wait_status, std::string_view note) const;

 private:
  struct Process {
    bool is_out_of_memory = false;  // the shell that ran it on its host has said so
    // Of the first node of a program such as ssh: its name, the host that it goes to, and what it
    // or the node has printed last.
    std::string starter;
    std::string remote_host;
    std::string last_line;
  };

  const std::string out_of_memory_line_ = OutOfMemoryLine();
  std::map<uint32_t, Process> processes_;  // those of which there is something to note, by rank
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_PROCESS_NOTES_INTERNAL_H_
