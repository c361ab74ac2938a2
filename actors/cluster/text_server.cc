#include "actors/cluster/text_server.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include <kj/compat/http.h>
#include <kj/debug.h>

#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/questions_internal.h"
#include "actors/cluster/socket_address.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using control::ControlLoop;
using control::Questions;

constexpr kj::Duration kTextAcceptPause = 100 * kj::MILLISECONDS;
constexpr absl::Duration kStartTimeout = absl::Seconds(5);
constexpr kj::Duration kHeaderTimeout = 5 * kj::SECONDS;

class TextService final : public kj::HttpService {
 public:
  TextService(const TextServerOptions& options, kj::HttpHeaderTable& table, kj::HttpHeaderId origin,
              Questions<std::string>& questions)
      : options_(options), table_(table), origin_(origin), questions_(questions) {}

  kj::Promise<void> request(kj::HttpMethod method, kj::StringPtr url,
                            const kj::HttpHeaders& headers, kj::AsyncInputStream&,
                            Response& response) override {
    const std::string_view host = Header(headers, kj::HttpHeaderId::HOST);
    if (!IsHostRight(host)) {
      return SendError(response, 403, "Forbidden",
                       "the Host header has to name the address that this server listens on\n");
    }
    const std::string_view origin = Header(headers, origin_);
    if (!origin.empty() && !absl::EqualsIgnoreCase(ToAbsl(origin), StrCat("http://", host))) {
      return SendError(response, 403, "Forbidden", "pages of other servers may not read this\n");
    }
    const std::string_view target(url.begin(), url.size());
    if (target.substr(0, target.find('?')) != options_.path) {
      return SendError(response, 404, "Not Found", StrCat("there is only ", options_.path, "\n"));
    }
    if (method != kj::HttpMethod::GET && method != kj::HttpMethod::HEAD) {
      return SendError(response, 405, "Method Not Allowed", "only GET and HEAD are served\n");
    }
    return questions_.Ask().then(
        [this, &response](Questions<std::string>::Answer&& text) -> kj::Promise<void> {
          if (!text->ok()) {
            return SendError(response, 503, "Service Unavailable",
                             StrCat(ToStd(text->status().message()), "\n"));
          }
          return Send(response, 200, "OK", **text, options_.content_type);
        });
  }

 private:
  // Empty: there is none.
  static std::string_view Header(const kj::HttpHeaders& headers, kj::HttpHeaderId id) {
    KJ_IF_MAYBE (value, headers.get(id)) return {value->begin(), value->size()};
    return {};
  }

  bool IsHostRight(std::string_view header) const {
    const std::string host = SplitAddress(header).host;
    if (IsLoopback(host)) return true;
    if (IsLoopback(options_.host)) return false;
    return IsIpAddress(host) || absl::EqualsIgnoreCase(host, HostName()) ||
           absl::EqualsIgnoreCase(host, options_.host);
  }

  kj::Promise<void> SendError(Response& response, kj::uint code, kj::StringPtr reason,
                              std::string text) const {
    return Send(response, code, reason, std::move(text), "text/plain; charset=utf-8");
  }

  kj::Promise<void> Send(Response& response, kj::uint code, kj::StringPtr reason, std::string text,
                         const std::string& content_type) const {
    kj::HttpHeaders headers(table_);
    headers.set(kj::HttpHeaderId::CONTENT_TYPE, content_type.c_str());
    auto bytes = kj::heap<std::string>(std::move(text));
    auto stream = response.send(code, reason, headers, bytes->size());
    auto written = stream->write(bytes->data(), bytes->size());
    return written.attach(kj::mv(stream), kj::mv(bytes));
  }

  const TextServerOptions& options_;
  kj::HttpHeaderTable& table_;
  const kj::HttpHeaderId origin_;
  Questions<std::string>& questions_;
};

}  // namespace

class TextServer::Impl final : public kj::TaskSet::ErrorHandler {
 public:
  Impl(const TextServerOptions& options, Answers<std::string>::Source source)
      : options_(options), answers_(std::make_shared<Answers<std::string>>(std::move(source))) {}

  ~Impl() {
    if (loop_ != nullptr) {
      (void)loop_->Await(
          [this]() -> kj::Promise<void> {
            accepting_ = nullptr;
            receiver_ = nullptr;
            connections_.clear();
            tasks_ = nullptr;
            server_ = nullptr;
            service_ = nullptr;
            questions_ = nullptr;
            table_ = nullptr;
            return kj::READY_NOW;
          },
          kStartTimeout, "the end of the metrics server");
    }
    answers_->Stop();
  }

  absl::Status Start() {
    ASSIGN_OR_RETURN(loop_, ControlLoop::Start());
    return loop_->Await([this] { return Listen(); }, kStartTimeout, "starting the metrics server");
  }

  const std::string& url() const { return url_; }

 private:
  control::StatusPromise Listen() {
    const std::string address = JoinAddress(options_.host, options_.port);
    tasks_ = kj::heap<kj::TaskSet>(*this);
    questions_ = kj::heap<Questions<std::string>>(*loop_, answers_);
    kj::HttpHeaderTable::Builder headers;
    const kj::HttpHeaderId origin = headers.add("Origin");
    table_ = headers.build();
    service_ = kj::heap<TextService>(options_, *table_, origin, *questions_);
    kj::HttpServerSettings settings;
    settings.headerTimeout = kHeaderTimeout;
    server_ = kj::heap<kj::HttpServer>(loop_->timer(), *table_, *service_, settings);
    return loop_->io()
        .provider->getNetwork()
        .parseAddress(address.c_str())
        .then([this](kj::Own<kj::NetworkAddress> parsed) -> absl::Status {
          receiver_ = parsed->listen();
          url_ = StrCat("http://", JoinAddress(options_.host, receiver_->getPort()), options_.path);
          accepting_ = Accept().eagerlyEvaluate(
              [](const kj::Exception& exception) { KJ_LOG(ERROR, "metrics server", exception); });
          return absl::OkStatus();
        })
        .catch_([address](kj::Exception&& exception) -> absl::Status {
          return absl::InvalidArgumentError(
              StrCat("cannot listen at ", address, ": ", control::SystemReason(exception),
                     "; choose an address of this host and a free port (port 0: any)"));
        });
  }

  kj::Promise<void> Accept() {
    return receiver_->accept()
        .then(
            [this](kj::Own<kj::AsyncIoStream> stream) -> kj::Promise<void> {
              Serve(kj::mv(stream));
              return kj::READY_NOW;
            },
            [this](const kj::Exception&) -> kj::Promise<void> {
              return loop_->timer().afterDelay(kTextAcceptPause);
            })
        .then([this] { return Accept(); });
  }

  void Serve(kj::Own<kj::AsyncIoStream> stream) {
    if (connections_.size() >= kMaxTextConnections) connections_.erase(connections_.begin());
    const uint64_t id = ++num_accepted_;
    // Not from inside of what it destroys.
    const auto leave = [this, id] {
      tasks_->add(kj::evalLater([this, id] { connections_.erase(id); }));
    };
    connections_.emplace(id,
                         server_->listenHttp(kj::mv(stream))
                             .exclusiveJoin(loop_->timer().afterDelay(kTextSeconds * kj::SECONDS))
                             .then([leave] { leave(); })
                             .eagerlyEvaluate([leave](const kj::Exception&) { leave(); }));
  }

  void taskFailed(kj::Exception&& exception) override {
    KJ_LOG(ERROR, "metrics server", exception);
  }

  const TextServerOptions options_;
  const std::shared_ptr<Answers<std::string>> answers_;
  std::string url_;
  // The loop's thread's:
  kj::Own<kj::TaskSet> tasks_;
  kj::Own<Questions<std::string>> questions_;
  kj::Own<kj::HttpHeaderTable> table_;
  kj::Own<TextService> service_;
  kj::Own<kj::HttpServer> server_;
  std::map<uint64_t, kj::Promise<void>> connections_;  // by age
  uint64_t num_accepted_ = 0;
  kj::Own<kj::ConnectionReceiver> receiver_;
  kj::Promise<void> accepting_ = nullptr;

  std::unique_ptr<ControlLoop> loop_;  // last: its thread uses all of the above
};

TextServer::TextServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TextServer::~TextServer() = default;
const std::string& TextServer::url() const { return impl_->url(); }

absl::StatusOr<std::unique_ptr<TextServer>> TextServer::Start(const TextServerOptions& options,
                                                              Answers<std::string>::Source source) {
  auto impl = std::make_unique<Impl>(options, std::move(source));
  RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<TextServer>(new TextServer(std::move(impl)));
}

}  // namespace penstock::actors
