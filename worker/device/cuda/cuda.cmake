# The CUDA device: everything above cuda_gpu.h is C and compiled wherever tests need it;
# cuda_gpu.cu alone needs CUDA. PS_WITH_CUDA=AUTO builds it where there is an NVIDIA GPU
# and nvcc, so that other machines neither pay for it nor need CUDA's libraries.
set(PS_CUDA_SOURCES
    device/cuda/cuda_index.h
    device/cuda/cuda_values.h
    device/cuda/conv_library.h
    device/cuda/cuda_moving_kernels.h
    device/cuda/cuda_pointwise_kernels.h
    device/cuda/cuda_window_kernels.h
    device/cuda/cuda_sum_kernels.h
    device/cuda/cuda_channel_kernels.h
    device/cuda/cuda_team.h
    device/cuda/cuda_batchnorm_kernels.h
    device/cuda/cuda_groupnorm_kernels.h
    device/cuda/cuda_loss_kernels.h
    device/cuda/cuda_optimizer_kernels.h
    device/cuda/cuda_codec_kernels.h
    device/cuda/cuda_kernels.h
    device/cuda/cuda_block.h
    device/cuda/cuda_wait.h
    device/cuda/cuda_gpu.h
    device/cuda/cuda_wait.c
    device/cuda/cuda_batch.c
    device/cuda/cuda_graphs.c
    device/cuda/cuda_conv_plans.c
    device/cuda/cuda_plan.c
    device/cuda/cuda_pass.h
    device/cuda/cuda_codes.c
    device/cuda/cuda_products.c
    device/cuda/cuda_conv.c
    device/cuda/cuda_layers.c
    device/cuda/cuda_run.c
    device/cuda/cuda_stream.c
    device/cuda/cuda_shared.c
    device/cuda/cuda_device.c
)

include(CheckLanguage)
set(PS_HAVE_CUDA OFF)
set(text "no: PS_WITH_CUDA=${PS_WITH_CUDA}")
file(GLOB PS_NVIDIA_GPU_FILES /dev/nvidia0 /proc/driver/nvidia/version)
set(PS_NVIDIA_GPU "${PS_NVIDIA_GPU_FILES}" CACHE INTERNAL "traces of a GPU here")
if(PS_WITH_CUDA STREQUAL "AUTO" AND NOT PS_NVIDIA_GPU)
    set(text "no: no NVIDIA GPU here (PS_WITH_CUDA=ON builds it all the same)")
elseif(PS_WITH_CUDA)
    if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
        find_program(PS_NVCC nvcc HINTS /usr/local/cuda/bin /opt/cuda/bin)
        if(PS_NVCC)
            set(CMAKE_CUDA_COMPILER ${PS_NVCC} CACHE FILEPATH "CUDA compiler")
        endif()
    endif()
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND PS_NVIDIA_GPU)
        set(CMAKE_CUDA_ARCHITECTURES native)
    elseif(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
        # machine code up to Hopper; newer GPUs compile the last one's PTX when they start
        set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real 90)
    endif()
    check_language(CUDA)
    find_package(CUDAToolkit QUIET)
    if(CMAKE_CUDA_COMPILER AND TARGET CUDA::cublas)
        set(PS_HAVE_CUDA ON)
    elseif(NOT PS_WITH_CUDA STREQUAL "AUTO")
        message(FATAL_ERROR "PS_WITH_CUDA=${PS_WITH_CUDA}, but nvcc or cuBLAS was not found "
                            "(CUDACXX or CMAKE_CUDA_COMPILER names nvcc)")
    endif()
    set(text "no: nvcc or cuBLAS not found")
endif()
include(${PROJECT_SOURCE_DIR}/worker/device/cuda/cudnn.cmake)
if(PS_HAVE_CUDA)
    set(CMAKE_CUDA_STANDARD 17)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    enable_language(CUDA)
    string(REPLACE ";" " " architectures "${CMAKE_CUDA_ARCHITECTURES}")
    set(text "yes: CUDA ${CUDAToolkit_VERSION}, ${architectures}")
    list(APPEND PS_CUDA_SOURCES device/cuda/cuda_gpu.cu ${PS_CONV_LIBRARY})
    list(APPEND PS_WORKER_SOURCES ${PS_CUDA_SOURCES})
    # a * b + c is contracted nowhere else either
    set(cuda_options -fmad=false -Xcompiler=-Wall,-Wextra,-Wshadow,-Wno-unused-parameter)
    if(PS_WERROR)
        list(APPEND cuda_options -Werror=all-warnings -Xcompiler=-Werror)
    endif()
    set_source_files_properties(device/cuda/cuda_gpu.cu PROPERTIES
        COMPILE_OPTIONS "${cuda_options}"
        COMPILE_DEFINITIONS "PS_CUDA_ARCHITECTURES=\"${architectures}\"")
endif()
set_property(GLOBAL APPEND PROPERTY PS_SUMMARY "device CUDA: ${text}")
set(PS_HAVE_CUDA ${PS_HAVE_CUDA} CACHE INTERNAL "the CUDA device is built")

function(ps_link_cuda target)
    if(PS_HAVE_CUDA)
        target_compile_definitions(${target} PUBLIC PS_WITH_CUDA=1)
        target_link_libraries(${target} PUBLIC CUDA::cudart_static CUDA::cublas)
        if(PS_HAVE_CUDNN)
            target_include_directories(${target} SYSTEM PRIVATE ${CUDNN_INCLUDE}
                                       ${CUDA_RUNTIME_INCLUDE})
        endif()
    endif()
endfunction()
