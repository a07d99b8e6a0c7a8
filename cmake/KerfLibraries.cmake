# libkerf.a and libkerf.so, of the same objects: the targets kerf::static and kerf::shared. kerf::kerf is one of them,
# by BUILD_SHARED_LIBS. Inside this tree `kerf` is the static one: tests reach what the shared one hides.
#
# What the shared library exports is what kerf/kerf.h declares. Everything is compiled with hidden visibility, and
# public headers make their names visible (`#pragma GCC visibility`, which cmake/check_public.py looks after). The
# linker's script takes away what is left of others': instances of the standard library's and of parts' templates.
set(kerf_interface_version ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}) # before 1.0.0

function(kerf_add_library name kind)
  add_library(${name} ${kind} $<TARGET_OBJECTS:kerf_objects>)
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_link_libraries(${name} PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
endfunction()

kerf_add_library(kerf STATIC)
target_link_libraries(kerf PRIVATE ${kerf_link_parts} $<BUILD_INTERFACE:kerf_options>)
set_target_properties(kerf PROPERTIES EXPORT_NAME static)
add_library(kerf::static ALIAS kerf)

kerf_add_library(kerf_shared SHARED)
# None of these is for whoever links it.
target_link_libraries(kerf_shared PRIVATE "$<BUILD_INTERFACE:${kerf_link_parts};kerf_options>")
configure_file(${PROJECT_SOURCE_DIR}/cmake/exports.map.in ${PROJECT_BINARY_DIR}/generated/exports.map @ONLY)
target_link_options(kerf_shared PRIVATE LINKER:--version-script=${PROJECT_BINARY_DIR}/generated/exports.map
                                        LINKER:--exclude-libs,ALL)
if(KERF_SANITIZE STREQUAL "") # their runtimes are the program's
  target_link_options(kerf_shared PRIVATE LINKER:--no-undefined)
endif()
set_target_properties(
  kerf_shared
  PROPERTIES OUTPUT_NAME kerf
             EXPORT_NAME shared
             LINKER_LANGUAGE CXX
             VERSION ${PROJECT_VERSION}
             SOVERSION ${kerf_interface_version}
             LINK_DEPENDS ${PROJECT_BINARY_DIR}/generated/exports.map)
add_library(kerf::shared ALIAS kerf_shared)

if(BUILD_SHARED_LIBS)
  add_library(kerf::kerf ALIAS kerf_shared)
else()
  add_library(kerf::kerf ALIAS kerf)
endif()
if(NOT PROJECT_IS_TOP_LEVEL) # built where it is linked
  set_target_properties(kerf_objects kerf kerf_shared PROPERTIES EXCLUDE_FROM_ALL ON)
endif()

# The program, linked to one of them.
function(kerf_add_program name library folder)
  add_executable(${name} $<TARGET_OBJECTS:kerf_program_objects> $<TARGET_OBJECTS:kerf_command_objects>)
  set_target_properties(${name} PROPERTIES OUTPUT_NAME kerf RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/${folder})
  target_link_libraries(${name} PRIVATE ${library} fmt::fmt ${kerf_program_parts} kerf_options)
endfunction()
