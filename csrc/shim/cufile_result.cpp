#include "shim/cufile_result.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

namespace gdsckpt {
namespace {

struct OpError {
  int code;
  const char* name;
  const char* meaning;
  const char* mend;
};

constexpr const char* kRunProbe = "Run 'gdsckpt probe' on the directory: it tells what is missing.";
constexpr const char* kMountUdev =
    "In a container mount /run/udev:/run/udev:ro, and the ext4 or XFS directory itself: cuFile "
    "knows no overlay, LVM or encrypted device.";
constexpr const char* kFreeBar =
    "The GPU's BAR1 aperture or the limit on pinned memory is used up: look at 'nvidia-smi -q -d "
    "MEMORY', end what else uses it, or raise max_device_pinned_mem_size_kb.";
constexpr const char* kLookAtDriver =
    "Look at the kernel log and at 'nvidia-smi'; install a driver and an nvidia-fs that belong to "
    "each other.";

// Codes, names and meanings: CUfileOpError in cufile.h. Mends: the installation and troubleshooting
// guides of GPUDirect Storage, and reports from the field.
constexpr OpError kOpErrors[] = {
    {5001, "CU_FILE_DRIVER_NOT_INITIALIZED", "there is no direct path to storage here", kRunProbe},
    {5002, "CU_FILE_DRIVER_INVALID_PROPS", "a property has a wrong value",
     "Look at cufile.json (CUFILE_ENV_PATH_JSON, /etc/cufile.json)."},
    {5003, "CU_FILE_DRIVER_UNSUPPORTED_LIMIT", "a property is out of its range",
     "Look at cufile.json (CUFILE_ENV_PATH_JSON, /etc/cufile.json)."},
    {5004, "CU_FILE_DRIVER_VERSION_MISMATCH", "the module nvidia-fs is of another version",
     kLookAtDriver},
    {5005, "CU_FILE_DRIVER_VERSION_READ_ERROR", "the module nvidia-fs does not tell its version",
     kLookAtDriver},
    {5006, "CU_FILE_DRIVER_CLOSING", "the driver is being closed", ""},
    {5007, "CU_FILE_PLATFORM_NOT_SUPPORTED", "this platform is not supported", ""},
    {5008, "CU_FILE_IO_NOT_SUPPORTED", "this file has no direct path to a GPU",
     "Use ext4 (mounted with data=ordered) or XFS on a local NVMe drive."},
    {5009, "CU_FILE_DEVICE_NOT_SUPPORTED", "this GPU is not supported", ""},
    {5010, "CU_FILE_NVFS_DRIVER_ERROR", "the module nvidia-fs refused", kLookAtDriver},
    {5011, "CU_FILE_CUDA_DRIVER_ERROR", "CUDA refused", kLookAtDriver},
    {5012, "CU_FILE_CUDA_POINTER_INVALID", "the address is no device's", ""},
    {5013, "CU_FILE_CUDA_MEMORY_TYPE_INVALID", "this kind of memory can't be used", ""},
    {5014, "CU_FILE_CUDA_POINTER_RANGE_ERROR", "the range leaves its allocation", ""},
    {5015, "CU_FILE_CUDA_CONTEXT_MISMATCH", "the memory belongs to another CUDA context", ""},
    {5016, "CU_FILE_INVALID_MAPPING_SIZE", "more memory than may be pinned", kFreeBar},
    {5017, "CU_FILE_INVALID_MAPPING_RANGE", "the range leaves the registered memory", ""},
    {5018, "CU_FILE_INVALID_FILE_TYPE", "unsupported file type",
     "Save to a regular file on ext4 or XFS."},
    {5019, "CU_FILE_INVALID_FILE_OPEN_FLAG", "the file is opened with flags that can't be used",
     ""},
    {5020, "CU_FILE_DIO_NOT_SET", "the file is not open for direct I/O", ""},
    {5022, "CU_FILE_INVALID_VALUE", "an argument can't be used", ""},
    {5023, "CU_FILE_MEMORY_ALREADY_REGISTERED", "the memory is registered already", ""},
    {5024, "CU_FILE_MEMORY_NOT_REGISTERED", "the memory is not registered", ""},
    {5025, "CU_FILE_PERMISSION_DENIED", "no permission to use the driver or the file",
     "Check the modes of /dev/nvidia-fs* and give them to the container."},
    {5026, "CU_FILE_DRIVER_ALREADY_OPEN", "the driver is open already", ""},
    {5027, "CU_FILE_HANDLE_NOT_REGISTERED", "the file can't be registered, or is not", kMountUdev},
    {5028, "CU_FILE_HANDLE_ALREADY_REGISTERED", "the file is registered already", ""},
    {5029, "CU_FILE_DEVICE_NOT_FOUND", "there is no GPU", ""},
    {5030, "CU_FILE_INTERNAL_ERROR", "internal error", kMountUdev},
    {5031, "CU_FILE_GETNEWFD_FAILED", "no file descriptor is left",
     "Close files or raise the limit of open files (ulimit -n)."},
    {5033, "CU_FILE_NVFS_SETUP_ERROR", "the module nvidia-fs can't be set up", kLookAtDriver},
    {5034, "CU_FILE_IO_DISABLED", "the configuration switches it off for this file",
     "Look at the denylist in cufile.json (CUFILE_ENV_PATH_JSON, /etc/cufile.json)."},
    {5035, "CU_FILE_BATCH_SUBMIT_FAILED", "a batch can't be submitted", ""},
    {5036, "CU_FILE_GPU_MEMORY_PINNING_FAILED", "the GPU's memory can't be pinned", kFreeBar},
    {5037, "CU_FILE_BATCH_FULL", "the queue of the batch is full", ""},
    {5038, "CU_FILE_ASYNC_NOT_SUPPORTED", "stream operations are not supported", ""},
    {5039, "CU_FILE_INTERNAL_BATCH_SETUP_ERROR", "a batch can't be set up now", ""},
    {5040, "CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR", "a batch can't be submitted now", ""},
    {5041, "CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR", "a batch gives no status now", ""},
    {5042, "CU_FILE_INTERNAL_BATCH_CANCEL_ERROR", "a batch can't be cancelled now", ""},
    {5043, "CU_FILE_NOMEM_ERROR", "cuFile has no memory now",
     "Raise max_device_cache_size_kb in cufile.json, or lower io_threads."},
    {5044, "CU_FILE_IO_ERROR", "input/output error", "Look at the kernel log."},
    {5045, "CU_FILE_INTERNAL_BUF_REGISTER_ERROR", "memory can't be registered", kFreeBar},
    {5046, "CU_FILE_HASH_OPR_ERROR", "internal error of a table", ""},
    {5047, "CU_FILE_INVALID_CONTEXT_ERROR", "there is no usable CUDA context", ""},
    {5048, "CU_FILE_NVFS_INTERNAL_DRIVER_ERROR", "internal error of the module nvidia-fs",
     kLookAtDriver},
    {5049, "CU_FILE_BATCH_NOCOMPAT_ERROR", "compatibility mode is off", ""},
};

const OpError* find(int code) noexcept {
  const auto* const found =
      std::find_if(std::begin(kOpErrors), std::end(kOpErrors),
                   [code](const OpError& error) { return error.code == code; });
  return found == std::end(kOpErrors) ? nullptr : found;
}

[[noreturn]] void raise_cufile_code(IoContext context, int code, const std::string& why) {
  std::string message = context.op;
  // Only transfers have a range; files are registered whole.
  if (context.nbytes > 0)
    message += " of " + std::to_string(context.nbytes) + " bytes at offset " +
               std::to_string(context.offset);
  if (!context.path.empty()) message += (context.nbytes > 0 ? " in " : " of ") + context.path;
  message += " failed: " + why + ".";
  const std::string mend = mend_cufile_code(code);
  if (!mend.empty()) message += " " + mend;
  throw CuFileError(std::move(message), std::move(context), code);
}

}  // namespace

bool CuFileResult::is_interrupted() const noexcept { return code == EINTR; }

bool CuFileResult::is_busy() const noexcept {
  // "retry later", says the header of these.
  return code == EAGAIN ||
         (code >= CU_FILE_INTERNAL_BATCH_SETUP_ERROR && code <= CU_FILE_NOMEM_ERROR);
}

bool CuFileResult::is_refusal() const noexcept {
  // EINVAL, EOPNOTSUPP: as for direct I/O. EFAULT: the kernel can't take these pages. EREMOTEIO:
  // the drive can't reach the GPU's memory (BLK_STS_TARGET of P2PDMA, drivers/nvme/host/pci.c).
  // EAGAIN: patience has ended (see is_busy). EPERM, EIO: what cuFile 1.20 and 1.15 make of every
  // errno in compatibility mode; the host finds out what it was.
  return code >= kCuFileBase || code == EINVAL || code == EOPNOTSUPP || code == EFAULT ||
         code == EREMOTEIO || code == EAGAIN || code == EPERM || code == EIO;
}

CuFileResult decode_cufile_bytes(ssize_t result, int code) noexcept {
  if (result >= 0) return {static_cast<std::uint64_t>(result), 0};
  if (result == -1) return {0, code > 0 ? code : static_cast<int>(CU_FILE_INTERNAL_ERROR)};
  return {0, static_cast<int>(-result)};
}

void raise_cufile_result(const CuFileResult& result, IoContext context) {
  if (result.code < kCuFileBase) throw make_storage_error(std::move(context), result.code);
  raise_cufile_code(std::move(context), result.code, describe_cufile_code(result.code));
}

std::string describe_cufile_code(int code) {
  const OpError* const error = find(code);
  if (error == nullptr)
    return "an error that cufile.h does not name (" + std::to_string(code) + ")";
  return std::string(error->meaning) + " (" + error->name + ", " + std::to_string(code) + ")";
}

std::string mend_cufile_code(int code) {
  const OpError* const error = find(code);
  return error == nullptr ? "" : error->mend;
}

bool is_success(CUfileError_t status) noexcept { return code_of(status) == 0; }

int code_of(CUfileError_t status) noexcept {
  // The header compares by abs(): some paths give the negative value. Copied, as that is no value
  // of the enumeration.
  int code = 0;
  static_assert(sizeof(code) == sizeof(status.err));
  std::memcpy(&code, &status.err, sizeof(code));
  return code < 0 ? -code : code;
}

std::string describe(CUfileError_t status) {
  std::string text = describe_cufile_code(code_of(status));
  if (code_of(status) == CU_FILE_CUDA_DRIVER_ERROR)
    text += " with CUDA error " + std::to_string(static_cast<int>(status.cu_err));
  return text;
}

void check_cufile(CUfileError_t status, IoContext context) {
  if (!is_success(status)) raise_cufile_code(std::move(context), code_of(status), describe(status));
}

}  // namespace gdsckpt
