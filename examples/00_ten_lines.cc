// 00: EP and expert TP on two ranks, measured. 00_ten_lines CHECKPOINT
#include <cstdio>

#include "kerf/kerf.h"

int main(int argc, char** argv) try {
  if (argc != 2) throw kerf::Error(kerf::ErrorKind::usage, "usage: 00_ten_lines CHECKPOINT");
  const auto checkpoint = kerf::checkpoint::Checkpoint::open(argv[1]);
  kerf::comm::run_local(2, {}, [&](kerf::comm::Group& group) {  // two ranks, threads of this process
    kerf::tensor::HostMemory host;
    kerf::decode::Meter memory(host);
    kerf::decode::Options options;
    options.modes = {kerf::decode::Mode::ep, kerf::decode::Mode::tp};  // tp: resharded and probed first
    const auto report = kerf::decode::run(checkpoint, options, {group, memory, kerf::Workers(1), {}});
    if (group.rank() != 0) return;
    for (const auto& step : report.steps) std::printf("%.1f us a layer\n", step.us_per_layer);
  });
} catch (const kerf::Error& error) {
  return std::fprintf(stderr, "%s\n", error.what()), error.exit_code();
}
