# The CUDA part, for sm_90a: every .cu of kerf/, every *_cuda.cc and all of the sm90 folders, in place of the *_absent.cc.
# The library links the static runtime, which looks for the driver when it is first used: the program starts without one.
enable_language(CUDA)
find_package(CUDAToolkit 13.0 REQUIRED)

file(GLOB_RECURSE kerf_cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kerf/*.cu)

# CMake's own words for the architecture and the standard are too few: wgmma and setmaxnreg want sm_90a, and C++20
# passes no option at all with CMake 3.25 and nvcc 13.
set(kerf_cuda_options
    -std=c++20
    -gencode=arch=compute_90a,code=sm_90a
    -fmad=false # canonical arithmetic names every fma
    --expt-relaxed-constexpr # the scalar truth of each format is constexpr, and is what kernels call
    -DFMT_CONSTEVAL= # which nvcc's host pass rejects
    -lineinfo
    -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter,-ffp-contract=off,-fno-math-errno)
if(KERF_WERROR)
  list(APPEND kerf_cuda_options -Werror=all-warnings -Xcompiler=-Werror
       -Xptxas=--warn-on-spills,--warn-on-local-memory-usage,--warning-as-error)
endif()

function(kerf_add_cuda target)
  set(CMAKE_CUDA_ARCHITECTURES OFF PARENT_SCOPE)
  target_sources(${target} PRIVATE ${kerf_cuda_sources})
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES OFF)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${kerf_cuda_options}>")
  # CUDA's headers are for the files that need them: the others compile as they do without.
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "_cuda\\.cc$|/sm90/.*\\.cc$")
  set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS "-isystem;${CUDAToolkit_INCLUDE_DIRS}")
endfunction()
