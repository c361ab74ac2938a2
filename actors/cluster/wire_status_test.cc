#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "gtest/gtest.h"
#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include "actors/cluster/cluster.h"
#include "actors/cluster/connection_internal.h"
#include "actors/cluster/wire_status_internal.h"
#include "actors/engine/error_origin.h"
#include "base/strings.h"

namespace penstock::actors::control {
namespace {

kj::Array<capnp::word> Encode(const absl::Status& status) {
  capnp::MallocMessageBuilder message;
  WriteStatus(status, message.initRoot<Status>());
  return capnp::messageToFlatArray(message);
}

absl::Status Decode(kj::ArrayPtr<const capnp::word> words) {
  capnp::FlatArrayMessageReader message(words);
  return ReadStatus(message.getRoot<Status>());
}

absl::Status RoundTrip(const absl::Status& status) { return Decode(Encode(status)); }

int NumPayloads(const absl::Status& status) {
  int count = 0;
  status.ForEachPayload([&count](absl::string_view, const absl::Cord&) { ++count; });
  return count;
}

// What a peer that does not use WriteStatus may send.
struct RawStatus {
  uint32_t code = 0;
  std::string message = {};
  int32_t rank = -1;
  int32_t device = -1;
  int64_t step = -1;
  std::string actor = {};
  int32_t peer = -1;
};

void Write(const RawStatus& raw, Status::Builder builder) {
  builder.setCode(raw.code);
  builder.setMessage(raw.message.c_str());
  builder.setRank(raw.rank);
  builder.setDevice(raw.device);
  builder.setStep(raw.step);
  builder.setActor(raw.actor.c_str());
  builder.setPeer(raw.peer);
}

TEST(WireStatusTest, EveryCodeArrivesWithItsMessage) {
  for (int code = 1; code <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++code) {
    const absl::Status sent(static_cast<absl::StatusCode>(code), StrCat("error ", code, ": 7 µs"));
    EXPECT_EQ(RoundTrip(sent), sent);
  }
  EXPECT_EQ(RoundTrip(absl::OkStatus()), absl::OkStatus());
  EXPECT_EQ(RoundTrip(absl::AbortedError("")), absl::AbortedError(""));
}

TEST(WireStatusTest, AStatusWithoutPayloadsArrivesWithoutAny) {
  EXPECT_EQ(NumPayloads(RoundTrip(absl::DataLossError("the file ends"))), 0);
}

// The rank is the receiver's to say.
TEST(WireStatusTest, TheOriginArrivesButForTheRank) {
  absl::Status sent = absl::InternalError("told to fail");
  SetOrigin({.rank = 3, .device = 5, .step = 1'000'000'000'000, .actor = "h3.attn", .peer = 4},
            &sent);
  const absl::Status received = RoundTrip(sent);
  EXPECT_EQ(received.code(), sent.code());
  EXPECT_EQ(received.message(), sent.message());
  EXPECT_EQ(OriginOf(received),
            (ErrorOrigin{.device = 5, .step = 1'000'000'000'000, .actor = "h3.attn", .peer = 4}));
}

TEST(WireStatusTest, OfSeveralErrorsTheFirstThatIsNoConsequenceCounts) {
  kj::EventLoop loop;
  kj::WaitScope scope(loop);
  const auto join = [&scope](std::vector<absl::Status> statuses) {
    auto promises = kj::heapArrayBuilder<StatusPromise>(statuses.size());
    for (absl::Status& status : statuses) promises.add(std::move(status));
    return JoinStatuses(promises.finish()).wait(scope);
  };
  const absl::Status stopped = absl::CancelledError("the exchange of states was stopped");
  const absl::Status late = absl::DeadlineExceededError("takes too long");
  EXPECT_EQ(join({}), absl::OkStatus());
  EXPECT_EQ(join({absl::OkStatus(), absl::OkStatus()}), absl::OkStatus());
  EXPECT_EQ(join({stopped, absl::OkStatus(), late, absl::InternalError("later")}), late);
  EXPECT_EQ(join({absl::OkStatus(), stopped}), stopped);
}

TEST(WireStatusTest, OtherPayloadsStayWhereTheyAre) {
  absl::Status sent = absl::UnavailableError("was killed");
  sent.SetPayload(kShellStatusPayload, absl::Cord("137"));
  EXPECT_EQ(RoundTrip(sent), absl::UnavailableError("was killed"));
}

TEST(WireStatusTest, ACodeThatDoesNotExistIsUnknown) {
  for (const uint32_t code : {17u, 255u, 1u << 31, std::numeric_limits<uint32_t>::max()}) {
    capnp::MallocMessageBuilder message;
    const auto builder = message.initRoot<Status>();
    Write({.code = code, .message = "what"}, builder);
    EXPECT_EQ(ReadStatus(builder.asReader()), absl::UnknownError("what")) << code;
  }
}

TEST(WireStatusTest, AReportOfAnErrorIsNeverOk) {
  capnp::MallocMessageBuilder message;
  const auto builder = message.initRoot<Status>();
  Write({.code = 0, .message = "all is well"}, builder);
  EXPECT_TRUE(ReadStatus(builder.asReader()).ok());
  EXPECT_EQ(ReadError(builder.asReader()), absl::UnknownError("all is well"));
}

TEST(WireStatusTest, TextIsBoundedAndNumbersBelowZeroAreNotKnown) {
  capnp::MallocMessageBuilder message;
  const auto builder = message.initRoot<Status>();
  Write({.code = 13,
         .message = std::string(kMaxTextBytes + 1, 'm'),
         .rank = 4,
         .device = std::numeric_limits<int32_t>::min(),
         .step = std::numeric_limits<int64_t>::min(),
         .actor = std::string(2 * kMaxTextBytes, 'a'),
         .peer = -2},
        builder);
  const absl::Status received = ReadStatus(builder.asReader());
  EXPECT_EQ(received.message(), std::string(kMaxTextBytes, 'm'));
  EXPECT_EQ(OriginOf(received), (ErrorOrigin{.actor = std::string(kMaxTextBytes, 'a')}));
}

// Each byte of a message in turn: a status with bounded text, or an exception of the protocol.
TEST(WireStatusTest, DamagedBytesAreAStatusOrAnException) {
  absl::Status sent = absl::InternalError("told to fail");
  SetOrigin({.device = 5, .step = 7, .actor = "h3.attn"}, &sent);
  const kj::Array<capnp::word> good = Encode(sent);
  const size_t num_bytes = good.asBytes().size();
  int num_statuses = 0;
  int num_exceptions = 0;
  for (size_t at = 0; at < num_bytes; ++at) {
    for (const int flipped : {0x01, 0x02, 0x10, 0x80, 0xff}) {
      auto bad = kj::heapArray<capnp::word>(good.size());
      std::memcpy(bad.begin(), good.begin(), num_bytes);
      bad.asBytes()[at] ^= static_cast<kj::byte>(flipped);
      KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] {
                     const absl::Status received = Decode(bad);
                     EXPECT_LE(received.message().size(), kMaxTextBytes);
                     ++num_statuses;
                   })) {
        EXPECT_FALSE(FromException(*exception).ok());
        ++num_exceptions;
      }
    }
  }
  EXPECT_GT(num_statuses, 0);
  EXPECT_GT(num_exceptions, 0);
}

TEST(WireStatusTest, AMessageThatIsCutOffIsAnException) {
  const kj::Array<capnp::word> good = Encode(absl::InternalError("told to fail"));
  for (size_t size = 0; size < good.size(); ++size) {
    bool has_thrown = false;
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] { (void)Decode(good.slice(0, size)); })) {
      has_thrown = true;
      EXPECT_FALSE(FromException(*exception).ok());
    }
    EXPECT_TRUE(has_thrown || size == 0) << size;
  }
}

TEST(WireStatusTest, ExceptionsAreStatuses) {
  const auto status_of = [](kj::Exception::Type type, const std::string& text) {
    return FromException(kj::Exception(type, "file.cc", 1, kj::heapString(text.c_str())));
  };
  EXPECT_EQ(status_of(kj::Exception::Type::DISCONNECTED, "gone"), absl::UnavailableError("gone"));
  EXPECT_EQ(status_of(kj::Exception::Type::OVERLOADED, "full"),
            absl::ResourceExhaustedError("full"));
  EXPECT_EQ(status_of(kj::Exception::Type::UNIMPLEMENTED, "no"), absl::UnimplementedError("no"));
  EXPECT_EQ(status_of(kj::Exception::Type::FAILED, "bug"), absl::InternalError("bug"));
  EXPECT_EQ(
      status_of(kj::Exception::Type::FAILED, std::string(kMaxTextBytes + 1, 'm')).message().size(),
      kMaxTextBytes);
}

}  // namespace
}  // namespace penstock::actors::control
