// Byte-pair encoding (Gage 1994; Sennrich et al., arXiv:1508.07909): a word begins as symbols, and
// of all neighbours that have a merge, those with the first one in the list are joined, until none
// has one. Joining keeps a priority queue of candidates, so a word of n symbols takes n log n.
//
// Example: with the merges (l o), (lo w) and (e r), "lower" is l o w e r, then lo w e r, low e r,
// and low er.
//
// Thread rule: immutable once the merges are added.

#ifndef PENSTOCK_CLI_BYTE_PAIRS_H_
#define PENSTOCK_CLI_BYTE_PAIRS_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace penstock::cli {

class BytePairs {
 public:
  // The next merge: `left` and `right` become `joined`. A pair that has one already keeps it.
  void Add(int32_t left, int32_t right, int32_t joined);

  // Joins the symbols of a word, in place. REQUIRES: fewer than 2^31 symbols.
  void Join(std::vector<int32_t>* symbols) const;

 private:
  struct Merge {
    int32_t rank = 0;
    int32_t joined = 0;
  };
  const Merge* Find(int32_t left, int32_t right) const;

  absl::flat_hash_map<uint64_t, Merge> merges_;  // by both symbols
  int32_t num_merges_ = 0;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_BYTE_PAIRS_H_
