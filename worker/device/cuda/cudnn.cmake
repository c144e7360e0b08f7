# cuDNN for convolutions, if it is found and CUDA's device is built (AUTO), asked for (ON: an
# error without it) or left out (OFF). Only the headers are needed: the library is loaded
# when a GPU is opened. Sets PS_HAVE_CUDNN, CUDNN_INCLUDE and PS_CONV_LIBRARY, the file that
# keeps conv_library.h.
find_path(CUDNN_INCLUDE cudnn_graph.h HINTS /usr/local/cuda/include)
find_path(CUDA_RUNTIME_INCLUDE cuda_runtime.h HINTS /usr/local/cuda/include)
set(PS_HAVE_CUDNN OFF)
set(cudnn_text "no: PS_WITH_CUDNN=${PS_WITH_CUDNN}")
if(PS_WITH_CUDNN)
    set(cudnn_text "no: cudnn.h of cuDNN 9.8 or newer not found")
    if(CUDNN_INCLUDE AND CUDA_RUNTIME_INCLUDE)
        file(STRINGS ${CUDNN_INCLUDE}/cudnn_version.h lines
             REGEX "define CUDNN_(MAJOR|MINOR|PATCHLEVEL) +[0-9]+")
        string(REGEX REPLACE "[^;]*MAJOR +([0-9]+).*MINOR +([0-9]+).*LEVEL +([0-9]+).*"
               "\\1.\\2.\\3" cudnn_version "${lines}")
        if(cudnn_version VERSION_GREATER_EQUAL 9.8)
            set(PS_HAVE_CUDNN ON)
            set(cudnn_text "yes: cuDNN ${cudnn_version}")
        endif()
    endif()
    if(NOT PS_HAVE_CUDNN AND NOT PS_WITH_CUDNN STREQUAL "AUTO")
        message(FATAL_ERROR "PS_WITH_CUDNN=${PS_WITH_CUDNN}, but ${cudnn_text}")
    endif()
endif()
set(PS_CONV_LIBRARY device/cuda/no_conv_library.c)
if(PS_HAVE_CUDNN)
    set(PS_CONV_LIBRARY device/cuda/cudnn_conv.c)
endif()
if(PS_HAVE_CUDA)
    set_property(GLOBAL APPEND PROPERTY PS_SUMMARY "convolutions of cuDNN: ${cudnn_text}")
endif()
set(PS_HAVE_CUDNN ${PS_HAVE_CUDNN} CACHE INTERNAL "cuDNN's headers are here")
