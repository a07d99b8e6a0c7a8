# What a wheel is built with where nobody says otherwise: the MPI group, if there is an MPI-3 library.
if(NOT DEFINED KERF_MPI)
  find_package(MPI 3.0 QUIET COMPONENTS CXX)
  set(KERF_MPI ${MPI_CXX_FOUND} CACHE BOOL "Build the MPI group")
endif()
