# Precompiled headers: the standard library and Abseil are parsed once instead of once a source, which
# takes about half of a build's time. Headers of this project are never among them. Every source
# still includes what it uses: the preset "debug" builds without.
option(PENSTOCK_PRECOMPILE "Precompile the headers of libraries" ON)

set(PENSTOCK_PRECOMPILED_HEADERS
  <algorithm> <array> <atomic> <chrono> <condition_variable> <cstdint> <deque> <functional> <map>
  <memory> <mutex> <numeric> <optional> <set> <span> <sstream> <string> <string_view> <thread>
  <tuple> <type_traits> <utility> <vector>
  <absl/container/flat_hash_map.h> <absl/container/flat_hash_set.h> <absl/container/inlined_vector.h>
  <absl/status/status.h> <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/time/time.h>
  <absl/types/span.h>)

# penstock_precompile(target header...): the headers above and `header...`, for the sources of
# `target` and, through penstock_reuse_precompiled, of other targets that are compiled alike: for the
# same processor, as optimised, and with at least the same macros.
function(penstock_precompile target)
  if(PENSTOCK_PRECOMPILE)
    set(headers ${PENSTOCK_PRECOMPILED_HEADERS} ${ARGN})
    list(TRANSFORM headers REPLACE "^<(.*)>$" "$<$<COMPILE_LANGUAGE:CXX>:<\\1$<ANGLE-R>>")
    target_precompile_headers(${target} PRIVATE ${headers})
  endif()
endfunction()

function(penstock_reuse_precompiled target owner)
  if(PENSTOCK_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
endfunction()

# Those of all folders whose libraries are compiled alike.
add_library(penstock_headers OBJECT cmake/precompiled_headers.cc)
target_compile_features(penstock_headers PRIVATE cxx_std_20)
target_link_libraries(penstock_headers PRIVATE
  absl::flat_hash_map absl::inlined_vector absl::span absl::status absl::statusor absl::strings
  absl::time Threads::Threads)
penstock_precompile(penstock_headers)
