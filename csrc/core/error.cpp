#include "core/error.hpp"

#include <cerrno>
#include <system_error>

namespace gdsckpt {
namespace {

/// What a user can do about an errno; empty where there is nothing worth saying.
const char* advice(int code) noexcept {
  switch (code) {
    case ENOSPC:
      return " Free space on the file system or save elsewhere.";
    case EDQUOT:
      return " Free space of this user, raise the quota or save elsewhere.";
    case EIO:
      return " The device or the connection to it failed: look at the kernel log and use another.";
    case EROFS:
      return " Mount the file system writable or save elsewhere.";
    default:
      return "";
  }
}

std::string describe(const IoContext& context) {
  return context.op + " of " + std::to_string(context.nbytes) + " bytes at offset " +
         std::to_string(context.offset) + " in " + context.path;
}

}  // namespace

StorageError make_storage_error(IoContext context, int code) {
  // std::generic_category is thread-safe, strerror is not.
  std::string message = describe(context) + " failed: " + std::generic_category().message(code) +
                        " (errno " + std::to_string(code) + ")." + advice(code);
  return StorageError(std::move(message), std::move(context), code);
}

ShortTransferError make_short_transfer_error(IoContext context, std::uint64_t actual_bytes) {
  const bool is_write = context.op == "pwrite" || context.op == "cuFileWrite";
  std::string message = describe(context) + " ended after " + std::to_string(actual_bytes) +
                        " bytes: " +
                        (is_write ? "the kernel took no more and gave no reason."
                                  : "the file is shorter than expected. It was cut or is still "
                                    "being written: use another copy.");
  return ShortTransferError(std::move(message), std::move(context), actual_bytes);
}

}  // namespace gdsckpt
