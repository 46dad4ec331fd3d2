#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/extent.hpp"
#include "core/fork_guard.hpp"
#include "engine/device_streams.hpp"
#include "engine/file.hpp"
#include "engine/transfer.hpp"

namespace gdsckpt {

/// Settings of a PinnedEngine.
struct PinnedEngineOptions {
  std::size_t io_threads = 4;
  std::size_t slab_bytes = 16 * 1024 * 1024;
  std::size_t num_slabs = 8;
};

/// Moves bytes between memory and files through a ring of aligned slabs. Any thread may call.
///
/// In a forked child every function throws EngineUnavailableError, and the destructor leaks what it
/// can't join.
class PinnedEngine {
 public:
  /// Throws ConfigError, AllocationError.
  explicit PinnedEngine(const PinnedEngineOptions& options,
                        const Syscalls& syscalls = real_syscalls());
  /// As `close`.
  ~PinnedEngine();
  PinnedEngine(const PinnedEngine&) = delete;
  PinnedEngine& operator=(const PinnedEngine&) = delete;

  /// Queue a transfer behind those that are there. Memory and descriptors must stay valid until it
  /// has ended. All throw ConfigError and EngineUnavailableError, with device extents CudaError.
  ///
  /// Device memory is read and written after what is queued on `producers` at the call.
  /// `device_crcs`: see DeviceCrcs; with them and a file that is registered with cuFile, device
  /// memory goes by cuFile where it can.
  std::shared_ptr<Transfer> write(std::shared_ptr<File> file, std::vector<Extent> extents,
                                  std::uint64_t chunk_bytes,
                                  const std::vector<ProducerStream>& producers = {},
                                  std::vector<std::uint32_t> device_crcs = {});
  std::shared_ptr<Transfer> read(std::shared_ptr<File> file, std::vector<Extent> extents,
                                 std::uint64_t gap_bytes,
                                 const std::vector<ProducerStream>& producers = {});
  std::shared_ptr<Transfer> scan(std::shared_ptr<File> file, FileRange range,
                                 std::uint64_t chunk_bytes);

  /// Why slabs for GPUs could not be page-locked; empty if they could, or none was needed.
  std::string pin_refused() const;

  /// True in a child of the process that made the engine.
  bool is_forked() const noexcept { return fork_guard_.is_forked_child(); }

  /// Cancels the transfers that run, waits for their ends, joins the threads, frees the slabs.
  void close();

 private:
  struct State;
  State& living() const;
  std::shared_ptr<Transfer> submit(std::shared_ptr<Transfer> transfer);
  static void close(State& state);

  const ForkGuard fork_guard_;
  std::unique_ptr<State> state_;
};

/// A transfer as its user holds it: cancelled and waited for when it is let go. In a forked child
/// `get` throws EngineUnavailableError and the destructor leaks.
class TransferHandle {
 public:
  explicit TransferHandle(std::shared_ptr<Transfer> transfer) noexcept;
  ~TransferHandle();
  TransferHandle(const TransferHandle&) = delete;
  TransferHandle& operator=(const TransferHandle&) = delete;

  Transfer& get() const;

 private:
  const ForkGuard fork_guard_;
  std::unique_ptr<std::shared_ptr<Transfer>> transfer_;
};

}  // namespace gdsckpt
