#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/checkpoint/atomic_file.h"
#include "kerf/checkpoint/safetensors.h"

namespace kerf::checkpoint {

namespace {

constexpr std::size_t kAlign = 8;

std::string quoted(const std::string& name) {
  try {
    return nlohmann::json(name).dump();
  } catch (const nlohmann::json::exception&) {
    fail(ErrorKind::bug, "a name or a value in a header is not valid UTF-8");
  }
}

// The JSON text, padded with spaces so that the data begins at a multiple of 8.
std::string header_text(std::span<const NamedShape> tensors,
                        std::span<const std::pair<std::string, std::string>> metadata,
                        std::int64_t& data_bytes) {
  std::string text = R"({"__metadata__": {"format": "pt")";
  for (const auto& [key, value] : metadata) text += fmt::format(", {}: {}", quoted(key), quoted(value));
  text += '}';
  std::set<std::string_view> names = {"__metadata__"};
  for (const NamedShape& tensor : tensors) {
    if (!names.insert(tensor.name).second)
      fail(ErrorKind::bug, "tensor name '{}' cannot be written twice", tensor.name);
    const std::int64_t end = data_bytes + tensor::bytes_of(tensor.dtype, tensor.shape);
    text +=
        fmt::format(R"(, {}: {{"dtype": "{}", "shape": {}, "data_offsets": [{}, {}]}})", quoted(tensor.name),
                    tensor::name(tensor.dtype), tensor.shape.text(), data_bytes, end);
    data_bytes = end;
  }
  text += '}';
  text.append((kAlign - text.size() % kAlign) % kAlign, ' ');
  return text;
}

}  // namespace

struct SafetensorsWriter::State {
  explicit State(const std::filesystem::path& path) : file(path) {}
  AtomicFile file;
  std::vector<std::byte> header;
  std::int64_t promised = 0;
  std::int64_t appended = 0;
};

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::span<const NamedShape> tensors,
                                     std::span<const std::pair<std::string, std::string>> metadata)
    : state_(std::make_unique<State>(path)) {
  const std::string text = header_text(tensors, metadata, state_->promised);
  const auto length = std::bit_cast<std::array<std::byte, 8>>(std::uint64_t{text.size()});
  const auto bytes = std::as_bytes(std::span(text));
  state_->header.assign(length.begin(), length.end());
  state_->header.insert(state_->header.end(), bytes.begin(), bytes.end());
  state_->file.append(state_->header);
}

std::span<const std::byte> SafetensorsWriter::header() const { return state_->header; }

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  if (std::ssize(bytes) > state_->promised - state_->appended)
    fail(ErrorKind::bug, "{}: {} bytes appended to {}, wanted {} in all", state_->file.target().string(),
         bytes.size(), state_->appended, state_->promised);
  state_->appended += std::ssize(bytes);
  state_->file.append(bytes);
}

void SafetensorsWriter::close() {
  if (state_->appended != state_->promised)
    fail(ErrorKind::bug, "{}: {} bytes appended, wanted {}", state_->file.target().string(), state_->appended,
         state_->promised);
  state_->file.close();
}

void SafetensorsWriter::finish() {
  close();
  state_->file.finish();
}

std::filesystem::path check_writable(const std::filesystem::path& path) {
  return AtomicFile::check_writable(path);
}

void write_safetensors(const std::filesystem::path& path,
                       std::span<const std::pair<std::string, tensor::TensorView>> tensors) {
  std::vector<NamedShape> shapes;
  shapes.reserve(tensors.size());
  for (const auto& [name, view] : tensors) {
    if (std::ssize(view.bytes) != tensor::bytes_of(view.dtype, view.shape))
      fail(ErrorKind::bug, "tensor '{}' has {} bytes, wanted {} for {} {}", name, view.bytes.size(),
           tensor::bytes_of(view.dtype, view.shape), tensor::name(view.dtype), view.shape.text());
    shapes.push_back({name, view.dtype, view.shape});
  }
  SafetensorsWriter writer(path, shapes);
  for (const auto& [name, view] : tensors) writer.append(view.bytes);
  writer.finish();
}

}  // namespace kerf::checkpoint
