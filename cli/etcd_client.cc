#include "cli/etcd_client.h"

#include <errno.h>
#include <httplib.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "cli/json.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxAnswerBytes = size_t{1} << 20;
constexpr int kNotAuthenticated = 401;  // without a token, or with one that has run out

// What an answer other than 200 means for the caller. Servers without a leader, such as those of a
// cluster that is choosing one, say 503 or 504.
absl::StatusCode CodeOf(int http_status) {
  if (http_status == kNotAuthenticated) return absl::StatusCode::kUnauthenticated;
  const bool is_passing = http_status == 429 || http_status == 503 || http_status == 504;
  return is_passing ? absl::StatusCode::kUnavailable : absl::StatusCode::kFailedPrecondition;
}

// The library has one word for most of them.
absl::Status ToStatus(const std::string& endpoint, httplib::Error error, absl::Duration timeout) {
  const auto unavailable = [&](const std::string& what) {
    return absl::UnavailableError(StrCat("etcd at ", endpoint, ": ", what));
  };
  switch (error) {
    case httplib::Error::Connection:
    case httplib::Error::ConnectionTimeout:
      return unavailable(
          "nothing answers there; is etcd running, and does it listen for clients at this "
          "address?");
    case httplib::Error::Read:
    case httplib::Error::Write:
    case httplib::Error::SSLConnection:
      return unavailable(StrCat("no answer within ", absl::FormatDuration(timeout),
                                ", or the connection was closed, as etcd does where it asks for "
                                "https or for a certificate (ETCDCTL_CERT)"));
    case httplib::Error::SSLLoadingCerts:
      return absl::InvalidArgumentError(
          StrCat("etcd at ", endpoint, ": the certificates of authorities cannot be read"));
    case httplib::Error::SSLServerVerification:
      return absl::FailedPreconditionError(
          StrCat("etcd at ", endpoint,
                 ": its certificate is not for this host, or not of an authority that is trusted; "
                 "ETCDCTL_CACERT names the file of another one"));
    default:
      return unavailable(StrCat("the request has failed (", httplib::to_string(error), ")"));
  }
}

// Has a connection that the server closes fail a call, where writing to it would end the process.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~WithoutSigpipe() {
    const timespec no_time = {};
    while (sigtimedwait(&signal_, nullptr, &no_time) < 0 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t signal_;
  sigset_t before_;
};

absl::Status CheckFile(const char* variable, const std::string& path) {
  if (path.empty() || access(path.c_str(), R_OK) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(variable, " = '", path, "': the file cannot be read"));
}

}  // namespace

absl::StatusOr<EtcdAccess> EtcdAccessOf(const Variables& variables) {
  EtcdAccess access;
  access.ca_file = variables("ETCDCTL_CACERT");
  access.cert_file = variables("ETCDCTL_CERT");
  access.key_file = variables("ETCDCTL_KEY");
  RETURN_IF_ERROR(CheckFile("ETCDCTL_CACERT", access.ca_file));
  RETURN_IF_ERROR(CheckFile("ETCDCTL_CERT", access.cert_file));
  RETURN_IF_ERROR(CheckFile("ETCDCTL_KEY", access.key_file));
  if (access.cert_file.empty() != access.key_file.empty()) {
    return absl::InvalidArgumentError(
        "ETCDCTL_CERT and ETCDCTL_KEY go together: a certificate and its key");
  }
  access.user = variables("ETCDCTL_USER");
  access.password = variables("ETCDCTL_PASSWORD");
  if (const size_t colon = access.user.find(':');
      colon != std::string::npos && access.password.empty()) {
    access.password = access.user.substr(colon + 1);
    access.user.resize(colon);
  }
  if (!access.user.empty() && access.password.empty()) {
    return absl::InvalidArgumentError(
        "ETCDCTL_USER: the password is missing; expected NAME:PASSWORD, or ETCDCTL_PASSWORD");
  }
  return access;
}

std::string EtcdClient::name() const { return StrCat("etcd at ", StrJoin(endpoints_, ", ")); }

absl::StatusOr<Json> EtcdClient::Call(const std::string& path, const Json& body,
                                      absl::Duration timeout) {
  size_t first = 0;
  {
    const absl::MutexLock lock(&mutex_);
    first = current_;
  }
  absl::Status failure;
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    const size_t index = (first + i) % endpoints_.size();
    absl::StatusOr<Json> answer = CallAt(endpoints_[index], path, body, timeout);
    if (!absl::IsUnavailable(answer.status())) {
      const absl::MutexLock lock(&mutex_);
      current_ = index;
      return answer;
    }
    failure = failure.ok() ? answer.status()
                           : absl::UnavailableError(StrCat(ToStd(failure.message()), "; ",
                                                           ToStd(answer.status().message())));
  }
  return failure;
}

void EtcdClient::Interrupt() {
  const absl::MutexLock lock(&mutex_);
  is_interrupted_ = true;
  for (httplib::Client* const call : calls_) call->stop();
}

void EtcdClient::Resume() {
  const absl::MutexLock lock(&mutex_);
  is_interrupted_ = false;
}

absl::StatusOr<Json> EtcdClient::CallAt(const std::string& endpoint, const std::string& path,
                                        const Json& body, absl::Duration timeout) {
  ASSIGN_OR_RETURN(const std::string token, Token(endpoint, timeout));
  absl::StatusOr<Json> answer = Post(endpoint, path, body, token, timeout);
  if (token.empty() || !absl::IsUnauthenticated(answer.status())) return answer;
  {
    const absl::MutexLock lock(&mutex_);
    token_.clear();
  }
  ASSIGN_OR_RETURN(const std::string new_token, Token(endpoint, timeout));
  return Post(endpoint, path, body, new_token, timeout);
}

absl::StatusOr<std::string> EtcdClient::Token(const std::string& endpoint, absl::Duration timeout) {
  if (access_.user.empty()) return std::string();
  {
    const absl::MutexLock lock(&mutex_);
    if (!token_.empty()) return token_;
  }
  ASSIGN_OR_RETURN(const Json answer,
                   Post(endpoint, "/v3/auth/authenticate",
                        {{"name", access_.user}, {"password", access_.password}}, "", timeout));
  const auto token = answer.find("token");
  if (token == answer.end() || !token->is_string()) {
    return absl::FailedPreconditionError(StrCat("etcd at ", endpoint, ": it has sent no token"));
  }
  const absl::MutexLock lock(&mutex_);
  token_ = token->get<std::string>();
  return token_;
}

absl::StatusOr<Json> EtcdClient::Post(const std::string& endpoint, const std::string& path,
                                      const Json& body, const std::string& token,
                                      absl::Duration timeout) {
  const WithoutSigpipe without_sigpipe;
  httplib::Client client(endpoint, access_.cert_file, access_.key_file);
  if (!client.is_valid()) {
    return absl::InvalidArgumentError(StrCat("etcd at ", endpoint, ": the certificate or its key (",
                                             access_.cert_file, ", ", access_.key_file,
                                             ") cannot be used"));
  }
  if (!access_.ca_file.empty()) client.set_ca_cert_path(access_.ca_file);
  const auto seconds = static_cast<time_t>(absl::ToInt64Seconds(timeout));
  const auto rest_us = static_cast<time_t>(
      absl::ToInt64Microseconds(timeout - absl::Seconds(static_cast<int64_t>(seconds))));
  client.set_connection_timeout(seconds, rest_us);
  client.set_read_timeout(seconds, rest_us);
  client.set_write_timeout(seconds, rest_us);
  httplib::Headers headers;
  if (!token.empty()) headers.emplace("Authorization", token);
  {
    const absl::MutexLock lock(&mutex_);
    if (is_interrupted_) {
      return absl::UnavailableError(StrCat("etcd at ", endpoint, ": this process ends"));
    }
    calls_.push_back(&client);
  }
  const httplib::Result result =
      client.Post(path.c_str(), headers, DumpJson(body), "application/json");
  {
    const absl::MutexLock lock(&mutex_);
    calls_.erase(std::find(calls_.begin(), calls_.end(), &client));
  }
  if (!result) return ToStatus(endpoint, result.error(), timeout);
  if (result->status != 200 || result->body.size() > kMaxAnswerBytes) {
    return absl::Status(CodeOf(result->status),
                        StrCat("etcd at ", endpoint, ": status ", result->status, " for ", path,
                               ": ", result->body.substr(0, 200)));
  }
  Json answer = Json::parse(result->body, nullptr, /*allow_exceptions=*/false);
  if (answer.is_object()) return answer;
  return absl::FailedPreconditionError(
      StrCat("etcd at ", endpoint, ": the answer to ", path, " is no JSON object"));
}

}  // namespace penstock::cli
