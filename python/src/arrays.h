// Arrays between Python and the library, without a copy: what a caller hands in by DLPack or the buffer
// protocol as a view with dtype and shape, and memory of the library's as an object that speaks both.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kerf/kerf.h"
#include "src/bind.h"

namespace kerf::python {

inline constexpr std::int64_t any_size = -1;  // of a dimension
inline constexpr int host_memory = -1;        // instead of a CUDA device's number

// What an argument must be: a dtype, and a shape in which any_size takes whatever there is.
struct Wanted {
  const char* name;
  tensor::Dtype dtype;
  std::initializer_list<std::int64_t> shape;
  std::optional<tensor::Dtype> also{};  // instead of dtype
  bool any_shape = false;
  bool any_dtype = false;  // whoever takes it looks for himself
  bool device = false;     // on a CUDA device too, in builds that have them
};

// An array that the caller owns, held while this lives. BF16 may come as its bits (U16), and so may E4M3
// (U8): the view has the dtype that was wanted.
class Argument {
 public:
  Argument() = default;
  // Error{usage} that names the argument, got and wanted: no array, another dtype or shape, not contiguous,
  // not in the host's memory, read-only where `writes`.
  Argument(nb::handle object, const Wanted& wanted, bool writes = false);

  [[nodiscard]] const tensor::TensorView& view() const { return view_; }
  [[nodiscard]] std::int64_t size(int dimension) const { return view_.shape[dimension]; }
  [[nodiscard]] bool given() const { return given_; }
  // The CUDA device in whose memory it lies, by number, or host_memory.
  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] bool on_device() const { return device_ != host_memory; }
  template <typename T>
  [[nodiscard]] std::span<const T> as() const {
    return view_.as<T>();
  }
  template <typename T>
  [[nodiscard]] std::span<T> writable() const {
    return {const_cast<T*>(view_.as<T>().data()), view_.as<T>().size()};
  }

 private:
  nb::ndarray<nb::ro> read_;
  nb::ndarray<> written_;
  tensor::TensorView view_;
  bool given_ = false;
  int device_ = host_memory;
};

// The same for an argument that may be None: then not given().
Argument optional_argument(nb::handle object, const Wanted& wanted, bool writes = false);

// Memory of the library's, or of somebody who is kept alive, on the host or on a CUDA device, for Python to
// read (and write, where it is its own).
class Array {
 public:
  // Fresh memory, zeros.
  Array(tensor::Dtype dtype, const tensor::Shape& shape);
  // Somebody's, who lives as long as `keep` is referred to.
  Array(const tensor::TensorView& view, std::shared_ptr<const void> keep, bool writable = false,
        int device = host_memory);

  // Memory of what a Python object has, read-only.
  static Array of(const tensor::TensorView& view, nb::object owner, int device);

  [[nodiscard]] const tensor::TensorView& view() const { return view_; }
  [[nodiscard]] bool is_writable() const { return writable_; }
  [[nodiscard]] int device() const { return device_; }
  template <typename T>
  [[nodiscard]] std::span<T> writable() const {
    return {const_cast<T*>(view_.as<T>().data()), view_.as<T>().size()};
  }

  // For the collector of cycles.
  int show(visitproc visit, void* arg) const {
    Py_VISIT(owner_.ptr());
    return 0;
  }
  void let_go() {
    if (!owner_.is_valid()) return;
    view_ = {};
    owner_.reset();
  }

 private:
  tensor::TensorView view_;
  std::shared_ptr<const void> keep_;
  nb::object owner_;
  bool writable_;
  int device_ = host_memory;
};

// "BF16 [8, 256]".
std::string described(const tensor::TensorView& view);

}  // namespace kerf::python
