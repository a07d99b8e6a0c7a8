#include "kerf/decode/fit.h"

#include "kerf/base/format.h"

namespace kerf::decode {

namespace {

// What padding cannot do, for experts of this kind.
Verdict not_padded(const Whole& e) {
  return e.arithmetic == op::Arithmetic::bf16 ? std::nullopt : layout::paddable(e.intermediate);
}

}  // namespace

layout::ExpertsShape Whole::shape(const layout::Fit& fit) const {
  const std::int64_t parts = arithmetic == op::Arithmetic::bf16 ? 1 : slices;
  return {experts, hidden, layout::converted_width(intermediate, parts, fit)};
}

Verdict unfit(const op::Backend& backend, const Whole& e, const layout::Fit& fit) {
  if (e.slices < 1) return because(ErrorKind::usage, "{} slices, wanted 1 or more", e.slices);
  if (fit.pad)
    if (Verdict why = not_padded(e)) return why;
  Verdict why = backend.supports(e.arithmetic, e.shape(fit));
  const layout::Fit padded{fit.uneven, true};
  if (why && !fit.pad && !not_padded(e) && !backend.supports(e.arithmetic, e.shape(padded)))
    why->text += fmt::format("; --pad would add zeros up to {}", e.shape(padded).intermediate);
  return why;
}

}  // namespace kerf::decode
