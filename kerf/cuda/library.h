// NVIDIA's libraries, which a build or a machine may lack. kerf is linked against none of them: whoever wants
// a device asks here, and not before is anything looked for. The build chooses the file that answers.
#pragma once

#include "kerf/base/error.h"

#pragma GCC visibility push(default)
namespace kerf::cuda {

// Whether this build has the CUDA part. Looks at nothing.
bool built();

// Nothing where devices can be used (built, a driver, a device 0 of compute capability 9.x); otherwise an
// ErrorKind::device reason that says what to do about it. Looks anew at every call.
Verdict library();

}  // namespace kerf::cuda
#pragma GCC visibility pop
