// Where this build has what tests read and start. One generated source says it, so that nothing else is
// compiled anew for another folder.
#pragma once

namespace kerf::test {

extern const char* const source_folder;
extern const char* const golden_folder;  // the golden vectors
extern const char* const made_folder;    // what real quantisers wrote
extern const char* const fuzz_seeds_folder;
extern const char* const program_path;       // kerf
extern const char* const mpirun_path;        // empty in a build without MPI; so the next ones
extern const char* const lasting_rank_path;  // one rank of a long run
extern const char* const fault_rank_path;    // one rank of a group that breaks

extern const char* const old_nccl_path;   // libraries that pretend to be NCCL's: an old one
extern const char* const half_nccl_path;  // and one that lacks functions
extern const char* const nccl_rank_path;  // one rank of a device group; empty in a build without CUDA

}  // namespace kerf::test
