#include "planner/plan/plan_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "capnp/message.h"
#include "capnp/serialize.h"
#include "kj/exception.h"
#include "kj/io.h"
#include <xxhash.h>

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/check_folded_plan.h"
#include "planner/plan/check_references.h"
#include "planner/plan/folding_columns_internal.h"
#include "planner/plan/plan.capnp.h"
#include "planner/plan/read_plan_internal.h"
#include "planner/plan/write_plan_internal.h"

namespace penstock::planner {
namespace {

constexpr uint32_t kFormatVersion = 6;

static_assert(std::endian::native == std::endian::little, "the header is written as it lies");

struct Header {
  std::array<char, 8> magic = {'P', 'S', 'T', 'K', 'P', 'L', 'A', 'N'};
  uint32_t version = kFormatVersion;
  uint32_t zero = 0;
  uint64_t payload_bytes = 0;
  uint64_t hash = 0;
};
static_assert(sizeof(Header) == 32 && std::is_trivially_copyable_v<Header>);

uint64_t HashOf(const Header& header, std::string_view payload) {
  return XXH64(payload.data(), payload.size(), XXH64(&header, offsetof(Header, hash), 0));
}

std::string Text(const kj::Exception& exception) { return exception.getDescription().cStr(); }

absl::Status Malformed(const absl::Status& status) {
  return absl::DataLossError(StrCat("malformed plan: ", ToStd(status.message())));
}

// Not checked yet. REQUIRES: `words` lies at an address that is a multiple of 8.
absl::StatusOr<FoldedPlan> ParsePayload(kj::ArrayPtr<const capnp::word> words) {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = words.size() + 1024;  // nothing is reached twice
  options.nestingLimit = 8;
  FoldedPlan plan;
  std::optional<FoldedPlan> folded;
  try {
    capnp::FlatArrayMessageReader reader(words, options);
    if (reader.getEnd() != words.end()) {
      return absl::DataLossError(
          StrCat(words.end() - reader.getEnd(), " words follow the message"));
    }
    RETURN_IF_ERROR(internal::ReadMessage(reader.getRoot<schema::Plan>(), &plan.common, &folded));
  } catch (const kj::Exception& exception) {
    return absl::DataLossError(StrCat("malformed message: ", Text(exception)));
  }
  return folded.has_value() ? *std::move(folded) : std::move(plan);
}

// Of the contents of a file.
absl::StatusOr<FoldedPlan> Parse(std::string_view bytes) {
  if (bytes.size() < sizeof(Header)) {
    return absl::DataLossError(
        StrCat("truncated: ", bytes.size(), " bytes, the header has ", sizeof(Header)));
  }
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(Header));
  if (header.magic != Header().magic)
    return absl::DataLossError(
        "not a compiled plan, as `penstock plan` writes: wrong magic number");
  const std::string_view payload = bytes.substr(sizeof(Header));
  if (payload.size() < header.payload_bytes) {
    return absl::DataLossError(StrCat("truncated: ", payload.size(), " bytes of payload, expected ",
                                      header.payload_bytes));
  }
  if (payload.size() > header.payload_bytes) {
    return absl::DataLossError(StrCat(payload.size() - header.payload_bytes,
                                      " bytes too many: the header speaks of ",
                                      header.payload_bytes, " bytes of payload"));
  }
  if (HashOf(header, payload) != header.hash) {
    return absl::DataLossError("the contents do not match their hash: the file was damaged");
  }
  if (header.version != kFormatVersion) {
    return absl::FailedPreconditionError(StrCat("written in format version ", header.version,
                                                "; this program reads version ", kFormatVersion));
  }
  if (header.zero != 0 || payload.size() % sizeof(capnp::word) != 0) {
    return absl::DataLossError("malformed header");
  }
  const size_t num_words = payload.size() / sizeof(capnp::word);
  if (reinterpret_cast<uintptr_t>(payload.data()) % sizeof(capnp::word) == 0) {
    return ParsePayload({reinterpret_cast<const capnp::word*>(payload.data()), num_words});
  }
  auto words = std::make_unique<capnp::word[]>(num_words);
  std::memcpy(words.get(), payload.data(), payload.size());
  return ParsePayload({words.get(), num_words});
}

absl::StatusOr<std::string> Serialize(const Plan& plan, const FoldedPlan* folded) {
  try {
    capnp::MallocMessageBuilder message;
    RETURN_IF_ERROR(internal::WriteMessage(plan, folded, message.initRoot<schema::Plan>()));
    Header header;
    header.payload_bytes = capnp::computeSerializedSizeInWords(message) * sizeof(capnp::word);
    std::string bytes(sizeof(Header) + header.payload_bytes, '\0');
    kj::ArrayOutputStream stream(kj::ArrayPtr<kj::byte>(
        reinterpret_cast<kj::byte*>(bytes.data()) + sizeof(Header), header.payload_bytes));
    capnp::writeMessage(stream, message);
    header.hash = HashOf(header, std::string_view(bytes).substr(sizeof(Header)));
    std::memcpy(bytes.data(), &header, sizeof(Header));
    return bytes;
  } catch (const kj::Exception& exception) {
    return absl::ResourceExhaustedError(
        StrCat("the plan is too big for the format: ", Text(exception)));
  }
}

// ---- Files --------------------------------------------------------------------------------------

absl::Status SystemError(int error, std::string_view action, const std::string& path) {
  return absl::ErrnoToStatus(error, StrCat("cannot ", action, " ", path));
}

// A file descriptor, closed with the object.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int descriptor() const { return descriptor_; }
  // Closes now; errno says why it failed.
  bool Close() { return close(std::exchange(descriptor_, -1)) == 0; }

 private:
  int descriptor_;
};

bool WriteAll(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(written);
  }
  return true;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.descriptor() < 0) return SystemError(errno, "open", path);
  struct stat info = {};
  if (fstat(file.descriptor(), &info) != 0) return SystemError(errno, "read", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(StrCat("cannot read ", path, ": not a regular file"));
  }
  std::string bytes(info.st_size, '\0');
  size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t count = read(file.descriptor(), bytes.data() + size, bytes.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError(errno, "read", path);
    if (count == 0) break;
    size += count;
  }
  bytes.resize(size);
  return bytes;
}

absl::Status ReplaceFile(std::string_view bytes, const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    // A pipe or a device is written to, not replaced.
    File file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (file.descriptor() >= 0 && WriteAll(file.descriptor(), bytes) && file.Close()) {
      return absl::OkStatus();
    }
    return SystemError(errno, "write", path);
  }
  std::string temporary = path + ".XXXXXX";
  File file(mkostemp(temporary.data(), O_CLOEXEC));
  if (file.descriptor() < 0) return SystemError(errno, "create a file beside", path);
  // mkostemp makes files that only their owner can read; a plan is as readable as other results.
  if (WriteAll(file.descriptor(), bytes) && fchmod(file.descriptor(), 0644) == 0 &&
      fsync(file.descriptor()) == 0 && file.Close() &&
      rename(temporary.c_str(), path.c_str()) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  unlink(temporary.c_str());
  return SystemError(error, "write", path);
}

// An error names the file.
template <typename T>
absl::StatusOr<T> OfFile(const std::string& path, absl::StatusOr<T> plan) {
  if (plan.ok()) return plan;
  return absl::Status(plan.status().code(), StrCat(path, ": ", ToStd(plan.status().message())));
}

}  // namespace

absl::StatusOr<std::string> PlanToBytes(const Plan& plan) {
  RETURN_IF_ERROR(CheckReferences(plan));
  return Serialize(plan, nullptr);
}

absl::StatusOr<std::string> PlanToBytes(const FoldedPlan& plan) {
  if (!plan.is_folded()) return PlanToBytes(plan.common);
  RETURN_IF_ERROR(CheckFoldedReferences(plan));
  return Serialize(internal::StoredForm(plan), &plan);
}

absl::StatusOr<Plan> PlanFromBytes(std::string_view bytes) {
  ASSIGN_OR_RETURN(FoldedPlan folded, Parse(bytes));
  Plan plan;
  if (folded.is_folded()) {
    absl::Status status = CheckFoldedReferences(folded);
    if (!status.ok()) return Malformed(status);
    RETURN_IF_ERROR(CheckExpandedSize(folded));
    absl::StatusOr<Plan> expanded = ExpandPlan(folded);
    if (!expanded.ok()) return Malformed(expanded.status());
    plan = *std::move(expanded);
  } else {
    plan = std::move(folded.common);
  }
  const absl::Status status = CheckReferences(plan);
  if (!status.ok()) return Malformed(status);
  return plan;
}

absl::StatusOr<FoldedPlan> FoldedPlanFromBytes(std::string_view bytes) {
  ASSIGN_OR_RETURN(FoldedPlan folded, Parse(bytes));
  absl::Status status;
  if (folded.is_folded()) {
    status = CheckFoldedReferences(folded);
    if (!status.ok()) return Malformed(status);
    const std::vector<uint32_t> devices = FirstOfPrograms(folded);
    RETURN_IF_ERROR(CheckExpandedSize(folded, devices));
    const absl::StatusOr<Plan> some = ExpandDevices(folded, devices);
    status = some.ok() ? CheckReferences(*some) : some.status();
  } else {
    status = CheckReferences(folded.common);
  }
  if (!status.ok()) return Malformed(status);
  return folded;
}

absl::Status WritePlan(const Plan& plan, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, PlanToBytes(plan));
  return ReplaceFile(bytes, path);
}

absl::Status WritePlan(const FoldedPlan& plan, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, PlanToBytes(plan));
  return ReplaceFile(bytes, path);
}

absl::StatusOr<Plan> ReadPlan(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  return OfFile(path, PlanFromBytes(bytes));
}

absl::StatusOr<FoldedPlan> ReadFoldedPlan(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  return OfFile(path, FoldedPlanFromBytes(bytes));
}

}  // namespace penstock::planner
