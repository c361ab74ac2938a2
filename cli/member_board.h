// Where the processes of a job learn where its rank 0 listens: a PMIx server (pmix_board.h) or etcd
// (etcd_board.h).
//
// Thread rule: one thread.

#ifndef PENSTOCK_CLI_MEMBER_BOARD_H_
#define PENSTOCK_CLI_MEMBER_BOARD_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace penstock::cli {

struct MemberNotice {
  std::string address;  // where nodes join
  std::string key;  // the job's, perhaps sealed (munge_text.h); empty: the processes have it, or
                    // the board is not for secrets
};

class MemberBoard {
 public:
  virtual ~MemberBoard() = default;

  // For messages: "PMIx".
  virtual std::string name() const = 0;
  // Whether what is posted is for the processes of the job alone.
  virtual bool keeps_secrets() const = 0;

  // By rank 0, once. kUnavailable if the board does not take it in time.
  virtual absl::Status Post(const MemberNotice& notice, absl::Duration timeout) = 0;
  // What rank 0 has posted. kDeadlineExceeded if that takes longer.
  virtual absl::StatusOr<MemberNotice> Await(absl::Duration timeout) = 0;
  // What has started this process ends it, and may not answer any more: the destructor does not
  // wait for the board.
  virtual void Abandon() {}
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_MEMBER_BOARD_H_
