#include "shim/cufile.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/fork_guard.hpp"
#include "shim/cufile_result.hpp"
#include "shim/dylib.hpp"

namespace gdsckpt {
namespace {

/// Fills the table; returns the name of the first function that is missing, or an empty text.
std::string find_functions(CuFileApi& api, const Dylib& library) {
#define GDSCKPT_CUFILE_FIND(name) \
  api.name = reinterpret_cast<decltype(api.name)>(library.symbol(#name));
#define GDSCKPT_CUFILE_REQUIRE(name) \
  GDSCKPT_CUFILE_FIND(name)          \
  if (api.name == nullptr) return #name;
  GDSCKPT_CUFILE_FUNCTIONS(GDSCKPT_CUFILE_REQUIRE)
  GDSCKPT_CUFILE_STATS_FUNCTIONS(GDSCKPT_CUFILE_FIND)
#undef GDSCKPT_CUFILE_REQUIRE
#undef GDSCKPT_CUFILE_FIND
  for (const char* const name : {"cuFileDriverClose_v2", "cuFileDriverClose"}) {
    api.cuFileDriverClose_v2 =
        reinterpret_cast<decltype(api.cuFileDriverClose_v2)>(library.symbol(name));
    if (api.cuFileDriverClose_v2 != nullptr) return "";
  }
  return "cuFileDriverClose";
}

std::string too_old(const CuFileApi& api, const std::string& why) {
  return "cuFile " + api.path + " is too old: " + why + ". 1.15 (CUDA 13.0) or newer is needed";
}

/// With the library that the process has already, if it may be taken, before all others.
std::vector<std::string> with_loaded_first(std::vector<std::string> candidates) {
  const bool may_share =
      std::find(candidates.begin(), candidates.end(), kCuFileSoname) != candidates.end();
  // Not closed again: that would only count down, and the library is never to go.
  if (may_share && dlopen(kCuFileSoname, RTLD_NOW | RTLD_NOLOAD) != nullptr)
    candidates.insert(candidates.begin(), kCuFileSoname);
  return candidates;
}

CuFileState load(const std::vector<std::string>& candidates) {
  const Dylib library = Dylib::open(with_loaded_first(candidates));
  if (!library.is_loaded()) return {nullptr, "no cuFile: " + library.reason()};
  static CuFileApi api;
  api.path = library.path();
  // The version first: it tells more than the name of a function.
  api.cuFileGetVersion =
      reinterpret_cast<decltype(api.cuFileGetVersion)>(library.symbol("cuFileGetVersion"));
  if (api.cuFileGetVersion == nullptr) return {nullptr, too_old(api, "it tells no version")};
  const CUfileError_t status = api.cuFileGetVersion(&api.version);
  if (!is_success(status)) return {nullptr, "cuFileGetVersion failed: " + describe(status)};
  if (api.version < kOldestCuFile)
    return {nullptr, too_old(api, "version " + std::to_string(api.version / 1000) + "." +
                                      std::to_string(api.version % 1000 / 10))};
  const std::string missing = find_functions(api, library);
  if (!missing.empty()) return {nullptr, too_old(api, "it has no " + missing)};
  return {&api, ""};
}

}  // namespace

const CuFileState& load_cufile(const std::vector<std::string>& candidates) {
  static const ForkGuard owner;
  static const CuFileState forked{nullptr,
                                  "cuFile was loaded before this process was forked; start worker "
                                  "processes with spawn, or before the first use of a GPU"};
  if (owner.is_forked_child()) return forked;
  static const CuFileState state = load(candidates);
  return state;
}

CuFileStats parse_cufile_stats(const std::uint8_t* buffer, int version) noexcept {
  // cuFileReadv and cuFileWritev came with 1.19, and their counters into level 1, before these.
  // Source: the headers of the wheels 1.15 to 1.20.
  const std::size_t head_bytes = version >= 1190 ? 1136 : 1024;
  constexpr std::uint32_t kMaxGpus = 16;
  std::uint32_t num_gpus = 0;
  std::memcpy(&num_gpus, buffer + head_bytes, sizeof(num_gpus));
  const std::uint8_t* at = buffer + head_bytes + sizeof(std::uint64_t);
  CuFileStats stats;
  for (std::uint32_t i = 0; i < std::min(num_gpus, kMaxGpus); ++i) {
    CUfilePerGpuStats_t gpu;
    std::memcpy(&gpu, at, sizeof(gpu));
    at += sizeof(gpu);
    stats.reads.p2p += gpu.n_p2p_reads;
    stats.reads.nvfs += gpu.n_nvfs_reads;
    stats.reads.posix += gpu.n_posix_reads;
    stats.reads.errors += gpu.n_reads_err;
    stats.writes.p2p += gpu.n_p2p_writes;
    stats.writes.nvfs += gpu.n_nvfs_writes;
    stats.writes.posix += gpu.n_posix_writes;
    stats.writes.errors += gpu.n_writes_err;
  }
  return stats;
}

}  // namespace gdsckpt
