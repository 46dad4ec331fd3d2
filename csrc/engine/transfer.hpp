#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "core/error.hpp"
#include "core/slab_pool.hpp"
#include "core/thread_pool.hpp"
#include "engine/device_slabs.hpp"
#include "engine/file.hpp"
#include "engine/posix_io.hpp"

namespace gdsckpt {

/// What a transfer needs of its engine. Shared, so that a transfer outlives it safely.
struct TransferResources {
  std::shared_ptr<ThreadPool> threads;
  std::shared_ptr<SlabPool> slabs;
  std::shared_ptr<DeviceSlabs> device_slabs;
  const Syscalls* syscalls;
};

/// One write, read or scan of a file: jobs (one per window) that the engine's threads run. The
/// first error wins; it and `cancel` drop the jobs that have not been started. Any thread may call
/// the public functions, but for those of a forked child.
class Transfer : public JobSource {
 public:
  /// Ended: no job of it runs or will run.
  bool has_ended() const;
  /// Waits up to `timeout` for the end; true when ended, well or not.
  bool wait_for(std::chrono::nanoseconds timeout);
  /// Drops what has not been started. Unless the transfer has ended before, it then fails with
  /// StorageError (ECANCELED), however much was done.
  void cancel() noexcept;
  /// Waits for the end; throws what went wrong.
  void result();

  /// File bytes done so far, and of the whole transfer (for a read, only those of the extents).
  std::uint64_t done_bytes() const noexcept { return done_bytes_.load(std::memory_order_relaxed); }
  std::uint64_t total_bytes() const noexcept { return context_.nbytes; }
  /// How the bytes that are done went.
  std::uint64_t buffered_bytes() const noexcept {
    return buffered_bytes_.load(std::memory_order_relaxed);
  }
  std::uint64_t direct_bytes() const noexcept {
    return direct_bytes_.load(std::memory_order_relaxed);
  }
  std::uint64_t cufile_bytes() const noexcept {
    return cufile_bytes_.load(std::memory_order_relaxed);
  }

  /// File bytes from the beginning of a write below which every window is done: their source has
  /// been read. 0 while the first one is at work, and for other transfers.
  std::uint64_t prefix_bytes() const;

  /// CRC32 of each extent, in the order given. Waits for the end; throws what went wrong, and
  /// ConfigError where this kind of transfer has none.
  const std::vector<std::uint32_t>& extent_crcs();
  /// CRC32 of each chunk of the file range, in file order. Throws as `extent_crcs`.
  const std::vector<std::uint32_t>& chunk_crcs();

  /// Queues the jobs. Call once.
  static void start(const std::shared_ptr<Transfer>& transfer);
  void run_job(std::size_t index) noexcept final;

 protected:
  /// `op`: "write", "read" or "scan"; `nbytes`: see total_bytes.
  Transfer(TransferResources resources, std::shared_ptr<File> file, const char* op,
           std::uint64_t offset, std::uint64_t nbytes);

  /// The work of window `index`, in a thread of the engine, several at a time. Throws.
  virtual void run_window(std::size_t index) = 0;
  /// Where window `index` begins, in bytes from the beginning of the transfer; of the number of
  /// windows, where the last one ends. 0 where nobody asks.
  virtual std::uint64_t window_offset(std::size_t /*index*/) const noexcept { return 0; }
  /// What is left when every window has gone well; runs once, before the end. Throws.
  virtual void finish() {}
  /// Results, or nullptr where there is no such thing.
  virtual const std::vector<std::uint32_t>* extent_crcs_or_null() const { return nullptr; }
  virtual const std::vector<std::uint32_t>* chunk_crcs_or_null() const { return nullptr; }

  SlabPool& slabs() noexcept { return *resources_.slabs; }
  /// The ring for a window that holds bytes of `device` (kHostDevice: the one for host memory).
  SlabPool& slabs_near(std::uint64_t device) {
    return device == kHostDevice ? slabs() : resources_.device_slabs->near(device);
  }
  File& file() noexcept { return *file_; }
  PosixIo io() noexcept { return PosixIo(*resources_.syscalls, *file_); }
  void add_done(const IoTally& tally) noexcept;

 private:
  template <typename Work>
  void guard(Work&& work) noexcept;
  void fail(std::shared_ptr<const Error> error) noexcept;
  void note_done(std::size_t index);
  void jobs_ended(std::size_t num_jobs) noexcept;
  void conclude() noexcept;
  const std::vector<std::uint32_t>& require(const std::vector<std::uint32_t>* crcs,
                                            const char* field);

  const TransferResources resources_;
  const std::shared_ptr<File> file_;
  const IoContext context_;
  // Made beforehand: where they are needed nothing may throw.
  const std::shared_ptr<const Error> cancelled_error_;
  const std::shared_ptr<const Error> memory_error_;

  std::atomic<std::size_t> unfinished_{0};
  std::atomic<bool> is_dropping_{false};
  std::atomic<std::uint64_t> done_bytes_{0};
  std::atomic<std::uint64_t> buffered_bytes_{0};
  std::atomic<std::uint64_t> direct_bytes_{0};
  std::atomic<std::uint64_t> cufile_bytes_{0};

  mutable std::mutex prefix_mutex_;
  std::size_t num_prefix_jobs_ = 0;
  std::set<std::size_t> done_jobs_;  // behind the prefix; as many as there are threads, or so

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  bool is_cancelled_ = false;
  std::shared_ptr<const Error> failure_;
};

}  // namespace gdsckpt
