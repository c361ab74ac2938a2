// Bytes between a measurement and the processes that it forks.
//
// Thread rule: pure functions of their descriptors.

#ifndef PENSTOCK_BENCH_PIPE_IO_H_
#define PENSTOCK_BENCH_PIPE_IO_H_

#include <cstddef>

namespace penstock::bench {

// True once all bytes are written; for amounts that a pipe takes at once.
bool WriteAll(int fd, const void* bytes, size_t size);

// True once all bytes have been read; false at the end of the file or after a minute of silence.
bool ReadAll(int fd, void* bytes, size_t size);

}  // namespace penstock::bench

#endif  // PENSTOCK_BENCH_PIPE_IO_H_
