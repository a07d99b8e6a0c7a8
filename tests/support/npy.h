// Reads the golden vectors: NumPy .npy files, version 1, C order, little endian.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kerf::test {

struct NpyFile {
  std::string dtype;  // "<f4", "|u1", ...
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

NpyFile read_npy(const std::string& path);

// The golden vector `name` as elements of T; throws where its dtype has another size.
std::vector<std::byte> golden_bytes(const std::string& name, std::size_t element_size);
std::vector<std::int64_t> golden_shape(const std::string& name);
template <typename T>
std::vector<T> golden(const std::string& name) {
  const std::vector<std::byte> bytes = golden_bytes(name, sizeof(T));
  std::vector<T> out(bytes.size() / sizeof(T));
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(out.data()));
  return out;
}

// The manifest's text (JSON).
std::string golden_manifest();

}  // namespace kerf::test
