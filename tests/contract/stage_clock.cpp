// A profiler, as far as NVTX is concerned, that makes each copy, checksum and write of gdsckpt take
// one tick of a clock of its own. Each of the three is done for one caller at a time, as by one
// copy engine, one core and one drive. The clock goes on when nobody could do anything else: when
// every thread of the process sleeps. So the time that it shows is that of the stages alone,
// however slow the machine is, and what threads do at the same tick is done at the same time.
#define NVTX_NO_IMPL
#include <dirent.h>
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

// What NVTX's handles point to, for ever: threads may use them until the process is gone.
struct nvtxDomainRegistration_st {
  std::string name;
};
struct nvtxStringRegistration_st {
  std::string text;
};

namespace {

constexpr const char* kStages[] = {"copy", "checksum", "write"};

class StageClock {
 public:
  static StageClock& get() {
    static StageClock* const clock = new StageClock;
    return *clock;
  }

  /// Does one stage's work for the calling thread, when its turn has come.
  void spend_tick(size_t stage) {
    std::unique_lock<std::mutex> lock(mutex_);
    ++num_changes_;
    changed_.wait(lock, [&] { return !is_busy_[stage]; });
    is_busy_[stage] = true;
    const long end = now_ + 1;
    ++num_sleepers_;
    changed_.wait(lock, [&] { return now_ >= end; });
    --num_sleepers_;
    ++num_done_[stage];
    is_busy_[stage] = false;
    ++num_changes_;
    changed_.notify_all();
  }

  long now() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return now_;
  }

  long num_done(size_t stage) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return num_done_[stage];
  }

 private:
  StageClock() { std::thread(&StageClock::run, this).detach(); }

  /// Goes on by a tick when it has seen all threads sleep several times, and nothing change.
  void run() {
    constexpr int kTimes = 4;
    int num_times = 0;
    long num_seen = -1;
    for (;;) {
      usleep(1000);
      const bool is_quiet = do_others_sleep();
      const std::lock_guard<std::mutex> lock(mutex_);
      num_times = is_quiet && num_seen == num_changes_ && num_sleepers_ > 0 ? num_times + 1 : 0;
      num_seen = num_changes_;
      if (num_times < kTimes) continue;
      num_times = 0;
      ++now_;
      changed_.notify_all();
    }
  }

  static bool do_others_sleep() {
    const std::string own = std::to_string(gettid());
    DIR* const tasks = opendir("/proc/self/task");
    if (tasks == nullptr) std::abort();
    bool all_sleep = true;
    while (const dirent* const task = readdir(tasks)) {
      if (task->d_name[0] == '.' || task->d_name == own) continue;
      if (state_of(task->d_name) != 'S') all_sleep = false;
    }
    closedir(tasks);
    return all_sleep;
  }

  /// The state of a thread (proc_pid_stat(5)); 'S' for one that has just gone.
  static char state_of(const char* task) {
    const std::string path = std::string("/proc/self/task/") + task + "/stat";
    std::FILE* const file = std::fopen(path.c_str(), "r");
    if (file == nullptr) return 'S';
    char text[512] = {};
    const size_t nbytes = std::fread(text, 1, sizeof text - 1, file);
    std::fclose(file);
    const char* const name_end = std::strrchr(text, ')');
    return nbytes == 0 || name_end == nullptr ? 'S' : name_end[2];
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_busy_[3] = {};
  long num_done_[3] = {};
  long now_ = 0;
  long num_changes_ = 0;
  int num_sleepers_ = 0;
};

nvtxDomainHandle_t create_domain(const char* name) { return new nvtxDomainRegistration_st{name}; }

nvtxStringHandle_t register_string(nvtxDomainHandle_t, const char* text) {
  return new nvtxStringRegistration_st{text};
}

int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  const std::string& text = attributes->message.registered->text;
  for (size_t stage = 0; domain->name == "gdsckpt" && stage < 3; ++stage) {
    if (text == kStages[stage]) StageClock::get().spend_tick(stage);
  }
  return 0;
}

template <typename Function>
void install(NvtxFunctionTable table, NvtxCallbackIdCore2 id, Function* function) {
  *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" long stage_clock_now() { return StageClock::get().now(); }

extern "C" long stage_clock_done(int stage) {
  return StageClock::get().num_done(static_cast<size_t>(stage));
}

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int num_functions = 0;
  const bool is_there =
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &num_functions) != 0 &&
      num_functions > NVTX_CBID_CORE2_DomainCreateA;
  if (!is_there) return 0;
  install(table, NVTX_CBID_CORE2_DomainCreateA, create_domain);
  install(table, NVTX_CBID_CORE2_DomainRegisterStringA, register_string);
  install(table, NVTX_CBID_CORE2_DomainRangePushEx, push);
  return 1;
}
