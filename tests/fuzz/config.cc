#include "kerf/checkpoint/config.h"

#include "kerf/checkpoint/checkpoint.h"
#include "tests/fuzz/support.h"
#include "tests/support/onehot.h"

namespace kerf::fuzz {

bool config(Bytes input) {
  static const Directory dir;
  static const bool made = (test::Onehot().write(dir.path()), true);
  (void)made;
  const auto parts = parts_of(input);
  dir.write("config.json", parts[0]);
  if (parts.size() > 1)
    dir.write("hf_quant_config.json", parts[1]);
  else
    dir.remove("hf_quant_config.json");
  expect_only({ErrorKind::checkpoint, ErrorKind::unsupported}, [&] {
    const checkpoint::ModelConfig read = checkpoint::read_config_at(dir.path());
    (void)checkpoint::excluded_layers(read);
  });
  return expect_only({ErrorKind::checkpoint, ErrorKind::unsupported}, [&] {
    const auto opened = checkpoint::Checkpoint::open(dir.path());
    checkpoint::Faults faults;
    for (const std::int64_t l : opened.moe_layers())
      if (opened.layer(l).kind() == checkpoint::ExpertKind::nvfp4) opened.layer(l).scales(faults);
  });
}

}  // namespace kerf::fuzz
