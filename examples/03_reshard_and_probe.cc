// 03: four ranks that hold whole experts become four ranks that hold a slice of every expert, by one exchange
// of bytes; the probe compares what they compute before and after.
//     03_reshard_and_probe CHECKPOINT
#include <algorithm>
#include <cstdio>

#include "kerf/kerf.h"

int main(int argc, char** argv) {
  bool near = true;
  const kerf::Verdict failed = kerf::attempt([&] {
    if (argc != 2) throw kerf::Error(kerf::ErrorKind::usage, "usage: 03_reshard_and_probe CHECKPOINT");
    const auto checkpoint = kerf::checkpoint::Checkpoint::open(argv[1]);
    kerf::comm::run_local(4, {}, [&](kerf::comm::Group& group) {
      kerf::tensor::HostMemory host;
      kerf::decode::Meter memory(host);
      kerf::decode::RuntimeOptions options;
      options.expert_tp = true;  // build() reshards every NVFP4 layer, and probes it
      const auto runtime =
          kerf::decode::Runtime::build(checkpoint, options, {group, memory, kerf::Workers(1), {}});
      const kerf::decode::ShardReport& cut = *runtime.sharding();
      if (group.rank() != 0) return;
      const auto layers = runtime.layers();
      const auto layer = std::ranges::find_if(layers, [](const auto& l) { return l.tp != nullptr; });
      if (layer == layers.end())
        throw kerf::Error(kerf::ErrorKind::unsupported,
                          "no layer has NVFP4 experts, which alone are cut: wanted one");
      std::printf("rank 0 of %d: %lld whole experts, and %lld slices of width %lld\n", group.size(),
                  static_cast<long long>(layer->ep->shape().experts),
                  static_cast<long long>(layer->tp->shape().experts),
                  static_cast<long long>(layer->tp->shape().intermediate));
      near = cut.max_rel_l2 < options.probe.limit;
      std::printf("TP rows against EP rows: rel L2 %.6f, limit %g: %s\n", cut.max_rel_l2, options.probe.limit,
                  near ? "near" : "FAR");
    });
  });
  if (failed) std::fprintf(stderr, "%s\n", failed->text.c_str());
  return failed ? static_cast<int>(failed->kind) : near ? 0 : 1;
}
