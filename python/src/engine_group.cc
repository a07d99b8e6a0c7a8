// A group out of an engine's own collectives, which are Python's.

#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "src/arrays.h"
#include "src/bind.h"
#include "src/groups.h"
#include "src/raised.h"

namespace kerf::python {

namespace {

using tensor::Dtype;
using OptionalCall = std::optional<nb::callable>;

// Called from the thread that calls the collective, which does not hold the interpreter's lock. What Python
// raises ends the group.
class Callback {
 public:
  explicit Callback(const nb::callable& call)
      : call_(new nb::callable(call), [](nb::callable* held) {
          const Locked lock;
          delete held;
        }) {}

  template <typename Make>
  void operator()(Make arguments) const {
    call_back<std::runtime_error>([&] { (*call_)(*arguments()); });
  }

 private:
  std::shared_ptr<nb::callable> call_;
};

// DLPack's own struct of a tensor and its end.
struct Lent {
  nb::dlpack::dltensor tensor;
  void* context = nullptr;
  void (*end)(Lent*) = [](Lent* self) { delete self; };
  std::int64_t size = 0;
};

// The bytes as a DLPack capsule, writable, for as long as the callback runs. An engine's own threads may let
// go of it later, when they please, so it holds on to nothing: its end wants no lock of the interpreter's,
// which may have ended.
nb::object lent(std::span<const std::byte> bytes, Dtype dtype = Dtype::u8) {
  auto out = std::make_unique<Lent>();
  out->size = static_cast<std::int64_t>(bytes.size()) * 8 / tensor::bits(dtype);
  out->tensor.data = const_cast<std::byte*>(bytes.data());
  out->tensor.device = {nb::device::cpu::value, 0};
  out->tensor.ndim = 1;
  const auto code = dtype == Dtype::bf16 ? nb::dlpack::dtype_code::Bfloat : nb::dlpack::dtype_code::UInt;
  out->tensor.dtype = {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(tensor::bits(dtype)), 1};
  out->tensor.shape = &out->size;
  PyObject* capsule = PyCapsule_New(out.get(), "dltensor", [](PyObject* self) {
    // Who takes the tensor renames the capsule, and ends it himself.
    if (PyCapsule_IsValid(self, "dltensor") != 0)
      delete static_cast<Lent*>(PyCapsule_GetPointer(self, "dltensor"));
  });
  if (capsule == nullptr) throw nb::python_error();
  (void)out.release();
  return nb::steal(capsule);
}

nb::list numbers(std::span<const std::int64_t> values) {
  nb::list out;
  for (const std::int64_t value : values) out.append(value);
  return out;
}

nb::str text(std::string_view words) { return nb::str(words.data(), words.size()); }

std::shared_ptr<RankGroup> engine_group(int rank, int size, const std::string& name,
                                        const nb::callable& all_gather, const nb::callable& all_to_all,
                                        const OptionalCall& all_reduce, bool ordered, bool rank_order,
                                        bool checked, int local_ranks, const nb::callable& leave) {
  comm::EngineGroupCalls calls;
  calls.rank = rank;
  calls.size = size;
  calls.name = name;
  calls.ordered = ordered;
  calls.all_gather = [call = Callback(all_gather)](std::span<const std::byte> mine, std::span<std::byte> all,
                                                   std::string_view what) {
    call([&] { return nb::make_tuple(lent(mine), lent(all), text(what)); });
  };
  calls.all_to_all = [call = Callback(all_to_all)](
                         std::span<const std::byte> send, std::span<const std::int64_t> send_bytes,
                         std::span<std::byte> received, std::span<const std::int64_t> received_bytes,
                         std::string_view what) {
    call([&] {
      return nb::make_tuple(lent(send), numbers(send_bytes), lent(received), numbers(received_bytes),
                            text(what));
    });
  };
  if (all_reduce)
    calls.all_reduce_sum = [call = Callback(*all_reduce)](std::span<std::uint16_t> values,
                                                          std::string_view what) {
      call([&] { return nb::make_tuple(lent(std::as_bytes(values), Dtype::bf16), text(what)); });
    };
  comm::EngineGroupOptions options;
  options.checked = checked;
  options.rank_order = rank_order;
  if (cuda::built()) options.copier = &cuda::copier();
  const std::shared_ptr<comm::Group> group = comm::make_engine_group(std::move(calls), options);
  return std::make_shared<RankGroup>(
      *group, group, [call = Callback(leave)](const Verdict&) { call([] { return nb::make_tuple(); }); },
      local_ranks, cuda::built());
}

}  // namespace

void bind_engine_group(nb::module_& m) {
  m.def("engine_group", &engine_group, nb::arg("rank"), nb::arg("size"), nb::arg("name"),
        nb::arg("all_gather"), nb::arg("all_to_all"), nb::arg("all_reduce").none(), nb::arg("ordered"),
        nb::arg("rank_order"), nb::arg("checked"), nb::arg("local_ranks"), nb::arg("leave"));
}

}  // namespace kerf::python
