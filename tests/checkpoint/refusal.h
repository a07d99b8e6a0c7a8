// What opening or judging a checkpoint says, as text.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "kerf/checkpoint/checkpoint.h"
#include "tests/support/onehot.h"
#include "tests/support/test_env.h"

namespace kerf::test {

// The text of the Error of this kind that `step` throws; "accepted" where it throws nothing.
inline std::string refusal(const std::function<void()>& step, ErrorKind kind = ErrorKind::checkpoint) {
  try {
    step();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    return e.what();
  }
  return "accepted";
}

inline std::string refused_open(const Onehot& onehot, ErrorKind kind = ErrorKind::checkpoint) {
  const TempDir dir;
  onehot.write(dir.path());
  return refusal([&] { checkpoint::Checkpoint::open(dir.path()); }, kind);
}

// All faults of layer 0: global scales, then every expert's block scales.
inline checkpoint::Faults faults_of(const Onehot& onehot) {
  const TempDir dir;
  onehot.write(dir.path());
  const auto opened = checkpoint::Checkpoint::open(dir.path());
  checkpoint::Faults faults;
  opened.layer(0).scales(faults);
  for (std::int64_t e = 0; e < opened.config().experts; ++e) opened.layer(0).scan_block_scales(e, faults);
  return faults;
}

}  // namespace kerf::test
