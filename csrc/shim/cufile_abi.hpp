#pragma once

// The types and functions of cuFile that are used here: from the real header where it is installed
// (it includes cuda.h), else declared by hand. csrc/tests/abi_check.cpp compares the two. Nothing
// is linked: the declarations only give the function pointers of `CuFileApi` their types.
#include "shim/cuda_abi.hpp"

#if !defined(GDSCKPT_HAND_WRITTEN_ABI) && __has_include(<cufile.h>) && __has_include(<cuda.h>)
#include <cufile.h>
#else

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

extern "C" {

// Of the errors only those that code, not people, tell apart.
typedef enum CUfileOpError {
  CU_FILE_SUCCESS = 0,
  CU_FILE_CUDA_DRIVER_ERROR = 5011,
  CU_FILE_DRIVER_ALREADY_OPEN = 5026,
  CU_FILE_INTERNAL_ERROR = 5030,
  CU_FILE_INTERNAL_BATCH_SETUP_ERROR = 5039,
  CU_FILE_NOMEM_ERROR = 5043,
} CUfileOpError;

typedef struct CUfileError {
  CUfileOpError err;
  CUresult cu_err;
} CUfileError_t;

typedef enum CUfileDriverControlFlags {
  CU_FILE_ALLOW_COMPAT_MODE = 1,
} CUfileDriverControlFlags_t;

typedef struct CUfileDrvProps {
  struct {
    unsigned int major_version;
    unsigned int minor_version;
    size_t poll_thresh_size;
    size_t max_direct_io_size;
    unsigned int dstatusflags;
    unsigned int dcontrolflags;
  } nvfs;
  unsigned int fflags;
  unsigned int max_device_cache_size;
  unsigned int per_buffer_cache_size;
  unsigned int max_device_pinned_mem_size;
  unsigned int max_batch_io_size;
  unsigned int max_batch_io_timeout_msecs;
} CUfileDrvProps_t;

enum CUfileFileHandleType {
  CU_FILE_HANDLE_TYPE_OPAQUE_FD = 1,
};

struct CUfileFSOps;

typedef struct CUfileDescr_t {
  enum CUfileFileHandleType type;
  union {
    int fd;
    void* handle;
  } handle;
  const struct CUfileFSOps* fs_ops;
} CUfileDescr_t;

typedef void* CUfileHandle_t;

typedef enum CUFileSizeTConfigParameter_t {
  CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB = 5,
} CUFileSizeTConfigParameter_t;

typedef enum CUFileBoolConfigParameter_t {
  CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE = 1,
  CUFILE_PARAM_USE_PCIP2PDMA = 7,
} CUFileBoolConfigParameter_t;

// What stands before the statistics of the GPUs is not used; its size in cuFile 1.19 and 1.20.
typedef struct CUfileStatsLevel2 {
  uint64_t counters[142];
} CUfileStatsLevel2_t;

typedef struct CUfilePerGpuStats {
  char uuid[16];
  uint64_t read_bytes;
  uint64_t read_bw_bytes_per_sec;
  uint64_t read_utilization;
  uint64_t read_duration_us;
  uint64_t n_total_reads;
  uint64_t n_p2p_reads;
  uint64_t n_nvfs_reads;
  uint64_t n_posix_reads;
  uint64_t n_unaligned_reads;
  uint64_t n_dr_reads;
  uint64_t n_sparse_regions;
  uint64_t n_inline_regions;
  uint64_t n_reads_err;
  uint64_t writes_bytes;
  uint64_t write_bw_bytes_per_sec;
  uint64_t write_utilization;
  uint64_t write_duration_us;
  uint64_t n_total_writes;
  uint64_t n_p2p_writes;
  uint64_t n_nvfs_writes;
  uint64_t n_posix_writes;
  uint64_t n_unaligned_writes;
  uint64_t n_dr_writes;
  uint64_t n_writes_err;
  uint64_t n_mmap;
  uint64_t n_mmap_ok;
  uint64_t n_mmap_err;
  uint64_t n_mmap_free;
  uint64_t reg_bytes;
} CUfilePerGpuStats_t;

typedef struct CUfileStatsLevel3 {
  CUfileStatsLevel2_t detailed;
  uint32_t num_gpus;
  CUfilePerGpuStats_t per_gpu_stats[16];
} CUfileStatsLevel3_t;

CUfileError_t cuFileDriverOpen(void);
CUfileError_t cuFileDriverClose_v2(void);
long cuFileUseCount(void);
CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t* props);
CUfileError_t cuFileGetVersion(int* version);
CUfileError_t cuFileSetParameterSizeT(CUFileSizeTConfigParameter_t param, size_t value);
CUfileError_t cuFileSetParameterBool(CUFileBoolConfigParameter_t param, bool value);
CUfileError_t cuFileHandleRegister(CUfileHandle_t* handle, CUfileDescr_t* descr);
void cuFileHandleDeregister(CUfileHandle_t handle);
ssize_t cuFileRead(CUfileHandle_t handle, void* base, size_t nbytes, off_t file_offset,
                   off_t buffer_offset);
ssize_t cuFileWrite(CUfileHandle_t handle, const void* base, size_t nbytes, off_t file_offset,
                    off_t buffer_offset);
CUfileError_t cuFileSetStatsLevel(int level);
CUfileError_t cuFileStatsStart(void);
CUfileError_t cuFileGetStatsL3(CUfileStatsLevel3_t* stats);

}  // extern "C"

#endif
