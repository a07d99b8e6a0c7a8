// Measuring steps beside plain reads: what is measured, that the figures of a step agree, and what is
// refused.
#include "kerf/tools/bench.h"

#include <gtest/gtest.h>

#include <functional>

#include "kerf/comm/local.h"
#include "tests/support/xml.h"

namespace kerf::tools {
namespace {

using decode::Mode;

BenchRequest small(op::Arithmetic arithmetic = op::Arithmetic::w4a4) {
  BenchRequest r;
  r.arithmetic = arithmetic;
  r.shape = {8, 256, 128};
  r.top_k = 2;
  r.batches = {1, 3};
  r.pairs = 3;
  r.memory = std::int64_t{1} << 30;
  return r;
}

std::int64_t expert_bytes(op::Arithmetic arithmetic, std::int64_t width) {
  return arithmetic == op::Arithmetic::bf16 ? 3 * 256 * width * 2 : 3 * 256 * width * 9 / 16;
}

BenchReport run(const BenchRequest& request, int ranks) {
  BenchReport report;
  comm::run_local(ranks, {}, [&](comm::Group& group) {
    tensor::HostMemory memory;
    {
      decode::Meter meter(memory);
      BenchReport mine = bench(request, {group, meter, Workers(1), Log()});
      if (group.rank() == 0) report = std::move(mine);
      EXPECT_EQ(meter.current(), 0);
    }
    EXPECT_EQ(memory.current(), 0);
  });
  return report;
}

void expect_consistent(const BenchRequest& r, const BenchReport& report, int ranks) {
  for (const BenchStep& s : report.steps) {
    EXPECT_GE(s.experts_distinct, r.top_k);
    EXPECT_LE(s.experts_distinct, std::min(r.shape.experts, s.batch * r.top_k));
    EXPECT_EQ(s.bytes, s.experts_distinct * expert_bytes(r.arithmetic, s.intermediate));
    EXPECT_GE(s.busiest_rank_bytes * ranks, s.bytes);
    if (s.mode == Mode::tp) {
      EXPECT_EQ(s.busiest_rank_bytes * ranks, s.bytes);
    }
    EXPECT_GT(s.us, 0);
    EXPECT_GT(s.read_us, 0);
    EXPECT_LE(s.fraction_least, s.fraction);
    EXPECT_LE(s.fraction, s.fraction_most);
    // A ratio of medians lies between the extremes of the pairs' ratios.
    EXPECT_LE(s.fraction_least, s.read_us / s.us * (1 + 1e-9));
    EXPECT_GE(s.fraction_most, s.read_us / s.us * (1 - 1e-9));
    EXPECT_GT(s.gbps, 0);
    EXPECT_GT(s.read_gbps, 0);
  }
}

TEST(Bench, MeasuresEveryArithmeticInEveryModeOnOneRankAndTwo) {
  for (const op::Arithmetic arithmetic : {op::Arithmetic::w4a4, op::Arithmetic::w4a16, op::Arithmetic::bf16})
    for (const int ranks : {1, 2}) {
      BenchRequest r = small(arithmetic);
      if (ranks > 1 && arithmetic != op::Arithmetic::bf16) r.modes = {Mode::ep, Mode::tp};
      const BenchReport report = run(r, ranks);
      EXPECT_EQ(report.threads, ranks);
      ASSERT_EQ(report.steps.size(), r.batches.size() * r.modes.size());
      for (std::size_t i = 0; i < report.steps.size(); ++i) {
        EXPECT_EQ(report.steps[i].batch, r.batches[i / r.modes.size()]);
        EXPECT_EQ(report.steps[i].mode, r.modes[i % r.modes.size()]);
        EXPECT_EQ(report.steps[i].intermediate, 128);
      }
      EXPECT_EQ(report.steps.front().experts_distinct, 2);  // one token, top 2
      expect_consistent(r, report, ranks);
    }
}

// What a step reads follows from the seed, and is the same in both modes.
TEST(Bench, TheSeedDecidesWhatIsRead) {
  BenchRequest r = small();
  r.modes = {Mode::ep, Mode::tp};
  const auto distinct = [&] {
    std::vector<std::int64_t> out;
    for (const BenchStep& s : run(r, 2).steps) out.push_back(s.experts_distinct);
    return out;
  };
  const std::vector<std::int64_t> first = distinct();
  EXPECT_EQ(first, distinct());
  EXPECT_EQ(first[2], first[3]);
}

TEST(Bench, OtherWidthsAreMeasuredAtTheFirstBatchAndDrawn) {
  BenchRequest r = small();
  r.sizes = {256, 128, 384};  // 128 is the layer's own
  r.modes = {Mode::ep, Mode::tp};
  std::vector<std::int64_t> progress;
  r.progress = [&](std::int64_t done, std::int64_t of) {
    progress.push_back(done);
    EXPECT_EQ(of, 8);
  };
  const BenchReport report = run(r, 2);
  EXPECT_EQ(progress, (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  expect_consistent(r, report, 2);
  std::vector<std::int64_t> widths;
  for (const BenchStep& s : report.steps) {
    widths.push_back(s.intermediate);
    if (s.intermediate != 128) {
      EXPECT_EQ(s.batch, 1);
    }
  }
  EXPECT_EQ(widths, (std::vector<std::int64_t>{128, 128, 128, 128, 256, 256, 384, 384}));

  const Chart chart = bench_chart(r, report);
  ASSERT_EQ(chart.panels.size(), 2U);
  for (std::size_t p = 0; p < 2; ++p) {
    ASSERT_EQ(chart.panels[p].curves.size(), 2U);
    EXPECT_EQ(chart.panels[p].curves[0].name, "ep");
    EXPECT_EQ(chart.panels[p].curves[1].name, "tp");
    std::vector<double> x;
    for (const ChartPoint& point : chart.panels[p].curves[1].points) x.push_back(point.x);
    EXPECT_EQ(x, p == 0 ? (std::vector<double>{1, 3}) : (std::vector<double>{128, 256, 384}));
  }
  EXPECT_EQ(chart.panels[0].curves[0].points[1].y, report.steps[2].fraction);
  EXPECT_EQ(test::xml_fault(svg(chart)), "");
  r.sizes.clear();
  EXPECT_EQ(bench_chart(r, report).panels.size(), 1U);
}

TEST(Bench, RefusesWhatCannotBeMeasured) {
  const auto refused = [](const std::function<void(BenchRequest&)>& edit, int ranks = 1) {
    BenchRequest r = small();
    edit(r);
    const Verdict v = bench_refused(r, ranks, 1);
    EXPECT_TRUE(v);
    // The measurement itself refuses alike, on every rank.
    const Verdict thrown = attempt([&] { (void)run(r, ranks); });
    EXPECT_EQ(v, thrown);
    return v.value_or(Reason{ErrorKind::bug, ""});
  };
  EXPECT_FALSE(bench_refused(small(), 1, 1));
  EXPECT_EQ(refused([](BenchRequest& r) { r.batches = {}; }).kind, ErrorKind::usage);
  EXPECT_EQ(refused([](BenchRequest& r) { r.batches = {1, 0}; }).kind, ErrorKind::usage);
  EXPECT_EQ(refused([](BenchRequest& r) { r.batches = {1, 65'537}; }).kind, ErrorKind::usage);
  EXPECT_EQ(refused([](BenchRequest& r) { r.modes = {}; }).kind, ErrorKind::usage);
  EXPECT_EQ(refused([](BenchRequest& r) { r.pairs = 0; }).kind, ErrorKind::usage);
  EXPECT_EQ(refused([](BenchRequest& r) { r.top_k = 9; }).kind, ErrorKind::usage);
  EXPECT_EQ(refused([](BenchRequest& r) { r.backend = "abacus"; }).kind, ErrorKind::usage);
  EXPECT_EQ(refused([](BenchRequest& r) { r.shape.hidden = 96; }).kind, ErrorKind::unsupported);
  EXPECT_EQ(refused([](BenchRequest& r) { r.sizes = {64, 100}; }).kind, ErrorKind::unsupported);
  EXPECT_EQ(refused([](BenchRequest& r) { r.modes = {Mode::tp}; }).kind, ErrorKind::unsupported);
  EXPECT_EQ(refused([](BenchRequest&) {}, 3).kind, ErrorKind::unsupported);  // 8 experts over 3 ranks
  EXPECT_EQ(refused([](BenchRequest& r) { r.modes = {Mode::tp}; }, 4).kind, ErrorKind::unsupported);
  EXPECT_EQ(refused(
                [](BenchRequest& r) {
                  r.modes = {Mode::tp};
                  r.arithmetic = op::Arithmetic::bf16;
                },
                2)
                .kind,
            ErrorKind::unsupported);
}

// The sum is made before anything is allocated: what just fits runs, a byte less does not.
TEST(Bench, MemoryIsSummedBeforeAnythingIsAllocated) {
  BenchRequest r = small();
  r.modes = {Mode::ep, Mode::tp};
  r.shape = {std::int64_t{1} << 20, 4096, 4096};
  const Verdict v = bench_refused(r, 2, 1);
  ASSERT_TRUE(v);
  EXPECT_EQ(v->kind, ErrorKind::memory);
  for (const char* words : {"2 ranks x (stock experts 14843", "sliced experts", "available"})
    EXPECT_NE(v->text.find(words), std::string::npos) << v->text;
  r = small();
  std::int64_t low = 0;  // refused
  std::int64_t high = r.memory;
  while (high - low > 1) {
    r.memory = (low + high) / 2;
    (bench_refused(r, 1, 1) ? low : high) = r.memory;
  }
  r.memory = high;
  EXPECT_GT(high, 8 * expert_bytes(r.arithmetic, 128));
  EXPECT_EQ(run(r, 1).steps.size(), 2U);
}

}  // namespace
}  // namespace kerf::tools
