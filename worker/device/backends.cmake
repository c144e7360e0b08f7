# What the devices stand on: oneDNN 2 or 3 with the OpenMP runtime that it uses itself.
# CMAKE_PREFIX_PATH names a place of oneDNN's other than the system's.
find_path(DNNL_INCLUDE oneapi/dnnl/dnnl.h)
find_library(DNNL_LIBRARY NAMES dnnl)
find_package(OpenMP COMPONENTS C)
if(NOT DNNL_INCLUDE OR NOT DNNL_LIBRARY OR NOT OpenMP_C_FOUND)
    message(FATAL_ERROR "ps-worker needs oneDNN (Debian, Ubuntu: libdnnl-dev) and OpenMP; "
                        "-DPS_WORKER=OFF builds the server alone")
endif()
file(STRINGS ${DNNL_INCLUDE}/oneapi/dnnl/dnnl_version.h DNNL_VERSION_LINES
     REGEX "DNNL_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
string(REGEX REPLACE "[^;]*MAJOR +([0-9]+).*MINOR +([0-9]+).*PATCH +([0-9]+).*" "\\1.\\2.\\3"
       DNNL_VERSION "${DNNL_VERSION_LINES}")
if(DNNL_VERSION VERSION_LESS 2.2)
    message(FATAL_ERROR "oneDNN ${DNNL_VERSION} is too old; 2.2 or newer is needed")
endif()
message(STATUS "oneDNN ${DNNL_VERSION}: ${DNNL_LIBRARY}")

function(ps_link_backends target)
    target_include_directories(${target} SYSTEM PUBLIC ${DNNL_INCLUDE})
    target_link_libraries(${target} PUBLIC ${DNNL_LIBRARY} OpenMP::OpenMP_C)
endfunction()
