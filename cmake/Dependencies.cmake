# Finds every library that Penstock's own libraries link. Read by the build and, installed beside
# penstockConfig.cmake, by find_package(penstock), so the list exists once. What only the command,
# the benchmarks and the tests need is found in their folders.
#
# A missing dependency stops with the name of its Debian package; scripts/packages has the whole
# list and scripts/install-deps installs it.

# Stops unless the condition `found` (a list, as `if` takes it) is true. `what` is the name to show,
# `package` the Debian package.
macro(penstock_require found what package)
  if(NOT (${found}))
    set(penstock_missing
      "${what} was not found: install the package ${package} (scripts/install-deps installs all)")
    if(CMAKE_FIND_PACKAGE_NAME STREQUAL "penstock")
      set(penstock_FOUND FALSE)
      set(penstock_NOT_FOUND_MESSAGE "${penstock_missing}")
      return()
    else()
      message(FATAL_ERROR "${penstock_missing}")
    endif()
  endif()
endmacro()

# Debian's CMake package of Cap'n Proto does not load (libatomic), and hwloc and xxHash have none:
# these come from pkg-config, as imported targets.
find_package(PkgConfig QUIET)
penstock_require(PKG_CONFIG_FOUND "pkg-config" pkgconf)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads QUIET)
penstock_require(Threads_FOUND "POSIX threads" libc6-dev)

find_package(absl QUIET CONFIG)
penstock_require(absl_FOUND "Abseil" libabsl-dev)
find_package(fmt QUIET CONFIG)
penstock_require(fmt_FOUND "{fmt}" libfmt-dev)
find_package(spdlog QUIET CONFIG)
penstock_require(spdlog_FOUND "spdlog" libspdlog-dev)
find_package(nlohmann_json QUIET CONFIG)
penstock_require(nlohmann_json_FOUND "nlohmann/json" nlohmann-json3-dev)
find_package(toml11 QUIET CONFIG)
penstock_require(toml11_FOUND "toml11" libtoml11-dev)

pkg_check_modules(PENSTOCK_HWLOC QUIET IMPORTED_TARGET hwloc)
penstock_require(PENSTOCK_HWLOC_FOUND "hwloc" libhwloc-dev)
pkg_check_modules(PENSTOCK_XXHASH QUIET IMPORTED_TARGET libxxhash)
penstock_require(PENSTOCK_XXHASH_FOUND "xxHash" libxxhash-dev)
pkg_check_modules(PENSTOCK_CBC QUIET IMPORTED_TARGET cbc)
penstock_require(PENSTOCK_CBC_FOUND "COIN-OR CBC" coinor-libcbc-dev)
pkg_check_modules(PENSTOCK_NLOPT QUIET IMPORTED_TARGET nlopt)
penstock_require(PENSTOCK_NLOPT_FOUND "NLopt" libnlopt-dev)
pkg_check_modules(PENSTOCK_UCX QUIET IMPORTED_TARGET ucx)
penstock_require(PENSTOCK_UCX_FOUND "UCX" libucx-dev)
pkg_check_modules(PENSTOCK_CAPNP QUIET IMPORTED_TARGET capnp)
penstock_require(PENSTOCK_CAPNP_FOUND "Cap'n Proto" libcapnp-dev)
pkg_check_modules(PENSTOCK_CAPNP_RPC QUIET IMPORTED_TARGET capnp-rpc kj-http kj-tls kj-async)
penstock_require(PENSTOCK_CAPNP_RPC_FOUND "Cap'n Proto RPC over TLS" libcapnp-dev)
pkg_check_modules(PENSTOCK_CRYPTO QUIET IMPORTED_TARGET libcrypto)
penstock_require(PENSTOCK_CRYPTO_FOUND "OpenSSL" libssl-dev)

# CAF 0.17: the API of 0.18 and later is another one (type-id blocks, mail).
find_package(CAF 0.17.5 QUIET)
penstock_require(CAF_FOUND "CAF" libcaf-dev)
if(CAF_VERSION VERSION_GREATER_EQUAL 0.18)
  message(WARNING "CAF ${CAF_VERSION} found; actors/ is written for CAF 0.17")
endif()

# oneDNN's own CMake package asks for OpenCL on Debian, which nothing here uses.
if(PENSTOCK_ONEDNN AND NOT TARGET penstock_deps::dnnl)
  find_path(PENSTOCK_DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
  find_library(PENSTOCK_DNNL_LIBRARY dnnl)
  mark_as_advanced(PENSTOCK_DNNL_INCLUDE_DIR PENSTOCK_DNNL_LIBRARY)
  penstock_require("PENSTOCK_DNNL_INCLUDE_DIR;AND;PENSTOCK_DNNL_LIBRARY" "oneDNN" libdnnl-dev)
  add_library(penstock_deps::dnnl UNKNOWN IMPORTED)
  set_target_properties(penstock_deps::dnnl PROPERTIES
    IMPORTED_LOCATION "${PENSTOCK_DNNL_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${PENSTOCK_DNNL_INCLUDE_DIR}")
endif()

if(PENSTOCK_BUILD_CUDA)
  find_package(CUDAToolkit QUIET)
  penstock_require(CUDAToolkit_FOUND "the CUDA toolkit" nvidia-cuda-toolkit)
  # Only its header: the library is loaded when a program asks for it (transport/nccl.h).
  find_path(PENSTOCK_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  # Likewise (kernels/cudnn/cudnn_api.h).
  find_path(PENSTOCK_CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  # The header-only frontend of cuDNN (kernels/cudnn_frontend/), which scripts/fetch-cudnn-frontend
  # gets. The folder has to be called include: its files rely on that.
  # Not from the system, whose version may be too old.
  set(PENSTOCK_CUDNN_FRONTEND "${CMAKE_CURRENT_LIST_DIR}/../build/cudnn_frontend/include" CACHE PATH
    "The folder of cudnn_frontend.h: attention by cuDNN")
  mark_as_advanced(PENSTOCK_NCCL_INCLUDE_DIR PENSTOCK_CUDNN_INCLUDE_DIR PENSTOCK_CUDNN_FRONTEND)
endif()
if(PENSTOCK_BUILD_CUDA AND PENSTOCK_NCCL_INCLUDE_DIR)
  set(PENSTOCK_BUILD_NCCL ON)
else()
  set(PENSTOCK_BUILD_NCCL OFF)
endif()
if(PENSTOCK_BUILD_CUDA AND PENSTOCK_CUDNN_INCLUDE_DIR)
  set(PENSTOCK_BUILD_CUDNN ON)
else()
  set(PENSTOCK_BUILD_CUDNN OFF)
endif()
if(PENSTOCK_BUILD_CUDNN AND EXISTS "${PENSTOCK_CUDNN_FRONTEND}/cudnn_frontend.h")
  set(PENSTOCK_BUILD_CUDNN_FRONTEND ON)
else()
  set(PENSTOCK_BUILD_CUDNN_FRONTEND OFF)
endif()
