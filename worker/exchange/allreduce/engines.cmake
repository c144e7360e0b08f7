# The all-reduce engines: each is used where it is found (AUTO), asked for (ON: an error
# without it) or left out (OFF). Sets PS_HAVE_GLOO and PS_HAVE_NCCL and appends the
# engines' files to PS_SESSION_SOURCES. The decisions stand in the cache for the tests.

# ps_engine(<NAME> <found> <what it needs>): decides, and notes it for the summary.
function(ps_engine name found needs)
    set(asked ${PS_WITH_${name}})
    set(have OFF)
    set(text "no: PS_WITH_${name}=${asked}")
    if(found AND (asked STREQUAL "AUTO" OR asked))
        set(have ON)
        set(text "yes")
    elseif(asked STREQUAL "AUTO")
        set(text "no: ${needs} not found")
    elseif(asked)
        message(FATAL_ERROR "PS_WITH_${name}=${asked}, but ${needs} not found")
    endif()
    set_property(GLOBAL APPEND PROPERTY PS_SUMMARY "all-reduce ${name}: ${text}")
    set(PS_HAVE_${name} ${have} CACHE INTERNAL "the all-reduce engine is built")
endfunction()

include(CheckLanguage)
check_language(CXX)
find_path(GLOO_INCLUDE gloo/allreduce.h)
find_library(GLOO_LIBRARY gloo)
set(found OFF)
if(CMAKE_CXX_COMPILER AND GLOO_INCLUDE AND GLOO_LIBRARY)
    set(found ON)
endif()
ps_engine(GLOO ${found} "a C++ compiler with Gloo's headers and library (libgloo-dev)")
if(PS_HAVE_GLOO)
    enable_language(CXX)
    set(CMAKE_CXX_STANDARD 17)
    list(APPEND PS_SESSION_SOURCES exchange/allreduce/gloo_missing/gloo/common/memory.h
                                  exchange/allreduce/gloo_pairs.cc
                                  exchange/allreduce/gloo_mesh.cc
                                  exchange/allreduce/exchange_gloo.cc)
endif()

# Only the headers are needed: the library is loaded when it is asked for.
find_path(NCCL_INCLUDE nccl.h HINTS /usr/local/cuda/include)
find_path(CUDA_RUNTIME_INCLUDE cuda_runtime.h HINTS /usr/local/cuda/include)
set(found OFF)
if(NCCL_INCLUDE AND CUDA_RUNTIME_INCLUDE)
    set(found ON)
endif()
ps_engine(NCCL ${found} "nccl.h with CUDA's headers")
if(PS_HAVE_NCCL)
    list(APPEND PS_SESSION_SOURCES exchange/allreduce/exchange_nccl.c)
endif()

function(ps_link_engines target)
    if(PS_HAVE_GLOO)
        target_compile_definitions(${target} PUBLIC PS_WITH_GLOO=1)
        target_include_directories(${target} SYSTEM PRIVATE ${GLOO_INCLUDE})
        find_file(GLOO_MEMORY_HEADER gloo/common/memory.h PATHS ${GLOO_INCLUDE} NO_DEFAULT_PATH)
        if(NOT GLOO_MEMORY_HEADER)
            target_include_directories(${target} PRIVATE
                ${PROJECT_SOURCE_DIR}/worker/exchange/allreduce/gloo_missing)
        endif()
        target_link_libraries(${target} PUBLIC ${GLOO_LIBRARY} stdc++)
    endif()
    if(PS_HAVE_NCCL)
        target_compile_definitions(${target} PUBLIC PS_WITH_NCCL=1)
        target_include_directories(${target} SYSTEM PRIVATE ${NCCL_INCLUDE}
                                   ${CUDA_RUNTIME_INCLUDE})
    endif()
endfunction()
