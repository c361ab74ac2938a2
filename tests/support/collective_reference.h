// What collectives are to produce, computed the slow way from the definitions in
// base/collective.h: element by element, with an arithmetic of its own.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_TESTS_SUPPORT_COLLECTIVE_REFERENCE_H_
#define PENSTOCK_TESTS_SUPPORT_COLLECTIVE_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/collective.h"

namespace penstock::testing {

using Bytes = std::vector<std::byte>;

// The outputs of all ranks, given the inputs of all ranks (InputCount elements each). Of several
// tensors, those of a rank lie one tensor behind the other.
std::vector<Bytes> ReferenceCollective(const CollectiveSpec& spec,
                                       const std::vector<Bytes>& inputs);

// Cuts every rank's elements into tensors, with empty ones among them.
void CutIntoTensors(CollectiveSpec* spec, size_t num_tensors, std::mt19937_64& random);

// Any kind, algorithm and reduction, of f32, bf16, f16 or i32, between up to 5 devices.
CollectiveSpec RandomCollective(std::mt19937_64& random);

// Where the tensors of a rank lie that are one behind the other in `input` and `output`.
struct TensorPlaces {
  TensorPlaces(const CollectiveSpec& spec, int rank, const std::byte* input, std::byte* output);
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
};

// Elements such that another association of a sum or product gives other bits: floats of mixed
// magnitude and sign, integers over their whole range, bools 0 and 1.
Bytes RandomElements(DType dtype, int64_t count, uint64_t seed);

// Of f32, f16, bf16 or i32: integers from 1 to 3 and their negatives. Sums and products of up to
// five are exact in any association.
Bytes SmallIntegers(DType dtype, int64_t count, uint64_t seed);

// "ring all_reduce of f32 sum, 3 ranks, counts 4 0 7, chunks of 64 bytes".
std::string Describe(const CollectiveSpec& spec);

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_COLLECTIVE_REFERENCE_H_
