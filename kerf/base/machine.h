// What measured times depend on besides the kernels: the processor and how much of it this process has.
#pragma once

#include <cstdint>
#include <string>

#pragma GCC visibility push(default)
namespace kerf {

// "Intel(R) Xeon(R) Processor, family 6, model 207, stepping 2, 2 cores": the processor as the system
// describes it ("unknown CPU" where it does not), and available_cores(). Reads /proc/cpuinfo: not for steps.
std::string machine_name();

// Bytes of the largest cache that the system tells of, 0 where it tells of none. What was read from less
// memory than a few times this may have come from it.
std::int64_t largest_cache();

// Bytes of the host's memory that can be had, free or free for the asking: as the kernel estimates it
// (MemAvailable), within the limit of the root cgroup that this process sees (cgroup v2; a container's own).
// 0 where the system does not say.
std::int64_t available_memory();

}  // namespace kerf
#pragma GCC visibility pop
