#include "tests/support/test_env.h"

#include <cstdlib>
#include <stdexcept>

namespace kerf::test {

TempDir::TempDir() {
  std::string name = (std::filesystem::temp_directory_path() / "kerf-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a temporary directory");
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace kerf::test
