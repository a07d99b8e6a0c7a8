// What callers get and give: new arrays of their own kind; whole numbers, checked by name; what all ranks
// agree on.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "src/arrays.h"
#include "src/bind.h"

namespace kerf::python {

// A new array of the kind of `like` (a torch tensor, a numpy array, otherwise a kerf.Array); dtype as
// kerf.empty calls it. Its contents are undefined. kerf/_arrays.py says what a kind calls a dtype that it
// does not have.
nb::object empty_like(nb::handle like, const char* dtype, const tensor::Shape& shape);

// `out` where the caller gave one, otherwise a new array.
nb::object out_or_like(nb::handle out, nb::handle like, const char* dtype, const tensor::Shape& shape);

// The most of anything that is counted: experts, layers, widths, tokens.
inline constexpr std::int64_t most_count = std::int64_t{1} << 30;

// As Python's own functions take whole numbers: int, and what says that it is one. TypeError for anything
// else.
nb::int_ index_number(nb::handle value);
// A whole number in [low, high]: Error{usage} that names it, got and wanted. TypeError for what is no whole
// number.
std::int64_t whole(const char* name, nb::handle value, std::int64_t low, std::int64_t high);
// A seed, all of 64 bits.
std::uint64_t seed_of(nb::handle value);

// An object's attribute, or none where it has none; what reading it raises otherwise goes on.
nb::object attribute_of(nb::handle object, const char* name);

// A whole number of an object's attribute, for which any value of another type is Error{usage}, too, and so
// is none.
std::int64_t whole_attribute(nb::handle object, const char* name, std::int64_t low, std::int64_t high);

// Collective. Runs `step` on every rank, with the interpreter's lock held, and agrees on what it refused or
// raised, with the lock released: every rank throws the lowest refusing rank's reason, and where Python
// raised, its own exception.
void agreed(comm::Group& group, const char* what, const std::function<void()>& step);

}  // namespace kerf::python
