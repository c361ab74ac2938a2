#include "transport/ucx/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>

#include "base/strings.h"

namespace penstock::transport::ucx {

struct SharedDirectory {
  struct Entry {
    uint64_t descriptor = 0;
    uint64_t num_bytes = 0;
  };
  uint64_t token = 0;
  std::atomic<uint64_t> num_regions{0};  // entries below it stay as they are
  Entry entries[kMaxSharedRegions];
};

namespace {

constexpr const char* kFileName = "penstock";
constexpr std::string_view kFilePrefix = "/memfd:penstock";

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = size_t{2} << 20;

// A place is the number of the region, from 1, above and the offset below.
constexpr int kOffsetBits = 48;

// The number of this process's IPC namespace; 0 where the system has none.
uint64_t IpcNamespace() {
  struct stat state = {};
  return stat("/proc/self/ns/ipc", &state) == 0 ? state.st_ino : 0;
}

// A file that keeps its size, so that who maps it can read all of it for ever.
int MakeFile(size_t num_bytes) {
  const int file = memfd_create(kFileName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return -1;
  if (ftruncate(file, static_cast<off_t>(num_bytes)) == 0 &&
      fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
    return file;
  }
  close(file);
  return -1;
}

// Maps a file of another process to read, if it is one that MakeFile made and has so many bytes.
const void* MapFile(uint64_t process, uint64_t descriptor, uint64_t num_bytes) {
  const std::string path = StrCat("/proc/", process, "/fd/", descriptor);
  char target[64];
  const ssize_t length = readlink(path.c_str(), target, sizeof(target));
  if (length <= 0 ||
      std::string_view(target, static_cast<size_t>(length)).substr(0, kFilePrefix.size()) !=
          kFilePrefix) {
    return nullptr;
  }
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return nullptr;
  struct stat state = {};
  const int seals = fcntl(file, F_GET_SEALS);
  void* memory = MAP_FAILED;
  if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(file, &state) == 0 &&
      static_cast<uint64_t>(state.st_size) >= num_bytes) {
    memory = mmap(nullptr, num_bytes, PROT_READ, MAP_SHARED, file, 0);
  }
  close(file);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, num_bytes, MADV_DONTDUMP);  // a crash would write the peer's arena to the disk
  return memory;
}

// Address space of so many bytes that begins with a huge page, nothing in it.
std::byte* Reserve(size_t num_bytes) {
  void* memory =
      mmap(nullptr, num_bytes + kHugePageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(memory);
  const size_t before =
      (kHugePageBytes - reinterpret_cast<uintptr_t>(begin) % kHugePageBytes) % kHugePageBytes;
  if (before > 0) munmap(begin, before);
  if (kHugePageBytes > before) munmap(begin + before + num_bytes, kHugePageBytes - before);
  return begin + before;
}

}  // namespace

// --- This process --------------------------------------------------------------------------------

std::unique_ptr<SharedMemory> SharedMemory::Create() {
  const int file = MakeFile(sizeof(SharedDirectory));
  if (file < 0) return nullptr;
  void* memory =
      mmap(nullptr, sizeof(SharedDirectory), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) {
    close(file);
    return nullptr;
  }
  auto* directory = new (memory) SharedDirectory;
  std::random_device random;
  directory->token = uint64_t{random()} << 32 | random();
  return std::unique_ptr<SharedMemory>(new SharedMemory(directory, file));
}

SharedMemory::SharedMemory(SharedDirectory* directory, int descriptor)
    : directory_(directory), descriptor_(descriptor) {}

SharedMemory::~SharedMemory() {
  for (const int file : files_) close(file);
  close(descriptor_);
  munmap(directory_, sizeof(SharedDirectory));
}

SharedAddress SharedMemory::address() const {
  return {static_cast<uint64_t>(getpid()), static_cast<uint64_t>(descriptor_), directory_->token,
          IpcNamespace()};
}

bool SharedMemory::BeginsHugePage(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % kHugePageBytes == 0;
}

size_t SharedMemory::WholePages(size_t num_bytes) { return num_bytes / kPageBytes * kPageBytes; }

uint64_t SharedMemory::Share(void* data, size_t num_bytes) {
  const absl::MutexLock lock(&mutex_);
  const size_t shared = WholePages(num_bytes);
  const uint64_t index = directory_->num_regions.load(std::memory_order_relaxed);
  if (shared == 0 || shared >> kOffsetBits != 0 || index == kMaxSharedRegions) return kNoPlace;
  const int file = MakeFile(shared);
  if (file < 0) return kNoPlace;
  std::byte* copy = Reserve(shared);
  if (copy == nullptr ||
      mmap(copy, shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
    if (copy != nullptr) munmap(copy, shared);
    close(file);
    return kNoPlace;
  }
  if (shared >= kHugePageBytes) madvise(copy, shared, MADV_HUGEPAGE);
  // Part by part, so that hardly more memory is taken than there was.
  constexpr size_t kPieceBytes = 32 * kHugePageBytes;
  auto* original = static_cast<std::byte*>(data);
  for (size_t at = 0; at < shared; at += kPieceBytes) {
    const size_t size = std::min(kPieceBytes, shared - at);
    std::memcpy(copy + at, original + at, size);
    madvise(original + at, size, MADV_DONTNEED);
  }
  // Not mremap: UCX puts itself in its place, and loses the address.
  const int flags = MAP_SHARED | MAP_FIXED;
  if (mmap(data, shared, PROT_READ | PROT_WRITE, flags, file, 0) == MAP_FAILED) {
    const int private_flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap(data, shared, PROT_READ | PROT_WRITE, private_flags, -1, 0) == MAP_FAILED) {
      // The pages are unmapped: this says more than the segmentation fault that would follow.
      std::fprintf(stderr, "penstock: the system does not map memory that it has unmapped: %s\n",
                   strerror(errno));
      std::abort();
    }
    std::memcpy(data, copy, shared);
    munmap(copy, shared);
    close(file);
    return kNoPlace;
  }
  munmap(copy, shared);
  madvise(data, shared, MADV_DONTDUMP);  // as of the arena that was there before
  if (shared >= kHugePageBytes) madvise(data, shared, MADV_HUGEPAGE);
  madvise(data, shared, MADV_POPULATE_WRITE);  // where there is such a thing
  files_.push_back(file);
  directory_->entries[index] = {static_cast<uint64_t>(file), shared};
  directory_->num_regions.store(index + 1, std::memory_order_release);
  return (index + 1) << kOffsetBits;
}

// --- Another process -----------------------------------------------------------------------------

std::unique_ptr<PeerMemory> PeerMemory::Open(const SharedAddress& address) {
  if (address.process == 0 || address.ipc_namespace != IpcNamespace()) return nullptr;
  const void* memory = MapFile(address.process, address.descriptor, sizeof(SharedDirectory));
  if (memory == nullptr) return nullptr;
  const auto* directory = static_cast<const SharedDirectory*>(memory);
  if (directory->token != address.token) {  // another process that happens to have this number here
    munmap(const_cast<void*>(memory), sizeof(SharedDirectory));
    return nullptr;
  }
  return std::unique_ptr<PeerMemory>(new PeerMemory(address.process, directory));
}

PeerMemory::~PeerMemory() {
  for (Region& region : regions_) {
    const std::byte* begin = region.begin.load(std::memory_order_relaxed);
    if (begin != nullptr) munmap(const_cast<std::byte*>(begin), region.num_bytes);
  }
  munmap(const_cast<SharedDirectory*>(directory_), sizeof(SharedDirectory));
}

const std::byte* PeerMemory::Find(uint64_t place, uint64_t num_bytes) {
  const uint64_t index = (place >> kOffsetBits) - 1;
  const uint64_t offset = place & ((uint64_t{1} << kOffsetBits) - 1);
  if (index >= kMaxSharedRegions) return nullptr;
  const std::byte* begin = regions_[index].begin.load(std::memory_order_acquire);
  if (begin == nullptr) begin = Map(index);
  if (begin == nullptr) return nullptr;
  const uint64_t size = regions_[index].num_bytes;
  return offset <= size && num_bytes <= size - offset ? begin + offset : nullptr;
}

const std::byte* PeerMemory::Map(uint64_t index) {
  const absl::MutexLock lock(&mutex_);
  Region& region = regions_[index];
  const std::byte* begin = region.begin.load(std::memory_order_relaxed);
  if (begin != nullptr || is_refused_[index]) return begin;
  if (index >= directory_->num_regions.load(std::memory_order_acquire)) return nullptr;
  const SharedDirectory::Entry entry = directory_->entries[index];
  const void* memory = nullptr;
  if (entry.num_bytes > 0) memory = MapFile(process_, entry.descriptor, entry.num_bytes);
  is_refused_[index] = memory == nullptr;
  if (memory == nullptr) return nullptr;
  if (entry.num_bytes >= kHugePageBytes) {
    madvise(const_cast<void*>(memory), entry.num_bytes, MADV_HUGEPAGE);
  }
  region.num_bytes = entry.num_bytes;
  begin = static_cast<const std::byte*>(memory);
  region.begin.store(begin, std::memory_order_release);
  return begin;
}

}  // namespace penstock::transport::ucx
