#include "cli/etcd_board.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cli/json.h"
#include "nlohmann/json.hpp"

#include "actors/cluster/job_key.h"
#include "base/counted.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

using Json = nlohmann::json;

constexpr char kEtcdAddress[] = "address";
constexpr absl::Duration kCallTimeout = absl::Seconds(5);
// Of calls beside a job that runs.
constexpr absl::Duration kKeepTimeout = absl::Seconds(2);
// Of the last one, for which the end of the process waits.
constexpr absl::Duration kEndTimeout = absl::Milliseconds(300);
// Between calls that keep the lease (kNameLease) alive: two may fail.
constexpr absl::Duration kKeepPause = absl::Seconds(5);
constexpr absl::Duration kRetryPause = absl::Seconds(1);
// Entries that are there for longer than kNameLease are those of processes that run.
constexpr absl::Duration kPatience = absl::Seconds(17);
// Between questions.
constexpr absl::Duration kEtcdPause = absl::Milliseconds(100);
constexpr size_t kMaxNameBytes = 255;

std::string Base64(const std::string& text) {
  std::string coded;
  absl::Base64Escape(text, &coded);
  return coded;
}

// The text of a field, if the object has it.
std::string TextOf(const Json& object, const char* field) {
  const auto it = object.find(field);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

// The value of the only entry of an answer; empty: it has none.
std::string ValueOf(const Json& answer) {
  const auto found = answer.find("kvs");
  if (found == answer.end() || !found->is_array() || found->empty()) return "";
  std::string value;
  return absl::Base64Unescape(TextOf(found->front(), "value"), &value) ? value : "?";
}

bool IsTrue(const Json& object, const char* field) {
  const auto it = object.find(field);
  return it != object.end() && it->is_boolean() && it->get<bool>();
}

// Calls `ask` until it is done, or fails otherwise than because etcd does not answer.
absl::Status Repeat(absl::Duration timeout, const std::string& what,
                    const std::function<absl::StatusOr<bool>()>& ask) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    const absl::StatusOr<bool> is_done = ask();
    if (is_done.ok() && *is_done) return absl::OkStatus();
    if (!is_done.ok() && !absl::IsUnavailable(is_done.status())) return is_done.status();
    if (absl::Now() + kEtcdPause > deadline) {
      return is_done.ok() ? absl::DeadlineExceededError(
                                StrCat(what, ": not in ", absl::FormatDuration(timeout)))
                          : is_done.status();
    }
    absl::SleepFor(kEtcdPause);
  }
}

// The endpoints of "https://A,B" or "https://A,https://B"; none where the text is wrong.
std::vector<std::string> EndpointsOf(std::string_view text) {
  std::string_view scheme;
  for (const std::string_view known : {"http://", "https://"}) {
    if (text.substr(0, known.size()) == known) scheme = known;
  }
  if (scheme.empty()) return {};
  std::vector<std::string> endpoints;
  for (const absl::string_view part : absl::StrSplit(ToAbsl(text), ',')) {
    std::string_view host = ToStd(part);
    if (host.substr(0, scheme.size()) == scheme) host.remove_prefix(scheme.size());
    // Of another scheme, with a path, or a password, which would be for all to see.
    if (host.empty() || host.find_first_of("/@") != std::string_view::npos) return {};
    endpoints.push_back(StrCat(scheme, host));
  }
  return endpoints;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EtcdBoard>> EtcdBoard::Create(const std::string& url,
                                                             EtcdAccess access, Note note) {
  const size_t slash = url.rfind('/');
  std::string job = slash == std::string::npos ? "" : url.substr(slash + 1);
  const bool is_name = !job.empty() && job.size() <= kMaxNameBytes &&
                       std::all_of(job.begin(), job.end(), [](unsigned char c) {
                         return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
                       });
  std::vector<std::string> endpoints;
  if (slash != std::string::npos) endpoints = EndpointsOf(std::string_view(url).substr(0, slash));
  if (endpoints.empty()) {
    return absl::InvalidArgumentError(
        StrCat("--rendezvous '", url,
               "': expected http://HOST:PORT/NAME or https://HOST:PORT,HOST:PORT/NAME, client "
               "addresses of etcd and the name of the job (a user and password go into "
               "ETCDCTL_USER)"));
  }
  if (!is_name) {
    return absl::InvalidArgumentError(
        StrCat("--rendezvous '", url, "': the job's name '", job,
               "' is wrong: expected letters, digits, '-', '_' and '.'"));
  }
  return std::unique_ptr<EtcdBoard>(
      new EtcdBoard(std::move(endpoints), std::move(access), std::move(job), std::move(note)));
}

EtcdBoard::~EtcdBoard() {
  client_.Interrupt();  // the keeper has the lock while it calls
  {
    const absl::MutexLock lock(&mutex_);
    is_ending_ = true;
  }
  if (keeper_.joinable()) keeper_.join();
  client_.Resume();
  const absl::MutexLock lock(&mutex_);
  // Where etcd does not answer now, the lease runs out by itself.
  if (!lease_.empty()) {
    (void)client_.Call("/v3/lease/revoke", {{"ID", lease_}}, kEndTimeout).status();
  }
}

std::string EtcdBoard::KeyOf(const std::string& entry) const {
  return Base64(StrCat("penstock/", job_, "/", entry));
}

absl::StatusOr<std::string> EtcdBoard::NewLease() {
  ASSIGN_OR_RETURN(
      const Json answer,
      client_.Call("/v3/lease/grant", {{"TTL", absl::ToInt64Seconds(kNameLease)}}, kCallTimeout));
  std::string lease = TextOf(answer, "ID");
  if (!lease.empty()) return lease;
  return absl::FailedPreconditionError(StrCat(name(), ": it grants no lease"));
}

absl::StatusOr<std::string> EtcdBoard::Enter(const std::vector<Entry>& entries,
                                             const std::string& lease) {
  const std::string first = KeyOf(entries.front().first);
  Json puts = Json::array();
  for (const auto& [entry, value] : entries) {
    puts.push_back(
        {{"request_put", {{"key", KeyOf(entry)}, {"value", Base64(value)}, {"lease", lease}}}});
  }
  const Json is_new = {
      {"key", first}, {"target", "CREATE"}, {"result", "EQUAL"}, {"create_revision", "0"}};
  const Json is_own = {
      {"key", first}, {"target", "VALUE"}, {"result", "EQUAL"}, {"value", Base64(claim_)}};
  std::string holder;
  for (const Json& condition : {is_new, is_own}) {
    ASSIGN_OR_RETURN(
        const Json answer,
        client_.Call("/v3/kv/txn",
                     {{"compare", Json::array({condition})},
                      {"success", puts},
                      {"failure", Json::array({{{"request_range", {{"key", first}}}}})}},
                     kCallTimeout));
    if (IsTrue(answer, "succeeded")) return std::string();
    const auto responses = answer.find("responses");
    const bool has_one = responses != answer.end() && responses->is_array() &&
                         !responses->empty() && responses->front().contains("response_range");
    holder = has_one ? ValueOf(responses->front()["response_range"]) : "";
    if (holder != claim_) break;
  }
  return holder.empty() ? "?" : holder;
}

absl::StatusOr<std::string> EtcdBoard::Find(const std::string& entry) {
  ASSIGN_OR_RETURN(const Json answer,
                   client_.Call("/v3/kv/range", {{"key", KeyOf(entry)}}, kCallTimeout));
  return ValueOf(answer);
}

std::string EtcdBoard::DescribeHolder(int64_t size, const std::string& holder) {
  const std::string address = Find(kEtcdAddress).value_or("");
  int64_t other_size = 0;
  const bool has_size = absl::SimpleAtoi(holder.substr(0, holder.find(' ')), &other_size);
  return StrCat("the name '", job_, "' is taken in ", name(), ": ",
                has_size && other_size != size
                    ? StrCat("a job of ", Counted(other_size, "process", "es"), ", not ", size, ",")
                    : std::string("another job of that name"),
                " runs", address.empty() ? "" : StrCat(", whose rank 0 is at ", address));
}

absl::StatusOr<int64_t> EtcdBoard::TakeRank(int64_t rank, int64_t size, absl::Duration timeout) {
  ASSIGN_OR_RETURN(const std::string word, actors::NewJobKey());
  claim_ = StrCat(size, " ", word.substr(0, 16));
  const int64_t begin = std::max(rank, int64_t{0});
  const int64_t end = rank < 0 ? size : rank + 1;
  int64_t taken = -1;
  std::string holder;
  absl::Time taken_since = absl::InfiniteFuture();  // by others
  absl::Status status = Repeat(
      timeout, StrCat("taking a rank of ", job_, " from ", name(), ", of ", size),
      [&]() -> absl::StatusOr<bool> {
        const absl::MutexLock lock(&mutex_);
        if (lease_.empty()) {
          ASSIGN_OR_RETURN(lease_, NewLease());
        }
        for (int64_t i = begin; i < end; ++i) {
          const std::vector<Entry> entries = {{StrCat("rank/", i), claim_}};
          ASSIGN_OR_RETURN(holder, Enter(entries, lease_));
          if (holder.empty()) {
            entries_ = entries;
            taken = i;
            return true;
          }
          // Of a job of another size, no rank is free.
          if (holder.rfind(StrCat(size, " "), 0) != 0) break;
        }
        if (taken_since == absl::InfiniteFuture()) {
          taken_since = absl::Now();
          note_(StrCat("note: ", DescribeHolder(size, holder), "; waiting for its end, up to ",
                       absl::FormatDuration(std::min(timeout, kPatience))));
        }
        RETURN_IF_ERROR(Renew());
        if (absl::Now() - taken_since < kPatience) return false;
        return absl::AlreadyExistsError("");
      });
  const bool is_taken = taken_since != absl::InfiniteFuture();
  if (is_taken && (absl::IsAlreadyExists(status) || absl::IsDeadlineExceeded(status))) {
    status = absl::AlreadyExistsError(
        StrCat(DescribeHolder(size, holder),
               absl::IsAlreadyExists(status)
                   ? ""
                   : StrCat(" or was killed less than ", absl::FormatDuration(kNameLease), " ago"),
               ". Wait for its end, or take another name in --rendezvous"));
  }
  RETURN_IF_ERROR(status);
  StartKeeper();
  return taken;
}

absl::Status EtcdBoard::Post(const MemberNotice& notice, absl::Duration timeout) {
  return Repeat(timeout, StrCat("telling ", name(), " the address of rank 0"),
                [&]() -> absl::StatusOr<bool> {
                  const absl::MutexLock lock(&mutex_);
                  RETURN_IF_ERROR(Renew());
                  std::vector<Entry> entries = {entries_.front(), {kEtcdAddress, notice.address}};
                  ASSIGN_OR_RETURN(const std::string holder, Enter(entries, lease_));
                  if (!holder.empty()) return NameIsLost();
                  entries_ = std::move(entries);
                  return true;
                });
}

absl::StatusOr<MemberNotice> EtcdBoard::Await(absl::Duration timeout) {
  MemberNotice notice;
  RETURN_IF_ERROR(Repeat(timeout, StrCat("waiting for ", name(), " to tell the address of rank 0"),
                         [&]() -> absl::StatusOr<bool> {
                           ASSIGN_OR_RETURN(notice.address, Find(kEtcdAddress));
                           return !notice.address.empty();
                         }));
  return notice;
}

void EtcdBoard::StartKeeper() {
  // It would take the signals that are for this process.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  keeper_ = std::thread([this] { Keep(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void EtcdBoard::Keep() {
  absl::Duration pause = kKeepPause;
  const absl::MutexLock lock(&mutex_);
  while (!mutex_.AwaitWithTimeout(absl::Condition(&is_ending_), pause)) {
    const absl::Status status = Renew();
    if (absl::IsAlreadyExists(status)) {
      note_(StrCat("note: ", ToStd(status.message()), "; this job goes on"));
      return;
    }
    pause = status.ok() ? kKeepPause : kRetryPause;
  }
}

absl::Status EtcdBoard::Renew() {
  ASSIGN_OR_RETURN(const Json answer,
                   client_.Call("/v3/lease/keepalive", {{"ID", lease_}}, kKeepTimeout));
  const auto result = answer.find("result");
  int64_t left_s = 0;
  if (result != answer.end() && absl::SimpleAtoi(TextOf(*result, "TTL"), &left_s) && left_s > 0) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(std::string lease, NewLease());
  if (!entries_.empty()) {
    ASSIGN_OR_RETURN(const std::string holder, Enter(entries_, lease));
    if (!holder.empty()) return NameIsLost();
  }
  // Not before: a lease without the entries would be kept alive from now on.
  lease_ = std::move(lease);
  return absl::OkStatus();
}

absl::Status EtcdBoard::NameIsLost() const {
  return absl::AlreadyExistsError(StrCat("another job has taken the name '", job_, "' in ", name(),
                                         ", which this process has not reached for longer than ",
                                         absl::FormatDuration(kNameLease)));
}

}  // namespace penstock::cli
