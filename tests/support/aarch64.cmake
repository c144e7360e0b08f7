# Builds for aarch64 with Debian's cross compiler and the libraries of another root; runs
# tests by qemu. PS_CROSS_ROOT: the folder that tests/system/test_aarch64.py fills.
#
#   cmake -S . -B build/aarch64 -G Ninja -DPS_CROSS_ROOT=... \
#         -DCMAKE_TOOLCHAIN_FILE=tests/support/aarch64.cmake
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES PS_CROSS_ROOT)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_SYSROOT ${PS_CROSS_ROOT}/target)
set(CMAKE_C_COMPILER ${PS_CROSS_ROOT}/bin/gcc)
set(CMAKE_CXX_COMPILER ${PS_CROSS_ROOT}/bin/g++)
set(CMAKE_CROSSCOMPILING_EMULATOR ${PS_CROSS_ROOT}/bin/qemu)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${CMAKE_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR}
    ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig)
