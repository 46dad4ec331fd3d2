#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gdsckpt {

/// Where and with what a file operation was at work.
struct IoContext {
  std::string op;    ///< name of the system call or of the transfer ("pwrite", "read")
  std::string path;  ///< for people; raw bytes of the file system
  std::uint64_t offset = 0;
  std::uint64_t nbytes = 0;
};

/// Base of all errors of the native core. The text is kept in a `std::string` of its own, so a
/// copy can be raised in a thread other than the one that failed.
class Error : public std::exception {
 public:
  explicit Error(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }
  const std::string& message() const noexcept { return message_; }

  /// A copy with the dynamic type.
  virtual std::shared_ptr<const Error> clone() const = 0;
  /// Throws a copy with the dynamic type.
  [[noreturn]] virtual void raise() const = 0;

 private:
  std::string message_;
};

/// Gives a leaf class its `clone` and `raise`.
template <typename Derived, typename Base>
class Raisable : public Base {
 public:
  using Base::Base;
  std::shared_ptr<const Error> clone() const override {
    return std::make_shared<Derived>(static_cast<const Derived&>(*this));
  }
  [[noreturn]] void raise() const override { throw static_cast<const Derived&>(*this); }
};

/// An argument that can't be right; `field` names it.
class ConfigErrorBase : public Error {
 public:
  ConfigErrorBase(std::string message, std::string field)
      : Error(std::move(message)), field_(std::move(field)) {}
  const std::string& field() const noexcept { return field_; }

 private:
  std::string field_;
};
class ConfigError final : public Raisable<ConfigError, ConfigErrorBase> {
 public:
  using Raisable::Raisable;
};

/// The engine can't be used (any more): closed, or made by the parent of a forked process.
class EngineUnavailableErrorBase : public Error {
 public:
  EngineUnavailableErrorBase(std::string message, std::string engine,
                             std::vector<std::string> reasons)
      : Error(std::move(message)), engine_(std::move(engine)), reasons_(std::move(reasons)) {}
  const std::string& engine() const noexcept { return engine_; }
  const std::vector<std::string>& reasons() const noexcept { return reasons_; }

 private:
  std::string engine_;
  std::vector<std::string> reasons_;
};
class EngineUnavailableError final
    : public Raisable<EngineUnavailableError, EngineUnavailableErrorBase> {
 public:
  using Raisable::Raisable;
};

/// The kernel refused a file operation; `code` is its errno.
class StorageErrorBase : public Error {
 public:
  StorageErrorBase(std::string message, IoContext context, int code)
      : Error(std::move(message)), context_(std::move(context)), code_(code) {}
  const IoContext& context() const noexcept { return context_; }
  int code() const noexcept { return code_; }

 private:
  IoContext context_;
  int code_;
};
class StorageError final : public Raisable<StorageError, StorageErrorBase> {
 public:
  using Raisable::Raisable;
};

/// The kernel moved fewer bytes than asked for and can't go on (end of file, no progress).
class ShortTransferErrorBase : public Error {
 public:
  ShortTransferErrorBase(std::string message, IoContext context, std::uint64_t actual_bytes)
      : Error(std::move(message)), context_(std::move(context)), actual_bytes_(actual_bytes) {}
  const IoContext& context() const noexcept { return context_; }
  std::uint64_t expected_bytes() const noexcept { return context_.nbytes; }
  std::uint64_t actual_bytes() const noexcept { return actual_bytes_; }

 private:
  IoContext context_;
  std::uint64_t actual_bytes_;
};
class ShortTransferError final : public Raisable<ShortTransferError, ShortTransferErrorBase> {
 public:
  using Raisable::Raisable;
};

/// CUDA refused an operation; `code` is its CUresult, `op` the function.
class CudaErrorBase : public Error {
 public:
  CudaErrorBase(std::string message, std::string op, int code)
      : Error(std::move(message)), op_(std::move(op)), code_(code) {}
  const std::string& op() const noexcept { return op_; }
  int code() const noexcept { return code_; }

 private:
  std::string op_;
  int code_;
};
class CudaError final : public Raisable<CudaError, CudaErrorBase> {
 public:
  using Raisable::Raisable;
};

/// cuFile refused an operation; `code` is its CUfileOpError, 5001 and above.
class CuFileErrorBase : public Error {
 public:
  CuFileErrorBase(std::string message, IoContext context, int code)
      : Error(std::move(message)), context_(std::move(context)), code_(code) {}
  const IoContext& context() const noexcept { return context_; }
  int code() const noexcept { return code_; }

 private:
  IoContext context_;
  int code_;
};
class CuFileError final : public Raisable<CuFileError, CuFileErrorBase> {
 public:
  using Raisable::Raisable;
};

/// Bytes are not those whose checksum was taken before.
class ChecksumErrorBase : public Error {
 public:
  ChecksumErrorBase(std::string message, std::string path, std::uint64_t offset,
                    std::uint32_t expected, std::uint32_t actual)
      : Error(std::move(message)),
        path_(std::move(path)),
        offset_(offset),
        expected_(expected),
        actual_(actual) {}
  const std::string& path() const noexcept { return path_; }
  std::uint64_t offset() const noexcept { return offset_; }
  std::uint32_t expected() const noexcept { return expected_; }
  std::uint32_t actual() const noexcept { return actual_; }

 private:
  std::string path_;
  std::uint64_t offset_;
  std::uint32_t expected_;
  std::uint32_t actual_;
};
class ChecksumError final : public Raisable<ChecksumError, ChecksumErrorBase> {
 public:
  using Raisable::Raisable;
};

/// Memory for slabs or tables could not be had.
class AllocationError final : public Raisable<AllocationError, Error> {
 public:
  using Raisable::Raisable;
};

/// A fault of this library itself; nothing that a user could set right.
class InternalError final : public Raisable<InternalError, Error> {
 public:
  using Raisable::Raisable;
};

/// StorageError with the text "what failed: why. What to do." for an errno.
StorageError make_storage_error(IoContext context, int code);

/// ShortTransferError with its text; `context.nbytes` is the number of bytes that were expected.
ShortTransferError make_short_transfer_error(IoContext context, std::uint64_t actual_bytes);

}  // namespace gdsckpt
