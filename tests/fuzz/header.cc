#include <cstring>
#include <string>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/checkpoint/safetensors.h"
#include "tests/fuzz/support.h"
#include "tests/support/onehot.h"

namespace kerf::fuzz {

namespace {

constexpr std::size_t kDataBytes = std::size_t{1} << 17;  // of two experts
constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// The file that the first part stands for.
std::string file_of(std::string_view part) {
  if (!part.starts_with('{')) return std::string(part);
  const std::uint64_t length = part.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  file += part;
  file.resize(file.size() + kDataBytes, '\x38');  // 1.0 as a block scale, 4.3e-5 as f32
  return file;
}

// Whatever a checkpoint's readers look at.
void look_through(const checkpoint::Checkpoint& opened) {
  checkpoint::Faults faults;
  for (const std::int64_t l : opened.moe_layers()) {
    const checkpoint::MoeLayer& layer = opened.layer(l);
    if (layer.kind() == checkpoint::ExpertKind::nvfp4) layer.scales(faults);
    layer.scan_extras(faults);
    layer.check_block(faults);
    layer.scan_block(faults);
    for (std::int64_t e = 0; e < opened.config().experts; ++e)
      if (layer.kind() == checkpoint::ExpertKind::nvfp4)
        (void)layer.scan_block_scales(e, faults);
      else
        layer.scan_values(e, faults);
  }
  (void)checkpoint::Faults::from_json(faults.to_json());
}

}  // namespace

bool header(Bytes input) {
  static const Directory dir;
  static const bool made = (test::Onehot().write(dir.path()), true);
  (void)made;
  const auto parts = parts_of(input);
  dir.write(kFirst, file_of(parts[0]));
  expect_only({ErrorKind::checkpoint, ErrorKind::unsupported}, [&] {
    const auto file = checkpoint::SafetensorsFile::open(dir.path() / kFirst);
    for (const auto& tensor : file.header().tensors) {
      unsigned sum = 0;
      for (const std::byte b : file.at(tensor.first).bytes) sum += static_cast<unsigned>(b);
      (void)sum;
    }
  });
  if (parts.size() > 1)
    dir.write(kIndex, parts[1]);
  else
    dir.remove(kIndex);
  return expect_only({ErrorKind::checkpoint, ErrorKind::unsupported},
                     [&] { look_through(checkpoint::Checkpoint::open(dir.path())); });
}

}  // namespace kerf::fuzz
