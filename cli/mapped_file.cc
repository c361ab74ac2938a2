#include "cli/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/memory/memory.h"
#include "absl/status/status.h"

#include "base/strings.h"

namespace penstock::cli {
namespace {

constexpr size_t kMinMappedBytes = size_t{64} << 10;

}  // namespace

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::string& path) {
  const auto failed = [&path] {
    const std::string message = StrCat(path, ": ", std::strerror(errno));
    return errno == ENOENT ? absl::NotFoundError(message) : absl::InvalidArgumentError(message);
  };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return failed();
  const auto close_file = absl::MakeCleanup([file] { close(file); });
  struct stat status = {};
  if (fstat(file, &status) != 0) return failed();
  if (!S_ISREG(status.st_mode)) return absl::InvalidArgumentError(StrCat(path, ": is no file"));
  auto opened = absl::WrapUnique(new MappedFile());
  const auto size = static_cast<size_t>(status.st_size);
  opened->size_ = size;
  if (size >= kMinMappedBytes) {
    void* const mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    if (mapped == MAP_FAILED) return failed();
    opened->mapped_ = mapped;
    opened->data_ = static_cast<const uint8_t*>(mapped);
  } else {
    opened->small_.resize(size);
    size_t begin = 0;
    while (begin < size) {
      const ssize_t count = read(file, opened->small_.data() + begin, size - begin);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return failed();
      if (count == 0) break;  // it became shorter meanwhile
      begin += static_cast<size_t>(count);
    }
    opened->size_ = begin;
    opened->data_ = opened->small_.data();
  }
  return std::shared_ptr<const MappedFile>(std::move(opened));
}

MappedFile::~MappedFile() {
  if (mapped_ != nullptr) munmap(mapped_, size_);
}

void MappedFile::Release(size_t first, size_t count) const {
  if (mapped_ == nullptr) return;
  // Whole pages; another reader loads them again from the file.
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t begin = (first + page - 1) / page * page;
  const size_t end = std::min(first + count, size_) / page * page;
  if (begin < end) madvise(static_cast<uint8_t*>(mapped_) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace penstock::cli
