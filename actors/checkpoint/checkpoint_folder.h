// The folder in which a training run keeps its checkpoints: "step-00000100", "step-00000200", ...
//
// A checkpoint is written into a folder of another name, ".part-step-00000200-ID", and renamed when
// all of it lies on the disk. Only then the oldest one goes. So whatever happens to the processes
// or to the machine, each "step-N" is complete, and once there has been one, there is one.
//
// Thread rule: one thread at a time.
// Invariant: one process at a time writes into a folder, as it holds the lock on ".lock".

#ifndef PENSTOCK_ACTORS_CHECKPOINT_CHECKPOINT_FOLDER_H_
#define PENSTOCK_ACTORS_CHECKPOINT_CHECKPOINT_FOLDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock::actors {

// A folder that checkpoints of a run are written into, and what is in it.
class CheckpointFolder {
 public:
  // Steps of the complete checkpoints in a folder, in order. None if there is no such folder;
  // kUnavailable if it cannot be read.
  static absl::StatusOr<std::vector<int64_t>> Steps(const std::string& path);
  // Where the checkpoint of a step lies in a folder of checkpoints.
  static std::string PathOf(const std::string& path, int64_t step);
  // The last one in a folder of checkpoints; `path` itself if it is something else.
  static std::string NewestOr(const std::string& path);
  // Whether `path` is itself a checkpoint: a folder with the files of one, and no folder of others.
  static bool IsCheckpoint(const std::string& path);

  // Creates the folder if need be, and removes what runs that were killed have left. The last
  // `keep` checkpoints stay. kAlreadyExists: another run writes into it.
  static absl::StatusOr<std::unique_ptr<CheckpointFolder>> Open(const std::string& path,
                                                                int64_t keep);
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  // The folder of checkpoints.
  const std::string& path() const { return path_; }

  // Creates the folder that the files of a checkpoint go into, and returns its path.
  absl::StatusOr<std::string> Begin(int64_t step);
  // Makes it a checkpoint, removes earlier ones that are too many, and returns its path. After an
  // error the files that were written are gone, unless it is of the last step, which tells whether
  // the name lies on the disk: then the checkpoint is there.
  absl::StatusOr<std::string> Commit(int64_t step);
  // Removes it.
  void Abandon(int64_t step);

  // Keeps the checkpoint of a step beside the last ones as long as somebody holds `reader`, which
  // reads it.
  void KeepFor(std::weak_ptr<const void> reader, int64_t step);

 private:
  CheckpointFolder(std::string path, int64_t keep);
  std::string PartOf(int64_t step) const;
  void RemoveLeftovers() const;
  void RemoveOldest(int64_t last_step) const;

  const std::string path_;
  const int64_t keep_;
  // In the names of what is not complete: processes of a run that was killed may still be writing.
  const std::string id_;
  std::weak_ptr<const void> reader_;
  int64_t read_step_ = -1;  // that it reads
  int lock_fd_ = -1;
  int folder_fd_ = -1;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CHECKPOINT_CHECKPOINT_FOLDER_H_
