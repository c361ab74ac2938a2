# Unity builds: the compiler takes several sources of a directory at once, and so parses what they
# include once. A build from scratch becomes shorter, one after a change longer: it is for scripts
# that build from scratch.
#
# Names in anonymous namespaces must differ within a directory (tests/unity_names_check.py).
option(PENSTOCK_UNITY "Compile several sources of a directory at once" OFF)
set(PENSTOCK_UNITY_BATCH 32 CACHE STRING "With PENSTOCK_UNITY: how many sources at once")
set(PENSTOCK_UNITY_TEST_BATCH 12 CACHE STRING "With PENSTOCK_UNITY: how many files make a test program")
mark_as_advanced(PENSTOCK_UNITY_BATCH PENSTOCK_UNITY_TEST_BATCH)

# penstock_unity(target source... [ALONE source...]): compiles `source...` of `target` in batches where
# PENSTOCK_UNITY is on. CMake leaves out sources with flags of their own.
function(penstock_unity target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "ALONE")
  if(NOT PENSTOCK_UNITY)
    return()
  endif()
  set(previous "")
  foreach(source IN LISTS arg_UNPARSED_ARGUMENTS)
    cmake_path(GET source EXTENSION LAST_ONLY extension)
    cmake_path(GET source PARENT_PATH directory)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}"
      OUTPUT_VARIABLE relative)
    if(NOT extension STREQUAL ".cc" OR relative IN_LIST arg_ALONE)
      continue()
    endif()
    if(NOT directory STREQUAL previous)
      set(previous "${directory}")
      set(count 0)
      cmake_path(RELATIVE_PATH directory BASE_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE name)
      string(REPLACE "/" "_" name "${name}")
    endif()
    math(EXPR batch "${count} / ${PENSTOCK_UNITY_BATCH}")
    math(EXPR count "${count} + 1")
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${name}_${batch}")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC takes the sources that a batch includes for headers, whose classes should not have members
    # of types in anonymous namespaces.
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>")
  endif()
endfunction()
