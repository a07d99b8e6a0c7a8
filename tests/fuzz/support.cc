#include "tests/fuzz/support.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace kerf::fuzz {

Directory::Directory() {
  std::error_code ignored;
  const std::filesystem::path memory = "/dev/shm";
  const std::filesystem::path base =
      std::filesystem::is_directory(memory, ignored) ? memory : std::filesystem::temp_directory_path();
  std::string name = (base / "kerf-fuzz-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) std::abort();
  path_ = name;
}

Directory::~Directory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void Directory::write(const std::string& name, std::string_view text) const {
  std::ofstream file(path_ / name, std::ios::binary | std::ios::trunc);
  file << text;
  if (!file.flush()) std::abort();
}

void Directory::remove(const std::string& name) const {
  std::error_code ignored;
  std::filesystem::remove(path_ / name, ignored);
}

std::vector<std::string_view> parts_of(Bytes input) {
  std::string_view rest(reinterpret_cast<const char*>(input.data()), input.size());
  std::vector<std::string_view> out;
  for (std::size_t at = 0; (at = rest.find(separator)) != std::string_view::npos;) {
    out.push_back(rest.substr(0, at));
    rest.remove_prefix(at + separator.size());
  }
  out.push_back(rest);
  return out;
}

bool expect_only(std::initializer_list<ErrorKind> kinds, FunctionRef<void()> step) {
  try {
    step();
    return true;
  } catch (const Error& e) {
    if (std::find(kinds.begin(), kinds.end(), e.kind()) != kinds.end()) return false;
    std::fprintf(stderr, "an error of kind %d: %s\n", e.exit_code(), e.what());
    std::abort();
  }
}

}  // namespace kerf::fuzz
