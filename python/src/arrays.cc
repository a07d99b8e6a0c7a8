#include "src/arrays.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "src/bind.h"
#include "src/collected.h"
#include "src/raised.h"

namespace kerf::python {

namespace {

using tensor::Dtype;
using Code = nb::dlpack::dtype_code;

struct Known {
  Dtype dtype;
  Code code;
  std::uint8_t bits;
  const char* name;    // as numpy and torch call it
  const char* format;  // the buffer protocol's; of floats that it does not know, that of their bits
};
constexpr std::array<Known, 17> known = {{
    {Dtype::boolean, Code::Bool, 8, "bool", "?"},
    {Dtype::u8, Code::UInt, 8, "uint8", "B"},
    {Dtype::i8, Code::Int, 8, "int8", "b"},
    {Dtype::u16, Code::UInt, 16, "uint16", "H"},
    {Dtype::i16, Code::Int, 16, "int16", "h"},
    {Dtype::u32, Code::UInt, 32, "uint32", "I"},
    {Dtype::i32, Code::Int, 32, "int32", "i"},
    {Dtype::u64, Code::UInt, 64, "uint64", "Q"},
    {Dtype::i64, Code::Int, 64, "int64", "q"},
    {Dtype::f16, Code::Float, 16, "float16", "e"},
    {Dtype::bf16, Code::Bfloat, 16, "bfloat16", "H"},
    {Dtype::f32, Code::Float, 32, "float32", "f"},
    {Dtype::f64, Code::Float, 64, "float64", "d"},
    {Dtype::f8_e4m3, Code::Float8_E4M3FN, 8, "float8_e4m3fn", "B"},
    {Dtype::f8_e5m2, Code::Float8_E5M2, 8, "float8_e5m2", "B"},
    {Dtype::f8_e8m0, Code::Float8_E8M0FNU, 8, "float8_e8m0fnu", "B"},
    {Dtype::c64, Code::Complex, 64, "complex64", "Zf"},
}};

const Known& facts_of(Dtype dtype) {
  const auto found =
      std::find_if(known.begin(), known.end(), [&](const Known& k) { return k.dtype == dtype; });
  if (found == known.end()) throw Error(ErrorKind::bug, fmt::format("{} in no array", tensor::name(dtype)));
  return *found;
}

std::optional<Dtype> dtype_of(const nb::dlpack::dtype& type) {
  // Two e2m1 codes a byte, the low nibble first: the bytes that codes are.
  if (type.code == static_cast<std::uint8_t>(Code::Float4_E2M1FN) && type.bits == 4 && type.lanes == 2)
    return Dtype::u8;
  if (type.lanes != 1) return std::nullopt;
  for (const Known& k : known)
    if (static_cast<std::uint8_t>(k.code) == type.code && k.bits == type.bits) return k.dtype;
  return std::nullopt;
}

// Floats that a producer may only be able to hand over as their bits.
bool fits(Dtype got, Dtype wanted) {
  if (got == wanted) return true;
  if (wanted == Dtype::bf16) return got == Dtype::u16;
  return wanted == Dtype::f8_e4m3 && got == Dtype::u8;
}

std::string dtype_text(Dtype wanted) {
  if (wanted == Dtype::bf16) return "BF16 (or its bits as U16)";
  if (wanted == Dtype::f8_e4m3) return "F8_E4M3 (or its bits as U8)";
  return std::string(tensor::name(wanted));
}

std::string wanted_text(const Wanted& wanted) {
  if (wanted.any_dtype) return "an array in one piece";
  std::string dtypes = dtype_text(wanted.dtype);
  if (wanted.also) dtypes += " or " + dtype_text(*wanted.also);
  if (wanted.any_shape) return dtypes;
  std::vector<std::string> sizes;
  for (const std::int64_t size : wanted.shape) sizes.push_back(size == any_size ? "*" : std::to_string(size));
  return fmt::format("{} [{}]", dtypes, fmt::join(sizes, ", "));
}

[[noreturn]] void refuse(const Wanted& wanted, const std::string& got) {
  throw Error(ErrorKind::usage, fmt::format("{} is {}, wanted {}", wanted.name, got, wanted_text(wanted)));
}

// What the object's own __dlpack__ raises, in words; empty where it has none, or raises nothing. What is no
// Exception (an interrupt) goes on.
std::string why_not_handed_over(nb::handle object) {
  if (!nb::hasattr(object, "__dlpack__")) return {};
  try {
    (void)object.attr("__dlpack__")();
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;
    return words_of(error);
  }
  return {};
}

// Of a tensor of torch's whose memory has the numbers with the other sign: DLPack would hand over that.
bool is_negated(nb::handle object) {
  // Asking others costs them an exception for each array of each step.
  if (PyDict_GetItemString(PyImport_GetModuleDict(), "torch") == nullptr) return false;
  if (PyObject_HasAttrString(object.ptr(), "is_neg") == 0) return false;
  bool negated = false;
  return nb::try_cast(object.attr("is_neg")(), negated, false) && negated;
}

// The array, or its bits where its own dtype has no name in DLPack.
template <typename Handed>
Handed handed(nb::handle object, const Wanted& wanted, bool writes) {
  Handed array;
  if (is_negated(object))
    refuse(wanted,
           "a view of torch's whose numbers are negated when they are read (resolve_neg() makes them so)");
  if (nb::try_cast<Handed>(object, array, false)) return array;
  if (object.is_none()) refuse(wanted, "None");
  const nb::object bits = nb::module_::import_("kerf._bits").attr("bits_of")(object, writes);
  if (!bits.is_none() && nb::try_cast<Handed>(bits, array, false)) return array;
  if (nb::ndarray<nb::ro> read_only; writes && nb::try_cast<nb::ndarray<nb::ro>>(object, read_only, false))
    throw Error(ErrorKind::usage, fmt::format("{} is read-only, and is to be written", wanted.name));
  const std::string kind = nb::cast<std::string>(nb::str(nb::type_name(object.type())));
  if (const std::string why = why_not_handed_over(object); !why.empty())
    refuse(wanted, fmt::format("a {} that is not handed over: {}", kind, why));
  refuse(wanted, fmt::format("a {}, which is no array by DLPack or the buffer protocol", kind));
}

template <typename Handed>
tensor::TensorView view_of(const Handed& array, const Wanted& wanted) {
  const std::optional<Dtype> dtype = dtype_of(array.dtype());
  const nb::dlpack::dtype type = array.dtype();
  if (!dtype)
    refuse(wanted, fmt::format("of a dtype that kerf does not know (DLPack code {}, {} bits, {} lanes)",
                               type.code, type.bits, type.lanes));
  std::array<std::int64_t, tensor::Shape::max_rank> sizes{};
  if (array.ndim() > sizes.size()) refuse(wanted, fmt::format("of {} dimensions", array.ndim()));
  for (std::size_t i = 0; i < array.ndim(); ++i) sizes[i] = static_cast<std::int64_t>(array.shape(i));
  const tensor::Shape shape(std::span<const std::int64_t>(sizes.data(), array.ndim()));
  const auto bytes = static_cast<std::size_t>(tensor::bytes_of(*dtype, shape));
  tensor::TensorView view{*dtype, shape, {static_cast<const std::byte*>(array.data()), bytes}};
  if (bytes > 0 && array.data() == nullptr) refuse(wanted, described(view) + " at no address");
  const int device = array.device_type();
  if (device != nb::device::cpu::value && device != nb::device::cuda_host::value &&
      !(device == nb::device::cuda::value && wanted.device && cuda::built()))
    refuse(wanted, fmt::format("on device {}:{} (DLPack's numbers), not in the host's memory",
                               array.device_type(), array.device_id()));
  bool same = wanted.any_shape || shape.rank() == static_cast<int>(wanted.shape.size());
  for (int i = 0; same && !wanted.any_shape && i < shape.rank(); ++i) {
    const std::int64_t size = wanted.shape.begin()[i];
    same = size == any_size || size == shape[i];
  }
  const bool first = fits(*dtype, wanted.dtype);
  const bool second = wanted.also && fits(*dtype, *wanted.also);
  if ((!first && !second && !wanted.any_dtype) || !same) refuse(wanted, described(view));
  std::int64_t stride = 1;
  for (std::size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) > 1 && array.stride(i) != stride && bytes > 0)
      refuse(wanted, fmt::format("{} but not contiguous", described(view)));
    stride *= static_cast<std::int64_t>(array.shape(i));
  }
  if (first || second) view.dtype = first ? wanted.dtype : *wanted.also;
  return view;
}

template <typename Handed>
int device_of(const Handed& array) {
  return array.device_type() == nb::device::cuda::value ? array.device_id() : host_memory;
}

struct Fresh {
  tensor::HostMemory memory;
  cuda::DeviceMemory device;
  tensor::Tensor tensor;
};

nb::tuple shape_of(const Array& array) {
  nb::list sizes;
  for (const std::int64_t size : array.view().shape.dims()) sizes.append(size);
  return nb::tuple(sizes);
}

// DLPack by way of nanobind's own array object, which knows the protocol's versions.
nb::object exported(nb::handle self) {
  const auto& array = nb::cast<const Array&>(self);
  const Known& facts = facts_of(array.view().dtype);
  std::vector<std::size_t> sizes;
  for (const std::int64_t size : array.view().shape.dims()) sizes.push_back(static_cast<std::size_t>(size));
  const nb::dlpack::dtype type{static_cast<std::uint8_t>(facts.code), facts.bits, 1};
  const bool host = array.device() == host_memory;
  const int kind = host ? nb::device::cpu::value : nb::device::cuda::value;
  const int number = host ? 0 : array.device();
  if (array.is_writable()) {
    auto* data = const_cast<std::byte*>(array.view().bytes.data());
    return nb::cast(
        nb::ndarray<nb::array_api>(data, sizes.size(), sizes.data(), self, nullptr, type, kind, number));
  }
  return nb::cast(nb::ndarray<nb::array_api, nb::ro>(array.view().bytes.data(), sizes.size(), sizes.data(),
                                                     self, nullptr, type, kind, number));
}

Array copy_of(const Array& array) {
  const tensor::TensorView& view = array.view();
  const bool host = array.device() == host_memory;
  auto fresh = std::make_shared<Fresh>();
  {
    const Unlocked released;
    fresh->tensor = tensor::Tensor(host ? static_cast<tensor::Memory&>(fresh->memory) : fresh->device,
                                   view.dtype, view.shape);
    const tensor::Copier& copier = host ? tensor::host_copier() : cuda::copier();
    copier.copy(view.bytes, fresh->tensor.bytes().data());
  }
  const tensor::TensorView copied = fresh->tensor.view();
  return {copied, std::move(fresh), true, array.device()};
}

nb::object handed_over(nb::handle self, const nb::kwargs& words) {
  if (!words.contains("copy") || !words["copy"].equal(nb::bool_(true)))
    return exported(self).attr("__dlpack__")(**words);
  nb::dict others;
  for (const auto& [name, value] : words)
    if (!name.equal(nb::str("copy"))) others[name] = value;
  return exported(nb::cast(copy_of(nb::cast<const Array&>(self)))).attr("__dlpack__")(**others);
}

struct BufferShape {
  std::vector<Py_ssize_t> sizes, strides;
};

int get_buffer(PyObject* self, Py_buffer* buffer, int flags) noexcept {
  const auto& array = *nb::inst_ptr<Array>(self);
  if (array.device() != host_memory) {
    PyErr_SetString(PyExc_BufferError, "this array of kerf's lies on a CUDA device: DLPack takes it there");
    return -1;
  }
  if ((flags & PyBUF_WRITABLE) != 0 && !array.is_writable()) {
    PyErr_SetString(PyExc_BufferError, "this array of kerf's is read-only");
    return -1;
  }
  const Known& facts = facts_of(array.view().dtype);
  auto* shape = new BufferShape;
  const auto dims = array.view().shape.dims();
  shape->sizes.assign(dims.begin(), dims.end());
  shape->strides.resize(dims.size());
  Py_ssize_t stride = facts.bits / 8;
  for (std::size_t i = dims.size(); i-- > 0;) {
    shape->strides[i] = stride;
    stride *= shape->sizes[i];
  }
  buffer->buf = const_cast<std::byte*>(array.view().bytes.data());
  buffer->obj = self;
  Py_INCREF(self);
  buffer->len = static_cast<Py_ssize_t>(array.view().bytes.size());
  buffer->itemsize = facts.bits / 8;
  buffer->readonly = array.is_writable() ? 0 : 1;
  buffer->ndim = static_cast<int>(dims.size());
  buffer->format = (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>(facts.format) : nullptr;
  buffer->shape = shape->sizes.data();
  buffer->strides = shape->strides.data();
  buffer->suboffsets = nullptr;
  buffer->internal = shape;
  return 0;
}

void release_buffer(PyObject* /*self*/, Py_buffer* buffer) noexcept {
  delete static_cast<BufferShape*>(buffer->internal);
}

std::array<PyType_Slot, 5> array_slots = {{
    collected<Array>()[0],
    collected<Array>()[1],
    {Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(&release_buffer)},
    {0, nullptr},
}};

Array empty(const std::vector<std::int64_t>& shape, const std::string& dtype) {
  for (const std::int64_t size : shape)
    if (size < 0)
      throw Error(ErrorKind::usage,
                  fmt::format("shape is [{}], wanted sizes from 0 on", fmt::join(shape, ", ")));
  if (shape.size() > tensor::Shape::max_rank)
    throw Error(ErrorKind::usage, fmt::format("shape has {} dimensions, wanted at most {}", shape.size(),
                                              tensor::Shape::max_rank));
  for (const Known& k : known)
    if (dtype == k.name) {
      const Unlocked released;
      return {k.dtype, tensor::Shape(std::span<const std::int64_t>(shape))};
    }
  std::vector<std::string_view> names;
  for (const Known& k : known) names.emplace_back(k.name);
  throw Error(ErrorKind::usage,
              fmt::format("dtype is '{}', wanted one of {}", dtype, fmt::join(names, ", ")));
}

}  // namespace

std::string described(const tensor::TensorView& view) {
  return fmt::format("{} {}", tensor::name(view.dtype), view.shape.text());
}

Argument::Argument(nb::handle object, const Wanted& wanted, bool writes) : given_(true) {
  if (writes) {
    written_ = handed<nb::ndarray<>>(object, wanted, writes);
    view_ = view_of(written_, wanted);
    device_ = device_of(written_);
  } else {
    read_ = handed<nb::ndarray<nb::ro>>(object, wanted, writes);
    view_ = view_of(read_, wanted);
    device_ = device_of(read_);
  }
}

Argument optional_argument(nb::handle object, const Wanted& wanted, bool writes) {
  return object.is_none() ? Argument() : Argument(object, wanted, writes);
}

Array::Array(tensor::Dtype dtype, const tensor::Shape& shape) : writable_(true) {
  auto fresh = std::make_shared<Fresh>();
  fresh->tensor = tensor::Tensor(fresh->memory, dtype, shape);
  std::memset(fresh->tensor.bytes().data(), 0, fresh->tensor.bytes().size());
  view_ = fresh->tensor.view();
  keep_ = std::move(fresh);
}

Array::Array(const tensor::TensorView& view, std::shared_ptr<const void> keep, bool writable, int device)
    : view_(view), keep_(std::move(keep)), writable_(writable), device_(device) {}

Array Array::of(const tensor::TensorView& view, nb::object owner, int device) {
  Array out(view, nullptr, false, device);
  out.owner_ = std::move(owner);
  return out;
}

void bind_arrays(nb::module_& m) {
  nb::class_<Array>(
      m, "Array", nb::type_slots(array_slots.data()),
      "An array in kerf's memory, contiguous, on the host or on a CUDA device. `numpy.asarray(a)` and "
      "`torch.from_dlpack(a)` see it without a copy; bfloat16 is raw uint16 bits for numpy, e4m3 raw uint8 "
      "ones.")
      .def_prop_ro("shape", &shape_of, nb::sig("def shape(self) -> tuple[int, ...]"), "Its sizes.")
      .def_prop_ro(
          "dtype", [](const Array& a) { return facts_of(a.view().dtype).name; },
          "\"bfloat16\", \"float32\", \"uint8\", ...")
      .def_prop_ro(
          "nbytes", [](const Array& a) { return a.view().bytes.size(); }, "Bytes in all.")
      .def_prop_ro(
          "address", [](const Array& a) { return reinterpret_cast<std::uintptr_t>(a.view().bytes.data()); },
          "Where its first byte lies.")
      .def(
          "tobytes",
          [](const Array& a) {
            const auto& bytes = a.view().bytes;
            const nb::object out =
                nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes.size())));
            if (!out.is_valid()) throw nb::python_error();
            char* const to = PyBytes_AS_STRING(out.ptr());
            {
              const Unlocked released;
              if (a.device() == host_memory)
                std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(to));
              else
                cuda::copy(to, bytes.data(), bytes.size());
            }
            return nb::borrow<nb::bytes>(out);
          },
          "A copy of its bytes. Of a device's array: of what is there when the work on it is done.")
      .def("__dlpack__", &handed_over, nb::sig("def __dlpack__(self, **kwargs: typing.Any) -> typing.Any"),
           "The DLPack protocol's export; with copy=True of a copy, which may be written to.")
      .def(
          "__dlpack_device__", [](nb::handle self) { return exported(self).attr("__dlpack_device__")(); },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"),
          "(1, 0): the host's memory; (2, n): CUDA device n's.")
      .def("__repr__", [](const Array& a) {
        const std::string where =
            a.device() == host_memory ? std::string() : fmt::format(", CUDA device {}", a.device());
        return fmt::format("kerf.Array({}{})", described(a.view()), where);
      });
  m.def("empty", &empty, nb::arg("shape"), nb::arg("dtype"),
        "An Array of zeros of a shape and dtype (\"bfloat16\", \"float32\", \"uint8\", ...). Raises "
        "UsageError for a "
        "shape or dtype that is none, OutOfMemoryError.");
}

}  // namespace kerf::python
