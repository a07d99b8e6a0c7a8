// Damaged checkpoints, as a whole: whatever a file says, the answer is a checkpoint or an Error.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <fstream>
#include <random>

#include "kerf/checkpoint/checkpoint.h"
#include "tests/support/onehot.h"
#include "tests/support/test_env.h"

namespace kerf::checkpoint {
namespace {

std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void damage(std::string& bytes, std::size_t reach, std::mt19937_64& random) {
  if (bytes.empty()) return;
  const std::size_t at = random() % std::min(bytes.size(), reach);
  switch (random() % 6) {
    case 0:
      bytes[at] = static_cast<char>(random());
      break;
    case 1:
      bytes[at] = "0123456789[]{},:\"-.e"[random() % 20];
      break;
    case 2:
      bytes.erase(at, 1 + random() % 16);
      break;
    case 3:
      bytes.insert(at, bytes.substr(random() % std::min(bytes.size(), reach), 1 + random() % 100));
      break;
    case 4:
      bytes.replace(at, 1, "null");
      break;
    default:
      bytes.resize(at);
      break;
  }
}

RC_GTEST_PROP(CheckpointFuzz, DamagedFiles, ()) {
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  const test::TempDir dir;
  test::Onehot onehot({.fused = random() % 2 == 0, .shards = static_cast<int>(1 + random() % 2)});
  onehot.write(dir.path());
  std::vector<std::filesystem::path> files;
  for (const auto& item : std::filesystem::directory_iterator(dir.path())) files.push_back(item.path());
  std::sort(files.begin(), files.end());
  for (int round = 0; round < 10; ++round) {
    const std::filesystem::path& file = files[random() % files.size()];
    const std::string sound = read_bytes(file);
    std::string bytes = sound;
    for (std::uint64_t i = 0; i <= random() % 3; ++i) damage(bytes, 9'000, random);
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
    try {
      const Checkpoint opened = Checkpoint::open(dir.path());
      for (const std::int64_t l : opened.moe_layers()) {
        const MoeLayer& layer = opened.layer(l);
        RC_ASSERT(layer.kind() == ExpertKind::nvfp4);
        Faults faults;
        layer.scales(faults);
        for (std::int64_t e = 0; e < opened.config().experts; ++e) layer.scan_block_scales(e, faults);
      }
    } catch (const Error& e) {
      RC_ASSERT(e.kind() == ErrorKind::checkpoint || e.kind() == ErrorKind::unsupported);
    }
    std::ofstream(file, std::ios::binary | std::ios::trunc) << sound;
  }
}

}  // namespace
}  // namespace kerf::checkpoint
