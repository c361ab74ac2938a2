#include "base/thread_pool.h"

#include <atomic>
#include <cmath>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"

#include "base/shape.h"

namespace penstock {
namespace {

TEST(ThreadPoolTest, EveryElementOnceForAnySize) {
  for (int num_threads : {1, 2, 3, 8}) {
    ThreadPool pool(num_threads);
    EXPECT_EQ(pool.size(), num_threads);
    for (int64_t count : {0, 1, 2, 7, 8, 9, 1000}) {
      for (int64_t grain : {0, 1, 3, 100, 5000}) {
        std::vector<int> visits(count);
        pool.ParallelFor(count, grain, [&](int64_t begin, int64_t end, int) {
          for (int64_t i = begin; i < end; ++i) ++visits[i];
        });
        EXPECT_EQ(visits, std::vector<int>(count, 1)) << count << " by " << grain;
      }
    }
  }
}

TEST(ThreadPoolTest, PartsDependOnCountGrainAndSizeAlone) {
  ThreadPool pool(4);
  for (int repeat = 0; repeat < 50; ++repeat) {
    for (int64_t count : {3, 10, 64, 101}) {
      for (int64_t grain : {1, 16, 40}) {
        const int64_t parts = std::min<int64_t>(4, (count + grain - 1) / grain);
        std::vector<Range> ranges(4);
        std::atomic<int> num_parts{0};
        pool.ParallelFor(count, grain, [&](int64_t begin, int64_t end, int part) {
          ranges[part] = {begin, end};
          ++num_parts;
        });
        ASSERT_EQ(num_parts, parts);
        for (int64_t part = 0; part < parts; ++part) {
          ASSERT_EQ(ranges[part], PartOf(count, part, parts));
        }
      }
    }
  }
}

// A sum by parts, whose bits depend on where the parts begin.
TEST(ThreadPoolTest, ReductionsByPartAreReproducible) {
  std::vector<float> values(10007);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i)) * 1e3f;
  const auto sum = [&values](ThreadPool& pool) {
    std::vector<float> partial(pool.size());
    pool.ParallelFor(static_cast<int64_t>(values.size()), 100,
                     [&](int64_t begin, int64_t end, int part) {
                       for (int64_t i = begin; i < end; ++i) partial[part] += values[i];
                     });
    float total = 0;
    for (float term : partial) total += term;
    return total;
  };
  ThreadPool pool(3);
  const float first = sum(pool);
  for (int i = 0; i < 200; ++i) ASSERT_EQ(sum(pool), first);
  ThreadPool another(3);
  EXPECT_EQ(sum(another), first);
}

TEST(ThreadPoolTest, EachPartHasAThreadOfItsOwn) {
  ThreadPool pool(3);
  struct {
    absl::Mutex mutex;
    std::set<std::thread::id> ids ABSL_GUARDED_BY(mutex);
    std::thread::id first_part ABSL_GUARDED_BY(mutex);
  } seen;
  pool.ParallelFor(3, 1, [&](int64_t, int64_t, int part) {
    const absl::MutexLock lock(&seen.mutex);
    seen.ids.insert(std::this_thread::get_id());
    if (part == 0) seen.first_part = std::this_thread::get_id();
  });
  const absl::MutexLock lock(&seen.mutex);
  EXPECT_EQ(seen.ids.size(), 3u);
  EXPECT_EQ(seen.first_part, std::this_thread::get_id());
}

// What one job writes the next one reads, in other parts: no locks but the pool's own order.
TEST(ThreadPoolTest, ManyJobsInARowSeeEachOthersWrites) {
  ThreadPool pool(4);
  constexpr int64_t kCount = 64;
  constexpr int kJobs = 3000;
  std::vector<int64_t> values(kCount), next(kCount);
  for (int job = 0; job < kJobs; ++job) {
    pool.ParallelFor(kCount, 1 + job % 40, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) next[i] = values[(i + 17) % kCount] + 1;
    });
    values.swap(next);
  }
  EXPECT_EQ(values, std::vector<int64_t>(kCount, kJobs));
}

TEST(ThreadPoolTest, StartsAndStops) {
  for (int i = 0; i < 200; ++i) {
    ThreadPool pool(1 + i % 5);
    int64_t sum = 0;
    if (i % 3 != 0) {
      std::atomic<int64_t> shared{0};
      pool.ParallelFor(100, 1, [&](int64_t begin, int64_t end, int) { shared += end - begin; });
      sum = shared;
    }
    EXPECT_EQ(sum, i % 3 != 0 ? 100 : 0);
  }
}

}  // namespace
}  // namespace penstock
