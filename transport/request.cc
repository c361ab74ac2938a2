#include "base/strings.h"
#include "transport/request_internal.h"

namespace penstock::transport {

absl::Status InvalidTag(const TransportOptions& options, Tag tag) {
  if (tag.generation != options.generation) {
    return absl::FailedPreconditionError(StrCat("generation ", tag.generation, " of channel ",
                                                tag.channel, " is not the transport's, ",
                                                options.generation));
  }
  return absl::InvalidArgumentError(
      StrCat("there is no channel ", tag.channel, ": the transport has ", options.num_channels));
}

absl::Status SizeMismatch(uint32_t source, uint32_t destination, uint64_t channel,
                          uint64_t num_bytes, uint64_t expected_bytes) {
  return absl::InvalidArgumentError(StrCat("device ", source, " sent ", num_bytes,
                                           " bytes on channel ", channel, " where device ",
                                           destination, " expects ", expected_bytes));
}

}  // namespace penstock::transport
