#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace gdsckpt {

/// A numbered set of jobs. Jobs are not objects: 45 GB are 2 700 of them, and more may be queued.
class JobSource {
 public:
  virtual ~JobSource() = default;
  virtual std::size_t num_jobs() const noexcept = 0;
  /// Runs job `index`, in a thread of the pool; several at a time.
  virtual void run_job(std::size_t index) noexcept = 0;
};

/// Threads that take jobs in order: all of the first source, then of the next one. They block all
/// signals, so that Python's handlers run in Python's threads. Any thread may call.
class ThreadPool {
 public:
  /// Starts the threads. Throws ConfigError for 0, AllocationError when the kernel refuses one.
  explicit ThreadPool(std::size_t num_threads);
  /// As `stop`. Not to be run in a forked child: the owner leaks the pool there.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Queues a source, which is kept alive until its jobs have been started, run or withdrawn.
  void submit(std::shared_ptr<JobSource> source);
  /// Takes the jobs of `source` that have not been started off the queue; returns their number.
  std::size_t withdraw(const JobSource& source) noexcept;
  /// Runs what is queued, then joins the threads. Does nothing the second time.
  void stop() noexcept;

 private:
  struct Entry {
    std::shared_ptr<JobSource> source;
    std::size_t next_job;
  };
  void start_threads(std::size_t num_threads);
  void work() noexcept;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> queue_;
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace gdsckpt
