# Compiler options of kerf's own targets, as an interface target. -ffp-contract=off because canonical arithmetic names
# every fma; a contraction that the compiler chooses would change bits.
add_library(kerf_options INTERFACE)
set(kerf_host_options
    -Wall
    -Wextra
    -Wshadow
    -Wconversion
    -Wno-sign-conversion
    -Wnon-virtual-dtor
    -Wold-style-cast
    -Wcast-align
    -Woverloaded-virtual
    -ffp-contract=off
    -fno-math-errno)
if(KERF_WERROR)
  list(APPEND kerf_host_options -Werror)
endif()
target_compile_options(kerf_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${kerf_host_options}>") # cmake/KerfCuda.cmake has nvcc's
if(KERF_SANITIZE STREQUAL "address")
  target_compile_options(kerf_options INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all
                                                -fno-omit-frame-pointer)
  target_link_options(kerf_options INTERFACE -fsanitize=address,undefined)
elseif(KERF_SANITIZE STREQUAL "thread")
  target_compile_options(kerf_options INTERFACE -fsanitize=thread)
  target_link_options(kerf_options INTERFACE -fsanitize=thread)
elseif(KERF_SANITIZE STREQUAL "fuzzer") # clang's libFuzzer, with AddressSanitizer and UndefinedBehaviorSanitizer
  target_compile_options(kerf_options INTERFACE -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
                                                -fno-omit-frame-pointer)
  target_link_options(kerf_options INTERFACE -fsanitize=address,undefined)
elseif(NOT KERF_SANITIZE STREQUAL "")
  message(FATAL_ERROR "KERF_SANITIZE is '${KERF_SANITIZE}', wanted empty, address, thread or fuzzer")
endif()
if(NOT KERF_SANITIZE STREQUAL "")
  # A span or vector indexed out of range stops the test instead of reading its neighbour.
  target_compile_definitions(kerf_options INTERFACE _GLIBCXX_ASSERTIONS)
endif()
# A build type is chosen for this tree alone. A project that this one is part of hears that it has chosen none.
get_property(multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
if(NOT CMAKE_BUILD_TYPE AND NOT multi_config)
  if(PROJECT_IS_TOP_LEVEL)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
  elseif(NOT CMAKE_CXX_FLAGS MATCHES "(^| )-O")
    message(WARNING "kerf: CMAKE_BUILD_TYPE is empty and CMAKE_CXX_FLAGS has no -O: the library will not be optimised and "
                    "will be many times slower. Wanted: -DCMAKE_BUILD_TYPE=Release, or one that is meant, such as Debug")
  endif()
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
