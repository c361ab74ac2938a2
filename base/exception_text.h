// What an exception says, for errors of code that throws though it should not, such as a plug-in's.
//
// Thread rule: any thread.

#ifndef PENSTOCK_BASE_EXCEPTION_TEXT_H_
#define PENSTOCK_BASE_EXCEPTION_TEXT_H_

#include <exception>
#include <string>

namespace penstock {

// Of the exception that is being handled. REQUIRES: the caller is a handler, such as `catch (...)`.
inline std::string ExceptionText() {
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "something that is no std::exception";
  }
}

}  // namespace penstock

#endif  // PENSTOCK_BASE_EXCEPTION_TEXT_H_
