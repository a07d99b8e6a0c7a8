// The table of kerf bench --busiest-rank: EP and expert TP by what the slowest rank takes.
#include "cli/busiest.h"

#include <fmt/format.h>

#include "cli/text.h"

namespace kerf::cli {

namespace {

// EP over TP: of bytes, of read times, of steps.
struct Ratios {
  double bytes, read, step;
};
Ratios ratios(const tools::BusiestStep& s) {
  return {s.ep.bytes / s.tp.bytes, s.ep.read_us / s.tp.read_us, s.ep.us / s.tp.us};
}

Json json_of(const tools::ShareStep& s, const std::vector<double>& rank_us) {
  return {{"bytes", s.bytes}, {"us", s.us}, {"read_us", s.read_us}, {"rank_us", rank_us}};
}

}  // namespace

Json busiest_json(const std::vector<tools::BusiestStep>& steps) {
  Json out = Json::array();
  for (const tools::BusiestStep& s : steps) {
    const Ratios r = ratios(s);
    out.push_back({{"batch", s.batch},
                   {"ep", json_of(s.ep, s.ep_rank_us)},
                   {"tp", json_of(s.tp, s.tp_rank_us)},
                   {"ratio_bytes", r.bytes},
                   {"ratio_read", r.read},
                   {"ratio_step", r.step},
                   {"of_read_ratio", r.step / r.read}});
  }
  return out;
}

void print_busiest(const std::vector<tools::BusiestStep>& steps, int ranks, Output& out) {
  out.line("EP{} and TP{}, each rank's share alone on the device; of each draw of routes the slowest rank",
           ranks, ranks);
  out.line("");
  out.line("{:>6} {:>12} {:>12} {:>10} {:>10} {:>10} {:>10} | {:>7} {:>7} {:>7} {:>9}", "batch", "EP bytes",
           "TP bytes", "EP us", "TP us", "EP read", "TP read", "bytes", "reads", "steps", "of reads");
  for (const tools::BusiestStep& s : steps) {
    const Ratios r = ratios(s);
    out.line(
        "{:>6} {:>12} {:>12} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f} | {:>6.2f}x {:>6.2f}x {:>6.2f}x "
        "{:>9.2f}",
        s.batch, bytes_text(static_cast<std::int64_t>(s.ep.bytes)),
        bytes_text(static_cast<std::int64_t>(s.tp.bytes)), s.ep.us, s.tp.us, s.ep.read_us, s.tp.read_us,
        r.bytes, r.read, r.step, r.step / r.read);
  }
}

}  // namespace kerf::cli
