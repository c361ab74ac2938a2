# Finds the core library of the C++ Actor Framework, which ships neither a CMake package nor a .pc
# file in the releases this project is built with.
#
#   CAF_FOUND, CAF_VERSION    result
#   CAF::core                 imported target: caf/all.hpp and libcaf_core

find_package(Threads QUIET)
find_path(CAF_INCLUDE_DIR caf/all.hpp)
find_library(CAF_CORE_LIBRARY caf_core)
mark_as_advanced(CAF_INCLUDE_DIR CAF_CORE_LIBRARY)

# CAF_VERSION is major * 10000 + minor * 100 + patch.
set(CAF_VERSION "")
foreach(caf_header caf/config.hpp caf/detail/build_config.hpp)
  if(CAF_INCLUDE_DIR AND EXISTS "${CAF_INCLUDE_DIR}/${caf_header}" AND NOT CAF_VERSION)
    file(STRINGS "${CAF_INCLUDE_DIR}/${caf_header}" caf_line
      REGEX "^#define CAF_VERSION [0-9]+" LIMIT_COUNT 1)
    if(caf_line MATCHES "CAF_VERSION ([0-9]+)")
      math(EXPR caf_major "${CMAKE_MATCH_1} / 10000")
      math(EXPR caf_minor "${CMAKE_MATCH_1} / 100 % 100")
      math(EXPR caf_patch "${CMAKE_MATCH_1} % 100")
      set(CAF_VERSION "${caf_major}.${caf_minor}.${caf_patch}")
    endif()
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CAF
  REQUIRED_VARS CAF_CORE_LIBRARY CAF_INCLUDE_DIR VERSION_VAR CAF_VERSION)

if(CAF_FOUND AND NOT TARGET CAF::core)
  add_library(CAF::core UNKNOWN IMPORTED)
  set_target_properties(CAF::core PROPERTIES
    IMPORTED_LOCATION "${CAF_CORE_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${CAF_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES Threads::Threads)
endif()
