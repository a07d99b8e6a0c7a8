// A library that says it is NCCL of the version KERF_PRETENDED, and has little else.
extern "C" {

int ncclGetVersion(int* version) {
  *version = KERF_PRETENDED;
  return 0;
}

const char* ncclGetErrorString(int /*result*/) { return "pretended"; }

int ncclGetUniqueId(void* /*id*/) { return 3; }

}  // extern "C"
