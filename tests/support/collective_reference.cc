#include "tests/support/collective_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>

#include "base/half.h"
#include "base/random.h"
#include "base/strings.h"

namespace penstock::testing {
namespace {

template <typename T>
T Wrap(__int128 exact) {
  return static_cast<T>(static_cast<uint64_t>(exact));  // modulo 2^bits
}

template <typename T>
T Combine(ReduceOp op, T a, T b) {
  constexpr bool is_integer = std::is_integral_v<T>;
  switch (op) {
    case ReduceOp::kSum:
      if constexpr (is_integer) return Wrap<T>(static_cast<__int128>(a) + b);
      return a + b;
    case ReduceOp::kProd:
      if constexpr (is_integer) return Wrap<T>(static_cast<__int128>(a) * b);
      return a * b;
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kMin:
      return std::min(a, b);
  }
  return a;
}

// The element at byte `at` of the terms, folded in order. Of 16 bits it is computed in f32, and
// rounded at the end, or along a ring after each term.
void CombineElement(const CollectiveSpec& spec, const std::vector<Bytes>& terms, size_t at,
                    std::byte* folded) {
  const auto combine = [&]<typename T>(T) {
    const auto element_of = [at](const Bytes& term) {
      T element;
      std::memcpy(&element, &term[at], sizeof(T));
      return element;
    };
    T result = element_of(terms[0]);
    if constexpr (kIsHalf<T>) {
      float wide = ToFloat(result);
      for (size_t i = 1; i < terms.size(); ++i) {
        wide = Combine(spec.reduce, wide, ToFloat(element_of(terms[i])));
        result = FromFloat<T>(wide);
        if (spec.algorithm == CollectiveAlgorithm::kRing) wide = ToFloat(result);
      }
    } else {
      for (size_t i = 1; i < terms.size(); ++i) {
        result = Combine(spec.reduce, result, element_of(terms[i]));
      }
    }
    std::memcpy(folded, &result, sizeof(T));
  };
  switch (spec.dtype) {
    case DType::kF32:
      return combine(float{});
    case DType::kF64:
      return combine(double{});
    case DType::kI8:
      return combine(int8_t{});
    case DType::kU8:
    case DType::kBool:
      return combine(uint8_t{});
    case DType::kI32:
      return combine(int32_t{});
    case DType::kI64:
      return combine(int64_t{});
    case DType::kF16:
      return combine(Float16{});
    case DType::kBF16:
      return combine(BFloat16{});
  }
}

// Elements [begin, begin + count) of `bytes`, appended to `to`.
void AppendElements(const CollectiveSpec& spec, const Bytes& bytes, int64_t begin, int64_t count,
                    Bytes* to) {
  const auto size = static_cast<int64_t>(ByteSize(spec.dtype));
  to->insert(to->end(), bytes.begin() + begin * size, bytes.begin() + (begin + count) * size);
}

// Of a hierarchical reduction, the ranks of each host; else all ranks together, in the order in
// which the algorithm folds the terms of a piece.
std::vector<std::vector<int>> FoldOrder(const CollectiveSpec& spec, int piece) {
  const int n = static_cast<int>(spec.devices.size());
  std::vector<std::vector<int>> order(1);
  if (spec.algorithm == CollectiveAlgorithm::kHierarchical) {
    std::vector<uint32_t> hosts;
    order.clear();
    for (int rank = 0; rank < n; ++rank) {
      const auto found = std::find(hosts.begin(), hosts.end(), spec.hosts[rank]);
      const auto host = static_cast<size_t>(found - hosts.begin());
      if (host == hosts.size()) {
        hosts.push_back(spec.hosts[rank]);
        order.emplace_back();
      }
      order[host].push_back(rank);
    }
    return order;
  }
  const int first = spec.algorithm == CollectiveAlgorithm::kRing ? piece + 1 : 0;
  for (int i = 0; i < n; ++i) order[0].push_back((first + i) % n);
  return order;
}

// Piece `piece` of the reduction: its terms in the order that the algorithm defines.
Bytes ReducePiece(const CollectiveSpec& spec, const std::vector<Bytes>& inputs, int piece) {
  const int64_t begin =
      std::accumulate(spec.counts.begin(), spec.counts.begin() + piece, int64_t{0});
  const auto fold = [&spec](const std::vector<Bytes>& terms) {
    Bytes folded(terms[0].size());
    for (size_t at = 0; at < folded.size(); at += ByteSize(spec.dtype)) {
      CombineElement(spec, terms, at, &folded[at]);
    }
    return folded;
  };
  std::vector<Bytes> results;  // one, or of each host
  for (const std::vector<int>& ranks : FoldOrder(spec, piece)) {
    std::vector<Bytes> terms(ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      AppendElements(spec, inputs[ranks[i]], begin, spec.counts[piece], &terms[i]);
    }
    results.push_back(fold(terms));
  }
  return fold(results);
}

// Tensor by tensor, as if each were moved by itself.
std::vector<Bytes> OfTensors(const CollectiveSpec& spec, const std::vector<Bytes>& inputs) {
  std::vector<Bytes> outputs(inputs.size());
  std::vector<int64_t> begins(inputs.size(), 0);
  for (const std::vector<int64_t>& counts : spec.tensors) {
    CollectiveSpec alone = spec;
    alone.tensors.clear();
    alone.counts = counts;
    std::vector<Bytes> parts(inputs.size());
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      const int64_t count = InputCount(alone, static_cast<int>(rank));
      AppendElements(spec, inputs[rank], begins[rank], count, &parts[rank]);
      begins[rank] += count;
    }
    const std::vector<Bytes> results = ReferenceCollective(alone, parts);
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      outputs[rank].insert(outputs[rank].end(), results[rank].begin(), results[rank].end());
    }
  }
  return outputs;
}

}  // namespace

void CutIntoTensors(CollectiveSpec* spec, size_t num_tensors, std::mt19937_64& random) {
  spec->tensors.assign(num_tensors, std::vector<int64_t>(spec->counts.size(), 0));
  for (size_t rank = 0; rank < spec->counts.size(); ++rank) {
    int64_t rest = spec->counts[rank];
    for (size_t t = 0; t + 1 < num_tensors; ++t) {
      spec->tensors[t][rank] = static_cast<int64_t>(random() % (rest + 1));
      rest -= spec->tensors[t][rank];
    }
    spec->tensors.back()[rank] = rest;
  }
}

TensorPlaces::TensorPlaces(const CollectiveSpec& spec, int rank, const std::byte* input,
                           std::byte* output) {
  for (size_t t = 0; t < NumTensors(spec); ++t) {
    inputs.push_back(input);
    outputs.push_back(output);
    input += InputCount(spec, rank, t) * static_cast<int64_t>(ByteSize(spec.dtype));
    output += OutputCount(spec, rank, t) * static_cast<int64_t>(ByteSize(spec.dtype));
  }
}

std::vector<Bytes> ReferenceCollective(const CollectiveSpec& spec,
                                       const std::vector<Bytes>& inputs) {
  if (!spec.tensors.empty()) return OfTensors(spec, inputs);
  const int n = static_cast<int>(inputs.size());
  std::vector<Bytes> outputs(n);
  for (int rank = 0; rank < n; ++rank) {
    Bytes& output = outputs[rank];
    switch (spec.kind) {
      case CollectiveKind::kAllReduce:
        for (int piece = 0; piece < n; ++piece) {
          const Bytes reduced = ReducePiece(spec, inputs, piece);
          output.insert(output.end(), reduced.begin(), reduced.end());
        }
        break;
      case CollectiveKind::kReduceScatter:
        output = ReducePiece(spec, inputs, rank);
        break;
      case CollectiveKind::kAllGather:
        for (const Bytes& input : inputs) output.insert(output.end(), input.begin(), input.end());
        break;
      case CollectiveKind::kAllToAll:
        for (int source = 0; source < n; ++source) {
          const auto row = spec.counts.begin() + source * n;
          AppendElements(spec, inputs[source], std::accumulate(row, row + rank, int64_t{0}),
                         row[rank], &output);
        }
        break;
      case CollectiveKind::kBroadcast:
        output = inputs[spec.root];
        break;
      case CollectiveKind::kPermute:
        for (int source = 0; source < n; ++source) {
          if (static_cast<int>(spec.peers[source]) == rank) output = inputs[source];
        }
        break;
    }
  }
  return outputs;
}

Bytes RandomElements(DType dtype, int64_t count, uint64_t seed) {
  const RandomKey key{seed, 17, 0};
  const size_t size = ByteSize(dtype);
  Bytes bytes(count * size);
  for (int64_t i = 0; i < count; ++i) {
    std::byte* element = &bytes[i * size];
    const uint64_t word = uint64_t{RandomWord(key, 2 * i)} << 32 | RandomWord(key, 2 * i + 1);
    const double real = std::ldexp(static_cast<double>(static_cast<int64_t>(word)) * 0x1p-63,
                                   static_cast<int>(word % 12));
    const auto real32 = static_cast<float>(real);
    const auto truth = static_cast<uint8_t>(word & 1);
    const BFloat16 bfloat16 = ToBFloat16(real32);
    const Float16 float16 = ToFloat16(real32);
    if (dtype == DType::kF32) {
      std::memcpy(element, &real32, size);
    } else if (dtype == DType::kBF16) {
      std::memcpy(element, &bfloat16, size);
    } else if (dtype == DType::kF16) {
      std::memcpy(element, &float16, size);
    } else if (dtype == DType::kF64) {
      std::memcpy(element, &real, size);
    } else if (dtype == DType::kBool) {
      std::memcpy(element, &truth, size);
    } else {
      std::memcpy(element, &word, size);
    }
  }
  return bytes;
}

Bytes SmallIntegers(DType dtype, int64_t count, uint64_t seed) {
  const size_t size = ByteSize(dtype);
  Bytes bytes(count * size);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t word = RandomWord({seed, 17, 0}, i);
    const int32_t value = static_cast<int32_t>(word % 3 + 1) * (word % 2 == 0 ? 1 : -1);
    const auto put = [&](auto element) { std::memcpy(&bytes[i * size], &element, size); };
    switch (dtype) {
      case DType::kF32:
        put(static_cast<float>(value));
        break;
      case DType::kF16:
        put(ToFloat16(static_cast<float>(value)));
        break;
      case DType::kBF16:
        put(ToBFloat16(static_cast<float>(value)));
        break;
      default:
        put(value);
    }
  }
  return bytes;
}

std::string Describe(const CollectiveSpec& spec) {
  static constexpr const char* kReduceNames[] = {"sum", "max", "min", "prod"};
  return StrCat(Name(spec.algorithm), " ", Name(spec.kind), " of ", Name(spec.dtype), " ",
                kReduceNames[static_cast<int>(spec.reduce)], ", ", spec.devices.size(), " ranks, ",
                NumTensors(spec), " tensors, counts ", StrJoin(spec.counts, " "), ", chunks of ",
                spec.chunk_bytes, " bytes, hosts ", StrJoin(spec.hosts, " "));
}

CollectiveSpec RandomCollective(std::mt19937_64& random) {
  CollectiveSpec spec;
  const auto n = static_cast<int64_t>(1 + random() % 5);
  spec.kind = static_cast<CollectiveKind>(random() % 6);
  spec.algorithm = static_cast<CollectiveAlgorithm>(random() % 3);
  spec.reduce = static_cast<ReduceOp>(random() % 4);
  constexpr DType kDTypes[] = {DType::kF32, DType::kI32, DType::kBF16, DType::kF16};
  spec.dtype = kDTypes[random() % std::size(kDTypes)];
  for (int64_t i = 0; i < n; ++i) {
    spec.devices.push_back(static_cast<uint32_t>(2 * i));
    spec.hosts.push_back(static_cast<uint32_t>(random() % 3));
    spec.peers.push_back(static_cast<uint32_t>(i));
  }
  if (spec.algorithm != CollectiveAlgorithm::kHierarchical) spec.hosts.clear();
  std::shuffle(spec.peers.begin(), spec.peers.end(), random);
  const int64_t num_counts = spec.kind == CollectiveKind::kAllToAll    ? n * n
                             : spec.kind == CollectiveKind::kBroadcast ? 1
                                                                       : n;
  for (int64_t i = 0; i < num_counts; ++i) {
    spec.counts.push_back(static_cast<int64_t>(random() % 40));
  }
  if (spec.kind == CollectiveKind::kPermute) {
    // What is sent has the size of what is received.
    std::fill(spec.counts.begin(), spec.counts.end(), spec.counts.front());
  } else {
    spec.peers.clear();
  }
  if (spec.kind == CollectiveKind::kBroadcast) spec.root = static_cast<uint32_t>(random() % n);
  if (spec.kind == CollectiveKind::kAllGather || spec.kind == CollectiveKind::kReduceScatter) {
    if (random() % 2 == 0) CutIntoTensors(&spec, 1 + random() % 4, random);
  }
  return spec;
}

}  // namespace penstock::testing
