# Files that are built several times, for what an x86-64 processor may have beyond SSE2;
# the program chooses when it runs (cpu_level.h, which checks for these instructions).
# Elsewhere, and with PS_NATIVE, one build is enough.
include(CheckCSourceCompiles)
include(CheckCCompilerFlag)
check_c_source_compiles("#ifndef __x86_64__
                         #error
                         #endif
                         int main(void) { return 0; }" PS_FOR_X86_64)
check_c_compiler_flag(-mprefer-vector-width=512 PS_HAS_VECTOR_WIDTH)
set(PS_LEVELS "")
if(PS_FOR_X86_64 AND NOT PS_NATIVE)
    set(PS_LEVELS avx2 avx512)
endif()
# Compilers prefer vectors of 256 bits by themselves: processors once ran slower with 512.
# oneDNN's products use 512 in the same process anyway.
set(PS_WIDE "")
if(PS_HAS_VECTOR_WIDTH AND PS_FOR_X86_64)
    set(PS_WIDE -mprefer-vector-width=512)
endif()
# BMI2's pext takes hundreds of cycles on some processors without AVX-512 (AMD's before
# Zen 3).
set(PS_OPTIONS_avx2 -mavx2 -mfma)
set(PS_OPTIONS_avx512 -mavx2 -mfma -mbmi2 -mavx512f -mavx512bw -mavx512dq -mavx512vl
    ${PS_WIDE})

# ps_per_level(<target> <file>...): of the files of a target in this folder, those whose
# public functions are all written with PS_PER_LEVEL.
function(ps_per_level target)
    if(NOT PS_LEVELS AND PS_NATIVE)
        set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "${PS_WIDE}")
    endif()
    if(NOT PS_LEVELS)
        return()
    endif()
    set_source_files_properties(${ARGN} PROPERTIES
        COMPILE_DEFINITIONS "PS_LEVEL=plain;PS_LEVEL_IS_FIRST")
    foreach(file IN LISTS ARGN)
        get_filename_component(name ${file} NAME_WE)
        foreach(level IN LISTS PS_LEVELS)
            # The same target has the same file twice only under another name.
            set(copy ${CMAKE_CURRENT_BINARY_DIR}/levels/${name}_${level}.c)
            file(CONFIGURE OUTPUT ${copy} CONTENT "#include \"${name}.c\"\n")
            set_source_files_properties(${copy} PROPERTIES
                COMPILE_OPTIONS "${PS_OPTIONS_${level}}"
                COMPILE_DEFINITIONS PS_LEVEL=${level})
            target_sources(${target} PRIVATE ${copy})
        endforeach()
    endforeach()
endfunction()
