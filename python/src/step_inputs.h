// What a step is given from Python: arrays by DLPack, held, and as the library takes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "src/arrays.h"
#include "src/runtime.h"

namespace kerf::python {

struct Sizes {
  std::int64_t hidden, top_k, experts;
};

// Of a layer.
Sizes sizes_of(const decode::Layer& layer);

// A step's arrays, held, and as the library takes them: all in the host's memory, or all in a device's.
struct Inputs {
  Argument x, a, a_sf, ids, weights, logits, bias, out;
  decode::StepInputs step;
  std::optional<decode::DeviceStepTensors> device{};
};

// Arrays as Python hands them over; None where there is none.
struct Handed {
  nb::handle x, a, a_sf, ids, weights, logits, bias, out;
};

// Error{usage} that names the layer and the array. `here`: whether the step can be a device's.
Inputs inputs_of(const Resident& resident, std::size_t position, const Handed& handed, bool here = false);

// Error{usage} of a step of this layer.
[[noreturn]] void wants(std::int64_t layer, const std::string& words);

// The tail with this name, if one is named; Error{usage} with the names.
std::optional<tail::Kind> tail_of(const std::optional<std::string>& name);

// A CUDA stream's handle, as Python's libraries pass it: a number.
inline cuda::StreamHandle stream_at(std::uintptr_t number) {
  return reinterpret_cast<cuda::StreamHandle>(number);
}

// The step as a device's stack has it. Error{usage} where the layer has no experts for it.
decode::StackStep device_step(const Resident& resident, std::size_t position, decode::Mode mode,
                              std::optional<tail::Kind> tail, std::int64_t tokens);

// What a step resolves to, before anything is routed.
struct StepPlan {
  std::int64_t layer = 0;
  std::int64_t tokens = 0;
  decode::Mode mode = decode::Mode::ep;
  op::Tactic tactic;
};

// The array that the caller gave, which has the rows already, or a new one with them.
nb::object result(nb::handle out, std::span<const std::uint16_t> rows, std::int64_t tokens,
                  std::int64_t width);

void bind_rows(nb::module_& m, nb::class_<Resident>& runtime);

}  // namespace kerf::python
