#include "actors/engine/error_origin.h"

#include "gtest/gtest.h"

namespace penstock::actors {
namespace {

TEST(ErrorOriginTest, FieldsAreThoseThatWereSet) {
  absl::Status status = absl::InternalError("it broke");
  EXPECT_EQ(OriginOf(status), ErrorOrigin());
  SetOrigin({.device = 2, .step = 0}, &status);
  SetOrigin({.rank = 1, .actor = "executor"}, &status);
  EXPECT_EQ(OriginOf(status), (ErrorOrigin{1, 2, 0, "executor"}));
  EXPECT_EQ(status.message(), "it broke");
}

TEST(ErrorOriginTest, TheFirstThatIsKnownCounts) {
  absl::Status status = absl::InternalError("it broke");
  SetOrigin({.rank = 1, .actor = "sender"}, &status);
  SetOrigin({.rank = 0, .device = 3, .actor = "receiver"}, &status);
  EXPECT_EQ(OriginOf(status), (ErrorOrigin{1, 3, -1, "sender"}));
}

TEST(ErrorOriginTest, SuccessHasNone) {
  absl::Status status;
  SetOrigin({.rank = 1, .device = 2, .step = 3, .actor = "x"}, &status);
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(OriginOf(status), ErrorOrigin());
}

TEST(ErrorOriginTest, APrefixKeepsCodeAndOrigin) {
  absl::Status status = absl::NotFoundError("no file");
  SetOrigin({.rank = 4}, &status);
  const absl::Status prefixed = WithPrefix("node 4: ", status);
  EXPECT_EQ(prefixed.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(prefixed.message(), "node 4: no file");
  EXPECT_EQ(OriginOf(prefixed).rank, 4);
}

}  // namespace
}  // namespace penstock::actors
