#include "cli/etcd_board.h"

#include <httplib.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "cli/json.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

using Json = nlohmann::json;

constexpr char kScheme[] = "http://";
constexpr char kAddress[] = "address";
constexpr time_t kCallTimeoutS = 5;
// Between questions.
constexpr absl::Duration kPause = absl::Milliseconds(100);
constexpr size_t kMaxAnswerBytes = size_t{1} << 20;
constexpr size_t kMaxNameBytes = 255;

std::string Base64(const std::string& text) {
  std::string coded;
  absl::Base64Escape(text, &coded);
  return coded;
}

// The library has one word for most of them.
std::string Describe(httplib::Error error) {
  switch (error) {
    case httplib::Error::Connection:
    case httplib::Error::ConnectionTimeout:
      return "nothing answers there; is etcd running, and does it listen for clients at this "
             "address?";
    case httplib::Error::Read:
      return StrCat("no answer within ", kCallTimeoutS, " s, or the connection was closed");
    case httplib::Error::Write:
      return "the connection was closed";
    default:
      return StrCat("the request has failed (", httplib::to_string(error), ")");
  }
}

// The answer of etcd's gateway. kUnavailable where there is none.
absl::StatusOr<Json> Call(const std::string& server, const std::string& path, const Json& body) {
  httplib::Client client(server);
  client.set_connection_timeout(kCallTimeoutS);
  client.set_read_timeout(kCallTimeoutS);
  client.set_write_timeout(kCallTimeoutS);
  const httplib::Result result = client.Post(path.c_str(), DumpJson(body), "application/json");
  if (!result) {
    return absl::UnavailableError(StrCat("etcd at ", server, ": ", Describe(result.error())));
  }
  if (result->status != 200 || result->body.size() > kMaxAnswerBytes) {
    return absl::FailedPreconditionError(StrCat("etcd at ", server, ": status ", result->status,
                                                " for ", path, ": ", result->body.substr(0, 200)));
  }
  Json answer = Json::parse(result->body, nullptr, /*allow_exceptions=*/false);
  if (answer.is_object()) return answer;
  return absl::FailedPreconditionError(
      StrCat("etcd at ", server, ": the answer to ", path, " is no JSON object"));
}

// The text of a field, if the object has it.
std::string TextOf(const Json& object, const char* field) {
  const auto it = object.find(field);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

// Calls `ask` until it is done, or fails otherwise than because etcd does not answer.
absl::Status Repeat(absl::Duration timeout, const std::string& what,
                    const std::function<absl::StatusOr<bool>()>& ask) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    const absl::StatusOr<bool> is_done = ask();
    if (is_done.ok() && *is_done) return absl::OkStatus();
    if (!is_done.ok() && !absl::IsUnavailable(is_done.status())) return is_done.status();
    if (absl::Now() + kPause > deadline) {
      return is_done.ok() ? absl::DeadlineExceededError(
                                StrCat(what, ": not in ", absl::FormatDuration(timeout)))
                          : is_done.status();
    }
    absl::SleepFor(kPause);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<EtcdBoard>> EtcdBoard::Create(const std::string& url,
                                                             absl::Duration lease) {
  const size_t scheme = sizeof(kScheme) - 1;
  const size_t slash = url.find('/', scheme);
  if (url.compare(0, scheme, kScheme) != 0 || slash == url.npos || slash == scheme) {
    return absl::InvalidArgumentError(
        StrCat("'", url,
               "': expected http://HOST:PORT/NAME, etcd's client address and the name of "
               "the job"));
  }
  std::string job = url.substr(slash + 1);
  const bool is_name = !job.empty() && job.size() <= kMaxNameBytes &&
                       std::all_of(job.begin(), job.end(), [](unsigned char c) {
                         return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
                       });
  if (!is_name) {
    return absl::InvalidArgumentError(StrCat(
        "'", url, "': the name of a job has letters, digits, '-', '_' and '.', not '", job, "'"));
  }
  return std::unique_ptr<EtcdBoard>(new EtcdBoard(url.substr(0, slash), std::move(job), lease));
}

EtcdBoard::~EtcdBoard() {
  if (!lease_id_.empty()) (void)Call(server_, "/v3/lease/revoke", {{"ID", lease_id_}});
}

std::string EtcdBoard::name() const { return StrCat("etcd at ", server_); }

std::string EtcdBoard::KeyOf(const std::string& entry) const {
  return Base64(StrCat("penstock/", job_, "/", entry));
}

absl::StatusOr<std::string> EtcdBoard::GetLease() {
  if (!lease_id_.empty()) return lease_id_;
  ASSIGN_OR_RETURN(const Json answer,
                   Call(server_, "/v3/lease/grant",
                        {{"TTL", std::max<int64_t>(absl::ToInt64Seconds(lease_), 1)}}));
  lease_id_ = TextOf(answer, "ID");
  if (!lease_id_.empty()) return lease_id_;
  return absl::FailedPreconditionError(StrCat("etcd at ", server_, ": it grants no lease"));
}

absl::StatusOr<bool> EtcdBoard::Insert(const std::string& entry, const std::string& value) {
  ASSIGN_OR_RETURN(const std::string lease, GetLease());
  const std::string key = KeyOf(entry);
  const Json is_new = {
      {"key", key}, {"target", "CREATE"}, {"result", "EQUAL"}, {"create_revision", "0"}};
  const Json put = {{"request_put", {{"key", key}, {"value", Base64(value)}, {"lease", lease}}}};
  ASSIGN_OR_RETURN(const Json answer,
                   Call(server_, "/v3/kv/txn",
                        {{"compare", Json::array({is_new})}, {"success", Json::array({put})}}));
  const auto succeeded = answer.find("succeeded");
  return succeeded != answer.end() && succeeded->is_boolean() && succeeded->get<bool>();
}

absl::StatusOr<std::string> EtcdBoard::Find(const std::string& entry) const {
  ASSIGN_OR_RETURN(const Json answer, Call(server_, "/v3/kv/range", {{"key", KeyOf(entry)}}));
  const auto found = answer.find("kvs");
  if (found == answer.end() || !found->is_array() || found->empty()) return std::string();
  std::string value;
  if (absl::Base64Unescape(TextOf(found->front(), "value"), &value)) return value;
  return absl::FailedPreconditionError(StrCat("etcd at ", server_, ": ", entry, " is no text"));
}

absl::Status EtcdBoard::Post(const MemberNotice& notice) {
  return Repeat(
      lease_, StrCat("telling ", name(), " the address of rank 0"), [&]() -> absl::StatusOr<bool> {
        ASSIGN_OR_RETURN(const std::string lease, GetLease());
        const Json entry = {
            {"key", KeyOf(kAddress)}, {"value", Base64(notice.address)}, {"lease", lease}};
        RETURN_IF_ERROR(Call(server_, "/v3/kv/put", entry).status());
        return true;
      });
}

absl::StatusOr<MemberNotice> EtcdBoard::Await(absl::Duration timeout) {
  MemberNotice notice;
  RETURN_IF_ERROR(Repeat(timeout, StrCat("waiting for ", name(), " to tell the address of rank 0"),
                         [&]() -> absl::StatusOr<bool> {
                           ASSIGN_OR_RETURN(notice.address, Find(kAddress));
                           return !notice.address.empty();
                         }));
  return notice;
}

absl::StatusOr<int64_t> EtcdBoard::TakeRank(int64_t size, absl::Duration timeout) {
  int64_t rank = 0;
  RETURN_IF_ERROR(
      Repeat(timeout, StrCat("taking a rank of ", job_, " from ", name(), ", of ", size),
             [&]() -> absl::StatusOr<bool> {
               for (rank = 0; rank < size; ++rank) {
                 ASSIGN_OR_RETURN(const bool is_taken, Insert(StrCat("rank/", rank), "taken"));
                 if (is_taken) return true;
               }
               return false;
             }));
  return rank;
}

}  // namespace penstock::cli
