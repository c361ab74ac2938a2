// Makes wrong sessions of the control plane out of right ones: bytes that are flipped, numbers that
// are too large, frames that come again, are missing or are cut, and much that is no session at
// all.
//
// Thread rule: one thread. The same seed makes the same bytes.

#ifndef PENSTOCK_TESTS_SUPPORT_FRAME_MUTATOR_H_
#define PENSTOCK_TESTS_SUPPORT_FRAME_MUTATOR_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/control_harness.h"

namespace penstock::testing {

// How many changed frames the tests send: those of PENSTOCK_HOSTILE_FRAMES, if it is set.
inline size_t NumHostileFrames(size_t otherwise) {
  const char* const text = std::getenv("PENSTOCK_HOSTILE_FRAMES");
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class FrameMutator {
 public:
  FrameMutator(uint64_t seed, std::vector<std::string> sessions)
      : random_(seed), sessions_(std::move(sessions)) {}

  // A connection's bytes.
  std::string Next() {
    const std::string& session = sessions_[Below(sessions_.size())];
    std::string hello = session.substr(0, kControlHelloBytes);
    std::vector<std::string> frames = SplitFrames(std::string_view(session).substr(hello.size()));
    switch (Below(16)) {
      case 0:  // no hello, or not the whole of it
        return RandomBytes(Below(200));
      case 1:
        return hello.substr(0, Below(hello.size()));
      case 2:
        Flip(&hello);
        break;
      case 3:  // a right hello, then anything
        return hello + RandomBytes(Below(2000));
      case 4:
        return hello + HugeTable() + RandomBytes(Below(100));
      case 5:
        return hello + DeepFrame();
      case 6:  // the session breaks off
        return session.substr(0, Below(session.size()));
      case 7:  // or a frame of it is said again, and again
        Repeat(&frames);
        break;
      case 8:
        std::shuffle(frames.begin(), frames.end(), random_);
        break;
      case 9:
        frames.erase(frames.begin() + static_cast<std::ptrdiff_t>(Below(frames.size())));
        break;
      default:
        break;
    }
    const size_t num_changes = 1 + Below(4);
    for (size_t i = 0; i < num_changes; ++i) Change(&frames[Below(frames.size())]);
    std::string bytes = hello + JoinFrames(frames);
    return Below(4) == 0 ? bytes : RehashPlans(std::move(bytes));
  }

 private:
  size_t Below(size_t bound) { return bound == 0 ? 0 : random_() % bound; }

  std::string RandomBytes(size_t size) {
    std::string bytes(size, '\0');
    for (char& c : bytes) c = static_cast<char>(random_());
    return bytes;
  }

  void Flip(std::string* bytes) {
    if (!bytes->empty()) (*bytes)[Below(bytes->size())] ^= static_cast<char>(1 << Below(8));
  }

  // A word of a frame is where its numbers, pointers and ids are.
  void Change(std::string* frame) {
    static constexpr uint64_t kValues[] = {0,
                                           1,
                                           2,
                                           7,
                                           0xff,
                                           0xffff,
                                           0x7fffffff,
                                           0xffffffff,
                                           0x100000000,
                                           0x7fffffffffffffff,
                                           0xffffffffffffffff,
                                           0xfffffffd00000001,
                                           0x0000000100000003,
                                           0xfffffff800000007};
    if (frame->size() < 16) return;
    const size_t word = 8 * (1 + Below(frame->size() / 8 - 1));
    switch (Below(6)) {
      case 0:
        Flip(frame);
        break;
      case 1:
        memcpy(frame->data() + word, &kValues[Below(std::size(kValues))], 8);
        break;
      case 2: {  // one of the numbers in a word
        const auto value = static_cast<uint16_t>(kValues[Below(std::size(kValues))]);
        memcpy(frame->data() + word + 2 * Below(4), &value, 2);
        break;
      }
      case 3: {  // a number a little higher or lower
        uint32_t value = 0;
        const size_t at = word + 4 * Below(2);
        memcpy(&value, frame->data() + at, 4);
        value += static_cast<uint32_t>(Below(9)) - 4;
        memcpy(frame->data() + at, &value, 4);
        break;
      }
      case 4: {  // one word where another is
        const size_t from = 8 * (1 + Below(frame->size() / 8 - 1));
        memmove(frame->data() + word, frame->data() + from, 8);
        break;
      }
      case 5:
        frame->resize(Below(frame->size()));
        break;
    }
  }

  void Repeat(std::vector<std::string>* frames) {
    const std::string frame = (*frames)[Below(frames->size())];
    frames->insert(frames->begin() + static_cast<std::ptrdiff_t>(Below(frames->size())),
                   1 + Below(100), frame);
  }

  // A header that promises much.
  std::string HugeTable() {
    const uint32_t num_segments = Below(2) == 0 ? 0 : static_cast<uint32_t>(Below(600));
    std::string header(((num_segments + 1 + 2) / 2) * 8, '\0');
    memcpy(header.data(), &num_segments, 4);
    for (size_t i = 4; i + 4 <= header.size(); i += 4) {
      const uint32_t words = static_cast<uint32_t>(random_()) >> Below(32);
      memcpy(header.data() + i, &words, 4);
    }
    return header;
  }

  // Pointers to pointers, far and near, that go down, or round.
  std::string DeepFrame() {
    const auto num_words = static_cast<uint32_t>(1 + Below(500));
    std::string frame(8 + 8 * size_t{num_words}, '\0');
    memcpy(frame.data() + 4, &num_words, 4);
    for (uint32_t i = 0; i < num_words; ++i) {
      static constexpr uint64_t kPointers[] = {
          0x0001000000000000,  // a struct of one pointer: the next word
          0x0000000e00000001,  // a list of one pointer
          0x0001000100000000,
          0x00000000fffffffc,  // the word itself
          0x0000000000000002,  // a far pointer
      };
      const uint64_t pointer = kPointers[Below(8) == 0 ? Below(std::size(kPointers)) : 0];
      memcpy(frame.data() + 8 + 8 * size_t{i}, &pointer, 8);
    }
    return frame;
  }

  std::mt19937_64 random_;
  const std::vector<std::string> sessions_;
};

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_FRAME_MUTATOR_H_
