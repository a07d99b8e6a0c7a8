# What `cmake --install` and `cpack -G DEB` take (docs/packages.md): component `kerf` (the program and the shared
# library) and component `dev` (headers, both libraries, what CMake and pkg-config ask for, pages and examples).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(kerf_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kerf)
set(kerf_doc_dir ${CMAKE_INSTALL_DATADIR}/doc)

# The headers that kerf/kerf.h reaches, and no others.
function(kerf_public_headers out)
  set(found "")
  set(queue kerf/kerf.h)
  while(queue)
    list(POP_FRONT queue header)
    if(header IN_LIST found)
      continue()
    endif()
    list(APPEND found ${header})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${header})
    file(STRINGS ${PROJECT_SOURCE_DIR}/${header} includes REGEX "^#include \"kerf/")
    list(TRANSFORM includes REPLACE "^#include \"([^\"]+)\".*" "\\1")
    list(APPEND queue ${includes})
  endwhile()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

kerf_public_headers(headers)
foreach(header ${headers})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder} COMPONENT dev)
endforeach()

# The installed program is linked to the shared library, which has the same objects.
kerf_add_program(kerf_shared_program kerf_shared installed)
file(RELATIVE_PATH back /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
set_target_properties(kerf_shared_program PROPERTIES INSTALL_RPATH "$ORIGIN/${back}")
install(TARGETS kerf_shared_program RUNTIME COMPONENT kerf)

# Two sets, so that whoever wants the shared library is not asked for the static one's parts.
install(TARGETS kerf_shared EXPORT kerfShared LIBRARY COMPONENT kerf NAMELINK_COMPONENT dev
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS kerf EXPORT kerfStatic ARCHIVE COMPONENT dev INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
foreach(set kerfShared kerfStatic)
  install(EXPORT ${set} NAMESPACE kerf:: FILE ${set}Targets.cmake DESTINATION ${kerf_package_dir} COMPONENT dev)
endforeach()

set(kerf_package_parts "")
foreach(part ${kerf_link_parts})
  string(REGEX REPLACE "::.*" "" package ${part})
  list(APPEND kerf_package_parts ${package})
endforeach()
configure_package_config_file(cmake/kerfConfig.cmake.in generated/kerfConfig.cmake
                              INSTALL_DESTINATION ${kerf_package_dir} NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(generated/kerfConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/generated/kerfConfig.cmake ${PROJECT_BINARY_DIR}/generated/kerfConfigVersion.cmake
              cmake/FindKerfRe2.cmake
        DESTINATION ${kerf_package_dir} COMPONENT dev)

# Libs.private has what libkerf.a needs; the shared library needs nothing named, so nothing is required.
set(kerf_private_libs "-lfmt -lre2")
foreach(part hwy:-lhwy OpenSSL:-lcrypto TBB:-ltbb)
  string(REGEX MATCH "(.*):(.*)" part ${part})
  if(CMAKE_MATCH_1 IN_LIST kerf_package_parts)
    string(APPEND kerf_private_libs " ${CMAKE_MATCH_2}")
  endif()
endforeach()
if(KERF_MPI)
  list(JOIN MPI_CXX_LIBRARIES " " libraries)
  string(APPEND kerf_private_libs " ${libraries}")
endif()
if(KERF_CUDA)
  string(APPEND kerf_private_libs " ${CUDA_cudart_static_LIBRARY} -lrt")
endif()
string(APPEND kerf_private_libs " -lpthread -ldl")
file(RELATIVE_PATH kerf_pc_back /${CMAKE_INSTALL_LIBDIR}/pkgconfig /) # where the prefix is from there
configure_file(cmake/kerf.pc.in generated/kerf.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/generated/kerf.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)

install(FILES README.md LICENSE DESTINATION ${kerf_doc_dir}/kerf COMPONENT kerf)
file(GLOB pages CONFIGURE_DEPENDS docs/*.md)
install(FILES ${pages} DESTINATION ${kerf_doc_dir}/libkerf-dev COMPONENT dev)
install(DIRECTORY examples DESTINATION ${kerf_doc_dir}/libkerf-dev COMPONENT dev)

include(KerfPackage)
