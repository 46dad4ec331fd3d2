#include "engine/cufile_path.hpp"

#include <unistd.h>

#include <string>

#include "core/nvtx.hpp"
#include "engine/cufile_io.hpp"
#include "engine/cufile_policy.hpp"
#include "engine/device.hpp"

namespace gdsckpt {
namespace {

std::uint64_t page_bytes() noexcept {
  static const auto bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

CuFilePath::CuFilePath(File& file, const std::vector<Extent>& extents, const DeviceStreams& streams)
    : file_(file), extents_(extents), streams_(streams) {
  if (file_.cufile() == nullptr || streams_.empty()) return;
  alignment_ = cufile_alignment(page_bytes(), file_.alignment());
  is_fit_.reserve(extents.size());
  for (const Extent& extent : extents) {
    bool is_fit = !extent.is_host() && extent.nbytes >= kCuFileLeastBytes;
    if (is_fit) {
      const std::string reason = cufile_unfit(Device::get(extent.device), extent);
      is_fit = reason.empty();
      if (!is_fit) file_.skip_cufile(reason);
    }
    is_fit_.push_back(is_fit);
  }
}

FileRange CuFilePath::interior(const Piece& piece) const noexcept {
  const Extent& extent = extents_[piece.extent];
  if (!is_fit_[piece.extent]) return {piece.begin, piece.begin};
  return cufile_interior({piece.begin, piece.end},
                         extent.address + (piece.begin - extent.file_offset), alignment_);
}

std::uint64_t CuFilePath::write(const Extent& extent, FileRange range) {
  CuFileHandle* const handle = file_.cufile();
  if (handle == nullptr) return range.begin;
  wait_for_producers();
  const ContextScope scope(Device::get(extent.device));
  const NvtxRange moving(NvtxName::kWrite, range.nbytes());
  return CuFileIo(file_, *handle).write(extent.address, range.begin - extent.file_offset, range);
}

std::uint64_t CuFilePath::read(const Extent& extent, FileRange range) {
  CuFileHandle* const handle = file_.cufile();
  if (handle == nullptr) return range.begin;
  wait_for_producers();
  const ContextScope scope(Device::get(extent.device));
  const NvtxRange moving(NvtxName::kRead, range.nbytes());
  return CuFileIo(file_, *handle).read(extent.address, range.begin - extent.file_offset, range);
}

void CuFilePath::wait_for_producers() {
  const std::lock_guard lock(mutex_);
  if (has_waited_) return;
  streams_.wait_for_producers();
  has_waited_ = true;
}

std::vector<FileRange> ranges_outside(FileRange window, const std::vector<FileRange>& taken) {
  std::vector<FileRange> ranges;
  std::uint64_t position = window.begin;
  for (const FileRange range : taken) {
    if (position < range.begin) ranges.push_back({position, range.begin});
    position = range.end;
  }
  if (position < window.end) ranges.push_back({position, window.end});
  return ranges;
}

}  // namespace gdsckpt
