// The part of the control functions that only libcuda's stand-in has.
#include <cstring>

#include "cuda.hpp"

namespace fake {

bool execute_own(const Command& command) {
  const bool is_of_stream = command.verb == "hold" || command.verb == "step" ||
                            (command.verb == "release" && command.words.empty());
  if (is_of_stream) return command.words.empty() && control_stream(command);
  if (command.verb == "restore") {
    restore_devices();
    return command.words.empty() && command.values.empty();
  }
  if (command.verb == "lose") {
    const int64_t device = command.value("device", -1);
    if (device < 0 || device >= kMaxDevices) return false;
    lose_device(static_cast<int>(device), static_cast<CUresult>(command.value("code", 719)));
    return true;
  }
  if (command.verb == "attribute") {
    const bool is_whole = command.values.count("device") + command.values.count("number") +
                              command.values.count("value") ==
                          3;
    if (!is_whole) return false;
    set_attribute(static_cast<int>(command.value("device", 0)),
                  static_cast<int>(command.value("number", 0)),
                  static_cast<int>(command.value("value", 0)));
    return true;
  }
  return false;
}

void reset_own() {
  control_stream({"release", {}, {}});
  restore_devices();
}

}  // namespace fake

/// Device memory of a kind (0 cuMemAlloc, 1 cuMemMap, 2 managed, 3 pool), without a context; 0 if
/// there is none.
FAKE_EXPORT uint64_t fake_alloc(int device, size_t nbytes, int kind) {
  CUdeviceptr address = 0;
  const auto which = static_cast<fake::MemoryKind>(kind);
  return fake::allocate(device, nbytes, which, &address) == CUDA_SUCCESS ? address : 0;
}

FAKE_EXPORT int fake_free(uint64_t address) { return fake::release_allocation(address) ? 0 : -1; }

/// Where the host can reach [address, address + nbytes) of device memory, or null.
FAKE_EXPORT char* fake_shadow(uint64_t address, size_t nbytes) {
  return fake::shadow_of(address, nbytes);
}

FAKE_EXPORT int fake_poke(uint64_t address, const void* bytes, size_t nbytes) {
  char* const view = fake::shadow_of(address, nbytes);
  if (view == nullptr) return -1;
  std::memcpy(view, bytes, nbytes);
  return 0;
}

FAKE_EXPORT int fake_peek(uint64_t address, void* bytes, size_t nbytes) {
  const char* const view = fake::shadow_of(address, nbytes);
  if (view == nullptr) return -1;
  std::memcpy(bytes, view, nbytes);
  return 0;
}

/// What libcufile's stand-in asks about a pointer: the device, and how it was allocated.
FAKE_EXPORT int fake_describe(uint64_t address, int* kind, uint64_t* base, size_t* nbytes) {
  const auto found = fake::allocation_at(address);
  if (found == nullptr) return -1;
  *kind = static_cast<int>(found->kind);
  *base = found->base;
  *nbytes = found->nbytes;
  return found->device;
}

/// The device of the calling thread's context, or -1.
FAKE_EXPORT int fake_current_device() {
  const CUcontext context = fake::current_context();
  return context == nullptr ? -1 : fake::device_of(context);
}
