// Ends this process when the one that has started it is gone: mpirun, for instance, does not end
// its processes when it is killed, and nobody would end them after it.
//
// Thread rule: made and destroyed by one thread. Has a thread of its own, which takes no signals.

#ifndef PENSTOCK_CLI_PARENT_WATCH_H_
#define PENSTOCK_CLI_PARENT_WATCH_H_

#include <ostream>
#include <string>
#include <thread>

namespace penstock::cli {

class ParentWatch {
 public:
  // When the parent ends, says on `err` that `starter` ("mpirun"; empty: not known) is gone, and
  // raises SIGTERM. Without a parent that can be watched, as in a container, or under nohup,
  // nothing happens.
  ParentWatch(std::ostream& err, std::string starter);
  ~ParentWatch();
  ParentWatch(const ParentWatch&) = delete;
  ParentWatch& operator=(const ParentWatch&) = delete;

 private:
  void Main();

  std::ostream& err_;
  const std::string starter_;
  const int parent_;
  int parent_fd_ = -1;
  int stop_fd_ = -1;
  std::thread thread_;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_PARENT_WATCH_H_
