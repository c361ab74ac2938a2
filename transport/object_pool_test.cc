#include "transport/object_pool.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace penstock::transport {
namespace {

struct Object {
  Object* next = nullptr;
  uint32_t index = ~uint32_t{0};
};

TEST(ObjectPoolTest, ReusesTheObjectThatWasRecycledLast) {
  ObjectPool<Object> pool;
  Object* first = pool.Acquire();
  Object* second = pool.Acquire();
  EXPECT_NE(first, second);
  pool.Recycle(first);
  pool.Recycle(second);
  EXPECT_EQ(pool.Acquire(), second);
  EXPECT_EQ(pool.Acquire(), first);
  EXPECT_EQ(pool.size(), ObjectPool<Object>::kBlockSize);
}

TEST(ObjectPoolTest, GrowsWithoutMovingItsObjects) {
  ObjectPool<Object> pool;
  const auto set_index = [](Object& object, uint32_t index) { object.index = index; };
  std::set<Object*> in_use;
  for (uint32_t i = 0; i < ObjectPool<Object>::kBlockSize + 1; ++i) {
    EXPECT_TRUE(in_use.insert(pool.Acquire(set_index)).second);
  }
  ASSERT_EQ(pool.size(), 2 * ObjectPool<Object>::kBlockSize);
  for (uint32_t i = 0; i < pool.size(); ++i) EXPECT_EQ(pool.at(i).index, i);
  for (Object* object : in_use) EXPECT_EQ(&pool.at(object->index), object);
}

TEST(ObjectPoolTest, InitializesAnObjectOnce) {
  ObjectPool<Object> pool;
  int calls = 0;
  const auto count = [&calls](Object&, uint32_t) { ++calls; };
  pool.Recycle(pool.Acquire(count));
  pool.Recycle(pool.Acquire(count));
  EXPECT_EQ(calls, static_cast<int>(ObjectPool<Object>::kBlockSize));
}

}  // namespace
}  // namespace penstock::transport
