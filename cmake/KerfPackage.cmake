# Debian packages: kerf (the program and the shared library) and libkerf-dev. cpack -G DEB
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME kerf)
set(CPACK_PACKAGE_VENDOR "kerf developers")
set(CPACK_PACKAGE_CONTACT "kerf developers <kerf@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL kerf dev)
set(CPACK_DEB_COMPONENT_INSTALL ON)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_KERF_PACKAGE_NAME kerf)
set(CPACK_DEBIAN_KERF_PACKAGE_SECTION science)
set(CPACK_DEBIAN_KERF_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}) # libkerf.so itself
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_KERF_DESCRIPTION
    "The program kerf and the shared library: NVFP4 and BF16 experts, expert parallel
and expert tensor parallel, on CPUs and Hopper GPUs.")

# The static library's parts are for those alone who link it.
set(static_parts libfmt-dev libre2-dev)
foreach(part hwy:libhwy-dev OpenSSL:libssl-dev TBB:libtbb-dev MPI:libopenmpi-dev)
  string(REGEX MATCH "(.*):(.*)" part ${part})
  if(CMAKE_MATCH_1 IN_LIST kerf_package_parts)
    list(APPEND static_parts ${CMAKE_MATCH_2})
  endif()
endforeach()
list(JOIN static_parts ", " static_parts)
set(CPACK_DEBIAN_DEV_PACKAGE_NAME libkerf-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "kerf (= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")
set(CPACK_DEBIAN_DEV_PACKAGE_RECOMMENDS ${static_parts})
set(CPACK_DEBIAN_DEV_DESCRIPTION
    "Headers, the static library, CMake's package kerf, pkg-config's kerf, examples.")

# What every package of Debian's has. It belongs to packages alone: `cmake --install` leaves it out. (gzip's own
# program, which alone leaves the time out, so that the same tree gives the same file.)
set(changelog ${PROJECT_BINARY_DIR}/generated/changelog.Debian.gz)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/debian/changelog)
find_program(KERF_GZIP gzip)
mark_as_advanced(KERF_GZIP)
if(KERF_GZIP)
  execute_process(COMMAND ${KERF_GZIP} -9 --no-name --stdout ${PROJECT_SOURCE_DIR}/cmake/debian/changelog
                  OUTPUT_FILE ${changelog} COMMAND_ERROR_IS_FATAL ANY)
else() # nothing of Debian's is made where there is none
  set(changelog "")
endif()
foreach(component kerf dev)
  string(TOUPPER ${component} upper)
  install(FILES cmake/debian/copyright ${changelog} DESTINATION ${kerf_doc_dir}/${CPACK_DEBIAN_${upper}_PACKAGE_NAME}
          COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()
include(CPack)
