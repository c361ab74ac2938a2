// A name in etcd under which the processes of a job find each other: its ranks, and the address of
// rank 0. It does not hold the job's key. What a process has written goes with its lease, which the
// process gives back when it ends; etcd takes the leases of processes that were killed back when
// they run out. While the job runs, etcd is not asked.
//
//   penstock/NAME/rank/2     taken
//   penstock/NAME/address    10.0.0.1:41234
//
// Thread rule: one thread; calls block.

#ifndef PENSTOCK_CLI_ETCD_BOARD_H_
#define PENSTOCK_CLI_ETCD_BOARD_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cli/member_board.h"

namespace penstock::cli {

class EtcdBoard final : public MemberBoard {
 public:
  // "http://HOST:PORT/NAME": the gateway of etcd's API, version 3, and the job's name. Entries live
  // for `lease` after they are written. Does not connect.
  static absl::StatusOr<std::unique_ptr<EtcdBoard>> Create(const std::string& url,
                                                           absl::Duration lease);

  // Gives the lease back, if etcd answers.
  ~EtcdBoard() override;
  EtcdBoard(const EtcdBoard&) = delete;
  EtcdBoard& operator=(const EtcdBoard&) = delete;

  std::string name() const override;
  bool keeps_secrets() const override { return false; }
  // These ask again while etcd does not answer, until their time is over.
  absl::Status Post(const MemberNotice& notice) override;
  // A process that was killed leaves its address until its lease runs out.
  absl::StatusOr<MemberNotice> Await(absl::Duration timeout) override;
  // The lowest rank below `size` that no process of the job has, which this one has then.
  absl::StatusOr<int64_t> TakeRank(int64_t size, absl::Duration timeout);

 private:
  EtcdBoard(std::string server, std::string job, absl::Duration lease)
      : server_(std::move(server)), job_(std::move(job)), lease_(lease) {}
  std::string KeyOf(const std::string& entry) const;
  // The lease of this process, which is granted the first time.
  absl::StatusOr<std::string> GetLease();
  // Whether the entry was not there, and is now.
  absl::StatusOr<bool> Insert(const std::string& entry, const std::string& value);
  // Empty: there is none.
  absl::StatusOr<std::string> Find(const std::string& entry) const;

  const std::string server_;  // "http://HOST:PORT"
  const std::string job_;
  const absl::Duration lease_;
  std::string lease_id_;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_ETCD_BOARD_H_
