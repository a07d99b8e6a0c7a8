#include "kerf/cuda/absent.h"
#include "kerf/cuda/devices.h"

namespace kerf::cuda {

int device_count() { absent(); }
int current_device() { absent(); }
void use_device(int /*device*/) { absent(); }
std::string device_id() { absent(); }
void enable_peer(int /*peer*/) { absent(); }
IpcName export_block(const std::byte* /*block*/) { absent(); }
ImportedBlock::ImportedBlock(const IpcName& /*name*/) { absent(); }
ImportedBlock::~ImportedBlock() = default;

}  // namespace kerf::cuda
