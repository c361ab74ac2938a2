#include "kernels/cpu/random_words.h"

namespace penstock::kernels {

void FillWords(const RandomKey& key, uint64_t first_block, int64_t num_blocks, uint32_t* words) {
  for (int64_t done = 0; done < num_blocks; done += kWordLanes) {
    uint32_t c0[kWordLanes];
    uint32_t c1[kWordLanes];
    uint32_t c2[kWordLanes];
    uint32_t c3[kWordLanes];
    for (int i = 0; i < kWordLanes; ++i) {
      const uint64_t block = first_block + done + i;
      c0[i] = static_cast<uint32_t>(block);
      c1[i] = static_cast<uint32_t>(block >> 32);
      c2[i] = key.stream;
      c3[i] = key.step;
    }
    uint32_t k0 = static_cast<uint32_t>(key.seed);
    uint32_t k1 = static_cast<uint32_t>(key.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < kWordLanes; ++i) {
        const uint64_t p0 = uint64_t{0xD2511F53} * c0[i];
        const uint64_t p1 = uint64_t{0xCD9E8D57} * c2[i];
        c0[i] = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
        c2[i] = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
        c1[i] = static_cast<uint32_t>(p1);
        c3[i] = static_cast<uint32_t>(p0);
      }
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    for (int i = 0; i < kWordLanes; ++i) {
      uint32_t* to = words + 4 * (done + i);
      to[0] = c0[i];
      to[1] = c1[i];
      to[2] = c2[i];
      to[3] = c3[i];
    }
  }
}

}  // namespace penstock::kernels
