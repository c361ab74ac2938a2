#include "transport/collective.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/half.h"
#include "base/stream_copy.h"
#include "tests/support/collective_reference.h"
#include "tests/support/faulty_transport.h"
#include "transport/transport.h"

namespace penstock::transport {
namespace {

using ::penstock::testing::Bytes;
using ::penstock::testing::CreateFaultyTransport;
using ::penstock::testing::CutIntoTensors;
using ::penstock::testing::Describe;
using ::penstock::testing::FaultOptions;
using ::penstock::testing::RandomElements;
using ::penstock::testing::ReferenceCollective;
using ::penstock::testing::TensorPlaces;
using ::penstock::testing::Views;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr uint32_t kGeneration = 3;
constexpr uint32_t kChannel = 5;
constexpr std::chrono::seconds kPatience{60};

constexpr CollectiveKind kKinds[] = {
    CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter, CollectiveKind::kAllGather,
    CollectiveKind::kAllToAll,  CollectiveKind::kBroadcast,     CollectiveKind::kPermute,
};
constexpr CollectiveAlgorithm kAlgorithms[] = {
    CollectiveAlgorithm::kDirect, CollectiveAlgorithm::kRing, CollectiveAlgorithm::kHierarchical};

// A group of `n` of the 2 * n devices of a transport, in no particular order and on any hosts.
CollectiveSpec MakeSpec(CollectiveKind kind, CollectiveAlgorithm algorithm, int n,
                        std::mt19937_64& random) {
  CollectiveSpec spec;
  spec.kind = kind;
  spec.algorithm = algorithm;
  spec.channel = kChannel;
  spec.devices.resize(2 * n);
  std::iota(spec.devices.begin(), spec.devices.end(), 0);
  std::shuffle(spec.devices.begin(), spec.devices.end(), random);
  spec.devices.resize(n);
  spec.counts.assign(kind == CollectiveKind::kAllToAll    ? n * n
                     : kind == CollectiveKind::kBroadcast ? 1
                                                          : n,
                     0);
  if (kind == CollectiveKind::kPermute) {
    spec.peers.resize(n);
    std::iota(spec.peers.begin(), spec.peers.end(), 0);
    std::shuffle(spec.peers.begin(), spec.peers.end(), random);
  }
  spec.root = static_cast<uint32_t>(random() % n);
  if (algorithm == CollectiveAlgorithm::kHierarchical) {
    const uint64_t num_hosts = 1 + random() % n;
    for (int rank = 0; rank < n; ++rank) {
      spec.hosts.push_back(7 + static_cast<uint32_t>(random() % num_hosts));
    }
  }
  return spec;
}

// Counts up to `most`, with empty blocks among them.
void SetUnevenCounts(CollectiveSpec* spec, int64_t most, std::mt19937_64& random) {
  for (int64_t& count : spec->counts) {
    count = random() % 4 == 0 ? 0 : static_cast<int64_t>(random() % (most + 1));
  }
}

// All ranks of one collective over one transport.
class Group {
 public:
  Group(const CollectiveSpec& spec, const FaultOptions* faults)
      : spec_(spec), n_(static_cast<int>(spec.devices.size())) {
    const TransportOptions options{.num_devices = static_cast<uint32_t>(2 * n_),
                                   .generation = kGeneration,
                                   .num_channels = kChannel + 1};
    transport_ = CreateInprocTransport(options);
    if (faults != nullptr) transport_ = CreateFaultyTransport(std::move(transport_), *faults);
    EXPECT_EQ(CheckCollective(spec, options.num_devices), absl::OkStatus());
    for (int rank = 0; rank < n_; ++rank) {
      endpoints_.push_back(*transport_->OpenEndpoint(spec.devices[rank]));
      collectives_.push_back(*CreateCollective(spec, rank, *endpoints_[rank]));
    }
  }

  // Draws new inputs, and makes room for outputs.
  void SetInputs(uint64_t seed, bool in_place) {
    inputs_.clear();
    for (int rank = 0; rank < n_; ++rank) {
      inputs_.push_back(RandomElements(spec_.dtype, InputCount(spec_, rank), seed * 100 + rank));
    }
    expected_ = ReferenceCollective(spec_, inputs_);
    outputs_ = in_place ? inputs_ : std::vector<Bytes>(n_);
    for (int rank = 0; rank < n_; ++rank) {
      outputs_[rank].resize(OutputCount(spec_, rank) * ByteSize(spec_.dtype), std::byte{0xee});
    }
    in_place_ = in_place;
  }

  void Start(int rank, uint64_t sequence, uint32_t flags = kNoFlags) {
    const Bytes& input = in_place_ ? outputs_[rank] : inputs_[rank];
    const TensorPlaces places(spec_, rank, input.data(), outputs_[rank].data());
    collectives_[rank]->StartTensors(places.inputs.data(), places.outputs.data(), sequence, flags);
  }

  // One move of one rank.
  bool Step(int rank) {
    endpoints_[rank]->Progress();
    return collectives_[rank]->Poll();
  }

  // Steps the ranks in random order until all are over, each having started at a random moment.
  // `flags` has a rank each.
  void RunStepped(uint64_t sequence, std::mt19937_64& random,
                  const std::vector<uint32_t>& flags = {}) {
    std::vector<bool> started(n_), over(n_);
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (int left = n_; left > 0;) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "stuck";
      const auto rank = static_cast<int>(random() % n_);
      if (!started[rank]) {
        Start(rank, sequence, flags.empty() ? kNoFlags : flags[rank]);
        started[rank] = true;
      } else if (Step(rank) && !over[rank]) {
        ASSERT_EQ(collectives_[rank]->status(), absl::OkStatus()) << "rank " << rank;
        over[rank] = true;
        --left;
      }
    }
  }

  // A thread a rank, `runs` times over, with sequences from `sequence` on.
  void RunThreaded(uint64_t sequence, int runs) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    std::vector<std::thread> threads;
    std::vector<Bytes> initial = outputs_;
    for (int rank = 0; rank < n_; ++rank) {
      threads.emplace_back([this, rank, sequence, runs, deadline, &initial] {
        for (int run = 0; run < runs; ++run) {
          outputs_[rank] = initial[rank];
          Start(rank, sequence + run);
          while (!Step(rank) && std::chrono::steady_clock::now() < deadline) {
            std::this_thread::yield();
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "stuck";
  }

  // Brings all ranks to rest after a run that was ended early.
  void SettleAll(std::mt19937_64& random) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (int left = n_; left > 0;) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "stuck";
      endpoints_[random() % n_]->Progress();
      left = n_;
      for (auto& collective : collectives_) left -= collective->Settle() ? 1 : 0;
    }
  }

  void ExpectRight() const {
    for (int rank = 0; rank < n_; ++rank) {
      EXPECT_EQ(collectives_[rank]->status(), absl::OkStatus()) << "rank " << rank;
      EXPECT_TRUE(outputs_[rank] == expected_[rank]) << "rank " << rank << " has other bits";
    }
  }

  int size() const { return n_; }
  Collective& collective(int rank) { return *collectives_[rank]; }
  Endpoint& endpoint(int rank) { return *endpoints_[rank]; }
  const Bytes& output(int rank) const { return outputs_[rank]; }

 private:
  const CollectiveSpec spec_;
  const int n_;
  std::unique_ptr<Transport> transport_;
  std::vector<Endpoint*> endpoints_;
  std::vector<std::unique_ptr<Collective>> collectives_;
  std::vector<Bytes> inputs_;
  std::vector<Bytes> expected_;
  std::vector<Bytes> outputs_;
  bool in_place_ = false;
};

// How the messages of a test travel.
enum class Route { kViews, kCopies, kLateViews, kLateCopies, kLateSomeViews };

FaultOptions FaultsOf(Route route, uint64_t seed) {
  FaultOptions faults;
  faults.seed = seed;
  faults.max_delay = route == Route::kViews || route == Route::kCopies ? 0 : 6;
  if (route == Route::kCopies || route == Route::kLateCopies) faults.views = Views::kNone;
  if (route == Route::kLateSomeViews) faults.views = Views::kOfLikeParity;
  return faults;
}

// Three runs of one collective, stepped in random order.
void CheckStepped(const CollectiveSpec& spec, Route route, bool in_place, std::mt19937_64& random) {
  const FaultOptions faults = FaultsOf(route, random());
  Group group(spec, route == Route::kViews ? nullptr : &faults);
  for (uint64_t sequence : {uint64_t{0}, uint64_t{1}, (uint64_t{1} << 44) - 1}) {
    group.SetInputs(random(), in_place);
    group.RunStepped(sequence, random);
    group.ExpectRight();
    if (::testing::Test::HasFailure()) return;
  }
}

class CollectiveSteppedTest : public ::testing::TestWithParam<Route> {};

TEST_P(CollectiveSteppedTest, EveryKindAlgorithmAndGroupSize) {
  std::mt19937_64 random(11);
  for (CollectiveKind kind : kKinds) {
    for (CollectiveAlgorithm algorithm : kAlgorithms) {
      for (int n = 1; n <= 8; ++n) {
        for (int64_t chunk_elements : {1, 3, 16, 1000}) {
          CollectiveSpec spec = MakeSpec(kind, algorithm, n, random);
          SetUnevenCounts(&spec, 40, random);
          spec.chunk_bytes = chunk_elements * 4 + 1;
          SCOPED_TRACE(Describe(spec));
          CheckStepped(spec, GetParam(), false, random);
          if (kind == CollectiveKind::kAllReduce) CheckStepped(spec, GetParam(), true, random);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(CollectiveSteppedTest, SeveralTensorsAreMovedAsEachWouldBeByItself) {
  std::mt19937_64 random(15);
  for (CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    for (CollectiveAlgorithm algorithm : kAlgorithms) {
      for (int n = 1; n <= 5; ++n) {
        for (size_t num_tensors : {1, 2, 5}) {
          CollectiveSpec spec = MakeSpec(kind, algorithm, n, random);
          SetUnevenCounts(&spec, 60, random);
          CutIntoTensors(&spec, num_tensors, random);
          spec.chunk_bytes = 32;
          SCOPED_TRACE(Describe(spec));
          CheckStepped(spec, GetParam(), false, random);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(CollectiveSteppedTest, EveryReductionOfEveryDType) {
  std::mt19937_64 random(12);
  for (CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter}) {
    for (CollectiveAlgorithm algorithm : kAlgorithms) {
      for (ReduceOp reduce : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProd}) {
        for (DType dtype : {DType::kF32, DType::kF64, DType::kI8, DType::kU8, DType::kI32,
                            DType::kI64, DType::kBool, DType::kF16, DType::kBF16}) {
          for (int n : {2, 3, 5}) {
            CollectiveSpec spec = MakeSpec(kind, algorithm, n, random);
            spec.reduce = reduce;
            spec.dtype = dtype;
            SetUnevenCounts(&spec, 150, random);
            spec.chunk_bytes = 256;
            SCOPED_TRACE(Describe(spec));
            const bool exists =
                dtype != DType::kBool || reduce == ReduceOp::kMax || reduce == ReduceOp::kMin;
            ASSERT_EQ(CheckCollective(spec, 2 * n).ok(), exists);
            if (!exists) continue;
            CheckStepped(spec, GetParam(), kind == CollectiveKind::kAllReduce && n == 3, random);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST_P(CollectiveSteppedTest, MovesEveryDType) {
  std::mt19937_64 random(13);
  for (CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kAllToAll,
                              CollectiveKind::kBroadcast, CollectiveKind::kPermute}) {
    for (CollectiveAlgorithm algorithm : kAlgorithms) {
      for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
        CollectiveSpec spec = MakeSpec(kind, algorithm, 4, random);
        spec.dtype = static_cast<DType>(dtype);
        SetUnevenCounts(&spec, 60, random);
        spec.chunk_bytes = 64;
        SCOPED_TRACE(Describe(spec));
        CheckStepped(spec, GetParam(), false, random);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(CollectiveSteppedTest, NothingToDoStillCompletes) {
  std::mt19937_64 random(14);
  for (CollectiveKind kind : kKinds) {
    for (CollectiveAlgorithm algorithm : kAlgorithms) {
      const CollectiveSpec spec = MakeSpec(kind, algorithm, 3, random);
      SCOPED_TRACE(Describe(spec));
      CheckStepped(spec, GetParam(), false, random);
    }
  }
}

std::string RouteName(const ::testing::TestParamInfo<Route>& info) {
  static constexpr const char* kNames[] = {"Views", "Copies", "LateViews", "LateCopies",
                                           "LateSomeViews"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Routes, CollectiveSteppedTest,
                         ::testing::Values(Route::kViews, Route::kCopies, Route::kLateViews,
                                           Route::kLateCopies, Route::kLateSomeViews),
                         RouteName);

TEST(CollectiveTest, ThreadsGetTheSameBits) {
  std::mt19937_64 random(21);
  for (CollectiveKind kind : kKinds) {
    for (CollectiveAlgorithm algorithm : kAlgorithms) {
      for (int n : {2, 3, 4, 8}) {
        for (Route route : {Route::kViews, Route::kCopies}) {
          CollectiveSpec spec = MakeSpec(kind, algorithm, n, random);
          SetUnevenCounts(&spec, 6000, random);
          spec.chunk_bytes = 4096;
          SCOPED_TRACE(Describe(spec));
          const FaultOptions faults = FaultsOf(route, random());
          Group group(spec, route == Route::kViews ? nullptr : &faults);
          group.SetInputs(random(), kind == CollectiveKind::kAllReduce && n % 2 == 0);
          group.RunThreaded(0, 20);
          group.ExpectRight();
          if (HasFailure()) return;
        }
      }
    }
  }
}

// What is more than caches hold is written otherwise.
TEST(CollectiveTest, MuchDataGivesTheSameBits) {
  std::mt19937_64 random(25);
  for (CollectiveKind kind : {CollectiveKind::kReduceScatter, CollectiveKind::kAllGather}) {
    CollectiveSpec spec = MakeSpec(kind, CollectiveAlgorithm::kDirect, 2, random);
    spec.dtype = DType::kI64;
    spec.counts = {1234, static_cast<int64_t>(kStreamBytes / ByteSize(spec.dtype))};
    spec.chunk_bytes = 1 << 20;
    SCOPED_TRACE(Describe(spec));
    Group group(spec, nullptr);
    group.SetInputs(random(), false);
    group.RunStepped(0, random);
    group.ExpectRight();
  }
}

// Terms of bf16, of which a sum that is rounded after each would keep the first alone.
void CheckSumsOfHalves(const CollectiveSpec& spec, bool in_place) {
  SCOPED_TRACE(Describe(spec));
  const auto term = [](int rank, int64_t i) {
    return rank == 0 ? 256.0f : 1.0f - static_cast<float>((i + rank) % 5) / 8;
  };
  Group group(spec, nullptr);
  std::vector<std::vector<BFloat16>> inputs(group.size()), outputs(group.size());
  for (int rank = 0; rank < group.size(); ++rank) {
    inputs[rank].resize(InputCount(spec, rank));
    for (size_t i = 0; i < inputs[rank].size(); ++i) {
      inputs[rank][i] = ToBFloat16(term(rank, static_cast<int64_t>(i)));
    }
    outputs[rank].resize(in_place ? 0 : OutputCount(spec, rank));
    BFloat16* const output = in_place ? inputs[rank].data() : outputs[rank].data();
    group.collective(rank).Start(inputs[rank].data(), output, 0, kNoFlags);
  }
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (bool is_over = false; !is_over;) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "stuck";
    is_over = true;
    for (int rank = 0; rank < group.size(); ++rank) is_over &= group.Step(rank);
  }
  int64_t begin = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::vector<BFloat16>& output = in_place ? inputs[rank] : outputs[rank];
    int64_t num_wrong = 0;
    for (int64_t i = 0; i < OutputCount(spec, rank); ++i) {
      float sum = term(0, begin + i);
      for (int r = 1; r < group.size(); ++r) sum += term(r, begin + i);
      num_wrong += output[i].bits != ToBFloat16(sum).bits;
    }
    EXPECT_EQ(num_wrong, 0) << "rank " << rank;
    if (spec.kind == CollectiveKind::kReduceScatter) begin += spec.counts[rank];
  }
}

// The reference rounds so, too; this does without it. In one chunk that every rank folds whole, in
// blocks of the cache, and past the caches.
TEST(CollectiveTest, SumsOfFloatsOf16BitsAreRoundedOnce) {
  std::mt19937_64 random(28);
  for (const int64_t count : {3, 5000}) {
    for (const bool in_place : {false, true}) {
      CollectiveSpec spec =
          MakeSpec(CollectiveKind::kAllReduce, CollectiveAlgorithm::kDirect, 8, random);
      spec.dtype = DType::kBF16;
      spec.counts.assign(8, count);
      CheckSumsOfHalves(spec, in_place);
    }
  }
  CollectiveSpec spec =
      MakeSpec(CollectiveKind::kReduceScatter, CollectiveAlgorithm::kDirect, 4, random);
  spec.dtype = DType::kBF16;
  spec.counts = {1234, 5001, 7, static_cast<int64_t>(kStreamBytes / ByteSize(spec.dtype))};
  spec.chunk_bytes = 1 << 20;
  CheckSumsOfHalves(spec, false);
}

// A row of cases small enough to read: the association is the defined one, not just any.
TEST(CollectiveTest, AssociationIsTheDefinedOne) {
  std::mt19937_64 random(22);
  const std::vector<float> terms = {1e8f, 1.0f, -1e8f};
  for (CollectiveAlgorithm algorithm : kAlgorithms) {
    CollectiveSpec spec = MakeSpec(CollectiveKind::kAllReduce, algorithm, 3, random);
    spec.counts = {1, 1, 1};
    if (!spec.hosts.empty()) spec.hosts = {4, 9, 4};
    Group group(spec, nullptr);
    std::vector<std::vector<float>> data;
    for (int rank = 0; rank < 3; ++rank) {
      data.push_back(std::vector<float>(3, terms[rank]));
      group.collective(rank).Start(data[rank].data(), data[rank].data(), 0, kNoFlags);
    }
    for (int i = 0; i < 100; ++i) {
      for (int rank = 0; rank < 3; ++rank) group.Step(rank);
    }
    // Direct: (1e8 + 1) - 1e8 = 0 everywhere. Ring: block 0 is (1 - 1e8) + 1e8 = 0,
    // block 1 is (-1e8 + 1e8) + 1 = 1, block 2 is (1e8 + 1) - 1e8 = 0. Hierarchical:
    // (1e8 - 1e8) + 1 = 1 everywhere.
    std::vector<float> expected = {0, 0, 0};
    if (algorithm == CollectiveAlgorithm::kRing) expected = {0, 1, 0};
    if (algorithm == CollectiveAlgorithm::kHierarchical) expected = {1, 1, 1};
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(group.collective(rank).Poll());
      EXPECT_EQ(data[rank], expected);
    }
  }
}

// What hierarchy is for, counted between hosts: the terms of a block leave a host as one, and what
// is handed out comes to a host once.
TEST(CollectiveTest, HierarchicalCrossesBetweenHostsOnce) {
  std::mt19937_64 random(24);
  for (CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                              CollectiveKind::kAllGather, CollectiveKind::kBroadcast}) {
    CollectiveSpec spec = MakeSpec(kind, CollectiveAlgorithm::kHierarchical, 6, random);
    spec.hosts = {0, 0, 0, 1, 1, 1};
    spec.counts.assign(spec.counts.size(), 5);
    SCOPED_TRACE(Describe(spec));
    const auto host_of = [&spec](uint32_t device) {
      const auto rank = std::find(spec.devices.begin(), spec.devices.end(), device);
      return spec.hosts[rank - spec.devices.begin()];
    };
    int crossings = 0;
    FaultOptions faults;
    faults.fail = [&](const FaultOptions::Post& post) {
      crossings += post.is_send && host_of(post.device) != host_of(post.peer) ? 1 : 0;
      return absl::OkStatus();
    };
    Group group(spec, &faults);
    group.SetInputs(1, false);
    group.RunStepped(0, random);
    group.ExpectRight();
    const int blocks = kind == CollectiveKind::kBroadcast ? 1 : 6;
    EXPECT_EQ(crossings, kind == CollectiveKind::kAllReduce ? 2 * blocks : blocks);
  }
}

TEST(CollectiveTest, GatherInPlaceKeepsTheOwnPiece) {
  std::mt19937_64 random(23);
  for (CollectiveAlgorithm algorithm : kAlgorithms) {
    CollectiveSpec spec = MakeSpec(CollectiveKind::kAllGather, algorithm, 3, random);
    spec.counts = {2, 1, 3};
    spec.dtype = DType::kU8;
    Group group(spec, nullptr);
    std::vector<std::string> data = {"ab....", "..c...", "...def"};
    const int offsets[] = {0, 2, 3};
    for (int rank = 0; rank < 3; ++rank) {
      group.collective(rank).Start(data[rank].data() + offsets[rank], data[rank].data(), 0, 0);
    }
    for (int i = 0; i < 100; ++i) {
      for (int rank = 0; rank < 3; ++rank) group.Step(rank);
    }
    EXPECT_THAT(data, ::testing::Each("abcdef"));
  }
}

// A bucket of gradients is scattered where they lie, and one of parameters gathered where they do.
TEST(CollectiveTest, SeveralTensorsInPlace) {
  std::mt19937_64 random(25);
  for (CollectiveAlgorithm algorithm : kAlgorithms) {
    CollectiveSpec spec = MakeSpec(CollectiveKind::kReduceScatter, algorithm, 2, random);
    spec.dtype = DType::kI32;
    spec.counts = {3, 4};
    spec.tensors = {{2, 1}, {1, 3}};
    ASSERT_EQ(CheckCollective(spec, 4), absl::OkStatus());
    std::vector<std::vector<int32_t>> a = {{1, 2, 3}, {10, 20, 30}};
    std::vector<std::vector<int32_t>> b = {{4, 5, 6, 7}, {40, 50, 60, 70}};
    const auto move = [&] {
      Group group(spec, nullptr);
      for (int rank = 0; rank < 2; ++rank) {
        int32_t* own[] = {a[rank].data() + 2 * rank, b[rank].data() + rank};
        const void* whole[] = {a[rank].data(), b[rank].data()};
        const bool is_gather = spec.kind == CollectiveKind::kAllGather;
        const void* inputs[] = {is_gather ? own[0] : whole[0], is_gather ? own[1] : whole[1]};
        void* outputs[] = {is_gather ? a[rank].data() : own[0],
                           is_gather ? b[rank].data() : own[1]};
        group.collective(rank).StartTensors(inputs, outputs, 0, 0);
      }
      for (int i = 0; i < 100; ++i) {
        for (int rank = 0; rank < 2; ++rank) group.Step(rank);
      }
      EXPECT_TRUE(group.collective(0).Poll() && group.collective(1).Poll());
    };
    move();
    EXPECT_THAT(std::vector(a[0].begin(), a[0].begin() + 2), ElementsAre(11, 22));
    EXPECT_EQ(a[1][2], 33);
    EXPECT_EQ(b[0][0], 44);
    EXPECT_THAT(std::vector(b[1].begin() + 1, b[1].end()), ElementsAre(55, 66, 77));
    spec.kind = CollectiveKind::kAllGather;
    move();
    EXPECT_THAT(a, Each(ElementsAre(11, 22, 33)));
    EXPECT_THAT(b, Each(ElementsAre(44, 55, 66, 77)));
  }
}

// --- Flags
// ----------------------------------------------------------------------------------------

// The rank of a host that gets from `owner` what is for the ranks there.
int DelegateOf(const CollectiveSpec& spec, int owner, uint32_t host) {
  std::vector<int> ranks;
  int place = 0;
  for (int rank = 0; rank < static_cast<int>(spec.hosts.size()); ++rank) {
    if (spec.hosts[rank] == host) ranks.push_back(rank);
    if (rank < owner && spec.hosts[rank] == spec.hosts[owner]) ++place;
  }
  return ranks[place % ranks.size()];
}

TEST(CollectiveFlagsTest, ErrorOfOneRankReachesAllThatDependOnIt) {
  std::mt19937_64 random(31);
  for (CollectiveKind kind : kKinds) {
    for (CollectiveAlgorithm algorithm : kAlgorithms) {
      for (int n : {1, 2, 3, 5}) {
        for (int failed = 0; failed < n; ++failed) {
          CollectiveSpec spec = MakeSpec(kind, algorithm, n, random);
          SetUnevenCounts(&spec, 40, random);
          spec.chunk_bytes = 32;
          SCOPED_TRACE(Describe(spec));
          Group group(spec, nullptr);
          group.SetInputs(1, false);
          std::vector<uint32_t> flags(n);
          flags[failed] = kErrorFlag;
          group.RunStepped(0, random, flags);
          for (int rank = 0; rank < n; ++rank) {
            bool depends = true;
            if (kind == CollectiveKind::kBroadcast) {
              depends = rank == failed || failed == static_cast<int>(spec.root);
            } else if (kind == CollectiveKind::kPermute) {
              depends = rank == failed || rank == static_cast<int>(spec.peers[failed]);
            } else if (kind == CollectiveKind::kAllToAll) {
              depends = rank == failed || spec.counts[failed * n + rank] > 0;
              // A rank hands on the flags that it has received when it sends a chunk.
              if (!depends) continue;
            }
            // A chain hands on what it carries, and so does the rank by which a host gets it.
            const int root = static_cast<int>(spec.root);
            if (kind == CollectiveKind::kBroadcast && algorithm == CollectiveAlgorithm::kRing) {
              depends = (rank - root + n) % n >= (failed - root + n) % n;
            }
            if (kind == CollectiveKind::kBroadcast && !spec.hosts.empty()) {
              depends |= failed == DelegateOf(spec, root, spec.hosts[rank]);
            }
            EXPECT_EQ(group.collective(rank).flags(), depends ? kErrorFlag : kNoFlags)
                << "rank " << rank << " when " << failed << " has failed";
          }
          group.RunStepped(1, random);
          for (int rank = 0; rank < n; ++rank) EXPECT_EQ(group.collective(rank).flags(), kNoFlags);
          group.ExpectRight();
        }
      }
    }
  }
}

// --- Errors
// ---------------------------------------------------------------------------------------

TEST(CollectiveErrorTest, FailedRequestEndsTheRunWithItsStatusAndPlace) {
  std::mt19937_64 random(41);
  for (CollectiveKind kind : kKinds) {
    for (CollectiveAlgorithm algorithm : kAlgorithms) {
      for (bool hide_views : {false, true}) {
        CollectiveSpec spec = MakeSpec(kind, algorithm, 4, random);
        spec.counts.assign(spec.counts.size(), 100);
        if (kind == CollectiveKind::kPermute) spec.peers = {1, 2, 3, 0};
        spec.root = 0;
        spec.chunk_bytes = 64;
        SCOPED_TRACE(Describe(spec));
        int posted = 0;
        FaultOptions faults;
        faults.views = hide_views ? Views::kNone : Views::kAll;
        faults.fail = [&](const FaultOptions::Post& post) -> absl::Status {
          if (post.device != spec.devices[1] || ++posted != 6) return absl::OkStatus();
          return absl::UnavailableError("the cable is out");
        };
        Group group(spec, &faults);
        group.SetInputs(1, false);
        for (int rank = 0; rank < 4; ++rank) group.Start(rank, 0);
        // The others may wait for rank 1 for ever: their owner cancels them.
        for (int i = 0; i < 2000; ++i) group.Step(static_cast<int>(random() % 4));
        EXPECT_TRUE(group.collective(1).Poll());
        EXPECT_EQ(group.collective(1).status().code(), absl::StatusCode::kUnavailable);
        EXPECT_THAT(std::string(group.collective(1).status().message()),
                    HasSubstr("on channel 5, rank 1 of 4: the cable is out"));
        for (int rank = 0; rank < 4; ++rank) group.collective(rank).Cancel();
        group.SettleAll(random);
        // A later run is not disturbed by what is left of this one.
        group.SetInputs(2, false);
        group.RunStepped(1, random);
        group.ExpectRight();
        if (HasFailure()) return;
      }
    }
  }
}

TEST(CollectiveErrorTest, CancelledAtAnyMomentTheNextRunIsRight) {
  std::mt19937_64 random(42);
  for (int i = 0; i < 400; ++i) {
    CollectiveSpec spec =
        MakeSpec(kKinds[random() % 6], kAlgorithms[random() % 3], 1 + random() % 5, random);
    SetUnevenCounts(&spec, 100, random);
    spec.chunk_bytes = 32;
    SCOPED_TRACE(Describe(spec));
    const FaultOptions faults = FaultsOf(static_cast<Route>(random() % 5), random());
    Group group(spec, &faults);
    const int n = group.size();
    group.SetInputs(1, spec.kind == CollectiveKind::kAllReduce && random() % 2 == 0);
    for (int rank = 0; rank < n; ++rank) group.Start(rank, 0);
    for (uint64_t steps = random() % 60; steps > 0; --steps) group.Step(random() % n);
    for (int rank = 0; rank < n; ++rank) {
      const bool was_over = group.collective(rank).Poll();
      group.collective(rank).Cancel();
      const absl::StatusCode code = group.collective(rank).status().code();
      EXPECT_EQ(code, was_over ? absl::StatusCode::kOk : absl::StatusCode::kCancelled);
    }
    group.SettleAll(random);
    group.SetInputs(2, false);
    group.RunStepped(1, random);
    group.ExpectRight();
    if (HasFailure()) return;
  }
}

TEST(CollectiveErrorTest, DestroyedWhileRunning) {
  std::mt19937_64 random(43);
  for (CollectiveKind kind : kKinds) {
    CollectiveSpec spec = MakeSpec(kind, CollectiveAlgorithm::kDirect, 3, random);
    spec.counts.assign(spec.counts.size(), 100);
    spec.chunk_bytes = 64;
    Group group(spec, nullptr);
    group.SetInputs(1, false);
    for (int rank = 0; rank < 3; ++rank) group.Start(rank, 0);
    for (int i = 0; i < 5; ++i) group.Step(static_cast<int>(random() % 3));
  }
}

TEST(CollectiveErrorTest, NoStartWhilePeersStillRead) {
  std::mt19937_64 random(45);
  CollectiveSpec spec =
      MakeSpec(CollectiveKind::kAllReduce, CollectiveAlgorithm::kDirect, 3, random);
  spec.counts = {1, 1, 1};
  Group group(spec, nullptr);
  group.SetInputs(1, false);
  group.Start(0, 0);
  group.Start(1, 0);
  group.Step(1);  // sees the term of rank 0, and waits for the one of rank 2
  group.collective(0).Cancel();
  EXPECT_TRUE(group.Step(0));
  EXPECT_FALSE(group.collective(0).Settle());
  group.Start(0, 1);
  EXPECT_TRUE(group.Step(0));
  EXPECT_EQ(group.collective(0).status().code(), absl::StatusCode::kFailedPrecondition);
  group.collective(1).Cancel();
  group.SettleAll(random);
  group.RunStepped(1, random);
  group.ExpectRight();
}

TEST(CollectiveErrorTest, RunNumbersHaveALimit) {
  std::mt19937_64 random(44);
  Group group(MakeSpec(CollectiveKind::kAllReduce, CollectiveAlgorithm::kDirect, 2, random),
              nullptr);
  group.SetInputs(1, false);
  group.Start(0, uint64_t{1} << 44);
  EXPECT_TRUE(group.collective(0).Poll());
  EXPECT_EQ(group.collective(0).status().code(), absl::StatusCode::kOutOfRange);
}

CollectiveSpec ValidSpec(CollectiveKind kind) {
  CollectiveSpec spec;
  spec.kind = kind;
  spec.devices = {2, 0, 1};
  spec.counts.assign(kind == CollectiveKind::kAllToAll    ? 9
                     : kind == CollectiveKind::kBroadcast ? 1
                                                          : 3,
                     8);
  spec.peers = {1, 2, 0};
  return spec;
}

TEST(CheckCollectiveTest, AcceptsWhatHoldsTogether) {
  for (CollectiveKind kind : kKinds) {
    CollectiveSpec spec = ValidSpec(kind);
    EXPECT_EQ(CheckCollective(spec, 3), absl::OkStatus()) << Name(kind);
    spec.algorithm = CollectiveAlgorithm::kHierarchical;
    spec.hosts = {0, 1, 0xffffffff};
    EXPECT_EQ(CheckCollective(spec, 3), absl::OkStatus()) << Name(kind);
  }
}

TEST(CheckCollectiveTest, RefusesWhatDoesNot) {
  const auto expect_refused = [](CollectiveKind kind, const char* message, auto change) {
    CollectiveSpec spec = ValidSpec(kind);
    change(&spec);
    const absl::Status status = CheckCollective(spec, 3);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  const auto all_reduce = CollectiveKind::kAllReduce;
  expect_refused(all_reduce, "the group is empty", [](auto* s) { s->devices.clear(); });
  expect_refused(all_reduce, "a group of 4 among 3 devices",
                 [](auto* s) { s->devices.push_back(1); });
  expect_refused(all_reduce, "device 3 of 3", [](auto* s) { s->devices[1] = 3; });
  expect_refused(all_reduce, "device 2 is in the group twice", [](auto* s) { s->devices[1] = 2; });
  expect_refused(all_reduce, "needs 3 counts, not 2", [](auto* s) { s->counts.pop_back(); });
  expect_refused(CollectiveKind::kAllToAll, "needs 9 counts, not 3",
                 [](auto* s) { s->counts.resize(3); });
  expect_refused(CollectiveKind::kBroadcast, "needs 1 counts, not 3",
                 [](auto* s) { s->counts.resize(3); });
  expect_refused(all_reduce, "the count -1 is negative", [](auto* s) { s->counts[2] = -1; });
  expect_refused(all_reduce, "more than 2^48 elements",
                 [](auto* s) { s->counts.assign(3, int64_t{1} << 62); });
  expect_refused(all_reduce, "chunks of 3 bytes cannot hold a f32",
                 [](auto* s) { s->chunk_bytes = 3; });
  expect_refused(all_reduce, "chunks of 0 bytes", [](auto* s) { s->chunk_bytes = 0; });
  expect_refused(all_reduce, "messages that a run can number", [](auto* s) {
    s->counts[0] = int64_t{1} << 40;
    s->chunk_bytes = 4;
  });
  expect_refused(CollectiveKind::kBroadcast, "root 3 of a group of 3",
                 [](auto* s) { s->root = 3; });
  expect_refused(CollectiveKind::kPermute, "no permutation", [](auto* s) { s->peers[0] = 2; });
  expect_refused(CollectiveKind::kPermute, "no permutation", [](auto* s) { s->peers.clear(); });
  expect_refused(all_reduce, "no such reduction of bool", [](auto* s) { s->dtype = DType::kBool; });
  expect_refused(all_reduce, "an unknown kind", [](auto* s) { s->dtype = static_cast<DType>(99); });
  expect_refused(all_reduce, "an unknown kind",
                 [](auto* s) { s->algorithm = static_cast<CollectiveAlgorithm>(3); });
  expect_refused(all_reduce, "needs the hosts of 3 ranks, not of 2", [](auto* s) {
    s->algorithm = CollectiveAlgorithm::kHierarchical;
    s->hosts = {0, 0};
  });
  const auto all_gather = CollectiveKind::kAllGather;
  const char* tensors = "tensors of these counts: they do not add up";
  expect_refused(all_reduce, tensors, [](auto* s) { s->tensors = {{8, 8, 8}}; });
  expect_refused(all_gather, tensors, [](auto* s) { s->tensors = {{8, 8}}; });
  expect_refused(all_gather, tensors, [](auto* s) { s->tensors = {{8, 8, -8}, {0, 0, 16}}; });
  expect_refused(all_gather, tensors, [](auto* s) { s->tensors = {{8, 8, 8}, {0, 1, 0}}; });
  expect_refused(all_gather, tensors, [](auto* s) { s->tensors = {{8, 4, 7}, {0, 4, 0}}; });
  expect_refused(all_reduce, "needs the hosts of 0 ranks, not of 3", [](auto* s) {
    s->hosts = {0, 0, 1};
  });
}

TEST(CheckCollectiveTest, CreateRefusesARankOutsideTheGroup) {
  auto transport = CreateInprocTransport({.num_devices = 3, .generation = 0, .num_channels = 1});
  Endpoint* endpoint = *transport->OpenEndpoint(0);
  const CollectiveSpec spec = ValidSpec(CollectiveKind::kAllReduce);
  EXPECT_FALSE(CreateCollective(spec, 3, *endpoint).ok());
  EXPECT_FALSE(CreateCollective(spec, -1, *endpoint).ok());
}

// --- Peers ---------------------------------------------------------------------------------------

TEST(CollectivePeersTest, AreSymmetric) {
  std::mt19937_64 random(11);
  for (const CollectiveKind kind : kKinds) {
    for (const CollectiveAlgorithm algorithm : kAlgorithms) {
      for (int n = 1; n <= 9; ++n) {
        CollectiveSpec spec = MakeSpec(kind, algorithm, n, random);
        SetUnevenCounts(&spec, 100, random);
        spec.chunk_bytes = 64;
        SCOPED_TRACE(Describe(spec));
        for (const uint32_t device : spec.devices) {
          for (const uint32_t peer : CollectivePeers(spec, device)) {
            EXPECT_NE(peer, device);
            EXPECT_THAT(CollectivePeers(spec, peer), Contains(device));
          }
        }
      }
    }
  }
}

TEST(CollectivePeersTest, OfARingAreItsNeighbours) {
  std::mt19937_64 random(12);
  CollectiveSpec spec = MakeSpec(CollectiveKind::kAllReduce, CollectiveAlgorithm::kRing, 8, random);
  spec.counts.assign(8, 100);
  const std::vector<uint32_t> peers = CollectivePeers(spec, spec.devices[3]);
  EXPECT_THAT(peers, UnorderedElementsAre(spec.devices[2], spec.devices[4]));
  spec.algorithm = CollectiveAlgorithm::kDirect;
  EXPECT_EQ(CollectivePeers(spec, spec.devices[3]).size(), 7u);
}

// Each rank sends its first element to the one before: no message passes between any others.
TEST(CollectivePeersTest, OfAHaloExchangeAreThoseThatLackSomething) {
  std::mt19937_64 random(13);
  CollectiveSpec spec =
      MakeSpec(CollectiveKind::kAllToAll, CollectiveAlgorithm::kDirect, 6, random);
  spec.counts.assign(36, 0);
  for (int rank = 1; rank < 6; ++rank) spec.counts[rank * 6 + rank - 1] = 1;
  ASSERT_EQ(CheckCollective(spec, 64), absl::OkStatus());
  EXPECT_THAT(CollectivePeers(spec, spec.devices[0]), UnorderedElementsAre(spec.devices[1]));
  EXPECT_THAT(CollectivePeers(spec, spec.devices[3]),
              UnorderedElementsAre(spec.devices[2], spec.devices[4]));
  spec.counts[3 * 6 + 2] = 0;
  EXPECT_THAT(CollectivePeers(spec, spec.devices[3]), UnorderedElementsAre(spec.devices[4]));
}

TEST(CollectiveBufferBytes, CountsWhatIsNotReadInPlace) {
  CollectiveSpec spec;
  spec.kind = CollectiveKind::kReduceScatter;
  spec.devices = {0, 1, 2};
  spec.dtype = DType::kF32;
  spec.counts = {1000, 1000, 1000};
  spec.chunk_bytes = 1024;
  ASSERT_EQ(CheckCollective(spec, 3), absl::OkStatus());
  EXPECT_EQ(CollectiveBufferBytes(spec, 0, {true, true, true}), 0);
  // Two chunks in flight, each with a term of both peers.
  EXPECT_EQ(CollectiveBufferBytes(spec, 0, {true, false, false}), 2 * 2 * 1024);
  spec.kind = CollectiveKind::kAllGather;
  EXPECT_EQ(CollectiveBufferBytes(spec, 0, {true, false, false}), 0);
}

}  // namespace
}  // namespace penstock::transport
