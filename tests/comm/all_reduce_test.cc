// All-reduces by name: bits against sums that are written out here, at every number of ranks, in place and
// not; and what is refused.
#include "kerf/comm/all_reduce.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>

#include "kerf/comm/local.h"
#include "tests/decode/forwarding_group.h"
#include "tests/support/flushing.h"
#include "tests/support/npy.h"

namespace kerf::comm {
namespace {

using Terms = std::vector<std::uint16_t>;  // one value a rank

float wide(std::uint16_t bits) { return numeric::bf16_to_f32(bits); }
std::uint16_t narrow(float value) { return numeric::f32_to_bf16(value); }

// The oracles: every addition is rounded to f32, as volatile sees to.
float straight(const Terms& terms, std::size_t first, std::size_t end) {
  volatile float sum = 0.0F;
  for (std::size_t r = first; r < end; ++r) sum = sum + wide(terms[r]);
  return sum;
}
std::uint16_t once(const Terms& t) { return narrow(straight(t, 0, t.size())); }
std::uint16_t after_each(const Terms& terms) {
  float sum = 0.0F;
  for (const std::uint16_t t : terms) sum = wide(narrow(sum + wide(t)));
  return narrow(sum);
}
std::uint16_t in_chunks(const Terms& terms, std::size_t of) {
  volatile float sum = 0.0F;
  for (std::size_t first = 0; first < terms.size(); first += of)
    sum = sum + straight(terms, first, std::min(first + of, terms.size()));
  return narrow(sum);
}
std::uint16_t in_eights(const Terms& t) { return in_chunks(t, 8); }
std::uint16_t in_sixteens(const Terms& t) { return in_chunks(t, 16); }

using Oracle = std::uint16_t (*)(const Terms&);

// For sums of few values: "mnnvl" is then its one-shot.
Oracle oracle(const std::string& name) {
  static const std::map<std::string, Oracle> all = {
      {"one-shot", once},     {"two-shot", once},
      {"mnnvl", in_eights},   {"mnnvl-one-shot", in_eights},
      {"trtllm", after_each}, {"mnnvl-two-shot", in_sixteens},
      {"trtllm-fp32", once},
  };
  return all.at(name);  // throws for a name that this test does not know
}

std::vector<std::string> names_for(int ranks) {
  std::vector<std::string> names;
  for (const std::string& n : all_reduce_names())
    if (!all_reduce(n).supports({ranks, 1})) names.push_back(n);
  return names;
}

// What every rank gets for columns[i][r], out of place; in place is compared here.
std::vector<Terms> run(const std::string& name, const std::vector<Terms>& columns, int ranks) {
  std::vector<Terms> sums(static_cast<std::size_t>(ranks));
  run_local(ranks, {}, [&](Group& group) {
    const AllReduce& reduce = all_reduce(name);
    Terms mine;
    for (const Terms& c : columns) mine.push_back(c[static_cast<std::size_t>(group.rank())]);
    const Terms before = mine;
    Terms sum(mine.size(), 0xABCD);
    Terms scratch(reduce.scratch_values({ranks, static_cast<std::int64_t>(mine.size())}), 0xABCD);
    reduce.run(group, mine, sum, scratch, "sum");
    EXPECT_EQ(mine, before);
    reduce.run(group, mine, mine, scratch, "sum in place");
    EXPECT_EQ(mine, sum);
    sums[static_cast<std::size_t>(group.rank())] = sum;
  });
  return sums;
}

Terms column(int ranks, const std::map<int, float>& values, float rest = -0.0F) {
  Terms out(static_cast<std::size_t>(ranks), narrow(rest));
  for (const auto& [rank, value] : values)
    if (rank < ranks) out[static_cast<std::size_t>(rank)] = narrow(value);
  return out;
}

std::vector<Terms> hard_columns(int ranks) {
  const float big = 0x1p24F;
  std::vector<Terms> columns = {column(ranks, {}), column(ranks, {}, 0x1p-133F * -3), column(ranks, {}, 1)};
  for (int a = 0; a < ranks; ++a) {
    for (int b = 0; b < ranks; ++b)
      if (a != b) {
        columns.push_back(column(ranks, {{a, big}, {b, -big}}, 1));
        columns.push_back(column(ranks, {{a, big}, {b, -big}, {(b + 1) % ranks, 3}}));
      }
    columns.push_back(column(ranks, {{a, 256}}, 1));
    columns.push_back(column(ranks, {{a, std::nanf("")}}, 1));
    columns.push_back(column(ranks, {{a, -0x1p-133F}}));
    columns.push_back(column(ranks, {{a, INFINITY}}, 2));
  }
  std::uint64_t state = 88172645463325252U;
  while (columns.size() < 1500) {
    Terms values;
    for (int r = 0; r < ranks; ++r) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      values.push_back(static_cast<std::uint16_t>((state & 0x8FFFU) | 0x3000U));
    }
    columns.push_back(values);
  }
  return columns;
}

TEST(AllReduce, EveryNameHasItsBitsOnEveryRank) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    const std::vector<Terms> columns = hard_columns(ranks);
    for (const std::string& name : names_for(ranks)) {
      const std::vector<Terms> sums = run(name, columns, ranks);
      for (std::size_t i = 0; i < columns.size(); ++i)
        ASSERT_EQ(sums[0][i], oracle(name)(columns[i])) << name << ", " << ranks << " ranks, column " << i;
      for (const Terms& sum : sums) EXPECT_EQ(sum, sums[0]) << name << ", " << ranks << " ranks";
    }
  }
}

// Fewer values than ranks, and numbers that do not divide by them.
TEST(AllReduce, AnyNumberOfValues) {
  for (const int ranks : {2, 3, 4, 7, 8, 16}) {
    const std::vector<Terms> all = hard_columns(ranks);
    for (const std::size_t n : {0U, 1U, 2U, 5U, 15U, 17U, 33U}) {
      const std::vector<Terms> columns(all.begin() + 3, all.begin() + 3 + static_cast<std::ptrdiff_t>(n));
      for (const std::string& name : names_for(ranks)) {
        const std::vector<Terms> sums = run(name, columns, ranks);
        for (const Terms& sum : sums) {
          ASSERT_EQ(sum.size(), n);
          for (std::size_t i = 0; i < n; ++i)
            ASSERT_EQ(sum[i], oracle(name)(columns[i])) << name << ", " << ranks << " ranks, " << n;
        }
      }
    }
  }
}

// Written out: one value a rank, and what each order makes of it.
TEST(AllReduce, KnownSums) {
  const auto sum = [](const std::string& name, const Terms& terms) {
    return run(name, {terms}, static_cast<int>(terms.size()))[0][0];
  };
  // 2^24 + 1 is 2^24 (a tie, to even): ones before the cancelling are lost.
  const Terms late = column(16, {{0, 0x1p24F}, {15, -0x1p24F}}, 1);
  EXPECT_EQ(sum("one-shot", late), narrow(0));
  EXPECT_EQ(sum("two-shot", late), narrow(0));
  EXPECT_EQ(sum("mnnvl-two-shot", late), narrow(0));
  // The second chunk is 7 - 2^24, exactly.
  EXPECT_EQ(sum("mnnvl-one-shot", late), narrow(7));
  EXPECT_EQ(sum("mnnvl", late), narrow(7));
  // Within the first 8 ranks nothing differs.
  const Terms early = column(8, {{0, 0x1p24F}, {7, -0x1p24F}}, 1);
  EXPECT_EQ(sum("mnnvl-one-shot", early), narrow(0));
  EXPECT_EQ(sum("one-shot", column(3, {{0, 0x1p24F}, {1, -0x1p24F}}, 1)), narrow(1));
  // 259, which bf16 rounds to 260; one at a time the ones are lost.
  const Terms ones = column(4, {{0, 256}}, 1);
  EXPECT_EQ(sum("one-shot", ones), narrow(260));
  EXPECT_EQ(sum("trtllm-fp32", ones), narrow(260));
  EXPECT_EQ(sum("trtllm", ones), narrow(256));
  for (const std::string& name : names_for(16)) {
    EXPECT_EQ(sum(name, column(16, {})), 0x0000) << name << ", all -0.0";
    EXPECT_EQ(sum(name, column(16, {}, -0x1p-133F)), 0x8010) << name << ", 16 times -2^-133";
    EXPECT_EQ(sum(name, column(16, {{9, -std::nanf("")}}, 1)), 0x7FC0) << name;
  }
}

TEST(AllReduce, NanStaysInItsRow) {
  for (const std::string& name : names_for(4)) {
    const std::vector<Terms> columns = {column(4, {}, 1), column(4, {{2, std::nanf("")}}, 1),
                                        column(4, {}, 1)};
    for (const Terms& sum : run(name, columns, 4))
      EXPECT_EQ(sum, (Terms{narrow(4), numeric::bf16_nan, narrow(4)})) << name;
  }
}

// Made elsewhere from the kernels' formulas. (Rank order and chunks of 8 come out alike on these values: the
// tests above tell them apart.)
TEST(AllReduce, GoldenSums) {
  for (const int ranks : {4, 8, 16}) {
    const std::string prefix = "ar_w" + std::to_string(ranks);
    const auto x = test::golden<std::uint16_t>(prefix + "_x");
    const std::size_t n = x.size() / static_cast<std::size_t>(ranks);
    std::vector<Terms> columns(n);
    for (std::size_t i = 0; i < x.size(); ++i) columns[i % n].push_back(x[i]);
    const auto fp32 = test::golden<std::uint16_t>(prefix + "_fp32");
    const auto chunks = ranks == 16 ? test::golden<std::uint16_t>(prefix + "_chunk8") : fp32;
    for (const char* name : {"one-shot", "two-shot", "mnnvl-two-shot", "trtllm-fp32"})
      EXPECT_EQ(run(name, columns, ranks)[0], fp32) << name << ", " << ranks;
    for (const char* name : {"mnnvl", "mnnvl-one-shot"})
      EXPECT_EQ(run(name, columns, ranks)[0], chunks) << name << ", " << ranks;
    EXPECT_EQ(run("trtllm", columns, ranks)[0], test::golden<std::uint16_t>(prefix + "_bf16")) << ranks;
  }
}

// At 16 ranks 1 MiB is 32768 values: up to there "mnnvl" adds in chunks of 8, above in rank order.
TEST(AllReduce, MnnvlChoosesBySize) {
  const Terms late = column(16, {{0, 0x1p24F}, {15, -0x1p24F}}, 1);
  const std::vector<Terms> columns(32769, late);
  EXPECT_EQ(run("mnnvl", {columns.begin(), columns.end() - 1}, 16)[3], Terms(32768, narrow(7)));
  EXPECT_EQ(run("mnnvl", columns, 16)[3], Terms(32769, narrow(0)));
  EXPECT_EQ(sum_order("mnnvl", {16, 32768}), SumOrder::chunks_of_8);
  EXPECT_EQ(sum_order("mnnvl", {16, 32769}), SumOrder::rank_order);
  // Scratch for the larger sum serves the smaller ones too.
  const AllReduce& mnnvl = all_reduce("mnnvl");
  EXPECT_GE(mnnvl.scratch_values({16, 32769}), mnnvl.scratch_values({16, 32768}));
}

TEST(AllReduce, ChunksAboveSixteenRanks) {
  constexpr int ranks = 33;
  const std::vector<Terms> columns = hard_columns(ranks);
  for (const std::string& name : names_for(ranks)) {
    const Terms sums = run(name, columns, ranks)[32];
    for (std::size_t i = 0; i < columns.size(); ++i)
      ASSERT_EQ(sums[i], oracle(name)(columns[i])) << name << " " << i;
  }
  // 2^24, ones up to rank 15 and in the second sixteen, -2^24 at its end: 15 ones survive there.
  const Terms late = column(ranks, {{0, 0x1p24F}, {31, -0x1p24F}, {32, 0}}, 1);
  EXPECT_EQ(run("mnnvl-two-shot", {late}, ranks)[0][0], narrow(15));
  EXPECT_EQ(run("two-shot", {late}, ranks)[0][0], narrow(0));
}

// The bits come from the name, not from the group: here its own sums are of no use.
TEST(AllReduce, NeedsNoOrderedGroup) {
  class Unordered final : public test::ForwardingGroup {
   public:
    using ForwardingGroup::ForwardingGroup;
    [[nodiscard]] bool ordered() const override { return false; }
    void all_reduce_sum(std::span<const std::uint16_t>, std::span<std::uint16_t>, std::string_view) override {
      throw Error(ErrorKind::bug, "not to be called");
    }
    void reduce_scatter_sum(std::span<const std::uint16_t>, std::span<std::uint16_t>,
                            std::string_view) override {
      throw Error(ErrorKind::bug, "not to be called");
    }
  };
  run_local(4, {}, [](Group& group) {
    Unordered unordered(group);
    const Terms mine(3, column(4, {{0, 256}}, 1)[static_cast<std::size_t>(group.rank())]);
    for (const char* name : {"one-shot", "two-shot"}) {
      Terms sum(3);
      Terms scratch(all_reduce(name).scratch_values({4, 3}));
      all_reduce(name).run(unordered, mine, sum, scratch, "sum");
      EXPECT_EQ(sum, Terms(3, narrow(260))) << name;
    }
  });
}

// In a program that flushes subnormals to zero, too.
TEST(AllReduce, KeepsSubnormalsWhateverTheCallersMode) {
  for (const std::string& name : all_reduce_names())
    run_local(4, {}, [&](Group& group) {
      const test::Flushing mode;
      const Terms mine(5, 0x8003);  // -3 * 2^-133
      Terms sum(5);
      Terms scratch(all_reduce(name).scratch_values({4, 5}));
      all_reduce(name).run(group, mine, sum, scratch, "sum");
      EXPECT_EQ(sum, Terms(5, 0x800C)) << name;
      EXPECT_TRUE(test::Flushing::now());
    });
}

TEST(AllReduce, RunsOnPartsOfAGroup) {
  run_local(6, {}, [](Group& group) {
    const auto row = group.split(group.rank() / 3, "rows");
    const Terms mine(2, narrow(static_cast<float>(1 << group.rank())));
    for (const char* name : {"one-shot", "two-shot"}) {
      Terms sum(2);
      Terms scratch(all_reduce(name).scratch_values({3, 2}));
      all_reduce(name).run(*row, mine, sum, scratch, "sum of a row");
      EXPECT_EQ(sum, Terms(2, narrow(group.rank() < 3 ? 7.0F : 56.0F)));
    }
  });
}

Verdict refusal(const std::function<void()>& step) {
  Verdict v = attempt(step);
  EXPECT_TRUE(v.has_value());
  return v ? v : Reason{};
}

TEST(AllReduce, UnknownNamesAreListedAndOthersHaveAReason) {
  for (const char* name : {"", "auto", "ring", "One-shot"}) {
    const Verdict v = refusal([&] { (void)all_reduce(name); });
    EXPECT_EQ(v->kind, ErrorKind::usage);
    for (const std::string& known : all_reduce_names())
      EXPECT_NE(v->text.find(known), std::string::npos) << v->text;
    EXPECT_EQ(refusal([&] { (void)sum_order(name, {4, 8}); }), v);
  }
  for (const char* name : {"nccl", "trtllm-lamport-norm"}) {
    const Verdict v = refusal([&] { (void)sum_order(name, {4, 8}); });
    EXPECT_EQ(v->kind, ErrorKind::unsupported);
    EXPECT_NE(v->text.find(name), std::string::npos);
  }
}

TEST(SumOrder, FollowsFromTheNameAndTheRanks) {
  EXPECT_EQ(sum_order("one-shot", {16, 8}), SumOrder::rank_order);
  EXPECT_EQ(sum_order("two-shot", {16, 8}), SumOrder::rank_order);
  EXPECT_EQ(sum_order("mnnvl-one-shot", {16, 8}), SumOrder::chunks_of_8);
  EXPECT_EQ(sum_order("mnnvl-one-shot", {8, 8}), SumOrder::rank_order);
  EXPECT_EQ(sum_order("mnnvl-one-shot", {9, 8}), SumOrder::chunks_of_8);
  EXPECT_EQ(sum_order("mnnvl-two-shot", {16, 8}), SumOrder::rank_order);
  EXPECT_EQ(sum_order("mnnvl-two-shot", {17, 8}), SumOrder::chunks_of_16);
  EXPECT_EQ(sum_order("trtllm", {16, 8}), SumOrder::each_add);
  EXPECT_EQ(sum_order("trtllm-fp32", {16, 8}), SumOrder::rank_order);
  const Verdict v = refusal([] { (void)sum_order("trtllm", {3, 8}); });
  EXPECT_EQ(v, (Reason{ErrorKind::unsupported, "all-reduce 'trtllm' takes 2, 4, 8 or 16 ranks, not 3"}));
  EXPECT_EQ(refusal([] {
              (void)sum_order("mnnvl", {65, 8});
            })->text,
            "all-reduce 'mnnvl' takes 2 to 64 ranks, not 65");
  EXPECT_EQ(refusal([] { (void)sum_order("one-shot", {0, 8}); })->kind, ErrorKind::unsupported);
  EXPECT_EQ(refusal([] { (void)sum_order("one-shot", {2, -1}); })->kind, ErrorKind::usage);
  EXPECT_EQ(name(SumOrder::each_add), "each-add");
}

TEST(AllReduce, SizesThatDoNotFitAreRefusedBeforeAnythingIsSent) {
  run_local(2, {}, [](Group& group) {
    const AllReduce& reduce = all_reduce("two-shot");
    const Terms mine(5);
    Terms sum(4);
    Terms scratch(reduce.scratch_values({2, 5}));
    EXPECT_EQ(refusal([&] { reduce.run(group, mine, sum, scratch, "x"); }),
              (Reason{ErrorKind::usage, "all-reduce 'x' of 5 values into 4"}));
    sum.resize(5);
    scratch.pop_back();
    EXPECT_EQ(refusal([&] { reduce.run(group, mine, sum, scratch, "x"); })->kind, ErrorKind::usage);
    group.barrier("the group is whole");
  });
  // Ranks that bring different numbers of values all hear of it.
  for (const char* name : {"one-shot", "two-shot"}) {
    std::vector<Verdict> seen(2);
    (void)attempt([&] {
      run_local(2, {}, [&](Group& group) {
        const Terms mine(group.rank() == 1 ? 8 : 4);
        Terms sum(mine.size());
        Terms scratch(100);
        const auto me = static_cast<std::size_t>(group.rank());
        seen[me] = attempt([&] { all_reduce(name).run(group, mine, sum, scratch, "rows"); });
        require(seen[me]);
      });
    });
    ASSERT_TRUE(seen[0]) << name;
    EXPECT_EQ(seen[0], seen[1]);
    EXPECT_NE(seen[0]->text.find("rows"), std::string::npos) << seen[0]->text;
  }
}

}  // namespace
}  // namespace kerf::comm
