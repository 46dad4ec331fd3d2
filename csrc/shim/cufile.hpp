#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shim/cufile_abi.hpp"

// Without these there is no cufile engine. cuFileDriverClose_v2 is not one of them: where only the
// old name is exported, that is taken.
#define GDSCKPT_CUFILE_FUNCTIONS(X) \
  X(cuFileDriverOpen)               \
  X(cuFileUseCount)                 \
  X(cuFileDriverGetProperties)      \
  X(cuFileGetVersion)               \
  X(cuFileSetParameterSizeT)        \
  X(cuFileSetParameterBool)         \
  X(cuFileHandleRegister)           \
  X(cuFileHandleDeregister)         \
  X(cuFileRead)                     \
  X(cuFileWrite)

// Without these it cannot be shown which way the bytes go.
#define GDSCKPT_CUFILE_STATS_FUNCTIONS(X) \
  X(cuFileSetStatsLevel)                  \
  X(cuFileStatsStart)                     \
  X(cuFileGetStatsL3)

namespace gdsckpt {

/// The oldest library that can be used: parameters can be set since 1.14, and which way the bytes
/// go can be counted since 1.15. Source: the headers of the wheels 1.13 to 1.20.
inline constexpr int kOldestCuFile = 1150;

/// cuFile's functions, loaded at run time; tests fill one with their own. Any thread may call.
struct CuFileApi {
#define GDSCKPT_CUFILE_MEMBER(name) decltype(&::name) name = nullptr;
  GDSCKPT_CUFILE_FUNCTIONS(GDSCKPT_CUFILE_MEMBER)
  GDSCKPT_CUFILE_STATS_FUNCTIONS(GDSCKPT_CUFILE_MEMBER)  // nullptr where it is missing
  GDSCKPT_CUFILE_MEMBER(cuFileDriverClose_v2)
#undef GDSCKPT_CUFILE_MEMBER

  std::string path;  ///< the library
  int version = 0;   ///< 1000 * major + 10 * minor
};

/// What became of loading the library: `api`, or the reason why there is none.
struct CuFileState {
  const CuFileApi* api = nullptr;  ///< lives for ever
  std::string reason;
};

/// Name that programs link with.
inline constexpr const char* kCuFileSoname = "libcufile.so.0";

/// Loads the library, once for the process; later calls give the same state, whatever they ask for.
/// Opens no driver. In a forked child of a process that did, the state is a reason.
///
/// `candidates`: paths and names to try, in this order; where kCuFileSoname is one of them, a
/// library that the process has loaded under that name already comes first, so that there are never
/// two drivers in one process.
const CuFileState& load_cufile(const std::vector<std::string>& candidates = {kCuFileSoname});

/// Which way requests went, as the library counts them, all GPUs together.
struct CuFileCounts {
  std::uint64_t p2p = 0;
  std::uint64_t nvfs = 0;
  std::uint64_t posix = 0;
  std::uint64_t errors = 0;
};
struct CuFileStats {
  CuFileCounts reads;
  CuFileCounts writes;
};

/// Sums up what cuFileGetStatsL3 of library `version` has left in `buffer`, which was zeroed and
/// has kStatsBufferBytes.
CuFileStats parse_cufile_stats(const std::uint8_t* buffer, int version) noexcept;

/// Room for more than any version has needed (5 112 bytes): the structure has grown before.
inline constexpr std::size_t kStatsBufferBytes = 32 * 1024;

}  // namespace gdsckpt
