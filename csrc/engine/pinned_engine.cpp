#include "engine/pinned_engine.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "engine/read_transfer.hpp"
#include "engine/write_transfer.hpp"

namespace gdsckpt {
namespace {

[[noreturn]] void raise_unavailable(const std::string& reason, const std::string& remedy) {
  throw EngineUnavailableError("the pinned engine can't be used: " + reason + ". " + remedy,
                               "pinned", {reason});
}

[[noreturn]] void raise_forked() {
  raise_unavailable("it was made before this process was forked",
                    "Make an engine in the child process.");
}

[[noreturn]] void raise_closed() { raise_unavailable("it has been closed", "Make another one."); }

void check_chunk_bytes(std::uint64_t chunk_bytes, const File& file, std::size_t slab_bytes) {
  const std::string text = "chunk_bytes is " + std::to_string(chunk_bytes) + "; it must be ";
  if (chunk_bytes == 0 || chunk_bytes % file.alignment() != 0)
    throw ConfigError(text + "a positive multiple of the file's alignment, " +
                          std::to_string(file.alignment()) + " bytes.",
                      "chunk_bytes");
  if (chunk_bytes > slab_bytes)
    throw ConfigError(text + "at most slab_bytes, " + std::to_string(slab_bytes) + ".",
                      "chunk_bytes");
}

void check_range(FileRange range) {
  constexpr auto kMaxFileOffset =
      static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (range.begin > range.end || range.end > kMaxFileOffset)
    throw ConfigError("the range from " + std::to_string(range.begin) + " to " +
                          std::to_string(range.end) +
                          " can't be scanned: it must ascend and end below 2**63.",
                      "end");
}

}  // namespace

struct PinnedEngine::State {
  TransferResources resources;
  std::mutex mutex;
  bool is_closed = false;
  std::vector<std::weak_ptr<Transfer>> transfers;
  std::mutex closing;  // held for the whole of close: the second caller waits for the first
};

PinnedEngine::PinnedEngine(const PinnedEngineOptions& options, const Syscalls& syscalls)
    : state_(std::make_unique<State>()) {
  state_->resources.slabs = std::make_shared<SlabPool>(options.slab_bytes, options.num_slabs);
  state_->resources.device_slabs =
      std::make_shared<DeviceSlabs>(options.slab_bytes, options.num_slabs);
  state_->resources.threads = std::make_shared<ThreadPool>(options.io_threads);
  state_->resources.syscalls = &syscalls;
}

PinnedEngine::~PinnedEngine() {
  // A child has none of the threads, and the mutexes may be locked for ever.
  if (fork_guard_.is_forked_child())
    static_cast<void>(state_.release());
  else
    close(*state_);
}

PinnedEngine::State& PinnedEngine::living() const {
  if (fork_guard_.is_forked_child()) raise_forked();
  return *state_;
}

std::shared_ptr<Transfer> PinnedEngine::write(std::shared_ptr<File> file,
                                              std::vector<Extent> extents,
                                              std::uint64_t chunk_bytes,
                                              const std::vector<ProducerStream>& producers,
                                              std::vector<std::uint32_t> device_crcs) {
  const TransferResources& resources = living().resources;
  check_chunk_bytes(chunk_bytes, *file, resources.slabs->slab_bytes());
  return submit(std::make_shared<WriteTransfer>(resources, std::move(file),
                                                WritePlan(std::move(extents), chunk_bytes),
                                                producers, std::move(device_crcs)));
}

std::shared_ptr<Transfer> PinnedEngine::read(std::shared_ptr<File> file,
                                             std::vector<Extent> extents, std::uint64_t gap_bytes,
                                             const std::vector<ProducerStream>& producers) {
  const TransferResources& resources = living().resources;
  check_extents(extents);
  return submit(std::make_shared<ReadTransfer>(resources, std::move(file), std::move(extents),
                                               gap_bytes, producers));
}

std::shared_ptr<Transfer> PinnedEngine::scan(std::shared_ptr<File> file, FileRange range,
                                             std::uint64_t chunk_bytes) {
  const TransferResources& resources = living().resources;
  check_chunk_bytes(chunk_bytes, *file, resources.slabs->slab_bytes());
  check_range(range);
  return submit(std::make_shared<ScanTransfer>(resources, std::move(file), range, chunk_bytes));
}

std::shared_ptr<Transfer> PinnedEngine::submit(std::shared_ptr<Transfer> transfer) {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  if (state.is_closed) raise_closed();
  auto& transfers = state.transfers;
  transfers.erase(std::remove_if(transfers.begin(), transfers.end(),
                                 [](const std::weak_ptr<Transfer>& transfer_ptr) {
                                   return transfer_ptr.expired();
                                 }),
                  transfers.end());
  transfers.push_back(transfer);
  Transfer::start(transfer);
  return transfer;
}

std::string PinnedEngine::pin_refused() const {
  return living().resources.device_slabs->pin_refused();
}

void PinnedEngine::close() { close(living()); }

void PinnedEngine::close(State& state) {
  const std::lock_guard closing(state.closing);
  std::vector<std::weak_ptr<Transfer>> transfers;
  {
    const std::lock_guard lock(state.mutex);
    if (std::exchange(state.is_closed, true)) return;
    transfers.swap(state.transfers);
  }
  for (const std::weak_ptr<Transfer>& pointer : transfers)
    if (const std::shared_ptr<Transfer> transfer = pointer.lock()) transfer->cancel();
  // Joining the threads is waiting for the transfers: what had been started runs to its end.
  state.resources.threads->stop();
  state.resources.slabs->clear();
  state.resources.device_slabs->clear();
}

TransferHandle::TransferHandle(std::shared_ptr<Transfer> transfer) noexcept
    : transfer_(std::make_unique<std::shared_ptr<Transfer>>(std::move(transfer))) {}

TransferHandle::~TransferHandle() {
  if (fork_guard_.is_forked_child()) {
    static_cast<void>(transfer_.release());
    return;
  }
  Transfer& transfer = **transfer_;
  transfer.cancel();
  while (!transfer.wait_for(std::chrono::hours(1))) {
  }
}

Transfer& TransferHandle::get() const {
  if (fork_guard_.is_forked_child()) raise_forked();
  return **transfer_;
}

}  // namespace gdsckpt
