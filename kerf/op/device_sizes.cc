#include "kerf/op/device_sizes.h"

#include "kerf/base/format.h"
#include "kerf/cuda/library.h"
#include "kerf/op/internal/tactic_table.h"
#include "kerf/op/sm90/half_work.h"
#include "kerf/op/sm90/sm90.h"
#include "kerf/op/sm90/tactics.h"
#include "kerf/op/sm90/w4a4_shape.h"

namespace kerf::op {

namespace {

// Answers from sizes alone, as the backend does where there is a device.
class PlannedCuda final : public Backend {
 public:
  [[nodiscard]] std::string_view name() const override { return sm90::backend_name; }
  [[nodiscard]] std::string_view package() const override { return sm90::backend_name; }
  [[nodiscard]] std::string device() const override { return "planned"; }
  [[nodiscard]] std::vector<Tactic> tactics(std::int64_t tokens) const override {
    return internal::tactics_of_use(sm90::tactic_table, tokens);
  }
  [[nodiscard]] Verdict supports(Arithmetic arithmetic, const layout::ExpertsShape& shape) const override {
    return internal::unsupported(arithmetic, shape);
  }
  [[nodiscard]] std::size_t workspace_bytes(Arithmetic /*arithmetic*/, const layout::ExpertsShape& /*shape*/,
                                            const routing::MetadataShape& /*step*/) const override {
    return 0;
  }
  [[nodiscard]] Verdict supports(const Nvfp4Args& /*args*/) const override { return planned(); }
  [[nodiscard]] Verdict supports(const Bf16Args& /*args*/) const override { return planned(); }
  [[nodiscard]] std::unique_ptr<RoutedExperts> bind(const Nvfp4Args& /*args*/) const override {
    fail(planned()->kind, "{}", planned()->text);
  }
  [[nodiscard]] std::unique_ptr<RoutedExperts> bind(const Bf16Args& /*args*/) const override {
    fail(planned()->kind, "{}", planned()->text);
  }

 private:
  static Verdict planned() { return because(ErrorKind::bug, "experts bound to a backend that only plans"); }
};

}  // namespace

const Backend& planning_backend(std::string_view name) {
  static const PlannedCuda cuda;
  if (name == sm90::backend_name) return cuda;
  return backend(name);
}

std::int64_t device_scratch_bytes(Arithmetic arithmetic, const layout::ExpertsShape& shape,
                                  const routing::MetadataShape& step) {
  if (arithmetic == Arithmetic::w4a4) return 0;
  // Gathered rows, and what lies between the GEMMs: bf16.
  return step.max_padded() * (shape.hidden + shape.intermediate) * 2;
}

std::int64_t device_counter_words(Arithmetic arithmetic, const routing::MetadataShape& step) {
  // Units, gathered shares, and a count for each tile.
  return arithmetic == Arithmetic::w4a4 ? 0 : sm90::half_counters + step.max_tiles();
}

std::int64_t device_kept_bytes(Arithmetic arithmetic, const layout::ExpertsShape& shape,
                               const routing::MetadataShape& step) {
  if (arithmetic != Arithmetic::w4a4) return 0;
  // What launches know of one another, sums of second sides, the intermediate, rows of tokens that are ended.
  const std::int64_t row_blocks = sm90::w4a4::can_end(step.tokens, step.top_k, step.tile)
                                      ? shape.hidden / sm90::w4a4::ended_block_values
                                      : 0;
  return static_cast<std::int64_t>(sizeof(sm90::w4a4::Kept)) +
         std::int64_t{2} * sm90::w4a4::most_halves * sm90::w4a4::half_sums_bytes +
         step.max_padded() * (shape.intermediate / 16 + row_blocks) * sm90::w4a4::block_bytes;
}

std::int64_t device_body_bytes(Arithmetic arithmetic, const layout::ExpertsShape& shape,
                               const routing::MetadataShape& step, bool sums) {
  const std::int64_t rows_in =
      step.tokens *
      (arithmetic == Arithmetic::w4a4 ? shape.hidden / 2 + shape.hidden / 16 : 2 * shape.hidden);
  return rows_in + 4 * routing::metadata_words(step) + device_scratch_bytes(arithmetic, shape, step) +
         4 * device_counter_words(arithmetic, step) + device_kept_bytes(arithmetic, shape, step) +
         (sums ? 4 : 2) * gemm2_rows(step, shape.hidden) * shape.hidden;
}

}  // namespace kerf::op
