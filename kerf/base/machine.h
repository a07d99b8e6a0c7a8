// What measured times depend on besides the kernels: the processor and how much of it this process has.
#pragma once

#include <string>

namespace kerf {

// "Intel(R) Xeon(R) Processor, family 6, model 207, stepping 2, 2 cores": the processor as the system
// describes it ("unknown CPU" where it does not), and available_cores(). Reads /proc/cpuinfo: not for steps.
std::string machine_name();

}  // namespace kerf
