#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/fd.hpp"

namespace gdsckpt {

class CuFileDriver;
class CuFileHandle;

/// Why something was given up for good; the first reason stays. Published without a lock, so that a
/// forked child can read it too. Any thread may call.
class Refusal {
 public:
  Refusal() = default;
  ~Refusal();
  Refusal(const Refusal&) = delete;
  Refusal& operator=(const Refusal&) = delete;

  bool is_set() const noexcept { return reason_.load(std::memory_order_acquire) != nullptr; }
  void set(std::string reason);
  /// Empty if it is not set.
  std::string reason() const;

 private:
  std::atomic<const std::string*> reason_{nullptr};  // owned
};

/// What a transfer needs to know of an open file. Has descriptors of its own, so that whatever
/// interrupts its maker, no transfer works on a number that has become another file. They are
/// closed after `close` as soon as no transfer uses them, else with the object. Any thread may
/// call.
class File {
 public:
  /// `buffered_fd`: opened without O_DIRECT. `direct_fd`: the same file with O_DIRECT, or -1.
  /// `alignment`: what direct I/O asks of memory and offsets, a power of two up to 64 KiB. Throws
  /// ConfigError, and StorageError where a descriptor cannot be had.
  File(std::string path, int buffered_fd, int direct_fd, std::uint64_t alignment);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  /// The maker needs the file no more; transfers that run go on. A second call does nothing.
  void close() noexcept;
  /// For a forked child, which has none of the transfers: closes its copies at once.
  void abandon() noexcept;
  /// A transfer begins to use the descriptors, and ends to: one call of `end_use` for each.
  void begin_use() noexcept { num_users_.fetch_add(1, std::memory_order_acq_rel); }
  void end_use() noexcept;

  const std::string& path() const noexcept { return path_; }
  int buffered_fd() const noexcept { return buffered_fd_.get(); }
  int direct_fd() const noexcept { return direct_fd_.get(); }
  std::uint64_t alignment() const noexcept { return alignment_; }

  /// True while direct I/O is there and has not been refused.
  bool is_direct() const noexcept { return direct_fd() >= 0 && !direct_refusal_.is_set(); }
  /// Gives direct I/O up for good; the first reason stays.
  void refuse_direct(std::string reason) { direct_refusal_.set(std::move(reason)); }
  /// Why direct I/O was given up; empty if it was not.
  std::string direct_refused() const { return direct_refusal_.reason(); }

  /// Registers the file with cuFile, once: later transfers of device memory go that way where they
  /// can. False where cuFile does not take the file; see `cufile_refused`. Throws
  /// EngineUnavailableError where the driver is not open, and in a forked child.
  bool attach_cufile(std::shared_ptr<CuFileDriver> driver);
  /// The registration, or nullptr when there is none or cuFile has refused since.
  CuFileHandle* cufile() const noexcept {
    return cufile_refusal_.is_set() ? nullptr : cufile_.load(std::memory_order_acquire);
  }
  /// Gives cuFile up for this file, so that it goes on through the host.
  void refuse_cufile(std::string reason) { cufile_refusal_.set(std::move(reason)); }
  /// Why cuFile was given up; empty if it was not.
  std::string cufile_refused() const { return cufile_refusal_.reason(); }
  /// Some memory is not for cuFile and goes through the host; the first reason stays.
  void skip_cufile(std::string reason) { cufile_skip_.set(std::move(reason)); }
  std::string cufile_skipped() const { return cufile_skip_.reason(); }

 private:
  const std::string path_;
  OwnFd buffered_fd_;
  OwnFd direct_fd_;
  const std::uint64_t alignment_;
  // The maker is one of them until it calls `close`. No lock: a forked child may call, too.
  std::atomic<int> num_users_{1};
  std::atomic<bool> is_closed_{false};
  Refusal direct_refusal_;
  Refusal cufile_refusal_;
  Refusal cufile_skip_;
  std::mutex attaching_;
  std::atomic<CuFileHandle*> cufile_{nullptr};  // owned; goes before the descriptors
};

}  // namespace gdsckpt
