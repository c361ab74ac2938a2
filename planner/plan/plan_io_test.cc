#include "planner/plan/plan_io.h"

#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <xxhash.h>

#include "planner/plan/check_folded_plan.h"
#include "planner/plan/show_plan.h"
#include "planner/plan/verify_folded_plan.h"
#include "planner/plan/verify_plan.h"
#include "tests/support/folded_plans.h"
#include "tests/support/plans.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temp_folder.h"

namespace penstock::planner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kHeaderBytes = 32;
constexpr size_t kHashOffset = 24;

std::string Bytes(const Plan& plan) { return PlanToBytes(plan).value(); }

// Makes the hash fit the rest, as someone who forges a file would.
void FixHash(std::string* bytes) {
  const uint64_t seed = XXH64(bytes->data(), kHashOffset, 0);
  const uint64_t hash = XXH64(bytes->data() + kHeaderBytes, bytes->size() - kHeaderBytes, seed);
  std::copy_n(reinterpret_cast<const char*>(&hash), sizeof(hash), bytes->data() + kHashOffset);
}

class PlanFile : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.Path(name); }
  void Store(const std::string& path, const std::string& bytes) const {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  size_t CountFiles() const {
    return std::distance(std::filesystem::directory_iterator(folder_.path()), {});
  }

 private:
  const testing::TempFolder folder_;
};

TEST(PlanIo, RoundTripsARichPlan) {
  const Plan plan = testing::TrainingPlan(4, 2);
  const absl::StatusOr<Plan> read = PlanFromBytes(Bytes(plan));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, plan);
}

TEST(PlanIo, RoundTripsWhatLiesOnHosts) {
  const Plan plan = testing::OffloadPlan(2);
  const absl::StatusOr<Plan> read = PlanFromBytes(Bytes(plan));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->devices[0].host_bytes, 192u);
  EXPECT_EQ(*read, plan);
}

TEST(PlanIo, RoundTripsEveryKindOfCollective) {
  Plan plan = testing::EmptyPlan(1, 3, 1);
  const auto add = [&](CollectiveKind kind, std::vector<int64_t> counts) {
    CollectiveSpec& spec = plan.collectives.emplace_back();
    spec.kind = kind;
    spec.algorithm = CollectiveAlgorithm::kRing;
    spec.reduce = ReduceOp::kMax;
    spec.dtype = DType::kBF16;
    spec.channel = plan.num_channels++;
    spec.devices = {2, 0, 1};
    spec.counts = std::move(counts);
    spec.chunk_bytes = 1234;
    plan.collective_per_microbatch.push_back(plan.num_channels % 2 == 0);
  };
  add(CollectiveKind::kAllReduce, {1, 2, 3});
  plan.collectives.back().algorithm = CollectiveAlgorithm::kHierarchical;
  plan.collectives.back().hosts = {0, 7, 0};
  add(CollectiveKind::kReduceScatter, {1, 0, 3});
  plan.collectives.back().tensors = {{1, 0, 1}, {0, 0, 0}, {0, 0, 2}};
  add(CollectiveKind::kAllGather, {1, 2, 3});
  add(CollectiveKind::kAllToAll, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  add(CollectiveKind::kBroadcast, {5});
  plan.collectives.back().root = 2;
  add(CollectiveKind::kPermute, {1, 2, 3});
  plan.collectives.back().peers = {1, 2, 0};
  EXPECT_EQ(PlanFromBytes(Bytes(plan)).value(), plan);
}

TEST(PlanIo, RoundTripsNestedAttributes) {
  Plan plan = testing::EmptyPlan(1, 1, 1);
  KernelPlan& kernel = plan.kernels.emplace_back();
  kernel.op = "nested";
  graph::AttrValue value = graph::AttrValue::List{};
  for (int i = 0; i < 7; ++i) value = graph::AttrValue::List{value, i, "text", 0.5};
  kernel.attributes.Set("list", value);
  EXPECT_EQ(PlanFromBytes(Bytes(plan)).value(), plan);

  kernel.attributes.Set("list", graph::AttrValue::List{value});
  const absl::Status status = PlanToBytes(plan).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("attribute 'list'"));
}

TEST(PlanIo, ReadsBytesAtAnyAddress) {
  const Plan plan = testing::TrainingPlan(2, 1);
  const std::string shifted = "x" + Bytes(plan);
  EXPECT_EQ(PlanFromBytes(std::string_view(shifted).substr(1)).value(), plan);
}

TEST(PlanIo, RefusesToWriteWhatItWouldNotRead) {
  Plan plan = testing::TrainingPlan(2, 1);
  plan.devices[0].actors[0].outputs[0].reg = 99;
  EXPECT_EQ(PlanToBytes(plan).status().code(), absl::StatusCode::kInvalidArgument);
  plan = testing::TrainingPlan(2, 1);
  plan.name = std::string(5000, 'a');
  EXPECT_EQ(PlanToBytes(plan).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(PlanIo, RefusesEveryFlippedBit) {
  std::string bytes = Bytes(testing::TrainingPlan(1, 1));
  // All of the header and the first words of the message, then samples of the rest.
  for (size_t i = 0; i < bytes.size(); i += i < 1024 ? 1 : 61) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << bit));
      ASSERT_EQ(PlanFromBytes(bytes).status().code(), absl::StatusCode::kDataLoss)
          << "byte " << i << " bit " << bit;
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << bit));
    }
  }
  EXPECT_TRUE(PlanFromBytes(bytes).ok());
}

TEST(PlanIo, RefusesEveryTruncation) {
  const std::string bytes = Bytes(testing::TrainingPlan(1, 1));
  for (size_t size = 0; size < bytes.size(); size += size < 256 ? 1 : 37) {
    const absl::Status status = PlanFromBytes(std::string_view(bytes).substr(0, size)).status();
    ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << size;
    ASSERT_THAT(std::string(status.message()), HasSubstr("truncated")) << size;
  }
  EXPECT_EQ(PlanFromBytes(bytes + "x").status().code(), absl::StatusCode::kDataLoss);
}

TEST(PlanIo, NamesAnotherVersion) {
  std::string bytes = Bytes(testing::TrainingPlan(1, 1));
  bytes[8] = 7;
  FixHash(&bytes);
  const absl::Status status = PlanFromBytes(bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("version 7"), HasSubstr("reads version 6")));
}

// Damage that comes with the right hash: whatever is read is either refused or can be verified.
void SurviveForgedPayloads(const std::string& original) {
  const PolicyRegistry policies = BuiltinPolicies();
  std::mt19937_64 random(17);
  int num_read = 0;
  const int num_rounds = testing::kHasSanitizer ? 2000 : 20000;
  for (int round = 0; round < num_rounds; ++round) {
    std::string bytes = original;
    const int num_changes = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < num_changes; ++i) {
      const size_t where = kHeaderBytes + random() % (bytes.size() - kHeaderBytes);
      switch (random() % 4) {
        case 0:
          bytes[where] = static_cast<char>(bytes[where] ^ (1 << (random() % 8)));
          break;
        case 1:
          bytes[where] = static_cast<char>(random());
          break;
        case 2:
          std::fill_n(bytes.begin() + where, std::min<size_t>(8, bytes.size() - where),
                      static_cast<char>(random() % 2 == 0 ? 0xff : 0));
          break;
        case 3: {  // a word from elsewhere: pointers that lead to other tables
          const size_t num_words = (bytes.size() - kHeaderBytes) / 8;
          const size_t from = kHeaderBytes + random() % num_words * 8;
          const size_t to = kHeaderBytes + random() % num_words * 8;
          std::copy_n(original.begin() + from, 8, bytes.begin() + to);
          break;
        }
      }
    }
    FixHash(&bytes);
    if (round % 4 == 0) {
      const absl::StatusOr<FoldedPlan> folded = FoldedPlanFromBytes(bytes);
      if (folded.ok()) {
        VerifyFoldedPlan(*folded, policies).status().IgnoreError();
        ShowPlan(*folded).status().IgnoreError();
      }
    }
    const absl::StatusOr<Plan> plan = PlanFromBytes(bytes);
    if (!plan.ok()) {
      ASSERT_TRUE(absl::IsDataLoss(plan.status()) || absl::IsResourceExhausted(plan.status()))
          << plan.status();
      continue;
    }
    ++num_read;
    VerifyPlan(*plan, policies).status().IgnoreError();
    EXPECT_NE(ShowPlan(*plan), "");
    ASSERT_EQ(PlanFromBytes(Bytes(*plan)).value(), *plan);
  }
  EXPECT_GT(num_read, 100);
}

TEST(PlanIo, SurvivesForgedPayloads) { SurviveForgedPayloads(Bytes(testing::TrainingPlan(2, 1))); }

TEST(PlanIo, SurvivesForgedFoldedPlans) {
  SurviveForgedPayloads(PlanToBytes(testing::FoldedTrainingPlan()).value());
}

TEST(PlanIo, SurvivesTruncatedPayloadsWithTheRightHash) {
  const std::string original = Bytes(testing::TrainingPlan(1, 1));
  for (size_t size = kHeaderBytes; size < original.size(); size += 8) {
    std::string bytes = original.substr(0, size);
    const uint64_t payload_bytes = size - kHeaderBytes;
    std::copy_n(reinterpret_cast<const char*>(&payload_bytes), 8, bytes.data() + 16);
    FixHash(&bytes);
    ASSERT_EQ(PlanFromBytes(bytes).status().code(), absl::StatusCode::kDataLoss) << size;
  }
}

TEST_F(PlanFile, IsWrittenAndRead) {
  const Plan plan = testing::TrainingPlan(3, 2);
  ASSERT_TRUE(WritePlan(testing::TrainingPlan(1, 1), Path("a.plan")).ok());
  ASSERT_TRUE(WritePlan(plan, Path("a.plan")).ok());
  EXPECT_EQ(ReadPlan(Path("a.plan")).value(), plan);
  EXPECT_EQ(CountFiles(), 1u);
}

// What show prints of a folded plan is what it prints of all devices, but for the kernels.
TEST_F(PlanFile, OfAFoldedPlanIsShownAsThatOfAllDevices) {
  const FoldedPlan folded = testing::FoldedTrainingPlan({.dp = 3, .hidden = 13});
  ASSERT_TRUE(WritePlan(folded, Path("a.plan")).ok());
  const auto without_kernels = [](std::string text) {
    const size_t line = text.find('\n') + 1;
    return text.erase(line, text.find('\n', line) - line);
  };
  EXPECT_EQ(without_kernels(ShowPlan(ReadFoldedPlan(Path("a.plan")).value()).value()),
            without_kernels(ShowPlan(ReadPlan(Path("a.plan")).value())));
}

TEST_F(PlanFile, IsNamedInErrors) {
  EXPECT_THAT(std::string(ReadPlan(Path("none.plan")).status().message()), HasSubstr("none.plan"));
  EXPECT_EQ(ReadPlan(Path("none.plan")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(ReadPlan(Path("")).ok());
  EXPECT_FALSE(WritePlan(testing::TrainingPlan(1, 1), Path("no/folder.plan")).ok());

  Store(Path("text.plan"), "this is not a plan but some text, longer than a header");
  absl::Status status = ReadPlan(Path("text.plan")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("text.plan"), HasSubstr("magic number")));

  std::string bytes = Bytes(testing::TrainingPlan(1, 1));
  bytes[1000] = static_cast<char>(bytes[1000] ^ 4);
  Store(Path("flipped.plan"), bytes);
  status = ReadPlan(Path("flipped.plan")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("flipped.plan"), HasSubstr("hash")));
}

TEST_F(PlanFile, KeepsTheOldFileWhenWritingFails) {
  const Plan plan = testing::TrainingPlan(1, 1);
  ASSERT_TRUE(WritePlan(plan, Path("a.plan")).ok());
  Plan broken = plan;
  broken.num_microbatches = 0;
  EXPECT_FALSE(WritePlan(broken, Path("a.plan")).ok());
  std::filesystem::create_directories(Path("folder.plan/x"));
  EXPECT_FALSE(WritePlan(plan, Path("folder.plan")).ok());
  EXPECT_EQ(ReadPlan(Path("a.plan")).value(), plan);
  EXPECT_EQ(CountFiles(), 2u);
}

// Folded plans are as large as their programs; only what is expanded has a limit.
TEST_F(PlanFile, HoldsAPlanThatIsTooLargeToExpand) {
  FoldedPlan folded = testing::FoldedTrainingPlan({.dp = 4096, .tp = 1, .num_stages = 1});
  for (DevicePlan& program : folded.programs) {
    program.channels.resize(kMaxExpandedParts / 4000, program.channels[0]);
  }
  ASSERT_TRUE(WritePlan(folded, Path("wide.plan")).ok());
  const absl::StatusOr<FoldedPlan> read = ReadFoldedPlan(Path("wide.plan"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->num_devices(), 4096u);
  EXPECT_EQ(read->programs, folded.programs);
  const absl::StatusOr<std::string> shown = ShowPlan(*read);
  ASSERT_TRUE(shown.ok()) << shown.status();
  EXPECT_THAT(*shown, AllOf(HasSubstr("4096 devices in 1 stage"), HasSubstr("  devices 1-4095\n")));
  const absl::Status status = ReadPlan(Path("wide.plan")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("wide.plan: the programs of 4096 devices have more than 134217728"),
                    HasSubstr("`penstock show` and `penstock simulate` read its programs alone")));
}

TEST_F(PlanFile, HoldsALargePlan) {
  const Plan plan = testing::LargePlan(4, 10000, 4);
  ASSERT_TRUE(WritePlan(plan, Path("large.plan")).ok());
  EXPECT_EQ(ReadPlan(Path("large.plan")).value(), plan);
}

}  // namespace
}  // namespace penstock::planner
