#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace gdsckpt {

/// What profilers show of a checkpoint: ranges of NVTX domain `gdsckpt`. Without NVTX's headers at
/// build time they do nothing; without a profiler they cost a few nanoseconds.
enum class NvtxName : std::uint8_t {
  kPlan,
  kStage,
  kCopy,
  kChecksum,
  kWrite,
  kSync,
  kCommit,
  kUpload,
  kRead,
};

/// As profilers show them, in the order of `NvtxName`.
constexpr std::array<const char*, 9> kNvtxNames{"plan", "stage",  "copy",   "checksum", "write",
                                                "sync", "commit", "upload", "read"};

/// The name that is spelt `text`, if any.
std::optional<NvtxName> find_nvtx_name(std::string_view text) noexcept;

/// Whether the ranges were compiled.
bool nvtx_is_compiled() noexcept;

/// Opens a range in the calling thread; `nbytes`, its payload, is left out when 0. Ranges of a
/// thread nest. The first call in the process looks for a profiler, as NVTX does everywhere.
void nvtx_push(NvtxName name, std::uint64_t nbytes) noexcept;
/// Closes the range that the calling thread opened last.
void nvtx_pop() noexcept;

/// A range from construction to the end of the scope, in one thread.
class NvtxRange {
 public:
  NvtxRange(NvtxName name, std::uint64_t nbytes) noexcept { nvtx_push(name, nbytes); }
  ~NvtxRange() { nvtx_pop(); }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace gdsckpt
