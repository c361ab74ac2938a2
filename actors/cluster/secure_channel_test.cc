#include <openssl/ssl.h>

#include <array>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <kj/async.h>
#include <kj/debug.h>

#include "actors/cluster/secure_channel_internal.h"

namespace penstock::actors::control {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kKey(32, 'k');
const std::string kOtherKey(32, 'o');

// Remembers what passes, as someone on the network would.
class Wire final : public kj::AsyncIoStream {
 public:
  Wire(kj::Own<kj::AsyncIoStream> stream, std::string* seen)
      : stream_(kj::mv(stream)), seen_(seen) {}

  kj::Promise<size_t> read(void* buffer, size_t min_bytes, size_t max_bytes) override {
    return stream_->read(buffer, min_bytes, max_bytes);
  }
  kj::Promise<size_t> tryRead(void* buffer, size_t min_bytes, size_t max_bytes) override {
    return stream_->tryRead(buffer, min_bytes, max_bytes);
  }
  kj::Promise<void> write(const void* buffer, size_t size) override {
    seen_->append(static_cast<const char*>(buffer), size);
    return stream_->write(buffer, size);
  }
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    for (const auto& piece : pieces) {
      seen_->append(reinterpret_cast<const char*>(piece.begin()), piece.size());
    }
    return stream_->write(pieces);
  }
  kj::Promise<void> whenWriteDisconnected() override { return stream_->whenWriteDisconnected(); }
  void shutdownWrite() override { stream_->shutdownWrite(); }
  void abortRead() override { stream_->abortRead(); }

 private:
  kj::Own<kj::AsyncIoStream> stream_;
  std::string* seen_;
};

class SecureChannelTest : public ::testing::Test {
 protected:
  struct Talk {
    bool has_arrived = false;  // what the node said, at the coordinator
    std::string error;
    std::string seen;  // on the wire
  };

  // The node says `text` and the coordinator answers with it.
  Talk Exchange(SecureChannel& coordinator, SecureChannel& node, const std::string& text) {
    Talk talk;
    auto pipe = kj::newTwoWayPipe();
    auto server = coordinator.Secure(kj::heap<Wire>(kj::mv(pipe.ends[0]), &talk.seen))
                      .then([&](kj::Own<kj::AsyncIoStream>&& stream) {
                        auto buffer = kj::heapArray<char>(text.size());
                        char* const bytes = buffer.begin();
                        auto& from = *stream;
                        return from.read(bytes, text.size())
                            .then([&, bytes] {
                              talk.has_arrived = std::string(bytes, text.size()) == text;
                              return from.write(bytes, text.size());
                            })
                            .attach(kj::mv(buffer), kj::mv(stream));
                      });
    auto client = node.Secure(kj::heap<Wire>(kj::mv(pipe.ends[1]), &talk.seen))
                      .then([&](kj::Own<kj::AsyncIoStream>&& stream) {
                        auto buffer = kj::heapArray<char>(text.size());
                        char* const bytes = buffer.begin();
                        auto& to = *stream;
                        return to.write(text.data(), text.size())
                            .then([&to, bytes, &text] { return to.read(bytes, text.size()); })
                            .attach(kj::mv(buffer), kj::mv(stream));
                      });
    auto both = server.exclusiveJoin(kj::Promise<void>(kj::NEVER_DONE));
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] {
                   kj::joinPromises(kj::arr(kj::mv(client), kj::mv(both))).wait(*scope_);
                 })) {
      talk.error = exception->getDescription().cStr();
    }
    return talk;
  }

  // What the coordinator says of a client that has no certificate and offers these versions of TLS.
  std::string ErrorOfStranger(int min_version, int max_version) {
    auto coordinator = SecureChannel::Create(kKey, ChannelSide::kCoordinator);
    if (!coordinator.ok()) return coordinator.status().ToString();
    auto pipe = kj::newTwoWayPipe();
    kj::AsyncIoStream& wire = *pipe.ends[1];
    std::string error;
    auto served = (*coordinator)
                      ->Secure(kj::mv(pipe.ends[0]))
                      .ignoreResult()
                      .catch_([&error](kj::Exception&& exception) {
                        error = exception.getDescription().cStr();
                      })
                      .eagerlyEvaluate(nullptr);
    const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_client_method()),
                                                               SSL_CTX_free);
    SSL_CTX_set_min_proto_version(context.get(), min_version);
    SSL_CTX_set_max_proto_version(context.get(), max_version);
    const std::unique_ptr<SSL, void (*)(SSL*)> ssl(SSL_new(context.get()), SSL_free);
    BIO* const from = BIO_new(BIO_s_mem());
    BIO* const to = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl.get(), from, to);  // which frees them
    SSL_set_connect_state(ssl.get());
    std::array<char, 1 << 14> bytes;
    while (!served.poll(*scope_)) {
      (void)SSL_do_handshake(ssl.get());
      const int sent = BIO_read(to, bytes.data(), bytes.size());
      if (sent > 0) wire.write(bytes.data(), static_cast<size_t>(sent)).wait(*scope_);
      if (served.poll(*scope_)) break;
      const size_t received = wire.tryRead(bytes.data(), 1, bytes.size()).wait(*scope_);
      if (received == 0) break;
      BIO_write(from, bytes.data(), static_cast<int>(received));
    }
    served.wait(*scope_);
    return error;
  }

  // Behind pointers: their destructors may throw.
  std::unique_ptr<kj::EventLoop> loop_ = std::make_unique<kj::EventLoop>();
  std::unique_ptr<kj::WaitScope> scope_ = std::make_unique<kj::WaitScope>(*loop_);
};

TEST_F(SecureChannelTest, SidesWithTheKeyTalkAndOthersReadNothing) {
  auto coordinator = SecureChannel::Create(kKey, ChannelSide::kCoordinator);
  auto node = SecureChannel::Create(kKey, ChannelSide::kNode);
  ASSERT_TRUE(coordinator.ok()) << coordinator.status();
  ASSERT_TRUE(node.ok()) << node.status();
  const Talk talk = Exchange(**coordinator, **node, "the weights of the model");
  EXPECT_EQ(talk.error, "");
  EXPECT_TRUE(talk.has_arrived);
  EXPECT_THAT(talk.seen, Not(HasSubstr("weights")));
  EXPECT_THAT(talk.seen, Not(HasSubstr(kKey.substr(0, 16))));
  EXPECT_THAT(talk.seen, HasSubstr(std::string("\x03\x03", 2)));  // records were seen at all
}

// A message of Cap'n Proto is several pieces.
TEST_F(SecureChannelTest, ThePiecesOfAMessageAreOneRecord) {
  auto coordinator = SecureChannel::Create(kKey, ChannelSide::kCoordinator);
  auto node = SecureChannel::Create(kKey, ChannelSide::kNode);
  auto pipe = kj::newTwoWayPipe();
  std::string seen;  // of the node
  auto server = (*coordinator)->Secure(kj::mv(pipe.ends[0])).eagerlyEvaluate(nullptr);
  auto client =
      (*node)->Secure(kj::heap<Wire>(kj::mv(pipe.ends[1]), &seen)).eagerlyEvaluate(nullptr);
  auto from = client.wait(*scope_);
  auto to = server.wait(*scope_);
  for (const size_t size : {size_t{3}, size_t{8190}}) {
    seen.clear();
    const std::string text(size, 'x');
    const kj::ArrayPtr<const kj::byte> piece(reinterpret_cast<const kj::byte*>(text.data()), size);
    const kj::ArrayPtr<const kj::byte> pieces[] = {piece, piece};
    auto written = from->write(pieces);
    std::string read(2 * size, '\0');
    to->read(read.data(), read.size()).wait(*scope_);
    written.wait(*scope_);
    EXPECT_EQ(read, text + text);
    constexpr size_t kOfRecord = 5 + 1 + 16;  // its header, type and tag
    EXPECT_EQ(seen.size(), 2 * size + kOfRecord);
  }
}

TEST_F(SecureChannelTest, AnotherKeyIsAnotherAuthority) {
  auto coordinator = SecureChannel::Create(kKey, ChannelSide::kCoordinator);
  auto node = SecureChannel::Create(kOtherKey, ChannelSide::kNode);
  const Talk talk = Exchange(**coordinator, **node, "hello");
  EXPECT_NE(talk.error, "");
  EXPECT_FALSE(talk.has_arrived);
}

TEST_F(SecureChannelTest, AClientWithoutACertificateIsRefused) {
  EXPECT_THAT(ErrorOfStranger(TLS1_2_VERSION, TLS1_3_VERSION),
              HasSubstr("peer did not return a certificate"));
}

TEST_F(SecureChannelTest, OlderVersionsOfTlsAreRefused) {
  EXPECT_THAT(ErrorOfStranger(TLS1_2_VERSION, TLS1_2_VERSION), HasSubstr("no shared cipher"));
  EXPECT_THAT(ErrorOfStranger(TLS1_VERSION, TLS1_1_VERSION), HasSubstr("unsupported protocol"));
}

TEST_F(SecureChannelTest, ANodeIsNoCoordinator) {
  auto coordinator = SecureChannel::Create(kKey, ChannelSide::kCoordinator);
  auto other = SecureChannel::Create(kKey, ChannelSide::kCoordinator);
  // A coordinator that connects: both wait for the other's hello, so no handshake is possible; and
  // a node that listens cannot show the coordinator's certificate.
  auto node = SecureChannel::Create(kKey, ChannelSide::kNode);
  auto second = SecureChannel::Create(kKey, ChannelSide::kNode);
  auto pipe = kj::newTwoWayPipe();
  auto first_side = (*node)->Secure(kj::mv(pipe.ends[0])).ignoreResult();
  auto second_side = (*second)->Secure(kj::mv(pipe.ends[1])).ignoreResult();
  bool has_failed = false;
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] {
                 first_side.exclusiveJoin(kj::mv(second_side)).wait(*scope_);
               })) {
    (void)exception;
    has_failed = true;
  }
  EXPECT_TRUE(has_failed);
}

TEST_F(SecureChannelTest, ExpiredCertificatesAreRefused) {
  const Validity expired = {-absl::Hours(48), -absl::Hours(24)};
  for (const bool is_node : {false, true}) {
    auto coordinator =
        SecureChannel::Create(kKey, ChannelSide::kCoordinator, is_node ? Validity() : expired);
    auto node = SecureChannel::Create(kKey, ChannelSide::kNode, is_node ? expired : Validity());
    ASSERT_TRUE(coordinator.ok());
    ASSERT_TRUE(node.ok());
    const Talk talk = Exchange(**coordinator, **node, "hello");
    EXPECT_NE(talk.error, "");
    EXPECT_FALSE(talk.has_arrived);
  }
}

TEST_F(SecureChannelTest, AnEndWithoutAFarewellIsADisconnection) {
  auto coordinator = SecureChannel::Create(kKey, ChannelSide::kCoordinator);
  auto node = SecureChannel::Create(kKey, ChannelSide::kNode);
  auto pipe = kj::newTwoWayPipe();
  kj::Own<kj::AsyncIoStream> at_coordinator;
  kj::Own<kj::AsyncIoStream> at_node;
  auto server = (*coordinator)->Secure(kj::mv(pipe.ends[0])).then([&](auto&& stream) {
    at_coordinator = kj::mv(stream);
  });
  auto client =
      (*node)->Secure(kj::mv(pipe.ends[1])).then([&](auto&& stream) { at_node = kj::mv(stream); });
  kj::joinPromises(kj::arr(kj::mv(server), kj::mv(client))).wait(*scope_);
  at_node = nullptr;
  char byte = 0;
  bool is_disconnected = false;
  KJ_IF_MAYBE (exception,
               kj::runCatchingExceptions([&] { at_coordinator->read(&byte, 1).wait(*scope_); })) {
    is_disconnected = exception->getType() == kj::Exception::Type::DISCONNECTED;
  }
  EXPECT_TRUE(is_disconnected);
}

// The first connection was closed, which says nothing of the key; the second had another key.
TEST_F(SecureChannelTest, AClosedHandshakeIsNotTakenForAnotherKey) {
  constexpr std::string_view kAddress = "10.0.0.1:7000";
  {
    auto pipe = kj::newTwoWayPipe();
    auto greeted = Greet(kj::mv(pipe.ends[0]), kAddress, kKey);
    pipe.ends[1]->shutdownWrite();
    EXPECT_TRUE(absl::IsUnavailable(greeted.wait(*scope_).status()));
  }
  {
    auto pipe = kj::newTwoWayPipe();
    auto greeted = Greet(kj::mv(pipe.ends[0]), kAddress, kKey);
    pipe.ends[1] = nullptr;
    EXPECT_TRUE(absl::IsUnavailable(greeted.wait(*scope_).status()));
  }
  auto coordinator = SecureChannel::Create(kOtherKey, ChannelSide::kCoordinator);
  ASSERT_TRUE(coordinator.ok()) << coordinator.status();
  auto pipe = kj::newTwoWayPipe();
  auto greeted = Greet(kj::mv(pipe.ends[0]), kAddress, kKey);
  auto served = (*coordinator)->Secure(kj::mv(pipe.ends[1])).ignoreResult();
  auto refused = served.catch_([](kj::Exception&&) {}).eagerlyEvaluate(nullptr);
  EXPECT_TRUE(absl::IsUnauthenticated(greeted.wait(*scope_).status()));
}

TEST_F(SecureChannelTest, WithoutEncryptionTheHelloIsSaidAsItIs) {
  auto pipe = kj::newTwoWayPipe();
  auto greeted = Greet(kj::mv(pipe.ends[0]), "127.0.0.1:7000", kKey, nullptr, Encryption::kNone);
  char hello[24];
  pipe.ends[1]->read(hello, sizeof(hello)).wait(*scope_);
  EXPECT_THAT(std::string(hello, sizeof(hello)), HasSubstr(kKey.substr(0, 16)));
  EXPECT_EQ(NodeChannel("127.0.0.1:7000", kKey, Encryption::kNone).value(), nullptr);
  EXPECT_NE(NodeChannel("127.0.0.1:7000", kKey).value(), nullptr);
}

// The same of the handshake by itself.
TEST_F(SecureChannelTest, AHandshakeThatIsClosedIsADisconnection) {
  for (const ChannelSide side : {ChannelSide::kCoordinator, ChannelSide::kNode}) {
    auto channel = SecureChannel::Create(kKey, side);
    ASSERT_TRUE(channel.ok()) << channel.status();
    auto pipe = kj::newTwoWayPipe();
    auto secured = (*channel)->Secure(kj::mv(pipe.ends[0])).ignoreResult();
    pipe.ends[1]->shutdownWrite();
    bool is_disconnected = false;
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] { secured.wait(*scope_); })) {
      is_disconnected = exception->getType() == kj::Exception::Type::DISCONNECTED;
    }
    EXPECT_TRUE(is_disconnected);
  }
}

TEST_F(SecureChannelTest, AKeyOfAnotherLengthIsRefused) {
  EXPECT_FALSE(SecureChannel::Create("short", ChannelSide::kNode).ok());
}

}  // namespace
}  // namespace penstock::actors::control
