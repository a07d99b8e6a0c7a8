// Layers filled anew on ranks that are processes: the bits of a new start, and one process's fault, which
// leaves every byte on all of them.
#include <gtest/gtest.h>

#include "kerf/decode/runtime.h"
#include "tests/comm/mpi/world.h"
#include "tests/decode/refill_support.h"
#include "tests/faults/faulty.h"

namespace kerf::test {
namespace {

TEST(MpiRefill, HasTheBitsOfANewStartOrNothingChanges) {
  comm::Group& group = program()->group();
  if (8 % group.size() != 0) GTEST_SKIP() << "8 experts on " << group.size() << " ranks";
  tools::SynthOptions model = spark_options();
  model.intermediate = 512;
  const Weights old_weights(model, 1);
  const Weights new_weights(model, 2);
  const checkpoint::Checkpoint a = old_weights.open();
  const checkpoint::Checkpoint b = new_weights.open();
  const bool last = group.rank() == group.size() - 1;
  for (const bool tp : {false, true}) {
    if (tp && group.size() == 1) continue;
    Checked checked(group.rank());
    decode::Meter meter(checked.memory);
    const decode::Rank rank{group, meter, Workers(1), {}};
    decode::RuntimeOptions options;
    options.expert_tp = tp;
    const std::vector<Bits> wanted = steps_of(decode::Runtime::build(b, options, rank));
    decode::Runtime runtime = decode::Runtime::build(a, options, rank);
    const std::vector<Bits> first = steps_of(runtime);
    const auto where = addresses_of(runtime);
    const Verdict v = attempt([&] { (void)runtime.refill(0, last ? Corrupt::in(b) : b); });
    ASSERT_TRUE(v);
    EXPECT_EQ(v->kind, ErrorKind::checkpoint);
    EXPECT_NE(v->text.find("layer 0"), std::string::npos) << v->text;
    EXPECT_EQ(steps_of(runtime), first);
    for (std::size_t i = 0; i < first.size(); ++i) (void)runtime.refill(i, b);
    EXPECT_EQ(steps_of(runtime), wanted);
    for (std::size_t i = 0; i < first.size(); ++i) (void)runtime.refill(i, a);
    EXPECT_EQ(steps_of(runtime), first);
    EXPECT_EQ(addresses_of(runtime), where);
  }
}

}  // namespace
}  // namespace kerf::test
