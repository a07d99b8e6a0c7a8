// What the device's tails refuse before they enqueue anything: Error{bug}. Apart from the kernels, since nvcc
// does not take the library that formats texts.
#pragma once

#include "kerf/tail/device.h"
#include "kerf/tail/device_all_reduce.h"

namespace kerf::tail::internal {

void check(const DeviceTail& tail);
void check(const DeviceSum& sum);
void check(const Peers& peers);
void check(const DeviceAllReduce& sum);

}  // namespace kerf::tail::internal
