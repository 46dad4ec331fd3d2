#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "core/error.hpp"
#include "shim/cufile_abi.hpp"

/// The one decoder of what cuFile's functions return.
namespace gdsckpt {

/// Codes from here on are cuFile's own (CUfileOpError), those below are errnos.
inline constexpr int kCuFileBase = 5000;

/// What a cuFileRead or cuFileWrite came to.
struct CuFileResult {
  std::uint64_t nbytes = 0;  ///< moved, possibly fewer than asked for
  int code = 0;              ///< 0: it went well; else an errno, or a CUfileOpError above 5000

  bool is_success() const noexcept { return code == 0; }
  /// A signal came before anything was done: to be repeated at once.
  bool is_interrupted() const noexcept;
  /// Says of itself that it may go well a little later.
  bool is_busy() const noexcept;
  /// It is cuFile, this request or this path to the device that does not work, not the file: the
  /// same bytes may well go by the host. Else the error is the file's.
  bool is_refusal() const noexcept;
};

/// Decodes the value that cuFileRead or cuFileWrite returned.
///
/// 0 or more: bytes moved. -1: `code`, errno right after the call, is an errno below 5000 and a
/// CUfileOpError from there on (cuFile 1.20 does that, other than its header says). Below -1: the
/// negative CUfileOpError of the header (older versions), or a negative errno. Only -1 says
/// something about errno, which is left dirty by calls that went well.
CuFileResult decode_cufile_bytes(ssize_t result, int code) noexcept;

/// As an error: StorageError for an errno, CuFileError for the rest. `result` is no success.
[[noreturn]] void raise_cufile_result(const CuFileResult& result, IoContext context);

/// "unsupported file type (CU_FILE_INVALID_FILE_TYPE, 5018)".
std::string describe_cufile_code(int code);
/// What a user can do about a CUfileOpError, a sentence; empty where there is nothing worth saying.
std::string mend_cufile_code(int code);

/// What the other functions return.
bool is_success(CUfileError_t status) noexcept;
int code_of(CUfileError_t status) noexcept;
/// As describe_cufile_code, with CUDA's own error where that is the cause.
std::string describe(CUfileError_t status);

/// Throws CuFileError unless `status` is a success. `context.op`: the function.
void check_cufile(CUfileError_t status, IoContext context);

}  // namespace gdsckpt
