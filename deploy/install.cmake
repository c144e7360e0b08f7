# The documents that are installed, and the packages that cpack makes: a .deb for each component.
# deploy/build-packages calls it.
if(SKBUILD)
    return()
endif()
set(doc ${CMAKE_INSTALL_DATADIR}/doc)
install(FILES README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md SECURITY.md
        DESTINATION ${doc}/pstrain COMPONENT launcher)
# Debian's packages name the copy in common-licenses instead.
install(FILES LICENSE DESTINATION ${doc}/pstrain COMPONENT licence)
install(DIRECTORY docs/ DESTINATION ${doc}/pstrain/docs COMPONENT launcher FILES_MATCHING PATTERN "*.md")
install(DIRECTORY docs/examples DESTINATION ${doc}/pstrain COMPONENT launcher)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "pstrain maintainers <maintainers@pstrain.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL server launcher library development)
if(PS_WORKER)
    list(APPEND CPACK_COMPONENTS_ALL worker)
endif()
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/before_packing.cmake)

# ps_deb(<component> <package> <shlibs: ON or OFF> <summary> <description> [depends])
function(ps_deb component package shlibs summary description)
    string(TOUPPER ${component} key)
    set(CPACK_DEBIAN_${key}_PACKAGE_NAME ${package} PARENT_SCOPE)
    set(CPACK_DEBIAN_${key}_PACKAGE_SHLIBDEPS ${shlibs} PARENT_SCOPE)
    set(CPACK_DEBIAN_${key}_DESCRIPTION "${summary}\n${description}" PARENT_SCOPE)
    set(CPACK_COMPONENT_${key}_DESCRIPTION "${summary}\n${description}" PARENT_SCOPE)
    set(CPACK_DEBIAN_${key}_PACKAGE_DEPENDS "${ARGN}" PARENT_SCOPE)
    # What Debian wants of every package.
    install(FILES ${PROJECT_BINARY_DIR}/debian/copyright ${PROJECT_BINARY_DIR}/debian/changelog.gz
            DESTINATION ${doc}/${package} COMPONENT ${component} EXCLUDE_FROM_ALL)
endfunction()
set(same "(= ${PROJECT_VERSION})")
ps_deb(server pstrain-server ON "parameter server of training jobs"
       "Holds a part of the parameters of a training job: sums the workers' gradients,\napplies the optimizer, and sends the new weights back. Needs neither CUDA nor\nGloo. Example units for systemd are in /usr/share/pstrain/systemd.")
ps_deb(worker pstrain-worker ON "worker of training jobs with parameter servers"
       "Trains a network that a YAML file describes, on the CPU, and exchanges the\ngradients with parameter servers or by all-reduce.")
set(worker "")
if(PS_WORKER)
    set(worker "pstrain-worker ${same}, ")
endif()
ps_deb(launcher pstrain ON "training with sharded parameter servers"
       "Starts training jobs of parameter servers and workers here, or over ssh on\nother hosts: the command psrun, with example configurations and documents."
       "pstrain-server ${same}, ${worker}python3:any (>= 3.9)")
ps_deb(library libpstrain${PROJECT_VERSION_MAJOR} ON "library of clients of parameter servers"
       "A worker's part in a training job with parameter servers, for programs in C and\nother languages: joining, pushing gradients, and waiting for weights.")
ps_deb(development libpstrain-dev OFF "header of the library of clients of parameter servers"
       "What is needed to build programs that use libpstrain: the header, a file for\npkg-config and a package for CMake."
       "libpstrain${PROJECT_VERSION_MAJOR} ${same}")
set(CPACK_DEBIAN_LAUNCHER_PACKAGE_RECOMMENDS "openssh-client")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/debian/triggers
    ${PROJECT_BINARY_DIR}/debian/shlibs)
file(WRITE ${PROJECT_BINARY_DIR}/debian/triggers "activate-noawait ldconfig\n")
file(WRITE ${PROJECT_BINARY_DIR}/debian/shlibs
     "libpstrain ${PROJECT_VERSION_MAJOR} libpstrain${PROJECT_VERSION_MAJOR} ${same}\n")
file(WRITE ${PROJECT_BINARY_DIR}/debian/copyright
"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: pstrain

Files: *
Copyright: 2026 the authors of pstrain
License: Apache-2.0

Files: /usr/share/pstrain/configs/digits/*
Copyright: E. Alpaydin and C. Kaynak
License: CC-BY-4.0
 Optical Recognition of Handwritten Digits, of the UCI Machine Learning Repository, under the
 Creative Commons Attribution 4.0 licence: https://creativecommons.org/licenses/by/4.0/

License: Apache-2.0
 On Debian systems, the text of the Apache License 2.0 is in
 /usr/share/common-licenses/Apache-2.0.
")
string(TIMESTAMP today "%a, %d %b %Y %H:%M:%S +0000" UTC) # SOURCE_DATE_EPOCH, where it is set
file(WRITE ${PROJECT_BINARY_DIR}/debian/changelog
"pstrain (${PROJECT_VERSION}) unstable; urgency=medium

  * See CHANGELOG.md in /usr/share/doc/pstrain.

 -- ${CPACK_PACKAGE_CONTACT}  ${today}
")
execute_process(COMMAND gzip -9nf ${PROJECT_BINARY_DIR}/debian/changelog)
include(CPack)
