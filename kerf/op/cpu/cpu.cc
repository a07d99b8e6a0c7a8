#include "kerf/op/cpu/cpu.h"

#include <memory>
#include <string>

#include "kerf/base/format.h"
#include "kerf/base/machine.h"
#include "kerf/op/cpu/bodies.h"
#include "kerf/op/cpu/tactics.h"
#include "kerf/op/internal/bound.h"

namespace kerf::op::cpu {

namespace {

// Counts up whenever a change to kernels, bodies or tactics could change what is fastest.
constexpr int kernels_version = 3;

class CpuBackend final : public Backend {
 public:
  CpuBackend(std::string name, const Kernels& kernels)
      : name_(std::move(name)),
        package_(fmt::format("cpu-{}-{}", kernels.isa, kernels_version)),
        kernels_(kernels) {}

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] std::string_view package() const override { return package_; }
  [[nodiscard]] std::string device() const override { return machine_name(); }
  [[nodiscard]] std::vector<Tactic> tactics(std::int64_t tokens) const override {
    return internal::tactics_of_use(tactic_table, tokens);
  }
  [[nodiscard]] Verdict supports(Arithmetic arithmetic, const layout::ExpertsShape& shape) const override {
    if (auto reason = internal::unsupported(arithmetic, shape)) return reason;
    // Kernels take 128 rows at a time.
    if (shape.hidden % tile_rows != 0)
      return because(ErrorKind::unsupported, "hidden {} of BF16 experts is not a multiple of {}",
                     shape.hidden, tile_rows);
    return std::nullopt;
  }
  [[nodiscard]] std::size_t workspace_bytes(Arithmetic arithmetic, const layout::ExpertsShape& shape,
                                            const routing::MetadataShape& step) const override {
    if (arithmetic == Arithmetic::bf16) return bf16_workspace(shape, step);
    return nvfp4_workspace(arithmetic == Arithmetic::w4a4 ? Input::nvfp4 : Input::bf16, shape, step);
  }
  [[nodiscard]] Verdict supports(const Nvfp4Args& args) const override { return internal::unsupported(args); }
  [[nodiscard]] Verdict supports(const Bf16Args& args) const override {
    if (auto reason = internal::unsupported(args)) return reason;
    return supports(Arithmetic::bf16, layout::shape_of(args.experts));
  }
  [[nodiscard]] std::unique_ptr<RoutedExperts> bind(const Nvfp4Args& args) const override {
    require(supports(args));
    return bind_nvfp4(args, kernels_);
  }
  [[nodiscard]] std::unique_ptr<RoutedExperts> bind(const Bf16Args& args) const override {
    require(supports(args));
    return bind_bf16(args, kernels_);
  }

 private:
  std::string name_;
  std::string package_;
  const Kernels& kernels_;
};

}  // namespace

std::vector<const Backend*> backends() {
  static const std::vector<std::unique_ptr<const CpuBackend>> list = [] {
    std::vector<std::unique_ptr<const CpuBackend>> out;
    const auto vectors = vector_kernels();
    out.push_back(std::make_unique<CpuBackend>("cpu", vectors.empty() ? scalar_kernels() : *vectors.front()));
    for (const Kernels* k : vectors)
      out.push_back(std::make_unique<CpuBackend>(fmt::format("cpu:{}", k->isa), *k));
    out.push_back(std::make_unique<CpuBackend>("cpu:scalar", scalar_kernels()));
    return out;
  }();
  std::vector<const Backend*> out;
  for (const auto& b : list) out.push_back(b.get());
  return out;
}

}  // namespace kerf::op::cpu
