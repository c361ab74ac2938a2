#include "actors/cluster/scattered_bytes.h"

#include <cstring>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::actors {
namespace {

TEST(ScatteredBytesTest, IsOneRowOfItsParts) {
  std::string text[] = {"pen", "", "stock", "s"};
  ByteSource source;
  ByteTarget target;
  std::string copies[4];
  for (int i = 0; i < 4; ++i) {
    copies[i].resize(text[i].size());
    source.Add(text[i].size(), [&from = text[i]](uint64_t offset, size_t size, std::byte* bytes) {
      memcpy(bytes, from.data() + offset, size);
    });
    target.Add(text[i].size(),
               [&to = copies[i]](uint64_t offset, size_t size, const std::byte* bytes) {
                 memcpy(to.data() + offset, bytes, size);
               });
  }
  ASSERT_EQ(source.num_bytes(), 9u);
  const std::string all = "penstocks";
  for (size_t begin = 0; begin <= all.size(); ++begin) {
    for (size_t end = begin; end <= all.size(); ++end) {
      std::string read(end - begin, '\0');
      source.Copy(begin, read.size(), reinterpret_cast<std::byte*>(read.data()));
      EXPECT_EQ(read, all.substr(begin, end - begin));
      for (std::string& copy : copies) copy.assign(copy.size(), '.');
      target.Copy(begin, read.size(), reinterpret_cast<const std::byte*>(read.data()));
      EXPECT_EQ(copies[0] + copies[2] + copies[3],
                std::string(begin, '.') + read + std::string(all.size() - end, '.'));
    }
  }
}

}  // namespace
}  // namespace penstock::actors
