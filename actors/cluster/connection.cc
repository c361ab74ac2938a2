#include <cstring>
#include <string>
#include <utility>

#include <capnp/message.h>
#include <capnp/rpc.capnp.h>
#include <capnp/serialize-async.h>

#include "actors/cluster/connection_internal.h"
#include "actors/cluster/job_key.h"
#include "base/strings.h"

namespace penstock::actors::control {
namespace {

constexpr std::string_view kMagic = "PENSTCK4";
constexpr size_t kHalfKeyBytes = kJobKeyBytes / 2;
// Capabilities in a message, and steps of the path to one in an answer: ours have at most one.
constexpr unsigned kMaxCapabilities = 8;
// For what is unsent to a peer that sends nothing more.
constexpr kj::Duration kCloseGrace = 500 * kj::MILLISECONDS;

capnp::ReaderOptions Limits(uint64_t num_words) {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = num_words;
  options.nestingLimit = 16;
  return options;
}

// In a time that does not tell how much of it was right.
bool IsSame(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

[[noreturn]] void Refuse(std::string_view what) {
  const std::string text = StrCat("the peer sent ", what);
  kj::throwFatalException(
      kj::Exception(kj::Exception::Type::FAILED, __FILE__, __LINE__, kj::heapString(text.c_str())));
}

void CheckPayload(capnp::rpc::Payload::Reader payload) {
  const auto capabilities = payload.getCapTable();
  if (capabilities.size() > kMaxCapabilities) Refuse("too many capabilities");
  for (const auto capability : capabilities) {
    if (capability.isReceiverAnswer() &&
        capability.getReceiverAnswer().getTransform().size() > kMaxCapabilities) {
      Refuse("a path that is too long");
    }
  }
}

void CheckTarget(capnp::rpc::MessageTarget::Reader target) {
  if (target.isPromisedAnswer() &&
      target.getPromisedAnswer().getTransform().size() > kMaxCapabilities) {
    Refuse("a path that is too long");
  }
}

capnp::RpcSystem<capnp::rpc::twoparty::VatId> MakeSystem(
    capnp::TwoPartyVatNetwork& network, kj::Maybe<capnp::Capability::Client> bootstrap) {
  KJ_IF_MAYBE (client, bootstrap) return capnp::makeRpcServer(network, kj::mv(*client));
  return capnp::makeRpcClient(network);
}

}  // namespace

// The messages of a stream, checked as they come in.
class BoundedMessages final : public capnp::MessageStream {
 public:
  BoundedMessages(kj::AsyncIoStream& stream, bool has_bootstrap)
      : messages_(stream), has_bootstrap_(has_bootstrap) {
    auto pair = kj::newPromiseAndFulfiller<void>();
    ended_ = pair.promise.fork();
    end_ = kj::mv(pair.fulfiller);
  }

  void SetNetwork(capnp::TwoPartyVatNetwork* network) { network_ = network; }
  void Trust() { is_trusted_ = true; }
  // Nothing more is read.
  kj::Promise<void> OnEnd() { return ended_.addBranch(); }

  kj::Promise<kj::Maybe<capnp::MessageReaderAndFds>> tryReadMessage(
      kj::ArrayPtr<kj::AutoCloseFd> fds, capnp::ReaderOptions,
      kj::ArrayPtr<capnp::word> scratch) override {
    return messages_
        .tryReadMessage(fds, Limits(is_trusted_ ? kMaxMessageWords : kMaxUnauthenticatedWords),
                        scratch)
        .then(
            [this](kj::Maybe<capnp::MessageReaderAndFds>&& read) {
              KJ_IF_MAYBE (message, read) {
                KJ_IF_MAYBE (exception, kj::runCatchingExceptions([this, message] {
                               Check(message->reader->getRoot<capnp::rpc::Message>());
                             })) {
                  end_->fulfill();
                  kj::throwFatalException(kj::mv(*exception));
                }
              } else {
                end_->fulfill();
              }
              return kj::mv(read);
            },
            [this](kj::Exception&& exception) -> kj::Maybe<capnp::MessageReaderAndFds> {
              end_->fulfill();
              kj::throwFatalException(kj::mv(exception));
            });
  }

  kj::Promise<void> writeMessage(
      kj::ArrayPtr<const int> fds,
      kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> segments) override {
    return messages_.writeMessage(fds, segments);
  }
  kj::Promise<void> writeMessages(
      kj::ArrayPtr<kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>>> messages) override {
    return messages_.writeMessages(messages);
  }
  kj::Maybe<int> getSendBufferSize() override { return messages_.getSendBufferSize(); }
  kj::Promise<void> end() override { return messages_.end(); }

 private:
  void Check(capnp::rpc::Message::Reader message) {
    const size_t max_open = is_trusted_ ? kMaxOpenMessages : kMaxUnauthenticatedOpenMessages;
    if (network_->getCurrentQueueCount() > max_open ||
        network_->getCurrentQueueSize() > kMaxUnreadBytes) {
      Refuse("questions and read no answers");
    }
    switch (message.which()) {
      case capnp::rpc::Message::CALL: {
        const auto call = message.getCall();
        if (!call.getSendResultsTo().isCaller()) Refuse("a call whose results go elsewhere");
        CheckTarget(call.getTarget());
        CheckPayload(call.getParams());
        ++num_open_;
        break;
      }
      case capnp::rpc::Message::BOOTSTRAP:
        // Cap'n Proto 0.9 crashes where there is nothing to give.
        if (!has_bootstrap_) Refuse("a question for an interface to a side that has none");
        ++num_open_;
        break;
      case capnp::rpc::Message::FINISH:
        if (num_open_ == 0) Refuse("an end of a question that it has not asked");
        --num_open_;
        break;
      case capnp::rpc::Message::RETURN: {
        const auto answer = message.getReturn();
        if (answer.isResults()) {
          CheckPayload(answer.getResults());
        } else if (!answer.isException() && !answer.isCanceled()) {
          Refuse("an answer that is elsewhere");
        }
        break;
      }
      case capnp::rpc::Message::DISEMBARGO:
        CheckTarget(message.getDisembargo().getTarget());
        break;
      case capnp::rpc::Message::UNIMPLEMENTED:
      case capnp::rpc::Message::ABORT:
      case capnp::rpc::Message::RELEASE:
        break;
      case capnp::rpc::Message::RESOLVE: {
        const auto resolve = message.getResolve();
        if (!resolve.isCap() && !resolve.isException()) Refuse("a promise kept in an unknown way");
        break;
      }
      default:
        Refuse("a message that this protocol does not have");
    }
    if (num_open_ > max_open) Refuse("too many questions");
  }

  capnp::AsyncIoMessageStream messages_;
  const bool has_bootstrap_;
  capnp::TwoPartyVatNetwork* network_ = nullptr;
  bool is_trusted_ = false;
  size_t num_open_ = 0;  // asked by the peer and not finished
  kj::Own<kj::PromiseFulfiller<void>> end_;
  kj::ForkedPromise<void> ended_ = nullptr;
};

StatusPromise SayHello(kj::AsyncIoStream& stream, std::string_view key) {
  KJ_REQUIRE(key.size() == kJobKeyBytes);
  auto hello = kj::heapArray<char>(kMagic.size() + kHalfKeyBytes);
  memcpy(hello.begin(), kMagic.data(), kMagic.size());
  memcpy(hello.begin() + kMagic.size(), key.data(), kHalfKeyBytes);
  auto answer = kj::heapArray<char>(hello.size());
  char* const answer_bytes = answer.begin();
  const auto written = hello.asPtr();
  return stream.write(written.begin(), written.size())
      .attach(kj::mv(hello))
      .then(
          [&stream, answer_bytes, size = answer.size()] { return stream.read(answer_bytes, size); })
      .then([answer = kj::mv(answer), key = std::string(key)]() -> absl::Status {
        const std::string_view text(answer.begin(), answer.size());
        if (text.substr(0, kMagic.size()) != kMagic ||
            !IsSame(text.substr(kMagic.size()), std::string_view(key).substr(kHalfKeyBytes))) {
          return absl::PermissionDeniedError(
              "the server at this address is not the coordinator of this job: it did not answer "
              "with the job's key");
        }
        return absl::OkStatus();
      });
}

kj::Promise<bool> ReceiveHello(kj::AsyncIoStream& stream, std::string_view key) {
  KJ_REQUIRE(key.size() == kJobKeyBytes);
  auto hello = kj::heapArray<char>(kMagic.size() + kHalfKeyBytes);
  char* const bytes = hello.begin();
  return stream.read(bytes, hello.size())
      .then([&stream, key = std::string(key),
             hello = kj::mv(hello)]() mutable -> kj::Promise<bool> {
        const std::string_view text(hello.begin(), hello.size());
        if (text.substr(0, kMagic.size()) != kMagic ||
            !IsSame(text.substr(kMagic.size()), std::string_view(key).substr(0, kHalfKeyBytes))) {
          return false;
        }
        memcpy(hello.begin() + kMagic.size(), key.data() + kHalfKeyBytes, kHalfKeyBytes);
        const auto answer = hello.asPtr();
        return stream.write(answer.begin(), answer.size()).attach(kj::mv(hello)).then([] {
          return true;
        });
      });
}

RpcConnection::RpcConnection(kj::Own<kj::AsyncIoStream> stream, capnp::rpc::twoparty::Side side,
                             kj::Maybe<capnp::Capability::Client> bootstrap, kj::Timer& timer)
    : stream_(kj::mv(stream)),
      messages_(kj::heap<BoundedMessages>(*stream_, bootstrap != nullptr)),
      network_(*messages_, side, Limits(kMaxMessageWords)),
      system_(MakeSystem(network_, kj::mv(bootstrap))),
      peer_side_(side == capnp::rpc::twoparty::Side::SERVER ? capnp::rpc::twoparty::Side::CLIENT
                                                            : capnp::rpc::twoparty::Side::SERVER),
      timer_(timer) {
  messages_->SetNetwork(&network_);
  system_.setFlowLimit(kFlowLimitWords);
  if (side == capnp::rpc::twoparty::Side::CLIENT) Trust();
}

RpcConnection::~RpcConnection() = default;

void RpcConnection::Trust() { messages_->Trust(); }

capnp::Capability::Client RpcConnection::Bootstrap() {
  capnp::MallocMessageBuilder message(8);
  auto id = message.initRoot<capnp::rpc::twoparty::VatId>();
  id.setSide(peer_side_);
  return system_.bootstrap(id);
}

kj::Promise<void> RpcConnection::OnDisconnect() {
  return network_.onDisconnect().exclusiveJoin(
      messages_->OnEnd().then([this] { return timer_.afterDelay(kCloseGrace); }));
}

}  // namespace penstock::actors::control
