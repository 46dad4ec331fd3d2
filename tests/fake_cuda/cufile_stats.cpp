// Statistics: what tells a real direct path from a silent one through the host.
#include <cstring>

#include "cufile.hpp"

namespace fake {
namespace {

struct Stats {
  std::mutex mutex;
  int level = 0;
  bool is_started = false;
  CUfileStatsLevel3_t numbers{};
};

Stats& stats() {
  static Stats* const all = new Stats;
  return *all;
}

/// p2pdma, or nvidia-fs with `set path=1`, unless there is no GDS or it is not taken in silence.
uint64_t& path_counter(bool is_write, CUfilePerGpuStats_t& gpu) {
  Control& control = Control::get();
  const bool is_posix = control.setting("gds", 1) == 0 || control.setting("silent_posix", 0) != 0;
  if (is_posix) return is_write ? gpu.n_posix_writes : gpu.n_posix_reads;
  if (control.setting("path", 0) == 1) return is_write ? gpu.n_nvfs_writes : gpu.n_nvfs_reads;
  return is_write ? gpu.n_p2p_writes : gpu.n_p2p_reads;
}

void count_basic(bool is_write, int64_t nbytes) {
  CUfileStatsLevel1_t& basic = stats().numbers.detailed.basic;
  CUfileOpCounter_t& ops = is_write ? basic.write_ops : basic.read_ops;
  if (nbytes < 0) {
    ++ops.err;
    return;
  }
  ++ops.ok;
  (is_write ? basic.write_bytes : basic.read_bytes) += static_cast<uint64_t>(nbytes);
}

void count_gpu(bool is_write, int64_t nbytes, bool is_aligned, CUfilePerGpuStats_t& gpu) {
  ++(is_write ? gpu.n_total_writes : gpu.n_total_reads);
  if (nbytes < 0) {
    ++(is_write ? gpu.n_writes_err : gpu.n_reads_err);
    return;
  }
  (is_write ? gpu.writes_bytes : gpu.read_bytes) += static_cast<uint64_t>(nbytes);
  if (!is_aligned) ++(is_write ? gpu.n_unaligned_writes : gpu.n_unaligned_reads);
  ++path_counter(is_write, gpu);
}

}  // namespace

void count_transfer(bool is_write, int device, int64_t nbytes, bool is_aligned) {
  Control& control = Control::get();
  control.add(is_write ? "writes" : "reads", 1);
  if (nbytes > 0) control.add(is_write ? "write_bytes" : "read_bytes", nbytes);
  if (device >= 0 && nbytes > 0) {
    control.add(is_write ? "device_write_bytes" : "device_read_bytes", nbytes);
  }
  if (!is_aligned) control.add("unaligned", 1);
  const std::lock_guard<std::mutex> lock(stats().mutex);
  if (!stats().is_started || stats().level == 0) return;
  count_basic(is_write, nbytes);
  const bool is_per_gpu = stats().level >= 3 && device >= 0 && device < kMaxDevices;
  if (is_per_gpu) {
    count_gpu(is_write, nbytes, is_aligned, stats().numbers.per_gpu_stats[device]);
  }
}

void count_registration(int device, int64_t nbytes, bool ok) {
  const std::lock_guard<std::mutex> lock(stats().mutex);
  if (!stats().is_started || device < 0 || device >= kMaxDevices) return;
  CUfilePerGpuStats_t& gpu = stats().numbers.per_gpu_stats[device];
  ++gpu.n_mmap;
  ++(ok ? gpu.n_mmap_ok : gpu.n_mmap_err);
  if (ok) gpu.reg_bytes += static_cast<uint64_t>(nbytes);
}

void reset_stats() {
  const std::lock_guard<std::mutex> lock(stats().mutex);
  stats().level = 0;
  stats().is_started = false;
  stats().numbers = CUfileStatsLevel3_t{};
}

}  // namespace fake

using fake::failure;
using fake::stats;

FAKE_EXPORT CUfileError_t cuFileSetStatsLevel(int level) {
  const CUfileError_t refused = fake::enter("cuFileSetStatsLevel", false);
  if (refused.err != CU_FILE_SUCCESS) return refused;
  if (level < 0 || level > 3) return failure(CU_FILE_INVALID_VALUE);
  const std::lock_guard<std::mutex> lock(stats().mutex);
  stats().level = level;
  return failure(0);
}

FAKE_EXPORT CUfileError_t cuFileGetStatsLevel(int* level) {
  const std::lock_guard<std::mutex> lock(stats().mutex);
  *level = stats().level;
  return failure(0);
}

FAKE_EXPORT CUfileError_t cuFileStatsStart() {
  const CUfileError_t refused = fake::enter("cuFileStatsStart", false);
  if (refused.err != CU_FILE_SUCCESS) return refused;
  const std::lock_guard<std::mutex> lock(stats().mutex);
  stats().is_started = true;
  return failure(0);
}

FAKE_EXPORT CUfileError_t cuFileStatsStop() {
  const std::lock_guard<std::mutex> lock(stats().mutex);
  stats().is_started = false;
  return failure(0);
}

FAKE_EXPORT CUfileError_t cuFileStatsReset() {
  const std::lock_guard<std::mutex> lock(stats().mutex);
  stats().numbers = CUfileStatsLevel3_t{};
  return failure(0);
}

FAKE_EXPORT CUfileError_t cuFileGetStatsL1(CUfileStatsLevel1_t* numbers) {
  const CUfileError_t refused = fake::enter("cuFileGetStatsL1", false);
  if (refused.err != CU_FILE_SUCCESS) return refused;
  const std::lock_guard<std::mutex> lock(stats().mutex);
  *numbers = stats().numbers.detailed.basic;
  return failure(0);
}

FAKE_EXPORT CUfileError_t cuFileGetStatsL3(CUfileStatsLevel3_t* numbers) {
  const CUfileError_t refused = fake::enter("cuFileGetStatsL3", false);
  if (refused.err != CU_FILE_SUCCESS) return refused;
  const std::lock_guard<std::mutex> lock(stats().mutex);
  *numbers = stats().numbers;
  numbers->num_gpus = 2;
  for (int device = 0; device < fake::kMaxDevices; ++device) {
    // As cuDeviceGetUuid of libcuda's stand-in.
    std::memset(numbers->per_gpu_stats[device].uuid, 0x10 + device, CUFILE_GPU_UUID_LEN);
  }
  return failure(0);
}
