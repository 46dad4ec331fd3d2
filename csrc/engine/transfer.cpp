#include "engine/transfer.hpp"

#include <cerrno>
#include <exception>
#include <new>
#include <string>
#include <utility>

namespace gdsckpt {

Transfer::Transfer(TransferResources resources, std::shared_ptr<File> file, const char* op,
                   std::uint64_t offset, std::uint64_t nbytes)
    : resources_(std::move(resources)),
      file_(std::move(file)),
      context_{op, file_->path(), offset, nbytes},
      cancelled_error_(make_storage_error(context_, ECANCELED).clone()),
      memory_error_(std::make_shared<AllocationError>(context_.op + " of " + context_.path +
                                                      " failed: out of memory.")) {}

void Transfer::start(const std::shared_ptr<Transfer>& transfer) {
  transfer->file_->begin_use();
  const std::size_t num_jobs = transfer->num_jobs();
  if (num_jobs == 0) return transfer->conclude();
  transfer->unfinished_.store(num_jobs);
  transfer->resources_.threads->submit(transfer);
}

bool Transfer::has_ended() const {
  const std::lock_guard lock(mutex_);
  return has_ended_;
}

bool Transfer::wait_for(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, timeout, [this] { return has_ended_; });
}

void Transfer::cancel() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (has_ended_) return;
    is_cancelled_ = true;
  }
  is_dropping_.store(true);
  jobs_ended(resources_.threads->withdraw(*this));
}

void Transfer::result() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return has_ended_; });
  const std::shared_ptr<const Error> failure = failure_;
  lock.unlock();
  if (failure != nullptr) failure->raise();
}

const std::vector<std::uint32_t>& Transfer::extent_crcs() {
  return require(extent_crcs_or_null(), "extent_crcs");
}

const std::vector<std::uint32_t>& Transfer::chunk_crcs() {
  return require(chunk_crcs_or_null(), "chunk_crcs");
}

const std::vector<std::uint32_t>& Transfer::require(const std::vector<std::uint32_t>* crcs,
                                                    const char* field) {
  if (crcs == nullptr) throw ConfigError("a " + context_.op + " computes no " + field + ".", field);
  result();
  return *crcs;
}

void Transfer::add_done(const IoTally& tally) noexcept {
  buffered_bytes_.fetch_add(tally.buffered_bytes, std::memory_order_relaxed);
  direct_bytes_.fetch_add(tally.direct_bytes, std::memory_order_relaxed);
  cufile_bytes_.fetch_add(tally.cufile_bytes, std::memory_order_relaxed);
  done_bytes_.fetch_add(tally.buffered_bytes + tally.direct_bytes + tally.cufile_bytes,
                        std::memory_order_relaxed);
}

/// Runs `work` and turns whatever it throws into the failure of the transfer: nothing may leave a
/// thread of the pool.
template <typename Work>
void Transfer::guard(Work&& work) noexcept {
  try {
    try {
      work();
    } catch (const Error& error) {
      fail(error.clone());
    } catch (const std::bad_alloc&) {
      fail(memory_error_);
    } catch (const std::exception& error) {
      fail(std::make_shared<InternalError>(context_.op + " of " + context_.path +
                                           " failed inside the engine: " + error.what()));
    }
  } catch (...) {
    fail(memory_error_);  // the error itself could not be copied
  }
}

void Transfer::fail(std::shared_ptr<const Error> error) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (failure_ == nullptr) failure_ = std::move(error);
  }
  is_dropping_.store(true);
  // The failed job itself has not been counted yet, so this can't be the end.
  const std::size_t num_dropped = resources_.threads->withdraw(*this);
  unfinished_.fetch_sub(num_dropped);
}

void Transfer::run_job(std::size_t index) noexcept {
  if (!is_dropping_.load())
    guard([&] {
      run_window(index);
      note_done(index);
    });
  jobs_ended(1);
}

void Transfer::note_done(std::size_t index) {
  const std::lock_guard lock(prefix_mutex_);
  done_jobs_.insert(index);
  for (auto first = done_jobs_.begin(); first != done_jobs_.end() && *first == num_prefix_jobs_;
       first = done_jobs_.erase(first))
    ++num_prefix_jobs_;
}

std::uint64_t Transfer::prefix_bytes() const {
  const std::lock_guard lock(prefix_mutex_);
  return window_offset(num_prefix_jobs_);
}

void Transfer::jobs_ended(std::size_t num_jobs) noexcept {
  if (num_jobs > 0 && unfinished_.fetch_sub(num_jobs) == num_jobs) conclude();
}

void Transfer::conclude() noexcept {
  if (!is_dropping_.load()) guard([this] { finish(); });
  file_->end_use();
  // Notified under the lock: the waiter may destroy the transfer as soon as it can see the end.
  const std::lock_guard lock(mutex_);
  if (failure_ == nullptr && is_cancelled_) failure_ = cancelled_error_;
  has_ended_ = true;
  ended_.notify_all();
}

}  // namespace gdsckpt
