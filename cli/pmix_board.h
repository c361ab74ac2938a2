// The PMIx server that has started the processes of a job: mpirun of Open MPI, or srun --mpi=pmix.
// It tells the job's key as well where the processes have none. Its servers may pass on what they
// are told without encryption, and keep it: rank 0 therefore seals the key where it can
// (munge_text.h), and who must not trust the servers gives the processes a key file.
//
// Thread rule: one thread. Invariant: at most one object at a time, because PMIx has one client a
// process.

#ifndef PENSTOCK_CLI_PMIX_BOARD_H_
#define PENSTOCK_CLI_PMIX_BOARD_H_

#include <memory>
#include <string>

#include "cli/launch_member.h"
#include "cli/member_board.h"

namespace penstock::cli {

class PmixBoard final : public MemberBoard {
 public:
  // Whether the environment is that of a process with a PMIx server.
  static bool HasServer(const Variables& variables);

  static absl::StatusOr<std::unique_ptr<PmixBoard>> Connect();
  // Tells the server that this process ends in order, and waits for its answer, for up to 2 s.
  ~PmixBoard() override;
  PmixBoard(const PmixBoard&) = delete;
  PmixBoard& operator=(const PmixBoard&) = delete;

  std::string name() const override { return "PMIx"; }
  bool keeps_secrets() const override { return true; }
  // The server is on this host, and takes it at once.
  absl::Status Post(const MemberNotice& notice, absl::Duration timeout) override;
  absl::StatusOr<MemberNotice> Await(absl::Duration timeout) override;
  void Abandon() override { is_abandoned_ = true; }

 private:
  explicit PmixBoard(std::string job) : job_(std::move(job)) {}
  absl::StatusOr<std::string> AwaitValue(const char* name, absl::Time deadline) const;

  const std::string job_;  // PMIx calls it a namespace
  bool is_abandoned_ = false;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_PMIX_BOARD_H_
