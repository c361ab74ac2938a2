#include "transport/ucx/ucx_log.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <ucs/debug/log_def.h>

#include "base/strings.h"

namespace penstock::transport::ucx {
namespace {

constexpr size_t kMaxWarnings = 8;
constexpr size_t kMaxLineBytes = 512;

thread_local LogScope* current_scope = nullptr;

ucs_log_func_rc_t OnLine(const char* /*file*/, unsigned /*line*/, const char* /*function*/,
                         ucs_log_level_t level, const ucs_log_component_config_t* /*component*/,
                         const char* format, va_list arguments) {
  if (level != UCS_LOG_LEVEL_ERROR && level != UCS_LOG_LEVEL_WARN) {
    return UCS_LOG_FUNC_RC_CONTINUE;
  }
  if (current_scope != nullptr) {
    char line[kMaxLineBytes];
    va_list copy;
    va_copy(copy, arguments);
    std::vsnprintf(line, sizeof(line), format, copy);
    va_end(copy);
    current_scope->Add(level == UCS_LOG_LEVEL_ERROR, line);
  }
  return UCS_LOG_FUNC_RC_STOP;
}

}  // namespace

void CaptureLog() {
  static const bool is_captured = [] {
    if (std::getenv("UCX_LOG_LEVEL") != nullptr) return false;
    ucs_log_push_handler(&OnLine);
    return true;
  }();
  (void)is_captured;
}

LogScope::LogScope() {
  CaptureLog();
  current_scope = this;
}

LogScope::~LogScope() { current_scope = nullptr; }

void LogScope::PassWarnings(const std::function<void(const std::string&)>& on_warning) const {
  if (!on_warning) return;
  for (const std::string& warning : warnings_)
    on_warning(StrCat("data plane: UCX warns: ", warning));
}

void LogScope::Add(bool is_error, std::string line) {
  if (is_error) {
    if (error_.empty()) error_ = std::move(line);
  } else if (warnings_.size() < kMaxWarnings) {
    warnings_.push_back(std::move(line));
  }
}

}  // namespace penstock::transport::ucx
