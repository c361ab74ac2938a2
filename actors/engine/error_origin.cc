#include "actors/engine/error_origin.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"

#include "base/strings.h"

namespace penstock::actors {
namespace {

constexpr char kRank[] = "penstock/rank";
constexpr char kDevice[] = "penstock/device";
constexpr char kStep[] = "penstock/step";
constexpr char kActor[] = "penstock/actor";
constexpr char kPeer[] = "penstock/peer";

void Add(const char* name, const std::string& value, absl::Status* status) {
  if (!status->GetPayload(name).has_value()) status->SetPayload(name, absl::Cord(value));
}

template <typename Number>
Number Get(const absl::Status& status, const char* name) {
  Number number = -1;
  const auto payload = status.GetPayload(name);
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &number)) return -1;
  return number;
}

}  // namespace

void SetOrigin(const ErrorOrigin& origin, absl::Status* status) {
  if (origin.rank >= 0) Add(kRank, StrCat(origin.rank), status);
  if (origin.device >= 0) Add(kDevice, StrCat(origin.device), status);
  if (origin.step >= 0) Add(kStep, StrCat(origin.step), status);
  if (!origin.actor.empty()) Add(kActor, origin.actor, status);
  if (origin.peer >= 0) Add(kPeer, StrCat(origin.peer), status);
}

ErrorOrigin OriginOf(const absl::Status& status) {
  const auto actor = status.GetPayload(kActor);
  return {Get<int32_t>(status, kRank), Get<int32_t>(status, kDevice), Get<int64_t>(status, kStep),
          actor.has_value() ? std::string(*actor) : std::string(), Get<int32_t>(status, kPeer)};
}

absl::Status WithPrefix(std::string_view prefix, const absl::Status& status) {
  absl::Status prefixed(status.code(), StrCat(prefix, ToStd(status.message())));
  status.ForEachPayload([&prefixed](absl::string_view name, const absl::Cord& value) {
    prefixed.SetPayload(name, value);
  });
  return prefixed;
}

}  // namespace penstock::actors
