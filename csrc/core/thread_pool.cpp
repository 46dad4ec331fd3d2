#include "core/thread_pool.hpp"

#include <pthread.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/signal_block.hpp"

namespace gdsckpt {

ThreadPool::ThreadPool(std::size_t num_threads) {
  if (num_threads == 0) throw ConfigError("io_threads is 0; at least 1 is needed.", "io_threads");
  try {
    start_threads(num_threads);
  } catch (const std::system_error& error) {
    stop();
    throw AllocationError("starting " + std::to_string(num_threads) +
                          " I/O threads failed: " + error.what() +
                          ". Lower io_threads or raise the limit on threads (ulimit -u).");
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::start_threads(std::size_t num_threads) {
  const SignalBlock block;
  threads_.reserve(num_threads);
  for (std::size_t i = 0; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
}

void ThreadPool::submit(std::shared_ptr<JobSource> source) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(Entry{std::move(source), 0});
  }
  changed_.notify_all();
}

std::size_t ThreadPool::withdraw(const JobSource& source) noexcept {
  std::shared_ptr<JobSource> dropped;  // released after the lock: it may be the last owner
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(queue_.begin(), queue_.end(), [&source](const Entry& entry) {
    return entry.source.get() == &source;
  });
  if (found == queue_.end()) return 0;
  const std::size_t num_dropped = source.num_jobs() - found->next_job;
  dropped = std::move(found->source);
  queue_.erase(found);
  return num_dropped;
}

void ThreadPool::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void ThreadPool::work() noexcept {
  // Seen in top, gdb and profilers; a name of at most 15 bytes can't be refused.
  static_cast<void>(pthread_setname_np(pthread_self(), "gdsckpt-io"));
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Entry& front = queue_.front();
    std::shared_ptr<JobSource> source = front.source;
    const std::size_t job = front.next_job++;
    if (front.next_job == source->num_jobs()) queue_.pop_front();
    lock.unlock();
    source->run_job(job);
    source.reset();
    lock.lock();
  }
}

}  // namespace gdsckpt
