#include "kerf/cuda/devices.h"

#include <cstring>

#include "kerf/base/format.h"
#include "kerf/cuda/check.h"

namespace kerf::cuda {

static_assert(sizeof(cudaIpcMemHandle_t) == std::tuple_size_v<IpcName>);

int device_count() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "counting devices");
  return count;
}

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "the current device");
  return device;
}

void use_device(int device) { check(cudaSetDevice(device), fmt::format("choosing device {}", device)); }

std::string device_id() {
  std::array<char, 32> text{};
  check(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), current_device()),
        "the device's place on the bus");
  return text.data();
}

void enable_peer(int peer) {
  const int device = current_device();
  if (device == peer) return;
  int reaches = 0;
  check(cudaDeviceCanAccessPeer(&reaches, device, peer), "asking for peer access");
  if (reaches == 0) fail(ErrorKind::device, "device {} does not reach the memory of device {}", device, peer);
  const cudaError_t result = cudaDeviceEnablePeerAccess(peer, 0);
  if (result == cudaErrorPeerAccessAlreadyEnabled)
    (void)cudaGetLastError();
  else
    check(result, "peer access");
}

IpcName export_block(const std::byte* block) {
  cudaIpcMemHandle_t handle{};
  check(cudaIpcGetMemHandle(&handle, const_cast<std::byte*>(block)), "naming a block for other processes");
  IpcName name;
  std::memcpy(name.data(), &handle, sizeof(handle));
  return name;
}

ImportedBlock::ImportedBlock(const IpcName& name) {
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, name.data(), sizeof(handle));
  void* at = nullptr;
  check(cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess), "opening another process's block");
  data_ = static_cast<std::byte*>(at);
}

ImportedBlock::~ImportedBlock() {
  if (data_ != nullptr) (void)cudaIpcCloseMemHandle(data_);
}

}  // namespace kerf::cuda
