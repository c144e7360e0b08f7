# What decodes pictures (data.kind image_folder): libpng, and libjpeg-turbo or another
# libjpeg of version 62 or newer. Included by worker/CMakeLists.txt.

# ps_picture_library(<name> <target> <package> <found>): sets PS_HAVE_<name>, and adds to
# PS_PICTURE_TARGETS and to the summary.
macro(ps_picture_library name target package found)
    set(PS_HAVE_${name} 0)
    if(PS_WITH_${name} AND ${found})
        set(PS_HAVE_${name} 1)
        list(APPEND PS_PICTURE_TARGETS ${target})
        set(text yes)
    elseif(PS_WITH_${name} STREQUAL "AUTO" OR NOT PS_WITH_${name})
        set(text "no (${package}, PS_WITH_${name})")
    else()
        message(FATAL_ERROR "PS_WITH_${name}=ON, but ${package} not found")
    endif()
    set_property(GLOBAL APPEND PROPERTY PS_SUMMARY "pictures ${name}: ${text}")
endmacro()

set(PS_PICTURE_TARGETS)
find_package(PNG QUIET)
find_package(JPEG QUIET)
ps_picture_library(PNG PNG::PNG libpng-dev PNG_FOUND)
ps_picture_library(JPEG JPEG::JPEG libjpeg-dev JPEG_FOUND)
if(PS_HAVE_PNG)
    list(APPEND PS_WORKER_SOURCES data/pictures/picture_png.c)
endif()
if(PS_HAVE_JPEG)
    list(APPEND PS_WORKER_SOURCES data/pictures/picture_jpeg.c)
endif()

function(ps_link_pictures target)
    target_compile_definitions(${target} PRIVATE PS_WITH_PNG=${PS_HAVE_PNG}
                               PS_WITH_JPEG=${PS_HAVE_JPEG})
    target_link_libraries(${target} PUBLIC ${PS_PICTURE_TARGETS})
endfunction()
