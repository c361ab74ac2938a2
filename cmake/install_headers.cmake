# Installs the headers that applications and plug-ins use (api_headers.cmake).
#
# Runs when the build is installed, with source (of Penstock) and headers_dir, which is relative to
# the prefix.
include("${CMAKE_CURRENT_LIST_DIR}/api_headers.cmake")
penstock_api_headers("${source}" headers)
foreach(header IN LISTS headers)
  cmake_path(GET header PARENT_PATH folder)
  file(INSTALL DESTINATION "${CMAKE_INSTALL_PREFIX}/${headers_dir}/${folder}" TYPE FILE
    FILES "${source}/${header}")
endforeach()
