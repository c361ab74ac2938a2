#include <algorithm>
#include <string>
#include <string_view>

#include "actors/cluster/connection_internal.h"
#include "actors/cluster/wire_status_internal.h"
#include "actors/engine/error_origin.h"
#include "base/strings.h"

namespace penstock::actors::control {
namespace {

constexpr auto kLastCode = static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);

std::string_view Bounded(kj::StringPtr text) {
  return {text.begin(), std::min(text.size(), kMaxTextBytes)};
}

}  // namespace

void WriteStatus(const absl::Status& status, Status::Builder builder) {
  if (status.ok()) return;
  builder.setCode(static_cast<uint32_t>(status.code()));
  builder.setMessage(std::string(ToStd(status.message())).c_str());
  const ErrorOrigin origin = OriginOf(status);
  builder.setRank(origin.rank);
  builder.setDevice(origin.device);
  builder.setStep(origin.step);
  if (!origin.actor.empty()) builder.setActor(origin.actor.c_str());
  builder.setPeer(origin.peer);
}

absl::Status ReadStatus(Status::Reader reader) {
  return reader.getCode() == 0 ? absl::OkStatus() : ReadError(reader);
}

absl::Status ReadError(Status::Reader reader) {
  const uint32_t code = reader.getCode();
  absl::Status status(code > 0 && code <= kLastCode ? static_cast<absl::StatusCode>(code)
                                                    : absl::StatusCode::kUnknown,
                      ToAbsl(Bounded(reader.getMessage())));
  SetOrigin({.device = reader.getDevice(),
             .step = reader.getStep(),
             .actor = std::string(Bounded(reader.getActor())),
             .peer = reader.getPeer()},
            &status);
  return status;
}

absl::Status FromException(const kj::Exception& exception) {
  const absl::string_view text = ToAbsl(Bounded(exception.getDescription()));
  switch (exception.getType()) {
    case kj::Exception::Type::DISCONNECTED:
      return absl::UnavailableError(text);
    case kj::Exception::Type::OVERLOADED:
      return absl::ResourceExhaustedError(text);
    case kj::Exception::Type::UNIMPLEMENTED:
      return absl::UnimplementedError(text);
    default:
      return absl::InternalError(text);
  }
}

StatusPromise JoinStatuses(kj::Array<StatusPromise> promises) {
  return kj::joinPromises(kj::mv(promises)).then([](kj::Array<absl::Status>&& statuses) {
    absl::Status* first = nullptr;
    for (absl::Status& status : statuses) {
      if (status.ok()) continue;
      // What was stopped was stopped because something else has failed.
      if (first == nullptr || (absl::IsCancelled(*first) && !absl::IsCancelled(status))) {
        first = &status;
      }
    }
    return first != nullptr ? std::move(*first) : absl::OkStatus();
  });
}

}  // namespace penstock::actors::control
