# How a folder of sources becomes a library.

# penstock_sources(out): the sources of the current folder, tests left out; the folders cuda/ count
# only where CUDA is built, and folders no_cuda/ only where it is not; likewise nccl/ and no_nccl/.
# Of cudnn/ and no_cudnn/, which belong to CUDA, builds without CUDA have neither; likewise of
# cudnn_frontend/ and no_cudnn_frontend/. no_onednn/ stands in for kernels/cpu/onednn*.
function(penstock_sources out)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS
    "${CMAKE_CURRENT_SOURCE_DIR}/*.cc" "${CMAKE_CURRENT_SOURCE_DIR}/*.cu")
  list(FILTER sources EXCLUDE REGEX "_test\\.(cc|cu)$")
  penstock_filter_backends(sources)
  set(${out} "${sources}" PARENT_SCOPE)
endfunction()

# Drops from the list `name` what needs a device kit that this build does not have.
function(penstock_filter_backends name)
  set(files "${${name}}")
  if(PENSTOCK_BUILD_CUDA)
    list(FILTER files EXCLUDE REGEX "/no_cuda/[^/]*$")
  else()
    list(FILTER files EXCLUDE REGEX "/cuda/[^/]*$|\\.cu$")
  endif()
  if(PENSTOCK_ONEDNN)
    list(FILTER files EXCLUDE REGEX "/no_onednn/[^/]*$")
  else()
    list(FILTER files EXCLUDE REGEX "/cpu/onednn[^/]*$")
  endif()
  if(PENSTOCK_BUILD_NCCL)
    list(FILTER files EXCLUDE REGEX "/no_nccl/[^/]*$")
  else()
    list(FILTER files EXCLUDE REGEX "/nccl/[^/]*$")
  endif()
  foreach(backend IN ITEMS cudnn cudnn_frontend)
    string(TOUPPER "PENSTOCK_BUILD_${backend}" is_built)
    if(${is_built})
      list(FILTER files EXCLUDE REGEX "/no_${backend}/[^/]*$")
    elseif(PENSTOCK_BUILD_CUDA)
      list(FILTER files EXCLUDE REGEX "/${backend}/[^/]*$")
    else()
      list(FILTER files EXCLUDE REGEX "/(no_)?${backend}/[^/]*$")
    endif()
  endforeach()
  set(${name} "${files}" PARENT_SCOPE)
endfunction()

# penstock_folder_library(folder [INSTALL] [OWN_HEADERS]
#                         [PUBLIC libs...] [PRIVATE libs...] [CUDA libs...]
#                         [EXCLUDE_SOURCES names...] [ALONE names...])
#
# The library penstock_<folder>, alias penstock::<folder>: static, or an interface while the folder
# has no sources. Includes are written from the repository root. Every *.capnp in the folder is
# compiled into it.
#
# INSTALL puts the library into the installed package (its headers: api_headers.cmake).
#
# ALONE names sources that a unity build compiles one by one (Unity.cmake). OWN_HEADERS is for a
# folder whose flags differ from those of the others (Precompiled.cmake).
#
# CUDA names what the library links, privately, where CUDA is built.
#
# Folders in PENSTOCK_PLAIN_FOLDERS are not compiled: the archive of another build of the same
# sources, PENSTOCK_PLAIN_BUILD, is linked. Sanitized builds so take what their tests are not about
# from the release build. Sources that match PENSTOCK_INSTRUMENTED are compiled all the same and come
# first in linking; so are generated sources, because other folders include their headers.
function(penstock_folder_library folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "INSTALL;OWN_HEADERS" ""
    "PUBLIC;PRIVATE;CUDA;EXCLUDE_SOURCES;ALONE")
  set(target penstock_${folder})
  penstock_sources(sources)
  set(plain_archive "")
  if(folder IN_LIST PENSTOCK_PLAIN_FOLDERS)
    set(plain_archive "${PENSTOCK_PLAIN_BUILD}/lib/libpenstock_${folder}.a")
    if(PENSTOCK_INSTRUMENTED STREQUAL "")
      set(sources "")
    endif()
    list(FILTER sources INCLUDE REGEX "^${PROJECT_SOURCE_DIR}/(${PENSTOCK_INSTRUMENTED})")
  endif()
  foreach(name IN LISTS arg_EXCLUDE_SOURCES)
    list(REMOVE_ITEM sources "${CMAKE_CURRENT_SOURCE_DIR}/${name}")
  endforeach()
  file(GLOB_RECURSE schemas CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.capnp")

  if(sources OR schemas)
    add_library(${target} STATIC ${sources})
    set(scope PUBLIC)
    target_link_libraries(${target} PUBLIC ${plain_archive} ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
    target_include_directories(${target} SYSTEM PRIVATE "${PENSTOCK_GENERATED_DIR}")
    foreach(schema IN LISTS schemas)
      penstock_capnp(${target} "${schema}")
    endforeach()
    if(sources)
      if(arg_OWN_HEADERS)
        penstock_precompile(${target})
      else()
        penstock_reuse_precompiled(${target} penstock_headers)
      endif()
      penstock_unity(${target} ${sources} ALONE ${arg_ALONE})
    endif()
    if(PENSTOCK_BUILD_CUDA)
      penstock_link_cuda(${target} "${sources}" ${arg_CUDA})
    endif()
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
    target_link_libraries(${target} INTERFACE ${arg_PUBLIC})
    if(plain_archive)
      target_link_libraries(${target} INTERFACE ${plain_archive} ${arg_PUBLIC} ${arg_PRIVATE})
      if(PENSTOCK_BUILD_CUDA)
        target_link_libraries(${target} INTERFACE ${arg_CUDA})
      endif()
    endif()
  endif()
  add_library(penstock::${folder} ALIAS ${target})
  target_compile_features(${target} ${scope} cxx_std_20)
  target_include_directories(${target} ${scope}
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>"
    "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/penstock>")
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${folder})

  if(arg_INSTALL)
    install(TARGETS ${target} EXPORT penstock ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  endif()
endfunction()

# penstock_link_cuda(target sources libs...): what links `target` links the libraries of CUDA, too;
# only the sources in folders cuda/, cudnn/, cudnn_frontend/ and nccl/ see their headers, so that all
# others are compiled as they are without CUDA.
function(penstock_link_cuda target sources)
  foreach(library IN LISTS ARGN)
    target_link_libraries(${target} INTERFACE "$<LINK_ONLY:${library}>")
  endforeach()
  list(FILTER sources INCLUDE REGEX "/(cuda|cudnn|cudnn_frontend|nccl)/[^/]*$")
  set(folders ${CUDAToolkit_INCLUDE_DIRS})
  if(PENSTOCK_BUILD_NCCL)
    list(APPEND folders "${PENSTOCK_NCCL_INCLUDE_DIR}")
  endif()
  if(PENSTOCK_BUILD_CUDNN)
    list(APPEND folders "${PENSTOCK_CUDNN_INCLUDE_DIR}")
  endif()
  set_source_files_properties(${sources} PROPERTIES INCLUDE_DIRECTORIES "${folders}")
  if(PENSTOCK_BUILD_CUDNN_FRONTEND)
    # As a system folder: warnings in these headers are not ours.
    list(FILTER sources INCLUDE REGEX "/cudnn_frontend/[^/]*$")
    set_source_files_properties(${sources} PROPERTIES
      COMPILE_OPTIONS "-isystem;${PENSTOCK_CUDNN_FRONTEND}")
  endif()
endfunction()

# penstock_link_whole_runtime(program): the program has all of what plug-in libraries may call
# (penstock/plugin.h), also what it does not use itself, and they find it there.
function(penstock_link_whole_runtime program)
  set_target_properties(${program} PROPERTIES
    ENABLE_EXPORTS ON
    LINK_LIBRARY_OVERRIDE
      "WHOLE_ARCHIVE,penstock_penstock,penstock_planner,penstock_kernels,penstock_graph,penstock_base")
endfunction()
