// Whether the tests are compiled with a sanitizer that makes them slow and keeps freed memory.
//
// Thread rule: a constant.

#ifndef PENSTOCK_TESTS_SUPPORT_SANITIZERS_H_
#define PENSTOCK_TESTS_SUPPORT_SANITIZERS_H_

namespace penstock::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kHasSanitizer = true;
#else
inline constexpr bool kHasSanitizer = false;
#endif

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_SANITIZERS_H_
