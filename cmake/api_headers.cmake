# The headers that applications and plug-ins use: those named here, and those of ours that they reach
# by #include. They alone are installed, and every member in them has a comment (the test doxygen.api).
#
#     cmake -P cmake/api_headers.cmake       prints them, from the folder of the sources
cmake_minimum_required(VERSION 3.25)

set(api_headers
  penstock/penstock.h                   # applications
  penstock/plugin.h                     # what plug-ins register
  graph/ops/common.h                    # operators
  kernels/cpu/cpu_kernel.h kernels/gpu.h  # and their kernels
  planner/policy/policy_plugin.h        # policies
  # Experiments with strategies and schedules, without running them.
  planner/calibrate.h planner/search/search.h planner/simulator/simulate_plan.h)

# penstock_api_headers(source variable): sets `variable` to their paths from the folder `source`.
function(penstock_api_headers source variable)
  set(reached "")
  set(left ${api_headers})
  while(left)
    list(POP_FRONT left header)
    if(header IN_LIST reached)
      continue()
    elseif(NOT EXISTS "${source}/${header}")
      if(header IN_LIST api_headers)
        message(FATAL_ERROR "api_headers.cmake: there is no ${header}")
      endif()
      continue()  # of another library
    endif()
    list(APPEND reached "${header}")
    file(STRINGS "${source}/${header}" includes REGEX "^#include \"")
    list(TRANSFORM includes REPLACE "^#include \"([^\"]+)\".*" "\\1")
    list(APPEND left ${includes})
  endwhile()
  list(SORT reached)
  set(${variable} "${reached}" PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  penstock_api_headers("${CMAKE_CURRENT_LIST_DIR}/.." headers)
  list(JOIN headers "\n" lines)
  execute_process(COMMAND "${CMAKE_COMMAND}" -E echo "${lines}")
endif()
