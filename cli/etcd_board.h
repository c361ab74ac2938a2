// A name in etcd under which the processes of a job find each other: its ranks, and the address of
// rank 0. It does not hold the job's key.
//
//   penstock/NAME/rank/2     "4 f31c09...": of 4 ranks, and a word that no other process has
//   penstock/NAME/address    10.0.0.1:41234
//
// A process holds its entries for as long as it runs: they go with a lease, which a thread keeps
// alive, and which is given back when the process ends. So no other job takes the name meanwhile.
// The entries of a process that was killed go within kNameLease. Where etcd does not answer,
// nothing happens to a job that runs; where it has let the lease run out, or has lost what it had,
// the process enters itself again.
//
// Thread rule: one thread, beside that of the board itself; calls block.

#ifndef PENSTOCK_CLI_ETCD_BOARD_H_
#define PENSTOCK_CLI_ETCD_BOARD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cli/etcd_client.h"
#include "cli/member_board.h"

namespace penstock::cli {

// For so long after its last word, etcd keeps what a process has written.
inline constexpr absl::Duration kNameLease = absl::Seconds(15);

class EtcdBoard final : public MemberBoard {
 public:
  // `note` takes a line that the user should know, and is called from any thread.
  using Note = std::function<void(const std::string& line)>;

  // `url` has the client addresses of one or more servers and the job's name:
  // "http://HOST:PORT/NAME", "https://HOST:PORT,HOST:PORT/NAME". Does not connect.
  static absl::StatusOr<std::unique_ptr<EtcdBoard>> Create(const std::string& url,
                                                           EtcdAccess access, Note note);

  // Gives the lease back, if etcd answers.
  ~EtcdBoard() override;
  EtcdBoard(const EtcdBoard&) = delete;
  EtcdBoard& operator=(const EtcdBoard&) = delete;

  std::string name() const override { return client_.name(); }
  bool keeps_secrets() const override { return false; }
  // These ask again while etcd does not answer, until their time is over.
  //
  // Takes a rank of the name, before anything else is done with it, and holds it from then on:
  // `rank`, or where that is negative the lowest below `size` that no process has. kAlreadyExists
  // if other processes that run have it.
  absl::StatusOr<int64_t> TakeRank(int64_t rank, int64_t size, absl::Duration timeout);
  absl::Status Post(const MemberNotice& notice, absl::Duration timeout) override;
  // A process that was killed leaves its address until its lease runs out.
  absl::StatusOr<MemberNotice> Await(absl::Duration timeout) override;

 private:
  using Entry = std::pair<std::string, std::string>;  // such as "rank/0", and its value

  EtcdBoard(std::vector<std::string> endpoints, EtcdAccess access, std::string job, Note note)
      : job_(std::move(job)),
        note_(std::move(note)),
        client_(std::move(endpoints), std::move(access)) {}
  std::string KeyOf(const std::string& entry) const;
  // A lease of kNameLease.
  absl::StatusOr<std::string> NewLease();
  // Writes the entries if nobody has the first one, or this process has. Returns who has it
  // otherwise; empty: this process does.
  absl::StatusOr<std::string> Enter(const std::vector<Entry>& entries, const std::string& lease);
  // Empty: there is none.
  absl::StatusOr<std::string> Find(const std::string& entry);
  // Who has the name, for an error.
  std::string DescribeHolder(int64_t size, const std::string& holder);
  absl::Status NameIsLost() const;
  void StartKeeper();
  // The thread that keeps the lease alive.
  void Keep();
  // Enters this process again if its lease has run out. kAlreadyExists: another one has its place.
  absl::Status Renew() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string job_;
  const Note note_;
  EtcdClient client_;
  std::string claim_;  // the value of this process's rank
  std::thread keeper_;
  absl::Mutex mutex_;  // held while the keeper calls
  std::string lease_ ABSL_GUARDED_BY(mutex_);
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // of this process; its rank first
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_ETCD_BOARD_H_
