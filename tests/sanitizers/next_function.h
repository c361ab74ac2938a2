// For functions that take the place of a shared library's in programs under ThreadSanitizer: calls
// find them first, from inside the library too, because the dynamic linker looks into the program
// before its libraries.

#ifndef PENSTOCK_TESTS_SANITIZERS_NEXT_FUNCTION_H_
#define PENSTOCK_TESTS_SANITIZERS_NEXT_FUNCTION_H_

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace penstock::testing {

// The library's function of this mangled name. Aborts if there is none, so that another version of
// the library is noticed.
template <typename Function>
Function NextFunction(const char* name) {
  void* address = dlsym(RTLD_NEXT, name);
  if (address == nullptr) {
    fprintf(stderr, "tests/sanitizers: no library has %s any more\n", name);
    abort();
  }
  Function function;
  memcpy(&function, &address, sizeof(function));
  return function;
}

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SANITIZERS_NEXT_FUNCTION_H_
