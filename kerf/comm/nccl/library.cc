#include "kerf/comm/nccl/library.h"

#include <dlfcn.h>
#include <link.h>

#include "kerf/base/format.h"

namespace kerf::comm::nccl {

namespace {

constexpr const char* kName = "libnccl.so.2";

std::string last_words() {
  const char* text = ::dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread
  return text == nullptr ? "no reason given" : text;
}

template <typename Function>
bool find(void* handle, const char* name, Function*& to) {
  to = reinterpret_cast<Function*>(::dlsym(handle, name));
  return to != nullptr;
}

// The first name that is missing; null: none.
const char* find_all(void* handle, Library& l) {
  const char* missing = nullptr;
  const auto need = [&](const char* name, auto& to) {
    if (!find(handle, name, to) && missing == nullptr) missing = name;
  };
  need("ncclGetErrorString", l.get_error_string);
  need("ncclGetUniqueId", l.get_unique_id);
  need("ncclCommInitRankConfig", l.comm_init_rank_config);
  need("ncclCommGetAsyncError", l.comm_get_async_error);
  need("ncclCommFinalize", l.comm_finalize);
  need("ncclCommDestroy", l.comm_destroy);
  need("ncclCommAbort", l.comm_abort);
  need("ncclGroupStart", l.group_start);
  need("ncclGroupEnd", l.group_end);
  need("ncclSend", l.send);
  need("ncclRecv", l.recv);
  need("ncclAllGather", l.all_gather);
  need("ncclAllReduce", l.all_reduce);
  need("ncclReduceScatter", l.reduce_scatter);
  (void)find(handle, "ncclGetLastError", l.get_last_error);
  return missing;
}

std::string path_of(void* handle, const std::string& otherwise) {
  link_map* map = nullptr;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0 || map == nullptr) return otherwise;
  return map->l_name;
}

}  // namespace

std::string version_text(int version) {
  // 2.8 and older: X*1000 + Y*100 + Z.
  if (version < 10'000) return fmt::format("{}.{}.{}", version / 1000, version / 100 % 10, version % 100);
  return fmt::format("{}.{}.{}", version / 10'000, version / 100 % 100, version % 100);
}

Verdict open(const std::string& path, Library& library) {
  const std::string name = path.empty() ? kName : path;
  void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return because(ErrorKind::unsupported,
                   "NCCL's library cannot be loaded: {}; KERF_NCCL_LIBRARY names its file", last_words());
  // From here on it is not closed again: it may have started threads.
  Library found;
  found.path = path_of(handle, name);
  if (!find(handle, "ncclGetVersion", found.get_version))
    return because(ErrorKind::unsupported, "{} is not NCCL's library: it has no ncclGetVersion", found.path);
  if (const int code = found.get_version(&found.version); code != success)
    return because(ErrorKind::unsupported, "{} does not tell its version: error {}", found.path, code);
  if (found.version < oldest_version)
    return because(ErrorKind::unsupported, "{} is NCCL {}, wanted {} or newer", found.path,
                   version_text(found.version), version_text(oldest_version));
  if (const char* missing = find_all(handle, found))
    return because(ErrorKind::unsupported, "{} (NCCL {}) has no {}", found.path, version_text(found.version),
                   missing);
  library = found;
  return std::nullopt;
}

}  // namespace kerf::comm::nccl
