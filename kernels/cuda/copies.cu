#include "kernels/cuda/copies.h"
#include "kernels/cuda/simt.h"

namespace penstock::kernels::cuda {
namespace {

constexpr LaunchResult kUnknownSize = 1;  // cudaErrorInvalidValue
constexpr int kTransposeTile = 32;        // of transposes, rows and columns
constexpr int kTransposeRows = 8;         // that the threads of a block copy at a time

using Word16 = Pack<uint64_t, 2>;

__device__ int64_t WindowOffset(const Window& window) {
  int64_t offset = 0;
  int64_t stride = 1;
  for (int i = window.rank - 1; i >= 0; --i) {
    const int64_t room = window.whole[i] - window.window[i];
    const int64_t last = room > 0 ? room : 0;
    const int64_t start = window.start[i];
    offset += (start < 0 ? 0 : start > last ? last : start) * stride;
    stride *= window.whole[i];
  }
  return offset;
}

template <typename W>
__global__ void CopyKernel(Box box, Window window, int64_t count, const W* source, W* target) {
  if (window.rank > 0) {
    const int64_t offset = WindowOffset(window);
    source += window.is_in_source ? offset : 0;
    target += window.is_in_source ? 0 : offset;
  }
  for (int64_t i = ThreadIndex(); i < count; i += ThreadCount()) {
    int64_t rest = i;
    int64_t from = 0;
    int64_t to = 0;
    for (int dim = box.rank - 1; dim >= 0; --dim) {
      const int64_t at = rest % box.sizes[dim];
      rest /= box.sizes[dim];
      from += at * box.source_strides[dim];
      to += at * box.target_strides[dim];
    }
    target[to] = source[from];
  }
}

// The last dimension is contiguous in the target and the one before it in the source: tiles go
// through shared memory, so that reads and writes are both of neighbours.
template <typename W>
__global__ void TransposeKernel(Box box, int64_t row_tiles, int64_t column_tiles, int64_t num_tiles,
                                const W* source, W* target) {
  __shared__ W tile[kTransposeTile][kTransposeTile + 1];
  const int rows_dim = box.rank - 2;
  const int columns_dim = box.rank - 1;
  const int64_t rows = box.sizes[rows_dim];
  const int64_t columns = box.sizes[columns_dim];
  for (int64_t block = blockIdx.x; block < num_tiles; block += gridDim.x) {
    const int64_t first_column = block % column_tiles * kTransposeTile;
    const int64_t first_row = block / column_tiles % row_tiles * kTransposeTile;
    int64_t rest = block / column_tiles / row_tiles;
    int64_t from = 0;
    int64_t to = 0;
    for (int dim = rows_dim - 1; dim >= 0; --dim) {
      const int64_t at = rest % box.sizes[dim];
      rest /= box.sizes[dim];
      from += at * box.source_strides[dim];
      to += at * box.target_strides[dim];
    }
    const int64_t row_read = first_row + threadIdx.x;
    for (int i = static_cast<int>(threadIdx.y); i < kTransposeTile; i += kTransposeRows) {
      if (row_read < rows && first_column + i < columns) {
        tile[i][threadIdx.x] =
            source[from + row_read + (first_column + i) * box.source_strides[columns_dim]];
      }
    }
    __syncthreads();
    const int64_t column = first_column + threadIdx.x;
    for (int i = static_cast<int>(threadIdx.y); i < kTransposeTile; i += kTransposeRows) {
      if (first_row + i < rows && column < columns) {
        target[to + (first_row + i) * box.target_strides[rows_dim] + column] = tile[threadIdx.x][i];
      }
    }
    __syncthreads();
  }
}

bool IsTranspose(const Box& box) {
  return box.rank >= 2 && box.target_strides[box.rank - 1] == 1 &&
         box.source_strides[box.rank - 2] == 1 && box.sizes[box.rank - 1] >= kTransposeRows &&
         box.sizes[box.rank - 2] >= kTransposeRows;
}

template <typename W>
LaunchResult Copy(StreamHandle stream, const Box& box, const Window& window, const void* source,
                  void* target) {
  const int64_t count = box.count();
  if (count == 0) return 0;
  const auto* from = static_cast<const W*>(source);
  auto* to = static_cast<W*>(target);
  if (window.rank == 0 && IsTranspose(box)) {
    const int64_t row_tiles = CeilDiv(box.sizes[box.rank - 2], kTransposeTile);
    const int64_t column_tiles = CeilDiv(box.sizes[box.rank - 1], kTransposeTile);
    int64_t num_tiles = row_tiles * column_tiles;
    for (int i = 0; i + 2 < box.rank; ++i) num_tiles *= box.sizes[i];
    const LaunchShape shape = {
        .grid_x = static_cast<unsigned>(num_tiles < kMaxBlocks ? num_tiles : kMaxBlocks),
        .threads_x = kTransposeTile,
        .threads_y = kTransposeRows};
    return Launch(&TransposeKernel<W>, shape, stream, box, row_tiles, column_tiles, num_tiles, from,
                  to);
  }
  return Launch(&CopyKernel<W>, ShapeForLoop(count), stream, box, window, count, from, to);
}

LaunchResult CopyWords(StreamHandle stream, const Box& box, const Window& window, int word_bytes,
                       const void* source, void* target) {
  switch (word_bytes) {
    case 1:
      return Copy<uint8_t>(stream, box, window, source, target);
    case 2:
      return Copy<uint16_t>(stream, box, window, source, target);
    case 4:
      return Copy<uint32_t>(stream, box, window, source, target);
    case 8:
      return Copy<uint64_t>(stream, box, window, source, target);
    case 16:
      return Copy<Word16>(stream, box, window, source, target);
    default:
      return kUnknownSize;
  }
}

template <typename W>
__global__ void EmbeddingKernel(EmbeddingParams params, const W* table, W* y) {
  const int64_t words = params.row_bytes / static_cast<int64_t>(sizeof(W));
  for (int64_t at = ThreadIndex(); at < params.count * words; at += ThreadCount()) {
    const int64_t id = LoadIndex(params.ids, at / words);
    const int64_t row = id - params.first;
    W word = {};
    if (CheckIndex(params.site, id, params.limit) && row >= 0 && row < params.rows) {
      word = table[row * words + at % words];
    }
    y[at] = word;
  }
}

template <typename W>
LaunchResult Embed(StreamHandle stream, const EmbeddingParams& params, const void* table, void* y) {
  const int64_t count = params.count * (params.row_bytes / static_cast<int64_t>(sizeof(W)));
  if (count == 0) return 0;
  return Launch(&EmbeddingKernel<W>, ShapeForLoop(count), stream, params,
                static_cast<const W*>(table), static_cast<W*>(y));
}

template <typename W>
__global__ void PickKernel(PickParams params, const W* x, W* y) {
  for (int64_t row = ThreadIndex(); row < params.rows; row += ThreadCount()) {
    const int64_t index = LoadIndex(params.index, row);
    const int64_t at = index - params.first;
    W word = {};
    if (CheckIndex(params.site, index, params.limit) && at >= 0 && at < params.row_size) {
      word = x[row * params.row_size + at];
    }
    y[row] = word;
  }
}

template <typename W>
LaunchResult Pick(StreamHandle stream, const PickParams& params, const void* x, void* y) {
  if (params.rows == 0) return 0;
  return Launch(&PickKernel<W>, ShapeForLoop(params.rows), stream, params, static_cast<const W*>(x),
                static_cast<W*>(y));
}

// The largest power of two, at most 16, that divides all of them.
int WordOf(uint64_t bits) {
  int word = 16;
  while (word > 1 && bits % static_cast<uint64_t>(word) != 0) word /= 2;
  return word;
}

uint64_t AddressBits(const void* a, const void* b) {
  return reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b);
}

}  // namespace

int WordBytes(const Box& box, int element_bytes, const void* source, const void* target) {
  const int last = box.rank - 1;
  if (box.rank == 0 || box.source_strides[last] != 1 || box.target_strides[last] != 1) {
    return element_bytes;
  }
  const auto bytes = static_cast<uint64_t>(element_bytes);
  uint64_t bits = AddressBits(source, target) | static_cast<uint64_t>(box.sizes[last]) * bytes;
  for (int i = 0; i < last; ++i) {
    bits |= static_cast<uint64_t>(box.source_strides[i]) * bytes;
    bits |= static_cast<uint64_t>(box.target_strides[i]) * bytes;
  }
  const int word = WordOf(bits);
  return word < element_bytes ? element_bytes : word;
}

LaunchResult LaunchCopy(StreamHandle stream, const Box& box, int element_bytes, const void* source,
                        void* target) {
  const int word_bytes = WordBytes(box, element_bytes, source, target);
  Box words = box;
  if (const int per_word = word_bytes / element_bytes; per_word > 1) {
    for (int i = 0; i < box.rank - 1; ++i) {
      words.source_strides[i] /= per_word;
      words.target_strides[i] /= per_word;
    }
    words.sizes[box.rank - 1] /= per_word;
  }
  return CopyWords(stream, words, {}, word_bytes, source, target);
}

LaunchResult LaunchWindowCopy(StreamHandle stream, const Box& box, const Window& window,
                              int element_bytes, const void* source, void* target) {
  return CopyWords(stream, box, window, element_bytes, source, target);
}

LaunchResult LaunchEmbedding(StreamHandle stream, const EmbeddingParams& params, const void* table,
                             void* y) {
  switch (WordOf(AddressBits(table, y) | static_cast<uint64_t>(params.row_bytes))) {
    case 16:
      return Embed<Word16>(stream, params, table, y);
    case 8:
      return Embed<uint64_t>(stream, params, table, y);
    case 4:
      return Embed<uint32_t>(stream, params, table, y);
    case 2:
      return Embed<uint16_t>(stream, params, table, y);
    default:
      return Embed<uint8_t>(stream, params, table, y);
  }
}

LaunchResult LaunchPick(StreamHandle stream, const PickParams& params, int element_bytes,
                        const void* x, void* y) {
  switch (element_bytes) {
    case 1:
      return Pick<uint8_t>(stream, params, x, y);
    case 2:
      return Pick<uint16_t>(stream, params, x, y);
    case 4:
      return Pick<uint32_t>(stream, params, x, y);
    case 8:
      return Pick<uint64_t>(stream, params, x, y);
    default:
      return kUnknownSize;
  }
}

}  // namespace penstock::kernels::cuda
