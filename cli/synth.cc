// kerf synth: makes up a checkpoint in the sizes asked for.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "cli/text.h"

namespace kerf::cli {

namespace {

struct Options {
  std::string directory;
  std::string model = "muse-spark";
  std::optional<std::int64_t> experts, hidden, model_width, intermediate, layers, top_k;
  std::optional<std::string> bf16_layers;  // "none" for none
  std::string dialect;
  bool f4 = false;
  bool weight_only = false;
  std::uint64_t seed = 1;
};

tools::SynthOptions wanted(const Options& o) {
  tools::SynthOptions s = tools::synth_defaults(tools::synth_model(o.model));
  s.experts = o.experts.value_or(s.experts);
  s.hidden = o.hidden.value_or(s.hidden);
  s.model_hidden = o.model_width.value_or(s.model_hidden);
  s.intermediate = o.intermediate.value_or(s.intermediate);
  s.layers = o.layers.value_or(s.layers);
  // A default that a smaller number of experts cannot serve gives way; a number that was asked for does not.
  s.top_k = o.top_k.value_or(std::min(s.top_k, std::max<std::int64_t>(s.experts, 1)));
  if (o.bf16_layers)
    s.bf16_layers = *o.bf16_layers == "none" ? std::vector<std::int64_t>{}
                                             : parse_ranges(*o.bf16_layers, "--bf16-layers");
  s.dialect = o.dialect;
  s.f4 = o.f4;
  s.weight_only = o.weight_only;
  s.seed = o.seed;
  return s;
}

void run(const Options& o, Context& context) {
  refuse_copies("kerf synth");
  const tools::SynthOptions s = wanted(o);
  require(tools::unsupported(s));
  ProgressBar bar(context, "writing " + o.directory);
  const auto start = std::chrono::steady_clock::now();
  const tools::SynthReport r =
      tools::synth(o.directory, s, Workers(Context::threads()),
                   [&](std::int64_t done, std::int64_t total) { bar.update(done, total); });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (context.json) {
    context.out.json({{"directory", o.directory},
                      {"model", tools::name(s.model)},
                      {"experts", s.experts},
                      {"hidden", s.hidden},
                      {"model_hidden", tools::model_width(s)},
                      {"intermediate", s.intermediate},
                      {"layers", s.layers},
                      {"top_k", s.top_k},
                      {"bf16_layers", s.bf16_layers},
                      {"dialect", tools::dialect_name(s)},
                      {"f4", s.f4},
                      {"weight_only", s.weight_only},
                      {"seed", s.seed},
                      {"tensors", r.tensors},
                      {"shards", r.shards},
                      {"bytes", r.bytes},
                      {"seconds", seconds}});
    return;
  }
  context.out.line("{}: {}, {} (BF16: {}), {} of {} x {}, top {}, seed {}", o.directory, tools::name(s.model),
                   counted(s.layers, "layer"), ranges_text(s.bf16_layers), counted(s.experts, "expert"),
                   s.hidden, s.intermediate, s.top_k, s.seed);
  context.out.line("{} in {}, {}, {:.2f} s ({:.0f} MB/s)", bytes_text(r.bytes), counted(r.tensors, "tensor"),
                   counted(r.shards, "shard"), seconds,
                   static_cast<double>(r.bytes) / 1e6 / std::max(seconds, 1e-9));
}

}  // namespace

void add_synth(CLI::App& app, Context& context) {
  auto o = std::make_shared<Options>();
  CLI::App* command = add_command(app, context, "synth", "Write a checkpoint of any shape");
  command->footer(
      "A run that is stopped leaves files that do not open as a checkpoint, and a partial one (.tmp-*); the "
      "next\n"
      "run into the same directory replaces them.");
  command
      ->add_option("DIR", o->directory,
                   "Directory to write: new, empty, or an earlier synth's, which is replaced")
      ->required()
      ->check(not_empty());
  command
      ->add_option("--model", o->model,
                   fmt::format("Whose names and config: {}", fmt::join(tools::synth_model_names(), ", ")))
      ->capture_default_str();
  command->add_option("--experts", o->experts, "Experts, E [a size of the model that a laptop holds]")
      ->transform(whole_number(1, most_count));
  command->add_option("--hidden", o->hidden, "Expert input and output width, H: a multiple of 128")
      ->transform(whole_number(1, most_count));
  command
      ->add_option("--model-width", o->model_width,
                   "The model's own width, D, which muse-spark projects to H and back [2H]")
      ->transform(whole_number(1, most_count));
  command
      ->add_option("--intermediate", o->intermediate,
                   "Intermediate width, I: a multiple of 16 (of 64 where it is to run without --pad)")
      ->transform(whole_number(1, most_count));
  command->add_option("--layers", o->layers, "Layers, all with routed experts")
      ->transform(whole_number(1, most_count));
  command->add_option("--top-k", o->top_k, "Experts per token, K")->transform(whole_number(1, most_count));
  command->add_option("--bf16-layers", o->bf16_layers,
                      "Layers with BF16 experts, such as 0,61 or 0-3; none for none");
  command->add_option("--dialect", o->dialect,
                      "How experts are named and stacked, such as fused, llama4 or compressed-tensors; the\n"
                      "experts are the same in each [the model's own]");
  command->add_flag("--f4", o->f4, "Codes as F4 instead of U8");
  command->add_flag("--weight-only", o->weight_only, "No input scales (W4A16)");
  command->add_option("--seed", o->seed, "The same seed gives the same bytes")
      ->transform(seed_number())
      ->capture_default_str();
  command->callback([o, &context] { run(*o, context); });
}

}  // namespace kerf::cli
