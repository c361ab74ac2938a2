# penstock_capnp(target file.capnp): compiles a Cap'n Proto schema and adds the generated source to
# `target`, with warnings off. For planner/plan/plan.capnp the header is "planner/plan/plan.capnp.h", found in
# PENSTOCK_GENERATED_DIR. Schemas import each other by paths from the repository root ("/planner/...").

find_program(PENSTOCK_CAPNP_COMPILER capnp)
find_program(PENSTOCK_CAPNP_CXX capnpc-c++)
mark_as_advanced(PENSTOCK_CAPNP_COMPILER PENSTOCK_CAPNP_CXX)
penstock_require("PENSTOCK_CAPNP_COMPILER;AND;PENSTOCK_CAPNP_CXX"
  "the Cap'n Proto compiler" capnproto)

set(PENSTOCK_GENERATED_DIR "${PROJECT_BINARY_DIR}/generated")
file(MAKE_DIRECTORY "${PENSTOCK_GENERATED_DIR}")

function(penstock_capnp target file)
  cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE)
  cmake_path(RELATIVE_PATH file BASE_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE relative)
  set(source "${PENSTOCK_GENERATED_DIR}/${relative}.c++")
  set(header "${PENSTOCK_GENERATED_DIR}/${relative}.h")
  add_custom_command(
    OUTPUT "${source}" "${header}"
    COMMAND "${PENSTOCK_CAPNP_COMPILER}" compile
      "-o${PENSTOCK_CAPNP_CXX}:${PENSTOCK_GENERATED_DIR}"
      "--src-prefix=${PROJECT_SOURCE_DIR}" "--import-path=${PROJECT_SOURCE_DIR}" "${file}"
    DEPENDS "${file}"
    COMMENT "Compiling the schema ${relative}"
    VERBATIM)
  set_source_files_properties("${source}" PROPERTIES
    LANGUAGE CXX COMPILE_OPTIONS -w SKIP_PRECOMPILE_HEADERS ON)
  target_sources(${target} PRIVATE "${source}" "${header}")
  target_include_directories(${target} SYSTEM PRIVATE "${PENSTOCK_GENERATED_DIR}")
endfunction()
