#include "cli/pmix_board.h"

#include <pmix.h>
#include <signal.h>

#include <array>
#include <string_view>
#include <utility>

#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

constexpr char kPmixAddress[] = "penstock.address";
constexpr char kKey[] = "penstock.key";
// Between questions for a value that rank 0 has not posted.
constexpr absl::Duration kPmixPause = absl::Milliseconds(100);

absl::Status Failed(std::string_view call, pmix_status_t status) {
  return absl::UnavailableError(StrCat("PMIx: ", call, ": ", PMIx_Error_string(status)));
}

}  // namespace

bool PmixBoard::HasServer(const Variables& variables) {
  return !variables("PMIX_NAMESPACE").empty() && !variables("PMIX_RANK").empty();
}

absl::StatusOr<std::unique_ptr<PmixBoard>> PmixBoard::Connect() {
  pmix_proc_t self;
  // Its thread would take the signals that are for this process.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pmix_status_t status = PMIx_Init(&self, nullptr, 0);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (status != PMIX_SUCCESS) {
    return Failed("connecting to the server that has started this process", status);
  }
  return std::unique_ptr<PmixBoard>(new PmixBoard(self.nspace));
}

PmixBoard::~PmixBoard() {
  if (!is_abandoned_) (void)PMIx_Finalize(nullptr, 0);
}

absl::Status PmixBoard::Post(const MemberNotice& notice, absl::Duration /*timeout*/) {
  const std::array<std::pair<const char*, const std::string*>, 2> values = {
      {{kPmixAddress, &notice.address}, {kKey, &notice.key}}};
  for (const auto& [name, text] : values) {
    pmix_value_t value;
    PMIX_VALUE_LOAD(&value, text->c_str(), PMIX_STRING);
    const pmix_status_t status = PMIx_Put(PMIX_GLOBAL, name, &value);
    PMIX_VALUE_DESTRUCT(&value);
    if (status != PMIX_SUCCESS) return Failed("telling the other processes", status);
  }
  const pmix_status_t status = PMIx_Commit();
  return status == PMIX_SUCCESS ? absl::OkStatus() : Failed("telling the other processes", status);
}

absl::StatusOr<MemberNotice> PmixBoard::Await(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  MemberNotice notice;
  ASSIGN_OR_RETURN(notice.address, AwaitValue(kPmixAddress, deadline));
  ASSIGN_OR_RETURN(notice.key, AwaitValue(kKey, deadline));
  return notice;
}

absl::StatusOr<std::string> PmixBoard::AwaitValue(const char* name, absl::Time deadline) const {
  pmix_proc_t first;
  PMIX_LOAD_PROCID(&first, job_.c_str(), 0);
  while (true) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError("PMIx: rank 0 has not told its address in time");
    }
    int seconds = static_cast<int>(absl::ToInt64Seconds(absl::Ceil(left, absl::Seconds(1))));
    pmix_info_t limit;
    PMIX_INFO_LOAD(&limit, PMIX_TIMEOUT, &seconds, PMIX_INT);
    pmix_value_t* value = nullptr;
    const pmix_status_t status = PMIx_Get(&first, name, &limit, 1, &value);
    PMIX_INFO_DESTRUCT(&limit);
    if (status == PMIX_SUCCESS && value != nullptr) {
      const bool is_text = value->type == PMIX_STRING && value->data.string != nullptr;
      std::string text = is_text ? value->data.string : "";
      PMIX_VALUE_RELEASE(value);
      if (is_text) return text;
      return absl::UnavailableError("PMIx: what rank 0 has told is no text");
    }
    if (status != PMIX_ERR_NOT_FOUND && status != PMIX_ERR_TIMEOUT) {
      return Failed("asking for what rank 0 tells", status);
    }
    absl::SleepFor(kPmixPause);
  }
}

}  // namespace penstock::cli
