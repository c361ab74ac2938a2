// Writes checkpoints while training goes on: an actor with a thread of its own takes copies of the
// states and writes them, one after the other.
//
//   CheckpointWriter writer(session, std::move(folder), on_done);
//   ASSIGN_OR_RETURN(auto states, session.KeepStates(StateSelection::kAll));
//   writer.Write(info, std::move(states));      // returns at once
//   ...
//   RETURN_IF_ERROR(writer.Wait(timeout));
//
// Thread rule: one thread, and on_done is called on the writer's.
// Invariants: a checkpoint is in its folder as a whole or not at all (checkpoint_folder.h); an
// error loses none that was written before. A copy of states goes when it is written.

#ifndef PENSTOCK_ACTORS_SESSION_CHECKPOINT_WRITER_H_
#define PENSTOCK_ACTORS_SESSION_CHECKPOINT_WRITER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "actors/checkpoint/checkpoint.h"
#include "actors/checkpoint/checkpoint_folder.h"
#include "actors/session/kept_states.h"

namespace penstock::actors {

class Session;

// How it went with a checkpoint.
struct CheckpointResult {
  int64_t step = 0;        // steps that had been run
  absl::Status status;     // why it was not written
  std::string path;        // where it is
  uint64_t num_bytes = 0;  // of its files
  double seconds = 0;      // that writing took
};

// Writes checkpoints while the training goes on.
class CheckpointWriter {
 public:
  // `session` outlives the writer, and may be stopped before. `on_done` may be null.
  CheckpointWriter(const Session& session, std::unique_ptr<CheckpointFolder> folder,
                   std::function<void(const CheckpointResult&)> on_done);
  // Waits for what was handed in, as long as the disk takes: for a bound call Wait first, and leave
  // the process (_exit) if that is late.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Hands states in to be written, and returns at once.
  void Write(CheckpointInfo info, std::shared_ptr<const KeptStates> states);

  // Waits until all that was handed in is written, or was not. kDeadlineExceeded names the step.
  // kInternal: the writer has ended, because of an exception of on_done or a lack of memory, and
  // writes nothing any more.
  absl::Status Wait(absl::Duration timeout);

 private:
  class Actor;
  struct Progress;

  const std::shared_ptr<Progress> progress_;
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_SESSION_CHECKPOINT_WRITER_H_
