#include "cli/coordinator_host.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "cli/program_output.h"

#include "actors/cluster/network_interface.h"
#include "base/await.h"
#include "base/counted.h"
#include "base/start_thread.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

// The name by which ssh connects to a host, which may have an alias in its configuration
// (HostName); empty: it does not say, or is another program.
std::string NameForSsh(std::vector<std::string> program, const std::string& host) {
  if (std::filesystem::path(program[0]).filename() != "ssh") return "";
  program.insert(program.end(), {"-G", "--", host});
  const absl::StatusOr<std::string> settings = OutputOf(std::move(program), "");
  if (!settings.ok()) return "";
  constexpr std::string_view kName = "hostname ";
  std::istringstream lines(*settings);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kName)) return line.substr(kName.size());
  }
  return "";
}

// Each waits for servers of names, or for a call of ssh.
constexpr size_t kLookupThreads = 16;
// Before a note names what is waited for.
constexpr absl::Duration kNoteAfter = absl::Seconds(3);
constexpr size_t kMaxNamedLookups = 4;

// `what`: "the address of node1 is not known".
std::string OtherAddress(std::ostream& err, const std::string& what) {
  std::string other = actors::ReachableAddress();
  err << StrCat("note: ", what, "; its nodes connect to ", other,
                " (--listen sets another address)\n")
      << std::flush;
  return other;
}

// Outlives a call that gives up: the system's look-up of a name cannot be cancelled.
class Lookups {
 public:
  Lookups(std::vector<std::string> program, const std::vector<std::string>& hosts)
      : program_(std::move(program)), hosts_(hosts), found_(hosts.size()) {}

  // Looks hosts up until none is left.
  void Work() {
    while (true) {
      size_t i = 0;
      {
        const absl::MutexLock lock(&mutex_);
        if (next_ == hosts_.size()) return;
        i = next_++;
      }
      std::ostringstream notes;
      std::string address = CoordinatorHost(notes, program_, hosts_[i]);
      const absl::MutexLock lock(&mutex_);
      found_[i] = Found{std::move(address), notes.str()};
      ++num_found_;
    }
  }

  // Begins no other.
  void Stop() {
    const absl::MutexLock lock(&mutex_);
    next_ = hosts_.size();
  }

  bool AwaitAll(absl::Duration timeout) {
    const absl::MutexLock lock(&mutex_);
    return AwaitFor(absl::Condition(this, &Lookups::HasAll), timeout, &mutex_);
  }

  // "n3, n4 and 2 other hosts".
  std::string Missing() {
    const absl::MutexLock lock(&mutex_);
    std::vector<std::string_view> named;
    for (size_t i = 0; i < hosts_.size() && named.size() < kMaxNamedLookups; ++i) {
      if (!found_[i].has_value()) named.push_back(hosts_[i]);
    }
    const size_t num_others = hosts_.size() - num_found_ - named.size();
    return StrCat(StrJoin(named, ", "),
                  num_others > 0 ? StrCat(" and ", Counted(num_others, "other host")) : "");
  }

  // With their notes.
  std::vector<std::string> Addresses(std::ostream& err, absl::Duration timeout) {
    const absl::MutexLock lock(&mutex_);
    std::vector<std::string> addresses;
    for (size_t i = 0; i < hosts_.size(); ++i) {
      if (found_[i].has_value()) {
        err << found_[i]->notes << std::flush;
        addresses.push_back(found_[i]->address);
      } else {
        addresses.push_back(
            OtherAddress(err, StrCat("the address of ", hosts_[i], " was not found in ",
                                     absl::FormatDuration(timeout))));
      }
    }
    return addresses;
  }

 private:
  struct Found {
    std::string address;
    std::string notes;
  };

  bool HasAll() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return num_found_ == hosts_.size(); }

  const std::vector<std::string> program_;
  const std::vector<std::string> hosts_;
  absl::Mutex mutex_;
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t num_found_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::optional<Found>> found_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::string CoordinatorHost(std::ostream& err, const std::vector<std::string>& program,
                            const std::string& host) {
  const std::string name = host.substr(host.find('@') + 1);  // without the user
  absl::StatusOr<std::string> address = actors::AddressTowards(name);
  if (address.ok()) return *address;
  if (const std::string for_ssh = NameForSsh(program, host); !for_ssh.empty() && for_ssh != name) {
    const absl::StatusOr<std::string> there = actors::AddressTowards(for_ssh);
    if (there.ok()) return *there;
  }
  return OtherAddress(err, std::string(ToStd(address.status().message())));
}

std::vector<std::string> CoordinatorHosts(std::ostream& err,
                                          const std::vector<std::string>& program,
                                          const std::vector<std::string>& hosts,
                                          absl::Duration timeout) {
  const auto lookups = std::make_shared<Lookups>(program, hosts);
  bool has_threads = false;
  for (size_t i = 0; i < std::min(hosts.size(), kLookupThreads); ++i) {
    absl::StatusOr<std::thread> thread =
        StartThread("the addresses of hosts", [lookups] { lookups->Work(); });
    if (!thread.ok()) break;
    // One that the timeout leaves behind may still run when the process ends, which does not wait
    // for it. It then waits in getaddrinfo(), which uses nothing of this program, or for `ssh -G`,
    // which connects to nobody and ends by itself; OutputOf() kills it after ten seconds only while
    // this process lives. What else the thread uses, it shares ownership of.
    thread->detach();
    has_threads = true;
  }
  if (!has_threads) lookups->Work();
  const absl::Duration quiet = std::min(kNoteAfter, timeout);
  if (!lookups->AwaitAll(quiet)) {
    err << "note: looking up the addresses of hosts, for " << absl::FormatDuration(timeout)
        << " at most; not found yet: " << lookups->Missing() << std::endl;
    if (!lookups->AwaitAll(timeout - quiet)) lookups->Stop();
  }
  return lookups->Addresses(err, timeout);
}

}  // namespace penstock::cli
