#include "kerf/op/op.h"
#include "kerf/tactics/cache.h"
#include "kerf/tactics/preferred.h"
#include "tests/fuzz/support.h"

namespace kerf::fuzz {

bool tables(Bytes input) {
  static const Directory dir;
  dir.write("table.json", parts_of(input)[0]);
  const std::filesystem::path path = dir.path() / "table.json";
  bool whole = expect_only({ErrorKind::usage}, [&] {
    const auto lists = tactics::read_lists(path);
    // What was read can be written, and says the same again.
    tactics::write_lists(dir.path() / "again.json", lists);
    if (tactics::read_lists(dir.path() / "again.json") != lists) std::abort();
  });
  dir.remove("again.json");
  expect_only({}, [&] {
    const tactics::CacheSetting setting{"cpu 1", "a device", 4, 2, 1};
    const tactics::CacheRead read = tactics::read_cache(path, setting);
    if (!read.refused && tactics::not_a_cache(path)) std::abort();
    if (read.refused && !read.entries.empty()) std::abort();
    if (read.refused) return;
    tactics::write_cache(path, setting, read.entries);
    if (tactics::read_cache(path, setting).entries != read.entries) std::abort();
    whole = true;
  });
  return whole;
}

}  // namespace kerf::fuzz
