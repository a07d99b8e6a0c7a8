#include "tests/support/npy.h"

#include <fstream>
#include <iterator>
#include <stdexcept>

#include "tests/support/paths.h"

namespace kerf::test {

namespace {
std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string between(const std::string& text, const std::string& from, char to) {
  const std::size_t begin = text.find(from);
  if (begin == std::string::npos) throw std::runtime_error("npy header lacks " + from);
  return text.substr(begin + from.size(), text.find(to, begin + from.size()) - begin - from.size());
}
}  // namespace

NpyFile read_npy(const std::string& path) {
  const std::string data = read_file(path);
  if (data.size() < 10 || data.compare(1, 5, "NUMPY") != 0)
    throw std::runtime_error("not an npy file: " + path);
  const std::size_t header = static_cast<unsigned char>(data[8]) + 256U * static_cast<unsigned char>(data[9]);
  const std::string text = data.substr(10, header);
  NpyFile out;
  out.dtype = between(text, "'descr': '", '\'');
  std::string dims = between(text, "'shape': (", ')');
  for (std::size_t at = 0; at < dims.size();) {
    std::size_t used = 0;
    out.shape.push_back(std::stoll(dims.substr(at), &used));
    at = dims.find(',', at + used);
    if (at == std::string::npos) break;
    at = dims.find_first_not_of(", ", at);
    if (at == std::string::npos) break;
  }
  const auto* first = reinterpret_cast<const std::byte*>(data.data()) + 10 + header;
  out.bytes.assign(first, reinterpret_cast<const std::byte*>(data.data()) + data.size());
  return out;
}

namespace {
NpyFile golden_file(const std::string& name) {
  return read_npy(std::string(golden_folder) + "/" + name + ".npy");
}
}  // namespace

std::vector<std::byte> golden_bytes(const std::string& name, std::size_t element_size) {
  NpyFile file = golden_file(name);
  if (std::stoul(file.dtype.substr(2)) != element_size)
    throw std::runtime_error(name + " has dtype " + file.dtype + ", not one of the asked size");
  return std::move(file.bytes);
}

std::vector<std::int64_t> golden_shape(const std::string& name) { return golden_file(name).shape; }

std::string golden_manifest() { return read_file(std::string(golden_folder) + "/manifest.json"); }

}  // namespace kerf::test
