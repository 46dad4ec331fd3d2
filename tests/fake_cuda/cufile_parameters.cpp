// Parameters and properties; all of them are to be set before the driver is open.
#include <cstdio>
#include <cstring>

#include "cufile.hpp"

namespace fake {
namespace {

struct Range {
  size_t value;
  size_t least;
  size_t most;
};

/// Values and ranges of libcufile 1.20.
std::map<int, Range> default_numbers() {
  return {{CUFILE_PARAM_PROFILE_STATS, {0, 0, 3}},
          {CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH, {128, 1, 256}},
          {CUFILE_PARAM_EXECUTION_MAX_IO_THREADS, {8, 0, 128}},
          {CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB, {1024, 4, SIZE_MAX}},
          {CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM, {4, 0, 8}},
          {CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, {16384, 64, 16384}},
          {CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB, {131072, 0, SIZE_MAX}},
          {CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB, {1024, 64, 16384}},
          {CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB, {4294967292, 0, SIZE_MAX}},
          {CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, {128, 1, 256}},
          {CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB, {4, 0, SIZE_MAX}},
          {CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS, {5, 1, 1000}}};
}

std::map<int, bool> default_switches() {
  return {{CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, true},
          {CUFILE_PARAM_EXECUTION_PARALLEL_IO, true},
          {CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY, true}};
}

struct Parameters {
  std::mutex mutex;
  std::map<int, Range> numbers = default_numbers();
  std::map<int, bool> switches = default_switches();
  std::map<int, std::string> texts;
  std::map<int, unsigned> p2p_flags;
};

Parameters& parameters() {
  static Parameters* const all = new Parameters;
  return *all;
}

/// Faults on demand, then whether it is too late for a change.
CUfileError_t enter_set(const char* function) {
  const CUfileError_t refused = enter(function, false);
  if (refused.err != CU_FILE_SUCCESS) return refused;
  const std::lock_guard<std::mutex> lock(driver().mutex);
  return failure(driver().use_count > 0 ? CU_FILE_DRIVER_ALREADY_OPEN : 0);
}

CUfileError_t set_number(const char* function, int which, size_t value) {
  const CUfileError_t refused = enter_set(function);
  if (refused.err != CU_FILE_SUCCESS) return refused;
  const std::lock_guard<std::mutex> lock(parameters().mutex);
  const auto found = parameters().numbers.find(which);
  if (found == parameters().numbers.end()) return failure(CU_FILE_INVALID_VALUE);
  Range& range = found->second;
  if (value < range.least || value > range.most) return failure(CU_FILE_DRIVER_UNSUPPORTED_LIMIT);
  range.value = value;
  return failure(0);
}

unsigned number_of(int which) {
  const std::lock_guard<std::mutex> lock(parameters().mutex);
  return static_cast<unsigned>(parameters().numbers.at(which).value);
}

}  // namespace

bool allows_compat() {
  const std::lock_guard<std::mutex> lock(parameters().mutex);
  return parameters().switches.at(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE);
}

void reset_parameters() {
  const std::lock_guard<std::mutex> lock(parameters().mutex);
  parameters().numbers = default_numbers();
  parameters().switches = default_switches();
  parameters().texts.clear();
  parameters().p2p_flags.clear();
}

}  // namespace fake

using fake::failure;
using fake::parameters;

FAKE_EXPORT CUfileError_t cuFileSetParameterSizeT(CUFileSizeTConfigParameter_t which,
                                                  size_t value) {
  return fake::set_number("cuFileSetParameterSizeT", which, value);
}

FAKE_EXPORT CUfileError_t cuFileGetParameterSizeT(CUFileSizeTConfigParameter_t which,
                                                  size_t* value) {
  const CUfileError_t refused = fake::enter("cuFileGetParameterSizeT", false);
  if (refused.err != CU_FILE_SUCCESS) return refused;
  const std::lock_guard<std::mutex> lock(parameters().mutex);
  const auto found = parameters().numbers.find(which);
  if (found == parameters().numbers.end()) return failure(CU_FILE_INVALID_VALUE);
  *value = found->second.value;
  return failure(0);
}

FAKE_EXPORT CUfileError_t cuFileGetParameterMinMaxValue(CUFileSizeTConfigParameter_t which,
                                                        size_t* least, size_t* most) {
  const CUfileError_t refused = fake::enter("cuFileGetParameterMinMaxValue", false);
  if (refused.err != CU_FILE_SUCCESS) return refused;
  const std::lock_guard<std::mutex> lock(parameters().mutex);
  const auto found = parameters().numbers.find(which);
  if (found == parameters().numbers.end()) return failure(CU_FILE_INVALID_VALUE);
  *least = found->second.least;
  *most = found->second.most;
  return failure(0);
}

FAKE_EXPORT CUfileError_t cuFileSetParameterBool(CUFileBoolConfigParameter_t which, bool value) {
  const CUfileError_t refused = fake::enter_set("cuFileSetParameterBool");
  if (refused.err != CU_FILE_SUCCESS) return refused;
  const std::lock_guard<std::mutex> lock(parameters().mutex);
  parameters().switches[which] = value;
  return failure(0);
}

FAKE_EXPORT CUfileError_t cuFileGetParameterBool(CUFileBoolConfigParameter_t which, bool* value) {
  const CUfileError_t refused = fake::enter("cuFileGetParameterBool", false);
  if (refused.err != CU_FILE_SUCCESS) return refused;
  const std::lock_guard<std::mutex> lock(parameters().mutex);
  *value = parameters().switches[which];
  return failure(0);
}

FAKE_EXPORT CUfileError_t cuFileSetParameterString(CUFileStringConfigParameter_t which,
                                                   const char* text) {
  const CUfileError_t refused = fake::enter_set("cuFileSetParameterString");
  if (refused.err != CU_FILE_SUCCESS) return refused;
  if (text == nullptr) return failure(CU_FILE_INVALID_VALUE);
  const std::lock_guard<std::mutex> lock(parameters().mutex);
  parameters().texts[which] = text;
  return failure(0);
}

FAKE_EXPORT CUfileError_t cuFileGetParameterString(CUFileStringConfigParameter_t which, char* text,
                                                   int len) {
  const CUfileError_t refused = fake::enter("cuFileGetParameterString", false);
  if (refused.err != CU_FILE_SUCCESS) return refused;
  const std::lock_guard<std::mutex> lock(parameters().mutex);
  std::snprintf(text, static_cast<size_t>(len), "%s", parameters().texts[which].c_str());
  return failure(0);
}

FAKE_EXPORT CUfileError_t cuFileDriverSetPollMode(bool poll, size_t kilobytes) {
  cuFileSetParameterBool(CUFILE_PARAM_PROPERTIES_USE_POLL_MODE, poll);
  return fake::set_number("cuFileDriverSetPollMode", CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB, kilobytes);
}

FAKE_EXPORT CUfileError_t cuFileDriverSetMaxDirectIOSize(size_t kilobytes) {
  return fake::set_number("cuFileDriverSetMaxDirectIOSize",
                          CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, kilobytes);
}

FAKE_EXPORT CUfileError_t cuFileDriverSetMaxCacheSize(size_t kilobytes) {
  return fake::set_number("cuFileDriverSetMaxCacheSize",
                          CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB, kilobytes);
}

FAKE_EXPORT CUfileError_t cuFileDriverSetMaxPinnedMemSize(size_t kilobytes) {
  return fake::set_number("cuFileDriverSetMaxPinnedMemSize",
                          CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB, kilobytes);
}

FAKE_EXPORT CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t* properties) {
  const CUfileError_t refused = fake::enter("cuFileDriverGetProperties", false);
  if (refused.err != CU_FILE_SUCCESS) return refused;
  *properties = CUfileDrvProps_t{};
  const bool has_gds = fake::Control::get().setting("gds", 1) != 0;
  properties->nvfs.poll_thresh_size = fake::number_of(CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB);
  properties->nvfs.max_direct_io_size =
      fake::number_of(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB);
  properties->nvfs.dstatusflags = has_gds ? 1U << CU_FILE_NVME_SUPPORTED : 0;
  properties->nvfs.dcontrolflags = fake::allows_compat() ? 1U << CU_FILE_ALLOW_COMPAT_MODE : 0;
  properties->fflags = 0xf;
  properties->max_device_cache_size =
      fake::number_of(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB);
  properties->per_buffer_cache_size =
      fake::number_of(CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB);
  properties->max_device_pinned_mem_size =
      fake::number_of(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB);
  properties->max_batch_io_size = fake::number_of(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE);
  properties->max_batch_io_timeout_msecs =
      fake::number_of(CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS);
  return failure(0);
}

FAKE_EXPORT CUfileError_t cuFileGetBARSizeInKB(int, size_t* kilobytes) {
  const CUfileError_t refused = fake::enter("cuFileGetBARSizeInKB", false);
  *kilobytes = static_cast<size_t>(fake::Control::get().setting("bar_kilobytes", 134217728));
  return refused;
}

#ifndef FAKE_WITHOUT_P2P_FLAGS
FAKE_EXPORT CUfileError_t cuFileDriverGetP2PFlags(CUfileDriverStatusFlags_t which,
                                                  CUfileP2PFlags_t* flags) {
  const CUfileError_t refused = fake::enter("cuFileDriverGetP2PFlags", false);
  if (refused.err != CU_FILE_SUCCESS) return refused;
  const std::lock_guard<std::mutex> lock(parameters().mutex);
  *flags = static_cast<CUfileP2PFlags_t>(parameters().p2p_flags[which]);
  return failure(0);
}

FAKE_EXPORT CUfileError_t cuFileDriverSetP2PFlags(CUfileDriverStatusFlags_t which,
                                                  CUfileP2PFlags_t flags) {
  const CUfileError_t refused = fake::enter("cuFileDriverSetP2PFlags", false);
  if (refused.err != CU_FILE_SUCCESS) return refused;
  const std::lock_guard<std::mutex> lock(parameters().mutex);
  parameters().p2p_flags[which] = flags;
  return failure(0);
}
#endif
